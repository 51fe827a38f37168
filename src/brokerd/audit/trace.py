"""Tells the life of one message from the files of its queue: ``trace``.

Reads only the segment that can hold the sequence number, and 64 octets of each other segment.  Puts events into words,
and adds the names that order.jsonl has for consumers.
"""

from typing import Any

import numpy as np

from brokerd.audit import layout as shapes
from brokerd.audit.cut import is_open
from brokerd.audit.fetch import other_place
from brokerd.audit.files import FOREVER, Damage, QueueFiles, Source, Triple
from brokerd.audit.lifecycle import CAUSES, ENDED, REASONS, Lives, lives
from brokerd.audit.properties import texts
from brokerd.audit.segment import SegmentData, read_triple, record_at
from brokerd.audit.spoiled import concerns, spoiled
from brokerd.store import format as layout
from brokerd.store import reading

WHAT = ("", "acked", "rejected", "returned", "dead-lettered", "expired", "dropped", "purged", "delivered")
WHAT_BESIDES = {
    layout.PARKED_EVENT: "parked", layout.RELEASED_EVENT: "released", layout.RETRY_SCHEDULED: "retry scheduled",
    layout.EVENT_REPLAYED: "replayed", layout.GROUP_PARKED_EVENT: "group parked",
    layout.GROUP_RELEASED_EVENT: "group released", layout.TOKEN_EVENT: "token told", layout.REPLAY_EVENT: "replay",
    layout.DUPLICATE_EVENT: "duplicate came", layout.REDRIVEN_EVENT: "put back into its group"}
DUPLICATE = ("", "confirmed", "refused", "dead-lettered", "stored in its place")
IN_ACKS = {layout.HANDED_OUT: "delivered again", layout.SET_ASIDE: "set aside", layout.PARKED: "parked",
           layout.RETRY_TIME: "retry time", layout.REPLAYED: "replayed"}
KNOWN_ALL, KNOWN_PART, KNOWN_ACKS, KNOWN_NOTHING = "all", "part", "acks only", "nothing"


def trace(source: Source, queue: QueueFiles, seq: int) -> dict[str, Any]:
    """Everything that the files say of message ``seq``: its record, its events in order of time (ns), and its present
    state.

    ``known``: "all", "part" (the journal does not cover its whole life), "acks only" (without a journal events have no
    time), "nothing" (no segment has it: ``why`` says the likely reason).  Damaged files raise nothing: ``spoiled`` says
    what is wrong with those that were read.
    """
    found = [one for one in queue.damage if concerns(one, queue.folder)]
    at_work = is_open(source)           # What a broker is just writing is not spoiled.
    for triple in _candidates(source, queue, seq):
        data = read_triple(source, triple._replace(cut=FOREVER) if at_work else triple)
        found += data.damage
        life = lives(data)
        if not life.seq.size:
            continue
        row = int(np.searchsorted(life.seq, seq))
        if row < life.seq.size and int(life.seq[row]) == seq:
            return _describe(queue, data, life, row) | {"spoiled": spoiled([*data.damage, *_of_file(queue, data)])}
    return {"vhost": queue.vhost, "queue": queue.queue, "seq": seq, "priority": None, "segment": None,
            "position": None, "record": None, "events": [], "known": KNOWN_NOTHING, "state": "unknown",
            "why": _why_unknown(queue, seq, bool(found)),
            "spoiled": spoiled(found)}


def _of_file(queue: QueueFiles, data: SegmentData) -> list[Damage]:
    """Faults of this segment's files that were seen before they were read."""
    files = (data.triple.msgs, data.triple.acks, data.triple.journal)
    return [one for one in queue.damage if one.file in files]


def _candidates(source: Source, queue: QueueFiles, seq: int) -> list[Triple]:
    """The segments that can hold the message: of each level the last one that begins at or before the message's number,
    then those with an unreadable header."""
    best: dict[int, tuple[int, Triple]] = {}
    silent = []
    for triple in queue.triples:
        base = _base_seq(source, triple)
        if base is None:
            silent.append(triple)
        elif base <= seq and base >= best.get(triple.priority, (0, triple))[0]:
            best[triple.priority] = base, triple
    return [triple for _, triple in best.values()] + silent


