"""The regular expressions of permissions and policies, which operators write and clients' names are looked up in.

RabbitMQ has Erlang's ``re`` (PCRE), which for some expressions takes time that is exponential in the name.  RE2 takes
time that is linear in it.  This module maps what PCRE writes otherwise, and refuses what RE2 cannot express: back
references, atomic groups, and looking ahead or behind.  One common form of the last is possible: conditions on the
whole name, as in ``^(?!amq\\.).*``.  It knows no permissions and no policies.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from brokerd.errors import BrokerError

MEMORY_OCTETS = 1 << 20  # of one compiled expression: bounds the time of one search, too

# PCRE's escapes that RE2 does not know, outside of brackets; \Z would also match before a newline at the end.
ESCAPES = {"\\Z": "\\z", "\\h": "[ \\t]", "\\R": "(?:\\r\\n|[\\n\\r])", "\\e": "\\x1b"}
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
    ahead, rest = _conditions(pattern)
    conditions = [*ahead, Condition(True, _expression("".join(_translated(rest))))]
    if len(conditions) == 1:
        expression = conditions[0].expression
        return lambda name: expression.search(_octets(name)) is not None
    return lambda name: all((each.expression.search(_octets(name)) is not None) is each.wanted for each in conditions)


def _always(_name: str) -> bool:
    return True


def _octets(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _expression(pattern: str) -> Any:
    import re2  # A start without patterns saves the import.

    options = re2.Options()
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


def _conditions(pattern: str) -> tuple[list[Condition], str]:
    """The conditions right behind a first ``^``, and the pattern without them."""
    found: list[Condition] = []
    start = "^" if pattern.startswith("^") else ""
    rest = pattern[len(start) :]
    while start and rest[:3] in LOOKAHEADS:
        tokens = list(_tokens(rest))
        end = _end_of_group(tokens)
        if end == 0 or "|" in _outermost(tokens[end:]):
            break  # RE2 names the fault.
        found.append(Condition(LOOKAHEADS[rest[:3]], _expression(f"^(?:{''.join(_translated(tokens[1 : end - 1]))})")))
        rest = "".join(tokens[end:])
    return found, start + rest


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
            size = _bracket_octets(pattern, at)
        elif pattern.startswith("(?#", at):
            size = pattern.find(")", at) + 1 - at
            size = size if size > 0 else len(pattern) - at
        elif pattern[at : at + 3] in LOOKAHEADS:
            size = 3
        else:
            size = 1
        yield pattern[at : at + size]
        at += size


def _bracket_octets(pattern: str, at: int) -> int:
    """How many characters the bracket expression at ``at`` has; a first ``]`` is one of its members."""
    end = at + 1 + pattern.startswith("^", at + 1)
    end += pattern.startswith("]", end)
    while end < len(pattern) and pattern[end] != "]":
        if pattern.startswith("[:", end):
            close = pattern.find(":]", end)
            end = close + 2 if close >= 0 else end + 1
        else:
            end += 2 if pattern[end] == "\\" else 1
    return min(end + 1, len(pattern)) - at


def _end_of_group(tokens: list[str]) -> int:
    """How many tokens the group has that begins with the first one; 0: it does not end."""
    depth = 0
    for number, token in enumerate(tokens, 1):
        depth += token.startswith("(") and not token.startswith("(?#")
        depth -= token == ")"
        if depth == 0:
            return number
    return 0


def _outermost(tokens: list[str]) -> Iterator[str]:
    """The tokens that are in no group."""
    depth = 0
    for token in tokens:
        depth += token.startswith("(") and not token.startswith("(?#")
        if depth == 0:
            yield token
        depth -= token == ")"


def _translated(pattern: str | list[str]) -> Iterator[str]:
    """RE2's tokens for those of PCRE."""
    for token in _tokens(pattern) if isinstance(pattern, str) else pattern:
        if not token.startswith("(?#"):
            yield ESCAPES.get(token, token)
