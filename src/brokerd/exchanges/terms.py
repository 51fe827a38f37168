"""Values as RabbitMQ's reply texts show them: Erlang terms.

Knows nothing of the meaning of a value.
"""

from typing import Any

from brokerd.wire.values import type_name

_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f", "\v": "\\v", "\x1b": "\\e",
            '"': '\\"', "\\": "\\\\"}  # fmt: skip


def format_amqp_term(value: Any) -> str:
    """``value`` as Erlang prints it; types that Erlang does not have, such as AMQP's decimal, as Python prints them."""
    if isinstance(value, str):
        if not _is_printable(value):
            return format_amqp_term(value.encode("utf-8", "surrogateescape"))
        if not value:
            return "<<>>"
        return f'<<"{_escaped(value)}">>' if value.isascii() else f'<<"{_escaped(value)}"/utf8>>'
    if isinstance(value, bytes):
        return f"<<{','.join(map(str, value))}>>"
    if value is None:
        return "undefined"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(f'{{{type_name(item)},{format_amqp_term(item)}}}' for item in value)}]"
    if isinstance(value, dict):
        fields = [f"{{{format_amqp_term(name)},{type_name(item)},{format_amqp_term(item)}}}"
                  for name, item in value.items()]  # fmt: skip
        return f"[{','.join(fields)}]"
    return str(value)


def char_list(text: str) -> str:
    """A list of characters as Erlang prints it: ``"s"``, or ``[1]`` if one of them is not printable."""
    return f'"{_escaped(text)}"' if _is_printable(text) else f"[{','.join(str(ord(letter)) for letter in text)}]"


def _is_printable(text: str) -> bool:
    """Erlang shows letters of Latin-1 only."""
    return all(letter in _ESCAPES or " " <= letter < "\x7f" or "\xa0" <= letter <= "\xff" for letter in text)


def _escaped(text: str) -> str:
    return "".join([_ESCAPES.get(letter, letter) for letter in text])
