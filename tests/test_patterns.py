"""Regular expressions of operators: what matches, what is refused, and that no name takes long."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.patterns import PatternError, compiled, expanded


@pytest.mark.parametrize(("pattern", "yes", "no"), [
    ("orders", ["orders", "my.orders.eu"], ["order", ""]),
    ("^orders$", ["orders"], ["orders.eu", "my.orders"]),
    (".*", ["", "anything", "a\nb"], []),
    ("", ["", "anything"], []),
    ("^$", [""], ["a"]),
    ("^a.c$", ["abc", "a\udcffc", "abc\n"], ["a\nc", "ac", "aüc"]),  # A character is an octet.
    ("^a..c$", ["aüc"], ["abc"]),
    (r"^[[:alpha:]\]]+\Z", ["ab]", "]", "]\n"], ["a1", ""]),
    (r"^[[:]x$", ["[x", ":x"], ["x"]),
    (r"^\v\s\h[\v]\S$", ["\n\v\t\ra"], ["a\v\t\ra", "\n\v\t\r\v"]),
    (r"^[]a]+$", ["]a"], ["b"]),
    (r"^\d{1,3}\h\w+$", ["12 ab", "1\tx"], ["1234 a", "12ab"]),
    (r"^\Qa.(b\E$", ["a.(b"], ["axb"]),
    (r"^a(?#the first)b$", ["ab"], ["a"]),
    (r"(?i)^QUEUE-(?P<n>\d+)$", ["queue-7", "Queue-12"], ["queue-"]),
    (r"^(?<n>x)\x{41}$", ["xA"], ["x"]),
    (r"^(?:ü)+$", ["üü"], ["u"]),
    # Conditions on the whole name, as RabbitMQ's own guides have them.
    (r"^(?!amq\.).*", ["orders", "xamq.", ""], ["amq.gen-1", "amq."]),
    (r"^(?!amq\.)(?!tmp(?:-|_)).*", ["orders", "tmp"], ["amq.x", "tmp-1", "tmp_1"]),
    (r"^(?=a)(?!.*\.dlq$).*\d$", ["a1", "a.b2"], ["b1", "a", "a1.dlq"]),
    (r"^(?!a|b)(?:c|d)$", ["c", "d"], ["a", "e", "cc"]),
    (r"^(?![)(]).$", ["a"], ["(", ")"]),
    (r"^(?!\)).$", ["a", "("], [")"]),
    (r"^(?!.*secret).*", ["open"], ["secret", "\udcff.secret", "é.secret"]),
    (r"^(?![[:])(x[)])y", ["x)y"], ["y", ":x)y"]),
    (r"^(?!secret$)(?!other\Z).*", ["secrets", "secret\n\n"], ["secret", "secret\n", "other", "other\n"]),
    (r"^(?!\v)(?!\s).*", ["a"], ["\n", "\v", " "]),
    (r"(?i)^(?!AMQ\.)(?#no names of ours)(?!tmp).*X$", ["x", "axX"], ["amq.x", "TMPx", "y"]),
    (r"^(?#why)(?!a)b", ["b"], ["a"]),
])
def test_a_pattern_matches_what_it_matches_in_rabbitmq(pattern, yes, no):
    search = compiled(pattern)
    assert [name for name in [*yes, *no] if search(name)] == yes


@pytest.mark.parametrize(("pattern", "yes", "no"), [
    (r"^{user}\.", ["a.b\\E.x"], ["a.b.x", "axb\\E.x"]),
    (r"^\Q{user}\E\.", ["a.b\\E.x"], ["a.b.x", "axb\\E.x"]),
    (r"^\Qx.\E[{user}]$", ["x.a", "x.\\"], ["x.c"]),
    (r"^(?!\Q{user}\E)(?!{user}x).*", ["a.b"], ["a.b\\E.x", "a.b\\Ex"]),
])
def test_a_name_put_in_has_no_meaning_as_an_expression(pattern, yes, no):
    search = compiled(expanded(pattern, {"user": "a.b\\E"}))
    assert [name for name in [*yes, *no] if search(name)] == yes


@pytest.mark.parametrize("pattern", [
    "^.{1,255}$", r"^[a-z]{1,63}(\.[a-z]{1,63}){0,10}$", "(?:a{700}|b{700})", r"^\x{99}" * 99, r"(?i)^\p{Lu}",
    r"\pL{20}" * 64, "a{,9}{" * 99,
])
def test_what_is_quick_to_compile_is_not_called_too_large(pattern):
    assert not compiled(pattern)("")


def test_a_pattern_that_is_too_large_is_refused_before_it_is_compiled(monkeypatch):
    monkeypatch.setattr("brokerd.patterns._expression", lambda pattern: pytest.fail("compiled"))
    with pytest.raises(PatternError, match="too large"):
        compiled(".{0,1000}" * 400)


def test_a_name_that_no_octets_can_mean_is_searched_too():
    assert not compiled("a")("\ud800")


def test_a_name_that_is_not_unicode_is_searched_too():
    name = b"a\xff".decode("utf-8", "surrogateescape")
    assert compiled("^a")(name)
    assert not compiled("^b")(name)


@pytest.mark.parametrize(("pattern", "reason"), [
    ("(", "missing ): ("),
    ("[", "missing ]: ["),
    ("*", "no argument for repetition operator: *"),
    (r"(a)\1", r"invalid escape sequence: \1"),
    ("a(?!b)", "looking ahead ('(?!') is possible only right behind the first '^'"),
    ("(?=a)", "looking ahead ('(?=') is possible only right behind the first '^'"),
    ("^(?!a)b|c", "looking ahead ('(?!') is possible only right behind the first '^'"),  # of the first branch alone
    ("^(?!a", "looking ahead ('(?!') is possible only right behind the first '^'"),
    ("^(?!(a)", "looking ahead ('(?!') is possible only right behind the first '^'"),
    ("^(?!(?=a)b)c", "looking ahead ('(?=') is possible only right behind the first '^'"),
    ("(?<!a)b", "looking behind is not possible"),
    ("(?<=a)b", "looking behind is not possible"),
    ("(?>a)b", "atomic groups are not possible"),
    ("a++", "not possible: ++"),
    ("a{100000}", "invalid repetition size: {100000}"),
    ("a" * 4097, "longer than 4096 characters"),
    ("[ac]{1000}" * 300, "too large: its repetitions, written out, have more than 1500 parts"),
    (".{0,1000}" * 400, "too large: its repetitions, written out, have more than 1500 parts"),
    ("(?:.{0,30}b){0,60}", "too large: its repetitions, written out, have more than 1500 parts"),
    ("^(?!.{0,1000}a)(?!.{0,1000}b)", "too large: its repetitions, written out, have more than 1500 parts"),
    (r"\pL" * 65, "more than 64 classes of Unicode"),
    (r"(?i)[\pL\P{Nd}]", "more than one class of Unicode, where case does not matter"),
    ("^" + "(?!a)" * 17, "more than 16 conditions"),
    ("^(?!a)*b", "looking ahead cannot be repeated"),
    ("^(?!a)?b", "looking ahead cannot be repeated"),
    ("^(?!a){0,1}b", "looking ahead cannot be repeated"),
    ("^(?!a)(?#x)+b", "looking ahead cannot be repeated"),
    ("(?m)^a", "not possible: (?m"),
    (r"[\Qa\E]", r"not possible: \Q in brackets"),
    ("\ud800", "not Unicode"),
])
def test_a_pattern_that_cannot_be_searched_for_in_linear_time_is_refused_with_the_reason(pattern, reason):
    with pytest.raises(PatternError) as refused:
        compiled(pattern)
    assert str(refused.value) == reason


@pytest.mark.parametrize("pattern", [r"^(\w+\.?)+$", r"^(a|a)*$", r"^(a*)*$", r"^(?!(a*)*b)(a|aa)+$",
                                     r"(.*)(.*)(.*)(.*)(.*)(.*)x{400}$", "(a?)" * 1000 + "b", "(a*)" * 1000 + "b"])
def test_no_name_takes_a_backtracking_search(pattern):
    # With backtracking the first of these takes more than a minute for 29 characters.
    search = compiled(pattern)
    assert not search("a" * 254 + "!")


PIECES = st.sampled_from(["a", "b", ".", "\\.", "[ab]", "[^a]", "a*", "(?:a|b)", "b+", "a{2}", "(b)?", "\\w", "$", "|"])
CONDITIONS = st.sampled_from(["", "(?!a)", "(?=a|b)", "(?!b[ab]*$)", "(?!(?:ab)+)"])


@given(st.booleans(), st.lists(CONDITIONS, max_size=2), st.lists(PIECES, max_size=6), st.text("ab.", max_size=8))
def test_names_match_as_python_has_it(anchored, conditions, pieces, name):
    pattern = ("^" + "".join(conditions) if anchored else "") + "".join(pieces)
    if anchored and any(conditions) and "|" in pieces:
        with pytest.raises(PatternError, match="looking ahead"):  # The conditions hold for the first branch alone.
            compiled(pattern)
    else:
        assert compiled(pattern)(name) == (re.search(pattern, name) is not None)
