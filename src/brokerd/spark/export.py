"""Writes the tables as Parquet, in folders by vhost, queue and day, as other programs expect them: ``export``.

    OUT/messages/vhost=%2F/queue=orders/day=2026-11-23/0.0000000007.parquet

A file has the rows of one segment (priority 0, number 7) and one day (UTC; in table segments the day of the first
message).  Processes share the segments, and each holds one segment at a time.  Needs pyarrow, and no Spark.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from hashlib import sha1
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from brokerd.audit import AuditError, clean
from brokerd.audit.files import Damage, QueueFiles, Source, Triple
from brokerd.audit.segment import read_triple
from brokerd.auditor.here import PACK_OCTETS, WORKERS_MAX, ended_from_outside, processes, useful_workers
from brokerd.spark.packs import make_packs
from brokerd.spark.tables import ARROW, TABLES, batches

DAY_OF = {"messages": "ts", "events": "ts", "lifecycle": "published", "segments": "first_ts"}     # not acks
OF_FOLDERS = ("vhost", "queue")         # columns that the names of folders hold, and the files do not
NO_DAY = "__HIVE_DEFAULT_PARTITION__"   # what Spark and Hive read as null
DAY_NS = 86_400 * 10 ** 9
NAME_OCTETS_MAX = 255                   # of a folder's name
PACKS_EACH = 8                          # waiting for each process: more would only take memory
COMPRESSION = "zstd"

Written = tuple[int, dict[str, int], list[Damage]]      # of some segments: octets read, rows of each table, damage


def export(root: str, queues: Sequence[QueueFiles], out: str, names: Iterable[str] = tuple(TABLES), *, crc: bool = True,
           workers: int | None = None, progress: Callable[[int], object] | None = None,
           tell_damage: Callable[[Damage], object] | None = None) -> dict[str, int]:
    """Write tables into the new folder ``out``, which appears when all is written; return the rows of each table.

    ``progress`` gets the octets of files read since its last call, ``tell_damage`` what is damaged.
    Until its end the work lies in ``out``.partial.
    Raises AuditError if ``out`` holds something, and OSError.
    """
    out = os.path.abspath(out)
    try:
        if os.listdir(out):
            raise AuditError(f"{out} is not empty")
    except FileNotFoundError:
        pass
    except NotADirectoryError:
        raise AuditError(f"{out} is not a folder") from None
    partial = out + ".partial"
    shutil.rmtree(partial, ignore_errors=True)
    os.makedirs(partial)
    counts = write_tables(root, queues, partial, names, crc=crc, workers=workers, progress=progress,
                          tell_damage=tell_damage)
    os.replace(partial, out)
    return counts


def write_tables(root: str, queues: Sequence[QueueFiles], out: str, names: Iterable[str] = tuple(TABLES), *,
                 crc: bool = True, workers: int | None = None,
                 progress: Callable[[int], object] | None = None,
                 tell_damage: Callable[[Damage], object] | None = None) -> dict[str, int]:
    """Write each table into its folder in ``out``, in place of what is there; return the rows of each.

    Raises AuditError, OSError.
    """
    names, tell, hear = tuple(names), progress or (lambda _: None), tell_damage or (lambda _: None)
    counts = dict.fromkeys(names, 0)
    for name in names:
        shutil.rmtree(os.path.join(out, name), ignore_errors=True)
        os.makedirs(os.path.join(out, name))
    triples = [triple for queue in queues for triple in queue.triples]
    octets = sum(triple.octets for triple in triples)
    packs = make_packs(triples, lambda triple: triple.octets, PACK_OCTETS)
    workers = workers or useful_workers(octets)
    if workers == 1:
        done: Iterable[Written] = (_write_some(root, pack, out, names, crc) for pack in packs)
    else:
        done = _shared(workers, [(root, pack, out, names, crc) for pack in packs])
    try:
        for damage in [damage for queue in queues for damage in queue.damage]:
            hear(damage)
        for read, some, damaged in done:
            tell(read)
            for damage in damaged:
                hear(damage)
            for name, count in some.items():
                counts[name] += count
    except BrokenProcessPool:
        raise AuditError(ended_from_outside(workers)) from None
    return counts


def _shared(workers: int, work: list[tuple[Any, ...]]) -> Iterator[Written]:
    with processes(min(workers, WORKERS_MAX)) as pool:
        waiting: set[Future[Any]] = set()
        while work or waiting:
            while work and len(waiting) < workers * PACKS_EACH:
                waiting.add(_give(pool, work.pop()))
            future = next(as_completed(waiting))
            waiting.remove(future)
            yield future.result()


def _give(pool: ProcessPoolExecutor, work: tuple[Any, ...]) -> "Future[Any]":
    return pool.submit(_write_some, *work)


def _write_some(root: str, triples: Iterable[Triple], out: str, names: Sequence[str],
                crc: bool) -> Written:
    """Write the rows of some segments; return the octets read, the rows of each table, and what is damaged."""
    counts, octets = dict.fromkeys(names, 0), 0
    damage: list[Damage] = []
    for triple in triples:
        data = read_triple(Source(root), triple, crc=crc)
        octets += triple.octets
        damage += data.damage
        for name in names:
            schema = pa.schema([pa.field(column, ARROW[kind]) for column, kind in TABLES[name].items()
                                if column not in OF_FOLDERS])
            counts[name] += _write_days(os.path.join(out, name, folder("vhost", triple.vhost),
                                                     folder("queue", triple.queue)),
                                        f"{triple.priority}.{triple.number:010}.parquet", schema, DAY_OF.get(name),
                                        batches(name, Source(root), triple, schema, crc=crc, data=data))
    return octets, counts, damage


def _write_days(path: str, name: str, schema: pa.Schema, time: str | None, rows: Iterable[pa.RecordBatch]) -> int:
    """Write the rows to one file for each day; return how many there are."""
    count = 0
    with ExitStack() as stack:
        files: dict[str, parquet.ParquetWriter] = {}
        for batch in rows:
            count += batch.num_rows
            for day, some in _by_day(batch, time):
                if day not in files:
                    os.makedirs(os.path.join(path, f"day={day}"), exist_ok=True)
                    files[day] = stack.enter_context(parquet.ParquetWriter(
                        os.path.join(path, f"day={day}", name), schema, compression=COMPRESSION))
                files[day].write_batch(some)
    return count


def _by_day(batch: pa.RecordBatch, time: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    if time is None:
        yield NO_DAY, batch
        return
    times = batch.column(batch.schema.get_field_index(time))
    days = np.asarray(times.fill_null(-1)) // DAY_NS
    for day in np.unique(days):
        there = days == day
        words = str(np.datetime64(int(day), "D")) if day >= 0 else NO_DAY
        yield words, batch if there.all() else batch.filter(pa.array(there))


def folder(key: str, name: str) -> str:
    """``queue=a%2Fb``: the folder of all rows with that name.

    Of a name that a folder cannot hold whole, or that is not UTF-8, it has the begin, and a sum of the whole name.
    """
    shown, room = clean(name), NAME_OCTETS_MAX - len(key) - 1
    if shown == name and len(quote(shown, safe="")) <= room:
        return f"{key}={quote(shown, safe='')}"
    end = "~" + sha1(name.encode("utf-8", "surrogateescape"), usedforsecurity=False).hexdigest()[:12]
    while len(quote(shown, safe="")) > room - len(end):
        shown = shown[:-1]
    return f"{key}={quote(shown, safe='')}{end}"
