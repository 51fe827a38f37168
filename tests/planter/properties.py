"""The part of a message's properties that promises depend on: docs/formats.md, "meta", with AMQP's content header.

    meta: exchange and routing key (short strings), property flags (u2 each, big endian), property list
"""

import struct

# AMQP 0-9-1's basic properties, from the highest bit of the flags on: their types
NAMES = (("content_type", "s"), ("content_encoding", "s"), ("headers", "t"), ("delivery_mode", "o"), ("priority", "o"),
         ("correlation_id", "s"), ("reply_to", "s"), ("expiration", "s"), ("message_id", "s"), ("timestamp", "q"),
         ("type", "s"), ("user_id", "s"), ("app_id", "s"), ("cluster_id", "s"))


def _short(octets, at):
    end = at + 1 + octets[at]
    return bytes(octets[at + 1:end]), end


def places(meta):
    """name -> (begin, end) of the octets of each property that is there."""
    at = _short(meta, _short(meta, 0)[1])[1]
    (flags,) = struct.unpack_from(">H", meta, at)
    at += 2
    found = {}
    for bit, (name, kind) in enumerate(NAMES):
        if not flags & 0x8000 >> bit:
            continue
        if kind == "s":
            end = at + 1 + meta[at]
        elif kind == "t":
            end = at + 4 + int.from_bytes(meta[at:at + 4])
        else:
            end = at + (1 if kind == "o" else 8)
        found[name] = at, end
        at = end
    return found


def expiration_ms(meta):
    """The time to live that the publisher gave; None: none, or the properties cannot be read."""
    try:
        place = places(meta).get("expiration")
    except (IndexError, struct.error):
        return None
    if place is None:
        return None
    text = meta[place[0] + 1:place[1]]
    return int(text) if text.isdigit() else None


def priority(meta):
    """The message's priority; 0: none, or the properties cannot be read."""
    try:
        place = places(meta).get("priority")
        return meta[place[0]] if place is not None else 0
    except (IndexError, struct.error):
        return 0


_FIXED = {b"t": 1, b"b": 1, b"B": 1, b"s": 2, b"u": 2, b"I": 4, b"i": 4, b"f": 4, b"l": 8, b"L": 8, b"d": 8, b"T": 8,
          b"D": 5, b"V": 0}


def header(meta, name):
    """The value of a header that is text, as octets, or a number of 8 octets; None: there is none such, or the
    properties cannot be read."""
    try:
        place = places(meta).get("headers")
    except (IndexError, struct.error):
        return None
    if place is None:
        return None
    at, end = place[0] + 4, place[1]
    while at < end:
        key, at = _short(meta, at)
        kind, at = meta[at:at + 1], at + 1
        length = _FIXED.get(kind)
        if length is None:
            length, at = int.from_bytes(meta[at:at + 4]), at + 4
        if key == name.encode():
            value = bytes(meta[at:at + length])
            return value if kind == b"S" else int.from_bytes(value) if kind in b"lL" else None
        at += length
    return None


def with_expiration(meta, milliseconds):
    """The meta with another time to live in place of the one that it has."""
    begin, end = places(meta)["expiration"]
    text = str(milliseconds).encode()
    return meta[:begin] + bytes([len(text)]) + text + meta[end:]
