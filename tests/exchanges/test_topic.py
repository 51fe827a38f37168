"""Topic patterns: against a naive matcher, RabbitMQ's corners, and what lookups may cost."""

import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.exchanges.destinations import queues
from tests.exchanges.naive import split, topic_matches

from brokerd.exchanges import TopicExchange, topic
from brokerd.wire.properties import Properties

PATTERN = st.lists(st.sampled_from(["a", "b", "", "*", "#"]), max_size=6).map(".".join)
KEY = st.lists(st.sampled_from(["a", "b", "", "*", "#"]), max_size=6).map(".".join)


def bound(patterns):
    exchange, ends = TopicExchange("x"), queues(len(patterns))
    for end, pattern in zip(ends, patterns, strict=True):
        exchange.bind(end, pattern)
    return exchange, ends


def routed(patterns, key):
    exchange, ends = bound(patterns)
    found = set(exchange.destinations(key, Properties))
    return [pattern for end, pattern in zip(ends, patterns, strict=True) if end in found]


def matching(patterns, key):
    return [pattern for pattern in patterns if topic_matches(split(pattern), split(key))]


LONG_KEY = st.lists(st.sampled_from(["a", "b", ""]), max_size=30).map(".".join)


@settings(max_examples=500)
@given(patterns=st.lists(PATTERN, max_size=15), key=KEY)
def test_the_trie_finds_what_matching_each_pattern_finds(patterns, key):
    assert routed(patterns, key) == matching(patterns, key)


CHANGES = st.lists(st.one_of(
    st.tuples(st.just("bind"), PATTERN), st.tuples(st.just("unbind"), PATTERN), st.tuples(st.just("ask"), LONG_KEY),
), max_size=30)


@settings(max_examples=300)
@given(changes=CHANGES, large=st.sampled_from([1, 3]), most=st.sampled_from([0, 1, 32]),
       huge=st.sampled_from([1, 2, 4, 2048]), gone=st.sampled_from([-1, 0, 1024]))
def test_it_finds_the_same_where_it_remembers_what_words_have_led_to(changes, large, most, huge, gone):
    exchange, ends, patterns = TopicExchange("x"), {}, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topic, "_LARGE", large)
        patch.setattr(topic, "_HUGE", huge)
        patch.setattr(topic, "_REMEMBERED_MOST", most)
        patch.setattr(topic, "_NUMBERED_FROM", huge)
        patch.setattr(topic, "_GONE_MOST", gone)
        for change, text in changes:
            if change == "ask":
                found = set(exchange.destinations(text, Properties))
                assert {pattern for pattern in patterns if ends[pattern] in found} == set(matching(patterns, text))
            elif change == "bind" and text not in patterns:
                patterns.append(text)
                ends[text] = ends.get(text) or queues(1)[0]
                exchange.bind(ends[text], text)
            elif change == "unbind" and text in patterns:
                patterns.remove(text)
                exchange.unbind(ends[text], text)


@pytest.mark.parametrize(
    ("pattern", "key", "expected"),
    [
        ("#", "", True),
        ("*", "", False),
        ("", "", True),
        ("", "a", False),
        ("a.#", "a", True),
        ("#.a", "a", True),
        ("#.#", "", True),
        ("*", ".", False),
        ("*.*", ".", True),
        ("a.*.b", "a..b", True),
        ("*.#", "", False),
        ("#.*", "a", True),
        ("a.#.b.#.c", "a.b.b.x.c", True),
        ("a.#.b.#.c", "a.x.c", False),
        ("a*", "ab", False),
        ("a*", "a*", True),
        ("*.b", "*.b", True),
    ],
)
def test_a_pattern_takes_the_keys_that_rabbitmq_lets_it(pattern, key, expected):
    assert bool(routed([pattern], key)) is expected


class Counted(str):
    """A word that counts how often it is looked up."""

    __slots__ = ()
    asked = 0

    def __hash__(self):
        Counted.asked += 1
        return super().__hash__()


def lookups(exchange, words):
    Counted.asked = 0
    exchange._found([Counted(word) for word in words])
    return Counted.asked


def test_many_hashes_cost_no_more_than_words_times_places():
    exchange, (queue,) = TopicExchange("x"), queues(1)
    exchange.bind(queue, ".".join(["#", "a"] * 60 + ["b"]))
    words = ["a"] * 128
    assert list(exchange.destinations(".".join([*words, "b"]), Properties)) == [queue]
    assert lookups(exchange, words) <= 128 * 122


