"""The contents of a folder: the size of each queue, its first and last number, its damage: ``inspect``."""

from collections.abc import Callable
from typing import Any

import numpy as np

from brokerd.audit import digests
from brokerd.audit.cut import find_queues
from brokerd.audit.files import QueueFiles, Source, require_match
from brokerd.audit.lifecycle import READY, UNACKED, lives
from brokerd.audit.segment import SegmentData, read_triple
from brokerd.store import format as layout


def inspect(source: Source, glob: str | None = None, progress: Callable[[int], object] | None = None, *,
            crc: bool = True) -> dict[str, Any]:
    """A document of all queues.  ``progress`` is called with the octets read.

    Raises AuditError for a manifest that cannot be read, and if no queue matches ``glob``; other damage is in the
    document.
    """
    queues = [_queue(source, queue, progress, crc) for queue in require_match(find_queues(source, glob), glob, source)]
    keys = ("segments", "messages", "events", "octets")
    return {"path": source.root, "queues": queues, "totals": {"queues": len(queues)} | {
        key: sum(queue[key] for queue in queues) for key in keys},
        "damage_total": sum(len(queue["damage"]) for queue in queues)}


def segment_row(data: SegmentData) -> dict[str, Any]:
    """The row of one segment, with the columns of table ``segments``; times are ns."""
    triple, headers = data.triple, data.headers[data.sound]
    life = lives(data)
    settled = int(np.count_nonzero(life.settlements))
    lost = [gap for gap in data.gaps if "full disk" in gap.why]
    return {
        "vhost": triple.vhost, "queue": triple.queue, "priority": triple.priority, "segment": triple.number,
        "file": triple.msgs, "kept": triple.kept, "generation": data.generation, "base_seq": data.base_seq,
        "records": int(headers.size), "first_seq": int(headers["seq"].min()) if headers.size else 0,
        "last_seq": int(headers["seq"].max()) if headers.size else 0,
        "first_ts": int(headers["ts"].min()) if headers.size else 0,
        "last_ts": int(headers["ts"].max()) if headers.size else 0, "octets": triple.octets,
        "entries": int(data.entries.size), "settled": settled, "events": int(data.events.size), "lost": len(lost),
        "begun": data.begun or 0,
        "ready": int(np.count_nonzero((life.ended == READY) & (life.record >= 0))),
        "unacked": int(np.count_nonzero((life.ended == UNACKED) & (life.record >= 0))),
        "damage": "; ".join(d.detail for d in data.damage[:5]) or None,
    }


def _queue(source: Source, queue: QueueFiles, progress: Callable[[int], object] | None, crc: bool) -> dict[str, Any]:
    rows, damage = [], list(queue.damage)
    for triple in queue.triples:
        data = read_triple(source, triple, crc=crc)
        rows.append(segment_row(data))
        damage += data.damage
        if progress is not None:
            progress(triple.octets)
    damage += digests.check(source, queue)
    some = [row for row in rows if row["records"]]
    return {
        "vhost": queue.vhost, "queue": queue.queue, "folder": queue.folder, "segments": len(rows),
        "kept": sum(row["kept"] for row in rows), "levels": sorted({row["priority"] for row in rows}),
        "messages": sum(row["records"] for row in rows), "settled": sum(row["settled"] for row in rows),
        "ready": sum(row["ready"] for row in rows), "unacked": sum(row["unacked"] for row in rows),
        "events": sum(row["events"] for row in rows), "octets": sum(row["octets"] for row in rows),
        "first_seq": min((row["first_seq"] for row in some), default=0),
        "last_seq": max((row["last_seq"] for row in some), default=0),
        "first_ts": min((row["first_ts"] for row in some), default=0),
        "last_ts": max((row["last_ts"] for row in some), default=0),
        "journaled": any(row["begun"] for row in rows), "counters": counters(source, queue.folder),
        "damage": [{"file": d.file, "offset": d.offset, "seq": d.seq, "ts": d.ts, "detail": d.detail} for d in damage],
    }


def counters(source: Source, folder: str) -> dict[str, int] | None:
    """The broker's counts of events that disturbed the order since the queue was declared; None: no readable counts."""
    path = f"{folder}/{layout.ORDER_FILE}" if folder else layout.ORDER_FILE
    try:
        octets = source.read(path, 0, layout.HEADER_OCTETS + 8 * len(layout.ORDER_COUNTERS))
    except OSError:
        return None
    if len(octets) < layout.HEADER_OCTETS + 8 * len(layout.ORDER_COUNTERS) or octets[:12] != layout.order_header()[:12]:
        return None
    values = np.frombuffer(octets, "<u8", len(layout.ORDER_COUNTERS), layout.HEADER_OCTETS)
    return dict(zip(layout.ORDER_COUNTERS, values.tolist(), strict=True))
