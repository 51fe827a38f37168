"""Queue folders as a broker would leave them, made with numpy from a description: a million messages in seconds.

``Level`` describes the messages and events of one priority level; ``write_queue`` cuts them into segments.
"""

import json
import os
from dataclasses import dataclass, field

import numpy as np

from brokerd.audit import layout as shapes
from brokerd.store import format as layout
from brokerd.store import reading

MESSAGE = np.dtype([("seq", "u8"), ("ts", "i8"), ("connection", "u4"), ("channel", "u2"), ("flags", "u2"),
                    ("publish_seq", "u8"), ("dedup_hash", "u8")])
HAPPENED = np.dtype([("seq", "u8"), ("ts", "i8"), ("consumer", "u4"), ("aux", "u4"), ("count", "u2"), ("type", "u1"),
                     ("reason", "u1")])

PLAIN_META = b"\x00\x01q\x10\x00\x02"     # default exchange, routing key "q", persistent


@dataclass
class Level:
    """Messages with rising seq, events in order of time (of messages here; those of type STARTED go to all segments).

    ``bodies``: octets of each body, one number for all or an array.  ``metas``: what stands between header and body
    (exchange, routing key, properties), one for all or a list.
    """

    messages: np.ndarray
    events: np.ndarray
    bodies: object = 100
    metas: object = PLAIN_META


def messages(seqs, times, *, connection=1, channel=1, publish_seq=None):
    """An array of MESSAGE."""
    made = np.zeros(len(seqs), MESSAGE)
    made["seq"], made["ts"], made["connection"], made["channel"] = seqs, times, connection, channel
    made["flags"] = layout.PERSISTENT
    made["publish_seq"] = seqs if publish_seq is None else publish_seq
    return made


def events(rows):
    """An array of HAPPENED from (ts, seq, type[, reason[, consumer[, count]]]), sorted by time."""
    made = np.zeros(len(rows), HAPPENED)
    for k, row in enumerate(sorted(rows, key=lambda row: row[0])):
        ts, seq, type_, reason, consumer, count = (*row, *(0, 1, 0)[len(row) - 3:])
        if type_ == layout.STARTED and reason in (layout.RESTARTED, layout.SWITCHED_OFF):
            seq = ts                # Such a mark keeps its own time.
        made[k] = (seq, ts, consumer, 0, count, type_, reason)
    return made


@dataclass
class Options:
    """``segment_messages``: messages in each segment.  ``kept``: settled segments but the last are put there."""

    segment_messages: int = 1000
    journal: bool = True
    begun: int = 1
    kept: bool = False
    acks: bool = True
    synced: int = 0
    generation: int = 0
    settings: dict = field(default_factory=dict)
    log: list = field(default_factory=list)
    first_number: int = 1


def pack_records(made, number, bodies=100, metas=PLAIN_META, priority=0):
    """(octets of records, positions): records of a segment from position 64 on."""
    count = len(made)
    body = np.broadcast_to(np.asarray(bodies, np.int64), (count,))
    same = isinstance(metas, bytes)
    meta_len = np.full(count, len(metas)) if same else np.array([len(m) for m in metas], np.int64).reshape(count)
    lengths = layout.HEADER_OCTETS + meta_len + body
    sizes = lengths + 7 & ~7
    positions = np.cumsum(sizes) - sizes
    octets = np.zeros(int(sizes.sum()), np.uint8)
    headers = np.zeros(count, shapes.RECORD)
    for name in MESSAGE.names:
        headers[name] = made[name]
    headers["magic"], headers["length"], headers["priority"] = layout.RECORD_MAGIC, lengths, priority
    headers["meta_len"] = np.minimum(meta_len, layout.LONG_META)
    octets[positions[:, None] + np.arange(64)] = headers.view(np.uint8).reshape(count, 64)
    if same and count:
        octets[positions[:, None] + 64 + np.arange(len(metas))] = np.frombuffer(metas, np.uint8)
    elif not same:
        for position, meta in zip(positions.tolist(), metas, strict=True):
            octets[position + 64:position + 64 + len(meta)] = np.frombuffer(meta, np.uint8)
    view, seed = memoryview(octets), layout.crc32c(number.to_bytes(8, "little"))
    crcs = np.array([layout.crc32c(view[p + 12:p + length], seed)
                     for p, length in zip(positions.tolist(), lengths.tolist(), strict=True)], np.uint32)
    octets[positions[:, None] + 8 + np.arange(4)] = crcs.view(np.uint8).reshape(count, 4)
    return octets.tobytes(), positions + layout.HEADER_OCTETS