WILD = [".".join("#*a"[number // 3 ** at % 3] for at in range(5)) for number in range(3 ** 5)]
SMALL_SETS = 2  # that the first words of a key lead to among these: they are not remembered


def steps(exchange, key):
    """How often places were stepped from for a key."""
    count = 0
    step = topic._step
    with pytest.MonkeyPatch.context() as patch:
        def counted(places, word):
            nonlocal count
            count += 1
            return step(places, word)
        patch.setattr(topic, "_step", counted)
        exchange.destinations(key, Properties)
    return count


def test_words_that_no_pattern_has_are_looked_up_as_one():
    exchange, _ = bound(WILD)
    assert steps(exchange, ".".join(f"w{number}" for number in range(77))) < 10
    assert steps(exchange, ".".join(f"v{number}" for number in range(100))) <= SMALL_SETS


def test_what_words_led_to_is_forgotten_when_a_pattern_comes_or_goes():
    exchange, ends = bound(WILD)
    key = ".".join("wxyz")
    assert steps(exchange, key) > SMALL_SETS >= steps(exchange, key)
    exchange.bind(ends[0], "x.#")
    assert steps(exchange, key) > SMALL_SETS >= steps(exchange, key)
    exchange.unbind(ends[0], "x.#")
    assert steps(exchange, key) > SMALL_SETS


def test_what_words_led_to_is_forgotten_when_it_is_too_much():
    exchange, _ = bound(WILD)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topic, "_REMEMBERED_MOST", 1)
        assert steps(exchange, "x.a.x.a") > SMALL_SETS < steps(exchange, "x.a.x.a")
        assert exchange._memory._held <= max(exchange._memory._most, len(WILD))


def test_no_word_is_followed_from_very_many_places():
    """Patterns that lead each key to another set of them at each word."""
    chance = random.Random(1)
    exchange, _ = bound([".".join(chance.choice("#*a") for _ in range(30)) for _ in range(600)])
    keys = [".".join(chance.choice("ab") for _ in range(127)) for _ in range(3)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topic, "_HUGE", 1 << 30)
        expected = [set(exchange.destinations(key, Properties)) for key in keys]
    followed, step = [], topic._step
    exchange._memory = None
    with pytest.MonkeyPatch.context() as patch:
        def noted(places, word):
            followed.append(len(places))
            return step(places, word)
        patch.setattr(topic, "_step", noted)
        assert [set(exchange.destinations(key, Properties)) for key in keys] == expected
    assert topic._LARGE < max(followed) < topic._HUGE


def test_a_lookup_takes_the_same_steps_among_a_hundred_times_the_bindings():
    small, big, (queue,) = TopicExchange("x"), TopicExchange("y"), queues(1)
    for exchange, count in ((small, 10), (big, 1000)):
        for number in range(count):
            exchange.bind(queue, f"shop{number}.*.#")
    words = ["shop3", "x", "y"]
    assert lookups(small, words) == lookups(big, words)


@settings(max_examples=300)
@given(patterns=st.lists(PATTERN, max_size=15), keys=st.lists(LONG_KEY, min_size=1, max_size=4, unique=True),
       large=st.sampled_from([1, 3, 32]), most=st.sampled_from([0, 1, 32]))
def test_several_keys_lead_where_each_of_them_leads(patterns, keys, large, most):
    exchange, ends = bound(patterns)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topic, "_LARGE", large)
        patch.setattr(topic, "_REMEMBERED_MOST", most)
        found = list(exchange.destinations_of_keys(keys, Properties))
        each = {end for key in keys for end in exchange.destinations(key, Properties)}
    assert len(found) == len(set(found))
    assert set(found) == each
    assert [pattern for end, pattern in zip(ends, patterns, strict=True) if end in each] == [
        pattern for pattern in patterns if any(topic_matches(split(pattern), split(key)) for key in keys)]


def test_a_place_that_many_keys_lead_to_is_asked_for_its_destinations_once():
    exchange, ends = bound(["#"] * 50)
    asked = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topic, "_bound_at", lambda places: asked.extend(places) or list(ends))
        assert list(exchange.destinations_of_keys([str(number) for number in range(100)], Properties)) == ends
    assert len(asked) == 1


def test_each_word_of_a_pattern_takes_no_more_memory_than_the_page_of_limits_says():
    exchange, (end,) = TopicExchange("x"), queues(1)
    long = [".".join([f"{number}", *"a" * 117, "*"]) for number in range(200)]
    short = [f"{number}.*" for number in range(200, 400)]
    taken = []
    for patterns in (short, long):
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for pattern in patterns:
            exchange.bind(end, pattern)
        taken.append((tracemalloc.get_traced_memory()[0] - before) / len(patterns))
        tracemalloc.stop()
    assert taken[1] - taken[0] <= 117 * 0.3 * 1024