def _base_seq(source: Source, triple: Triple) -> int | None:
    for path in (triple.msgs, other_place(triple.msgs)):
        try:
            head = source.read(path, 0, layout.HEADER_OCTETS)
        except OSError:
            continue
        if len(head) == layout.HEADER_OCTETS:
            header = np.frombuffer(head, shapes.SEGMENT)[0]
            if layout.crc32c(head[:layout.SEGMENT_CRC_END]) == int(header["crc"]):
                return int(header["base_seq"])
    return None


def _why_unknown(queue: QueueFiles, seq: int, is_spoiled: bool) -> str:
    for line in queue.removed:
        if line["first_seq"] <= seq <= line["last_seq"]:
            return f"its segment was removed by retention ({line.get('why', 'unknown')})"
    if is_spoiled:
        return "a file that may have held it is spoiled"
    if not queue.triples:
        return "nothing is kept of this queue"
    if not queue.settings.get("journal"):
        return "settled messages of a queue without an order journal are not kept"
    return "no segment here holds that number"


def _describe(queue: QueueFiles, data: SegmentData, life: Lives, row: int) -> dict[str, Any]:
    triple = data.triple
    index = int(life.record[row])
    events = _events(queue, data, life, row)
    if life.covered[row]:
        known = KNOWN_ALL
    elif data.begun is not None:
        known = KNOWN_PART
    else:
        known, events = KNOWN_ACKS, _from_entries(data, index)
    record = _record(data, index) if index >= 0 else None
    if record is not None:
        first = {"ts": record["ts"], "what": "enqueued", "consumer": None, "connection": record["connection"]}
        events.insert(0, first)
    ended = int(life.ended[row])
    reason = REASONS[min(int(life.reason[row]), 5)] if ended in (layout.DEAD_LETTERED, layout.DROPPED) else None
    return {
        "vhost": triple.vhost, "queue": triple.queue, "seq": int(life.seq[row]), "priority": triple.priority,
        "segment": triple.number, "kept": triple.kept, "file": triple.msgs,
        "position": int(data.positions[index]) if index >= 0 else None, "record": record, "events": events,
        "known": known, "state": ENDED[ended], "reason": reason,
        "deliveries": int(life.deliveries[row]), "returns": int(life.returns[row]),
    }


def _record(data: SegmentData, index: int) -> dict[str, Any]:
    header = data.headers[index]
    records = reading.Records(data.headers[index:index + 1], data.positions[index:index + 1], [])
    at = int(data.positions[index]) + layout.HEADER_OCTETS + (4 if int(header["meta_len"]) == layout.LONG_META else 0)
    octets = data.octets
    exchange = octets[at + 1:at + 1 + octets[at]]
    at += 1 + octets[at]
    key = octets[at + 1:at + 1 + octets[at]]
    ids = texts(octets, records, "message-id")
    message_id = None
    if ids.index.size:
        message_id = octets[int(ids.start[0]):int(ids.start[0] + ids.length[0])].decode("utf-8", "replace")
    return {
        "ts": int(header["ts"]), "connection": int(header["connection"]), "channel": int(header["channel"]),
        "publish_seq": int(header["publish_seq"]), "exchange": exchange.decode("utf-8", "replace"),
        "routing_key": key.decode("utf-8", "replace"), "message_id": message_id,
        "body_octets": int(reading.body_octets(octets, records)[0]),
        "persistent": bool(int(header["flags"]) & layout.PERSISTENT),
    }


def _events(queue: QueueFiles, data: SegmentData, life: Lives, row: int) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = []
    by_get, out_since = False, 0
    for event, place in _all_events(data, life, row):
        ts, type_, why = int(event["ts"]), int(event["type"]), int(event["reason"])
        _add_restart(told, data, out_since, ts)
        if type_ == layout.DELIVERED:
            by_get = bool(why & layout.BY_GET)
        if type_ not in layout.ASIDE_EVENTS:
            out_since = ts if type_ == layout.DELIVERED else 0
        told.append({
            "ts": ts, "what": WHAT_BESIDES.get(type_) or WHAT[type_],
            "consumer": _who(queue, int(event["consumer"]), by_get), "count": int(event["count"]), "offset": place,
            **_particulars(event, type_, why)})
    _add_restart(told, data, out_since, 1 << 63)
    return told