def pack_events(happened, number):
    """The octets of events of a journal."""
    made = np.zeros(len(happened), shapes.EVENT)
    for name in HAPPENED.names:
        made[name] = happened[name]
    made["crc"] = shapes.event_crcs(made, number)
    return made.tobytes()


ONLY_IN_ACKS = (layout.SET_ASIDE, layout.PARKED, layout.REPLAYED)


def pack_entries(happened, seqs, positions, number):
    """The entries that go with events: all but first deliveries."""
    again = (happened["type"] == layout.DELIVERED) & (happened["reason"] & layout.REDELIVERED != 0)
    some = happened[again | (happened["type"] >= 1) & (happened["type"] <= 7) | np.isin(happened["type"], ONLY_IN_ACKS)]
    place = np.searchsorted(seqs, some["seq"])
    here = (place < len(seqs)) & (seqs[np.minimum(place, len(seqs) - 1)] == some["seq"]) if len(seqs) else place < 0
    some, place = some[here], place[here]
    made = np.zeros(len(some), shapes.ENTRY)
    made["position"] = positions[place]
    reason = np.where(np.isin(some["type"], (layout.ACKED, layout.HANDED_OUT)), 0, some["reason"])
    made["kind"] = some["type"] | reason << 4
    made["count"] = some["count"]
    made["check"] = reading.entry_checks(made, number)
    return made.tobytes(), reading.settled_positions(made).size


def cursor_of(happened, seqs, positions, end):
    """The position up to which a cursor passed that handed out or set aside what events say."""
    passed = np.isin(happened["type"], (layout.DELIVERED, layout.SET_ASIDE))
    beyond = int(np.searchsorted(seqs, happened["seq"][passed].max(), "right")) if passed.any() else 0
    return int(positions[beyond]) if beyond < len(positions) else end


def metas_of(level, priority, chosen):
    """What stands between header and body, with the level's priority where the description says nothing else."""
    if not isinstance(level.metas, bytes):
        return level.metas[chosen]
    if priority and level.metas == PLAIN_META:
        return b"\x00\x01q\x18\x00\x02" + bytes([priority])
    return level.metas


def write_triple(folder, number, made, happened, level, options, priority=0, chosen=slice(None)):
    """The three files of one segment."""
    os.makedirs(folder, exist_ok=True)
    bodies = level.bodies if np.isscalar(level.bodies) else np.asarray(level.bodies)[chosen]
    metas = metas_of(level, priority, chosen)
    octets, positions = pack_records(made, number, bodies, metas, priority)
    base = int(made["seq"][0]) if len(made) else 1
    created = int(made["ts"][0]) - 1 if len(made) else 1
    head = layout.segment_header(number, base_seq=base, created=created, generation=options.generation,
                                 end=64 + len(octets), records=len(made), sealed=layout.SYNCED)
    with open(f"{folder}/{layout.segment_name(number)}", "wb") as file:
        file.write(head + octets)
    if options.acks:
        entries, settled = pack_entries(happened, made["seq"], positions, number)
        head = layout.acks_header(number, generation=options.generation, entries=len(entries) // 8, settled=settled,
                                  delivered=cursor_of(happened, made["seq"], positions, 64 + len(octets)))
        with open(f"{folder}/{layout.acks_name(number)}", "wb") as file:
            file.write((head + entries).ljust(4096, b"\0"))
    happened = happened[~np.isin(happened["type"], ONLY_IN_ACKS)]
    if options.journal:
        head = layout.journal_header(number, begun=options.begun, events=len(happened), synced=options.synced)
        with open(f"{folder}/{layout.journal_name(number)}", "wb") as file:
            file.write(head + pack_events(happened, number) + bytes(320))


