"""Files of the broker, changed at random inside, with checksums that are right again afterwards.

``changed(rng, name, octets)`` gives the new content of a file by its name.  Each kind of file in ``store/format`` has a
function here that knows where its numbers lie and which checksums cover them.  Knows nothing of folders or of a broker.
"""

import json
import re
import struct
import zlib

from tests.fuzz.talk import Talker

from brokerd.store import format as layout

NUMBERS = (0, 1, 2, 3, 7, 8, 63, 64, 65, 72, 127, 128, 255, 256, 4095, 4096, 65535, 65536, 1 << 20, (1 << 30) - 1,
           1 << 30, (1 << 31) - 1, 1 << 31, (1 << 32) - 8, (1 << 32) - 1, 1 << 32, 1 << 40, 1 << 62, (1 << 63) - 1,
           1 << 63, (1 << 64) - 8, (1 << 64) - 1)
JSON_VALUES = tuple(map(json.dumps, (
    None, True, False, 0, -1, 1, 1.5, 1 << 70, "", "a", "guest", "/", "^", "(", ".*", "x" * 5000, [], {}, [[]],
    {"a": 1}, [1, "a"], "\0", "é\ud800", "administrator", "sha256", "all", "queues")))
KINDS = ("msgs", "acks", "journal", "keys", "exchange keys", "secret", "order", "order.jsonl", "definitions",
         "shared commit log", "commit log", "connection_numbers", "text", "json", "index", "readers")


def kind_of(name):
    """The kind of a file by its name; None for those that a broker does not read."""
    head = name.partition(".")[0]
    if name in ("running", "schema_version", "identity", ".queue", ".vhost"):
        return "text"
    if name in ("order", "order.jsonl", "connection_numbers", "readers"):
        return name
    if name == "keys.secret":
        return "secret"
    if name.endswith(".json"):
        return "json"
    if name == "definitions.amqp":
        return "definitions"
    if head == "tx":
        return "shared commit log" if name.startswith(layout.SHARED_COMMIT_PREFIX) else "commit log"
    if re.fullmatch(r"keys\.[0-9a-f]{40}\.\d+", name):
        return "exchange keys"
    if re.fullmatch(r"(msgs|acks|journal|keys|index)\.\d{10,}", name):
        return head
    return None


# --- changes that know nothing of what they change


def number_at(rng, octets, at, size):
    """Overwrite a little-endian number."""
    old = int.from_bytes(octets[at:at + size], "little")
    new = rng.choice((old + 1, old - 1, old + 8, old - 8, old ^ 1 << rng.randrange(8 * size), 2 * old, *NUMBERS))
    octets[at:at + size] = (new % (1 << 8 * size)).to_bytes(size, "little")


def scramble(rng, octets, fields, units):
    """A few changes in a bytearray.

    ``fields``: (position, size) of numbers.  ``units``: (begin, end) of what repeats: records, entries, rows, frames.
    """
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        way = rng.randrange(10)
        if way < 5 and fields:
            at, size = rng.choice(fields)
            if at + size <= len(octets):
                number_at(rng, octets, at, size)
        elif way < 7 and units:
            change_unit(rng, octets, *rng.choice(units), units)
        elif way == 7 and octets:
            del octets[rng.randrange(len(octets)):]
        elif way == 8:
            octets += rng.choice((bytes(8), bytes(4096), rng.randbytes(rng.randrange(1, 200)),
                                  octets[:rng.randrange(300)]))
        elif octets:
            at = rng.randrange(min(len(octets), 4096))
            octets[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, octets[at] ^ 1 << rng.randrange(8)))


def change_unit(rng, octets, begin, end, units):
    """Something else in the place of one unit: another one, zeros, or itself with other octets."""
    way = rng.randrange(4)
    if way == 0:
        from_, to = rng.choice(units)
        octets[begin:begin + to - from_] = octets[from_:to]
    elif way == 1:
        octets[begin:end] = bytes(end - begin)
    elif begin < min(end, len(octets)):
        for _ in range(rng.choice((1, 3))):
            octets[rng.randrange(begin, min(end, len(octets)))] = rng.randrange(256)


def put(octets, at, value):
    """Write a u4 if there is room for it."""
    if at + 4 <= len(octets):
        octets[at:at + 4] = value.to_bytes(4, "little")


