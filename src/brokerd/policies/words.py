"""Why an entry of a policy file cannot be used, in words for the person who edits the file.

``keys`` and ``policies`` word refusals as RabbitMQ does, in terms of Erlang, for programs that know them.  A file is
written by hand: its reader wants to know which key is wrong, what its value may be, and which key was perhaps meant.
Is imported at the first fault.  Knows nothing of what the keys of a definition do.
"""

from collections.abc import Mapping
from typing import Any

from brokerd.arguments import BY_NAME
from brokerd.errors import did_you_mean
from brokerd.links.uris import masked_term
from brokerd.patterns import PatternError, compiled
from brokerd.policies.keys import KEYS

VALUE_CHARACTERS_MAX = 60


def explain(entry: Mapping[str, Any], apply_to: Mapping[str, object], *, operator: bool) -> str | None:
    """The fault of the entry, which has the keys of a policy; None if this module knows no fault.

    ``apply_to``: the values that apply-to may have.
    """
    applies = entry.get("apply-to", "all")
    if not isinstance(applies, str) or applies not in apply_to:
        return f"apply-to must be one of {', '.join(apply_to)}, not {_shown(applies)}{did_you_mean(applies, apply_to)}"
    definition = entry.get("definition")
    if not isinstance(definition, dict) or not definition:
        return f'definition must be an object with settings, such as {{"max-length": 100}}, not {_shown(definition)}'
    priority = entry.get("priority", 0)
    if not isinstance(priority, int | float) or isinstance(priority, bool):
        return f"priority must be a number, not {_shown(priority)}"
    return _pattern_fault(entry.get("pattern")) or _definition_fault(definition, operator)


def _pattern_fault(pattern: Any) -> str | None:
    if not isinstance(pattern, str):
        return f"pattern must be a text, not {_shown(pattern)}"
    try:
        compiled(pattern)
    except PatternError as error:
        return f"pattern is no regular expression: {error}"
    return None


def _definition_fault(definition: Mapping[str, Any], operator: bool) -> str | None:
    refused = [key for key in definition if key not in KEYS or (operator and not KEYS[key].operator)]
    if refused:
        more = len(refused) - 1
        return _refusal(refused[0], operator) + (f" ({more} more cannot be used)" if more else "")
    for key, value in definition.items():
        if not KEYS[key].valid(value):
            return f"{key} must be {KEYS[key].rule}, not {_shown(value)}"
    return None


def _refusal(key: str, operator: bool) -> str:
    if key in KEYS:
        return f"{key} cannot be set by an operator policy, only by a policy"
    argument = key if key.startswith("x-") else f"x-{key}"
    if argument in BY_NAME and argument[2:] not in KEYS:
        return f"{key} cannot be set by a policy, only by the argument {argument} of a queue"
    known = [name for name, row in KEYS.items() if row.operator or not operator]
    what = "an operator policy" if operator else "a policy"
    return f"{_shown(key)} is no setting of {what}{did_you_mean(key, known)}"


def _shown(value: Any) -> str:
    """A value as JSON writes it, not long and without passwords; texts have the quotes of this log."""
    value = masked_term(value)
    if isinstance(value, str):
        text = f"'{value}'"
    else:
        from json import dumps

        try:
            text = dumps(value, ensure_ascii=False)
        except RecursionError:
            text = "something nested deeply"
    return text if len(text) <= VALUE_CHARACTERS_MAX else f"{text[:VALUE_CHARACTERS_MAX - 3]}..."