def write_level(folder, level, options, priority=0):
    """Cut a level into segments of ``options.segment_messages``."""
    made, happened = level.messages, level.events
    count = max((len(made) + options.segment_messages - 1) // options.segment_messages, 1)
    started = happened["type"] == layout.STARTED
    segment = np.searchsorted(made["seq"][::options.segment_messages][1:], happened["seq"], "right")
    segment[started] = -1
    order = np.argsort(segment, kind="stable")
    sorted_ = segment[order]
    bounds = np.searchsorted(sorted_, np.arange(count + 1))
    starts = happened[started]
    for k in range(count):
        chosen = slice(k * options.segment_messages, (k + 1) * options.segment_messages)
        own, mine = made[chosen], happened[order[bounds[k]:bounds[k + 1]]]
        if starts.size and len(own):
            mine = np.concatenate((mine, starts[starts["ts"] > own["ts"][0]]))
            mine = mine[np.argsort(mine["ts"], kind="stable")]
        settled = np.unique(mine["seq"][np.isin(mine["type"], (1, 2, 4, 5, 6, 7))])
        kept = options.kept and k < count - 1 and settled.size == len(own)
        where = f"{folder}/{layout.KEPT_FOLDER}" if kept else folder
        write_triple(where, options.first_number + k, own, mine, level, options, priority, chosen)


def write_queue(root, levels, options=None, *, vhost="/", queue="q", folder="queue"):
    """A data directory (or more of one) with one queue; ``levels``: a Level, or {priority: Level}.  Its path."""
    options = options or Options()
    root = os.fspath(root)
    path = f"{root}/vhost/{folder}"
    os.makedirs(path, exist_ok=True)
    for name, text in ((f"{root}/schema_version", "1\n"), (f"{root}/vhost/.vhost", vhost), (f"{path}/.queue", queue)):
        with open(name, "w") as file:
            file.write(text)
    levels = levels if isinstance(levels, dict) else {0: levels}
    for priority, level in levels.items():
        write_level(f"{path}/{layout.priority_folder(priority)}" if priority else path, level, options, priority)
    if options.journal:
        first = {"at": options.begun, "what": "settings", "vhost": vhost, "queue": queue, "journal": True,
                 "max_priority": max(levels), "delivery_limit": None, "dead_letter_exchange": None}
        with open(f"{path}/{layout.SIDE_FILE}", "w") as file:
            numbers = np.unique(np.concatenate([level.events["consumer"] for level in levels.values()]))
            consumers = [{"at": options.begun, "what": "consumer", "number": number, "prefetch": 0, "no_ack": False}
                         for number in numbers[numbers > 0].tolist()]
            for line in (first | options.settings, *consumers, *options.log):
                file.write(json.dumps(line) + "\n")
    return root


def simple_level(count, *, start=1_700_000_000_000_000_000, step=1000, first_seq=1, bodies=100,
                 metas=PLAIN_META, settle=True):
    """``count`` messages, each delivered and acked in turn: nothing to complain of."""
    seqs = np.arange(first_seq, first_seq + count, dtype=np.uint64)
    times = start + np.arange(count, dtype=np.int64) * 4 * step
    made = messages(seqs, times)
    happened = np.zeros(count * (2 if settle else 1), HAPPENED)
    stride = 2 if settle else 1
    for k, (type_, offset) in enumerate(((layout.DELIVERED, step), (layout.ACKED, 2 * step))[:stride]):
        happened["seq"][k::stride], happened["type"][k::stride] = seqs, type_
        happened["ts"][k::stride] = times + offset
    happened["consumer"] = 1
    return Level(made, happened, bodies, metas)


def swapped(count, *places):
    """A level in which the publishes at ``places`` are in the wrong order, each with the one behind it."""
    level = simple_level(count)
    numbers = level.messages["publish_seq"]
    for place in places:
        numbers[place], numbers[place + 1] = numbers[place + 1].copy(), numbers[place].copy()
    return level


def after_a_loss_of_power(*, start=1_700_000_000_000_000_000, hole_behind=False):
    """300 messages, power lost behind 150: the acks of 30 of the last before it are gone, and so are numbers 20 to 22;
    after it these are delivered and acked again, and 151 has the events of a message that had this number before.
    ``hole_behind``: 200 is missing, too, which no loss of power explains."""
    whole = simple_level(300, start=start)
    cut = int(whole.messages["ts"][150]) - 500
    rows = [(int(e["ts"]), int(e["seq"]), int(e["type"]), int(e["reason"]), 1, 0) for e in whole.events]
    rows += [(int(whole.messages["ts"][200]) + 10 + 2 * k + acked, seq, layout.ACKED if acked else layout.DELIVERED,
              0 if acked else layout.REDELIVERED | layout.BEFORE_START, 1, 1)
             for k, seq in enumerate(range(110, 140)) for acked in (False, True)]
    rows += [(int(whole.messages["ts"][100]) - 7, 151, layout.DELIVERED, 0, 1, 0),
             (int(whole.messages["ts"][100]) - 6, 151, layout.ACKED, 0, 1, 0)]
    gone = [20, 21, 22, *([200] if hole_behind else [])]
    rows = [row for row in rows if row[1] not in gone]
    rows.append((cut, cut - 100_000, layout.STARTED, layout.POWER_LOST, 0, 0))
    there = whole.messages[~np.isin(whole.messages["seq"], gone)]
    return Level(there, events(rows), whole.bodies, whole.metas)


def put_word(path, at, value, *, whole=True):
    """Write a word of a file's header; without ``whole`` one whose complement is wrong."""
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(layout.WORDS.pack(*layout.word(value), 0, 0, 0, 0)[:8] if whole else b"\7" * 8)