def words(rng, octets, *positions):
    """Complements that are right, mostly."""
    for at in positions:
        if at + 8 <= len(octets) and rng.random() < 0.95:
            put(octets, at + 4, int.from_bytes(octets[at:at + 4], "little") ^ 0xFFFFFFFF)


def fields_at(begin, fields):
    return [(begin + at, int(form[-1])) for _, form, at in fields]


# --- kinds


def number_of(name):
    return int(name.rpartition(".")[2])


def msgs(rng, name, octets):
    units, at = [], layout.HEADER_OCTETS
    while octets[at:at + 4] == b"BSGM" and (length := int.from_bytes(octets[at + 4:at + 8], "little")) >= 64:
        units.append((at, min(at + length, len(octets))))
        at += layout.round_up(length)
    fields = fields_at(0, layout.SEGMENT_FIELDS) * 3
    for begin, _ in rng.sample(units, min(3, len(units))):
        fields += [*fields_at(begin, layout.RECORD_FIELDS), (begin + 64, 1), (begin + 66, 4), (begin + 70, 2)]
    scramble(rng, octets, fields, units)
    put(octets, layout.SEGMENT_CRC_END, layout.crc32c(octets[:layout.SEGMENT_CRC_END]))
    words(rng, octets, 40, 48, 56)
    for begin, end in units:
        length = int.from_bytes(octets[begin + 4:begin + 8], "little")
        end = begin + length if 64 <= length <= len(octets) - begin else end
        if end <= len(octets):
            put(octets, begin + 8, layout.record_crc(bytes(octets[begin:end]), number_of(name)))
    return octets