def _all_events(data: SegmentData, life: Lives, row: int) -> list[tuple[Any, int]]:
    """The events of a message with their offsets, in order of time: those of its lives, and those of its waiting."""
    low, high = np.searchsorted(life.of, (row, row + 1)).tolist()
    found = [(data.events[k], int(data.event_places[k])) for k in life.event[low:high].tolist()]
    seq = int(life.seq[row])
    for events, places in ((data.events_again, data.again_places), (data.aside, data.aside_places)):
        found += [(events[k], int(places[k])) for k in np.flatnonzero(events["seq"] == seq).tolist()]
    return sorted(found, key=lambda one: int(one[0]["ts"]))


def _particulars(event: Any, type_: int, why: int) -> dict[str, Any]:
    """Further facts of an event, by its type."""
    if type_ == layout.DELIVERED:
        return {"delivery_tag": int(event["aux"]), "redelivered": bool(why & layout.REDELIVERED),
                "by_get": bool(why & layout.BY_GET), "before_start": bool(why & layout.BEFORE_START),
                "no_ack": bool(why & layout.WITHOUT_ACK)}
    if type_ == layout.RETRY_SCHEDULED:
        return {"delay_ms": int(event["aux"])}
    if type_ == layout.TOKEN_EVENT:
        return {"token": int(event["aux"]) | int(event["count"]) << 32 | why << 48}
    if type_ == layout.REPLAY_EVENT:
        return {"messages": int(event["aux"])}
    if type_ == layout.DUPLICATE_EVENT:
        return {"cause": DUPLICATE[why] if why < len(DUPLICATE) else str(why)}
    if type_ == layout.RETURNED:
        return {"cause": CAUSES[why] if why < len(CAUSES) else str(why)}
    if type_ == layout.GROUP_PARKED_EVENT and why == layout.REASON_REMOVED:
        return {"cause": "by an operator"}
    if type_ in (layout.DEAD_LETTERED, layout.DROPPED, layout.PARKED_EVENT, layout.GROUP_PARKED_EVENT):
        return {"cause": REASONS[why] if why < len(REASONS) else str(why)}
    return {"cause": "taken without acks"} if type_ == layout.ACKED and why == 1 else {}


def _add_restart(events: list[dict[str, Any]], data: SegmentData, since: int, until: int) -> None:
    """Add the return of a message that was out when the broker's life ended; the journal has no event for it."""
    if since:
        starts = data.runs[(data.runs > since) & (data.runs < until)]
        if starts.size:
            events.append({"ts": int(starts[0]), "what": "returned", "consumer": None, "cause": "broker started"})


def _who(queue: QueueFiles, number: int, by_get: bool) -> dict[str, Any] | None:
    if not number:
        return None
    if by_get:
        return {"connection": number}
    known = queue.consumers.get(number, {})
    return {"number": number} | {k: v for k, v in known.items() if k not in ("what", "at", "number")}


def _from_entries(data: SegmentData, index: int) -> list[dict[str, Any]]:
    """The events that the acks file has, in order and without times."""
    of = record_at(data.positions, len(data.octets), data.entries["position"])
    events = []
    for entry in data.entries[of == index]:
        type_, why = int(entry["kind"]) & 15, int(entry["kind"]) >> 4
        what = IN_ACKS.get(type_) or (WHAT[type_] if type_ < len(WHAT) else str(type_))
        one: dict[str, Any] = {"ts": None, "what": what, "consumer": None, "count": int(entry["count"])}
        names = CAUSES if type_ == layout.RETURNED else REASONS
        if type_ in (layout.RETURNED, layout.DEAD_LETTERED, layout.DROPPED):
            one["cause"] = names[why] if why < len(names) else str(why)
        events.append(one)
    return events
