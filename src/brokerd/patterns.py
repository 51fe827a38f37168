"""The regular expressions of permissions and policies: operators write them, and clients' names are matched with them.

RabbitMQ has Erlang's ``re`` (PCRE), which for some expressions takes time that is exponential in the name.  RE2 takes
time that is linear in it.  This module translates expressions that PCRE writes in another way, and refuses those that
RE2 cannot express: back references, atomic groups, and looking ahead or behind.  One common form of looking ahead is
possible: conditions on the whole name, as in ``^(?!amq\\.).*``.  As in RabbitMQ, a character is one octet of a name's
UTF-8.  It knows no permissions and no policies.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from brokerd.errors import BrokerError

LENGTH_MAX = 4096  # characters of an expression
CONDITIONS_MAX = 16
MEMORY_OCTETS = 1 << 20  # of one compiled expression: bounds the time of one search, too
# What RE2 would spend 10 ms and more on is refused before it is compiled.
REPEATED_MAX = 1500  # parts of an expression that {2,9} and the like repeat, written out
CLASSES_MAX = 64  # of Unicode: \\pL

# What PCRE means by these escapes, where RE2 does not know them or means something else: by itself, and in brackets.
ESCAPES = {
    "\\h": "[ \\t\\xa0]",
    "\\v": "[\\n\\x0b\\f\\r\\x85]",
    "\\s": "[\\s\\x0b]",
    "\\S": "[^\\s\\x0b]",
    "\\R": "(?:\\r\\n|[\\n\\x0b\\f\\r\\x85])",
    "\\e": "\\x1b",
    "\\Z": "(?:\\n?\\z)",
    "$": "(?:\\n?\\z)",
}
ESCAPES_IN_BRACKETS = {"\\h": " \\t\\xa0", "\\v": "\\n\\x0b\\f\\r\\x85", "\\s": "\\s\\x0b", "\\e": "\\x1b"}
LOOKAHEADS = {"(?=": True, "(?!": False}
REASONS = {  # RE2's words -> ours
    "invalid perl operator: (?=": "looking ahead ('(?=') is possible only right behind the first '^'",
    "invalid perl operator: (?!": "looking ahead ('(?!') is possible only right behind the first '^'",
    "invalid perl operator: (?<": "looking behind is not possible",
    "invalid perl operator: (?>": "atomic groups are not possible",
    "invalid perl operator: ": "not possible: ",
    "bad repetition operator: ": "not possible: ",
    "pattern too large": "too large",
}
_START = re.compile(r"(\(\?[is]+\))?\^")
_REPEATED = re.compile(r"[*+?]|\{[0-9]*,?[0-9]*\}")
_POSIX_CLASS = re.compile(r"\[:\^?[a-z]+:\]")
_COUNTED = re.compile(r"\{([0-9]+)(,?)([0-9]*)\}")
_UNICODE_CLASS = re.compile(r"\\[pP]")
_ANY_CASE = re.compile(r"\(\?[a-zA-Z]*i")
_MANY_LINES = re.compile(r"\(\?[a-zA-Z]*m")

Search = Callable[[str], bool]


class PatternError(BrokerError):
    """An expression that is faulty or cannot be searched for in linear time; the text says why."""


class Condition(NamedTuple):
    """Names must match the expression, or must not."""

    wanted: bool
    expression: Any  # of RE2


def compiled(pattern: str) -> Search:
    """The function that tells whether ``pattern`` matches anywhere in a name.  Raises PatternError."""
    if pattern == ".*":
        return _always
    if len(pattern) > LENGTH_MAX:
        raise PatternError(f"longer than {LENGTH_MAX} characters")
    if _MANY_LINES.search(pattern):
        raise PatternError("not possible: (?m")
    _check_cost(pattern)
    conditions = _conditions(pattern)
    if len(conditions) == 1:
        expression = conditions[0].expression
        return lambda name: expression.search(_octets(name)) is not None
    return lambda name: all((each.expression.search(_octets(name)) is not None) is each.wanted for each in conditions)


def expanded(pattern: str, names: dict[str, str]) -> str:
    """The pattern with each ``{variable}`` replaced by its name, in which no character has a meaning of its own."""
    parts: list[str] = []
    plain = ""
    for token in _tokens(pattern):
        if not token.startswith("\\Q"):
            plain += token
            continue
        parts.append(_replaced(plain, names, _literal))
        parts.append(_replaced(token, names, _quoted))
        plain = ""
    return "".join(parts) + _replaced(plain, names, _literal)


def _replaced(text: str, names: dict[str, str], written: Callable[[str], str]) -> str:
    for variable, name in names.items():
        text = text.replace(f"{{{variable}}}", written(name))
    return text


def _literal(name: str) -> str:
    return "".join(char if char.isalnum() or ord(char) > 127 else f"\\x{{{ord(char):x}}}" for char in name)


def _quoted(name: str) -> str:
    """A name between ``\\Q`` and ``\\E``."""
    return name.replace("\\", "\\E\\\\\\Q")


def _always(_name: str) -> bool:
    return True


def _octets(name: str) -> bytes:
    try:
        return name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return name.encode("utf-8", "surrogatepass")


def _expression(pattern: str) -> Any:
    import re2  # A start without patterns saves the import.

    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1  # one octet, one character
    options.never_capture = True  # Captures would take time that is quadratic.
    options.log_errors = False
    options.max_mem = MEMORY_OCTETS
    try:
        return re2.compile(pattern.encode("utf-8"), options)
    except re2.error as error:
        text = error.args[0].decode("utf-8", "replace") if isinstance(error.args[0], bytes) else str(error)
    except UnicodeEncodeError:
        text = "not Unicode"
    for theirs, ours in REASONS.items():
        if text.startswith(theirs):
            text = ours + (text.removeprefix(theirs) if theirs.endswith(": ") else "")
            break
    raise PatternError(text)


def _check_cost(pattern: str) -> None:
    """Raise PatternError for an expression that would take long to compile."""
    classes = len(_UNICODE_CLASS.findall(pattern))
    if classes > CLASSES_MAX:
        raise PatternError(f"more than {CLASSES_MAX} classes of Unicode")
    if classes > 1 and _ANY_CASE.search(pattern):
        raise PatternError("more than one class of Unicode, where case does not matter")
    if "{" in pattern and _repeated_parts(pattern) > REPEATED_MAX:
        raise PatternError(f"too large: its repetitions, written out, have more than {REPEATED_MAX} parts")


def _repeated_parts(pattern: str) -> int:
    """How many characters, classes and the like a counted repetition repeats, all written out."""
    repeated, at, last = 0, 0, 1
    sizes = [0]  # of the groups that are open at this place, the innermost one last
    for token in _tokens(pattern):
        counted = _COUNTED.match(pattern, at) if token == "{" else None
        at += len(token)
        if token.startswith("(") and not token.startswith("(?#"):
            sizes.append(0)
        elif token == ")" and len(sizes) > 1:
            last = max(1, sizes.pop())
            sizes[-1] += last
        elif counted is None or pattern[max(0, counted.start() - 2) : counted.start()] in ("\\x", "\\o"):
            last = 1
            sizes[-1] += 1
        else:
            least, _, most = counted.groups()
            times = max(int(least[:5]), int(most[:5] or 0))
            more = last * max(0, times - 1) if times <= 1000 else 0  # RE2 refuses more, and names the fault.
            last += more
            sizes[-1] += more
            repeated += last
    return repeated


def _conditions(pattern: str) -> list[Condition]:
    """The conditions right behind a first ``^``, and the pattern without them as the last one."""
    start = _START.match(pattern)
    prefix = start.group() if start else ""
    tokens = [token for token in _tokens(pattern[len(prefix) :]) if not token.startswith("(?#")]
    found: list[Condition] = []
    at = 0
    while start and at < len(tokens) and tokens[at] in LOOKAHEADS:
        end = _end_of_group(tokens, at)
        if end == 0:
            break  # RE2 names the fault.
        if end < len(tokens) and _REPEATED.match("".join(tokens[end : end + 12])):
            raise PatternError("looking ahead cannot be repeated")
        if len(found) == CONDITIONS_MAX:
            raise PatternError(f"more than {CONDITIONS_MAX} conditions")
        expression = _expression(f"{prefix}(?:{_translated(tokens[at + 1 : end - 1])})")
        found.append(Condition(LOOKAHEADS[tokens[at]], expression))
        at = end
    if found and "|" in _outermost(tokens[at:]):
        found, at = [], 0  # They hold for the first branch alone: RE2 names the fault.
    return [*found, Condition(True, _expression(prefix + _translated(tokens[at:])))]


def _tokens(pattern: str) -> Iterator[str]:
    """The pattern in its smallest parts: an escape, a bracket expression, a comment, the beginning of a group, or one
    character."""
    at = 0
    while at < len(pattern):
        if pattern.startswith("\\Q", at):
            end = pattern.find("\\E", at)
            size = (len(pattern) if end < 0 else end + 2) - at
        elif pattern[at] == "\\":
            size = 2
        elif pattern[at] == "[":
            size = _bracket_length(pattern, at)
        elif pattern.startswith("(?#", at):
            size = pattern.find(")", at) + 1 - at
            size = size if size > 0 else len(pattern) - at
        elif pattern[at : at + 3] in LOOKAHEADS:
            size = 3
        else:
            size = 1
        yield pattern[at : at + size]
        at += size


def _bracket_length(pattern: str, at: int) -> int:
    """How many characters the bracket expression at ``at`` has; a first ``]`` is one of its members."""
    end = at + 1 + pattern.startswith("^", at + 1)
    end += pattern.startswith("]", end)
    while end < len(pattern) and pattern[end] != "]":
        posix = _POSIX_CLASS.match(pattern, end)
        if posix:
            end = posix.end()
        elif pattern.startswith("\\Q", end):
            raise PatternError("not possible: \\Q in brackets")
        else:
            end += 2 if pattern[end] == "\\" else 1
    return min(end + 1, len(pattern)) - at


def _end_of_group(tokens: list[str], begin: int) -> int:
    """Where the group ends that begins at ``begin``; 0: it does not end."""
    depth = 0
    for at in range(begin, len(tokens)):
        depth += tokens[at].startswith("(")
        depth -= tokens[at] == ")"
        if depth == 0:
            return at + 1
    return 0


def _outermost(tokens: list[str]) -> Iterator[str]:
    """The tokens that are in no group."""
    depth = 0
    for token in tokens:
        depth += token.startswith("(")
        if depth == 0:
            yield token
        depth -= token == ")"


def _translated(tokens: list[str]) -> str:
    """RE2's expression for tokens of PCRE."""
    return "".join(_in_brackets(token) if token.startswith("[") else ESCAPES.get(token, token) for token in tokens)


def _in_brackets(token: str) -> str:
    return re.sub(r"\\.", lambda found: ESCAPES_IN_BRACKETS.get(found.group(), found.group()), token, flags=re.DOTALL)