def acks(rng, name, octets):
    count = max(0, (len(octets) - 64) // 8)
    used = next((at for at in range(count) if octets[64 + 8 * at:68 + 8 * at] == bytes(4)), count)
    units = [(64 + 8 * at, 72 + 8 * at) for at in range(min(count, used + 4))]
    fields = fields_at(0, layout.ACKS_FIELDS) * 2
    for begin, _ in rng.sample(units, min(6, len(units))):
        fields += fields_at(begin, layout.ENTRY_FIELDS)
    scramble(rng, octets, fields, units)
    put(octets, layout.ACKS_CRC_END, layout.crc32c(octets[:layout.ACKS_CRC_END]))
    words(rng, octets, 24, 32, 40, 48)
    for begin, end in units:
        if end <= len(octets) and any(octets[begin:end]):
            position, kind, _, failed = layout.ENTRY.unpack_from(octets, begin)
            octets[begin + 5] = layout.entry_check(number_of(name), position, kind, failed)
    return octets


def journal(rng, name, octets):
    units = [(at, at + 32) for at in range(64, len(octets) - 31, 32) if any(octets[at:at + 32])]
    fields = fields_at(0, layout.JOURNAL_FIELDS) * 2
    for begin, _ in rng.sample(units, min(4, len(units))):
        fields += fields_at(begin, layout.EVENT_FIELDS)
    scramble(rng, octets, fields, units)
    put(octets, 24, layout.crc32c(octets[:24]))
    words(rng, octets, 32, 40)
    if len(octets) >= 64 and any(octets[48:64]):
        [synced] = struct.unpack_from("<q", octets, 48)
        struct.pack_into("<q", octets, 56, ~synced)
    for begin, end in units:
        if end <= len(octets):
            seed = layout.crc32c(number_of(name).to_bytes(8, "little"))
            put(octets, begin + 28, layout.crc32c(bytes(octets[begin:begin + 28]), seed))
    return octets


def keys(rng, name, octets):
    units = [(at, at + 24) for at in range(64, len(octets) - 23, 24)]
    fields = [(0, 4), (4, 4), (8, 8), (40, 8), (48, 8), (56, 8)]
    for begin, _ in rng.sample(units, min(4, len(units))):
        fields += [(begin, 8), (begin + 8, 8), (begin + 16, 8)]
    scramble(rng, octets, fields, units)
    put(octets, 32, layout.crc32c(octets[:32]))
    put(octets, 36, layout.crc32c(octets[64:]))
    return octets


def secret(rng, name, octets):
    scramble(rng, octets, [(0, 4), (4, 4), (8, 8)], [])
    put(octets, 24, layout.crc32c(octets[:24]))
    return octets


def order(rng, name, octets):
    scramble(rng, octets, [(0, 4), (4, 4), *((at, 8) for at in range(64, len(octets) - 7, 8))], [])
    put(octets, 8, layout.crc32c(octets[:8]))
    return octets


def definitions(rng, name, octets):
    """Entries changed, left out, twice, in another order, and others in between: any frame that a client may send."""
    frames, at = [], 16
    while octets[at:at + 1] == b"\1":
        size = int.from_bytes(octets[at + 3:at + 7])
        frames.append(octets[at:at + 8 + size])
        at += 12 + size
    others = [each for _ in range(20) if isinstance(each := Talker(rng, 0).next(), bytes)]
    for _ in range(rng.choice((1, 1, 2, 5))):
        at, way = rng.randrange(len(frames) + 1), rng.randrange(6)
        if way == 0 and frames:
            frames.insert(at, rng.choice(frames))
        elif way == 1 and at < len(frames):
            del frames[at]
        elif way == 2:
            frames.insert(at, bytearray(rng.choice(others)))
        elif at < len(frames):
            frame = frames[at] = bytearray(frames[at])
            inside = rng.randrange(3 if way == 3 else 7, len(frame))
            frame[inside] = rng.choice((0, 1, 0x7F, 0xFF, frame[inside] ^ 1 << rng.randrange(8)))
    head = bytearray(octets[:16])
    if rng.random() < 0.1:
        number_at(rng, head, rng.choice((0, 4, 8)), 4)
    put(head, 12, zlib.crc32(head[:12]))
    salt = int.from_bytes(head[8:12], "little")
    body = b"".join(bytes(frame) + zlib.crc32(frame, salt).to_bytes(4, "little") for frame in frames)
    return bytearray(head + body + bytes(rng.choice((0, 1, 4096))))


def commit_log(rng, name, octets):
    fields = [(4, 4), (8, 4), (12, 2), (16, 8), (24, 8), (40, 4)]
    plan = int.from_bytes(octets[16:24], "little")
    near = (64, 72, 74, plan, plan + 4, plan + 5, len(octets) - 13, len(octets) - 9)
    fields += [(at, rng.choice((1, 4, 8))) for at in near if 0 <= at < len(octets)]
    scramble(rng, octets, fields, [(max(0, plan), len(octets))] if plan < len(octets) else [])
    end = int.from_bytes(octets[24:32], "little")
    put(octets, 32, layout.crc32c(octets[64:end]))
    put(octets, 36, layout.crc32c(octets[:36]))
    return octets


def shared_commit_log(rng, name, octets):
    units, at = [], 64
    while at + 28 <= len(octets) and 28 <= (length := int.from_bytes(octets[at:at + 4], "little")) <= len(octets) - at:
        units.append((at, at + length))
        at += layout.round_up(length)
    fields = [(4, 4), (8, 4), (16, 8)]
    for begin, end in rng.sample(units, min(2, len(units))):
        plan = begin + int.from_bytes(octets[begin + 20:begin + 28], "little")
        fields += [(begin, 4), (begin + 8, 1), (begin + 12, 4), (begin + 16, 2), (begin + 20, 8), (begin + 28, 8),
                   (begin + 36, 1)]
        fields += [(plan + ahead, 4) for ahead in (0, 4, 5, 8, 12) if plan + ahead + 4 <= end]
    scramble(rng, octets, fields, units)
    put(octets, 36, layout.crc32c(octets[:36]))
    generation = int.from_bytes(octets[16:24], "little")
    for begin, _ in units:
        length = int.from_bytes(octets[begin:begin + 4], "little")
        if 28 <= length <= len(octets) - begin:
            put(octets, begin + 4, layout.shared_commit_crc(bytes(octets[begin:begin + length]), generation))
    return octets


def connection_numbers(rng, name, octets):
    digits = str(rng.choice((*NUMBERS, -1, "x", "", "007", "１"))).encode()
    return bytearray(b"%s %08x\n" % (digits, zlib.crc32(digits)))


def text(rng, name, octets):
    return bytearray(rng.choice((b"", b"\n", b"x\n", b"\xff\xfe", bytes(100), octets + octets, b"a/b", b"1\n", b"2\n",
                                 b"/", octets.replace(b"whole", b"suspect"), b"other", rng.randbytes(300), octets[:3])))


def json_file(rng, name, octets):
    """A value changed somewhere, or octets."""
    if rng.random() < 0.2:
        scramble(rng, octets, [], [])
        return octets
    value = [json.loads(octets or b"[]")]
    for _ in range(rng.choice((1, 1, 2, 3))):
        change_value(rng, value)
    [value] = value if len(value) == 1 else [value]
    return bytearray(json.dumps(value).encode())


def change_value(rng, value):
    """Change something in a list or table, at any depth."""
    while True:
        places = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not places:
            return
        place = rng.choice(places)
        inner = value[place]
        if not (isinstance(inner, dict | list) and inner and rng.random() < 0.8):
            break
        value = inner
    way = rng.randrange(5)
    if way == 0 and len(value) > 1:
        del value[place]
    elif way == 1 and isinstance(value, dict):
        value[rng.choice(("odd", "name", "user", "vhost", ""))] = json.loads(rng.choice(JSON_VALUES))
    elif way == 1:
        value.append(json.loads(json.dumps(inner)))
    else:
        value[place] = json.loads(rng.choice(JSON_VALUES))


def json_lines(rng, name, octets):
    """order.jsonl: lines changed, left out, torn."""
    lines = bytes(octets).split(b"\n")
    for _ in range(rng.choice((1, 2))):
        at, way = rng.randrange(len(lines)), rng.randrange(5)
        if way == 0:
            lines.insert(at, rng.choice((b"", b"{}", b"[]", b"5", b"null", b"{\"at\": 5}", b"\xff", b"[" * 3000)))
        elif way == 1:
            lines[at] = lines[at][:rng.randrange(len(lines[at]) + 1)]
        elif lines[at]:
            try:
                value = [json.loads(lines[at])]
            except (ValueError, RecursionError):
                continue
            change_value(rng, value)
            lines[at] = json.dumps(value[0] if value else None).encode()
    return bytearray(b"\n".join(lines))


def index(rng, name, octets):
    """A stream's index: its rows, the values of blocks and of the segment."""
    rows = [(at, at + 64) for at in range(4160, len(octets) - 63, 64)]
    fields = [(0, 4), (4, 4), (8, 8), (16, 8), (24, 8), (32, 4), (36, 4), (40, 4), (44, 4), (48, 4)]
    for begin, _ in rows:
        fields += [(begin, 8), (begin + 8, 8), (begin + 16, 4), (begin + 20, 4), (begin + 32 + 8 * rng.randrange(4), 8)]
    fields.append((64 + 8 * rng.randrange(512), 8))
    scramble(rng, octets, fields, rows)
    put(octets, 52, layout.crc32c(octets[64:], layout.crc32c(octets[:52])))
    return octets


def readers(rng, name, octets):
    """The slots of a stream's named readers: names, offsets, counts."""
    size, fields, slots = layout.READERS_SLOT, [(0, 4), (4, 4)], []
    for begin in range(size, len(octets) - size + 1, size):
        if octets[begin + 4]:
            slots.append((begin, begin + size))
            fields += [(begin + 4, 1), (begin + 5, 1), (begin + 352, 8), (begin + 360, 8)]
            fields += 2 * [(begin + at, 8) for at in (320, 328, 336, 344, 368, 376, 392, 400)]
    scramble(rng, octets, fields, slots)
    for begin, _ in slots:
        slot = octets[begin:begin + size]
        if len(slot) == size:
            put(octets, begin, layout.crc32c(slot[4:5 + slot[4]]))
            head = octets[begin:begin + 4]
            for at, length in ((320, 12), (336, 12), (368, 20), (392, 20)):
                if any(slot[at:at + length]):
                    put(octets, begin + at + length, layout.crc32c(head + slot[at:at + length]))
    return octets


CHANGES = dict(zip(KINDS, (msgs, acks, journal, keys, keys, secret, order, json_lines, definitions, shared_commit_log,
                           commit_log, connection_numbers, text, json_file, index, readers), strict=True))


def changed(rng, name, octets):
    """The content of the file ``name``, changed.  One in ten has no right checksums: any octets may be there."""
    octets = bytearray(octets)
    if rng.random() < 0.1:
        scramble(rng, octets, [], [(0, len(octets))] if octets else [])
        return bytes(octets)
    return bytes(CHANGES[kind_of(name)](rng, name, octets))


