"""Judges queues with the processors of this machine, without Spark: ``judge_all``.

A process reads and judges many small queues one after the other; the segments of a large queue are shared out among
processes, and one of them judges what the others have read.  Little data is judged by this process alone, because
another one costs a fifth of a second before it reads anything.
"""

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context
from typing import Any, NamedTuple

from brokerd.audit import AuditError
from brokerd.audit.files import QueueFiles, Source, Triple
from brokerd.audit.scan import DEFAULTS, Options, Summary, scan
from brokerd.audit.verdicts import Judged, judge

WORKERS_MAX = 8                 # Each may hold several times the octets of a segment.
ALONE_OCTETS = 48 << 20         # less is judged by this process alone
PACK_OCTETS = 16 << 20          # about as much is read by one task
PACK_QUEUES = 100


class Task(NamedTuple):
    """Work for one process: whole queues (their indices), or with ``triples`` some segments of one large queue.
    ``octets`` of files."""

    queues: tuple[int, ...]
    triples: tuple[Triple, ...]
    octets: int


def judge_all(root: str, queues: Sequence[QueueFiles], options: Options = DEFAULTS, *, workers: int | None = None,
              progress: Callable[[int], object] | None = None) -> list[Judged]:
    """The verdicts on each queue.  ``progress`` gets the octets of files that were read since its last call.

    Raises AuditError if one of the other processes ends before its work is done.
    """
    tell = progress or (lambda _: None)
    octets = sum(triple.octets for queue in queues for triple in queue.triples)
    workers = workers or useful_workers(octets)
    if workers == 1:
        return [_alone(root, queue, options, tell) for queue in queues]
    try:
        with processes(workers) as pool:
            return _shared(pool, root, queues, options, tell)
    except BrokenProcessPool:
        raise AuditError(ended_from_outside(workers)) from None


def useful_workers(octets: int) -> int:
    """How many processes are worth while for so many octets of files."""
    return 1 if octets < ALONE_OCTETS else min(len(os.sched_getaffinity(0)), WORKERS_MAX)


def tasks_of(queues: Sequence[QueueFiles]) -> list[Task]:
    """The work, large queues first, so that no process is left with one when all others are done."""
    large, small = [], []
    filled: list[int] = []
    octets = 0
    for index, queue in enumerate(queues):
        own = sum(triple.octets for triple in queue.triples)
        if own > 2 * PACK_OCTETS:
            large += [Task((index,), triples, sum(triple.octets for triple in triples))
                      for triples in _packed(queue.triples)]
            continue
        filled, octets = [*filled, index], octets + own
        if octets >= PACK_OCTETS or len(filled) >= PACK_QUEUES:
            small.append(Task(tuple(filled), (), octets))
            filled, octets = [], 0
    return [*large, *small, *([Task(tuple(filled), (), octets)] if filled else [])]


def _packed(triples: Sequence[Triple]) -> Iterator[tuple[Triple, ...]]:
    pack: list[Triple] = []
    for triple in triples:
        pack.append(triple)
        if sum(one.octets for one in pack) >= PACK_OCTETS:
            yield tuple(pack)
            pack = []
    if pack:
        yield tuple(pack)


def _alone(root: str, queue: QueueFiles, options: Options, tell: Callable[[int], object]) -> Judged:
    summaries = []
    for triple in queue.triples:
        summaries.append(scan(Source(root), triple, options))
        tell(triple.octets)
    return judge(Source(root), queue, summaries, options)


def _shared(pool: ProcessPoolExecutor, root: str, queues: Sequence[QueueFiles], options: Options,
            tell: Callable[[int], object]) -> list[Judged]:
    """Give out the tasks, and judge a large queue as soon as all of its segments are read."""
    made: dict[int, Judged] = {}
    read: dict[int, list[Summary]] = {}
    waiting: dict[Future[Any], Task] = {}
    for task in tasks_of(queues):
        if task.triples:
            waiting[pool.submit(_scan_some, root, task.triples, options)] = task
        else:
            waiting[pool.submit(_judge_some, root, [queues[index] for index in task.queues], options)] = task
    while waiting:
        for future in wait(waiting, return_when=FIRST_COMPLETED).done:
            task = waiting.pop(future)
            tell(task.octets)
            if not task.triples:
                made |= zip(task.queues, future.result(), strict=True)
                continue
            index = task.queues[0]
            summaries = read.setdefault(index, [])
            summaries += future.result()
            if len(summaries) == len(queues[index].triples):
                last = pool.submit(_judge_one, root, queues[index], read.pop(index), options)
                waiting[last] = Task((index,), (), 0)
    return [made[index] for index in range(len(queues))]


@contextmanager
def processes(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Other processes, which end at once when the block is left by an exception."""
    before = active_children()
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _begin)
    try:
        yield pool
    except BaseException:
        for child in active_children():
            if child not in before:
                child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def ended_from_outside(workers: int) -> str:
    """The message if one of so many processes ended before its work was done."""
    return ("a process that read segments was ended from outside: perhaps memory is short "
            f"(there were {workers} of them)")


def _begin() -> None:
    """Let Ctrl-C, which a terminal sends to all of them, end a process without a word."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


# --- in the other processes


def _scan_some(root: str, triples: Iterable[Triple], options: Options) -> list[Summary]:
    return [scan(Source(root), triple, options) for triple in triples]


def _judge_one(root: str, queue: QueueFiles, summaries: list[Summary], options: Options) -> list[Judged]:
    return [judge(Source(root), queue, summaries, options)]


def _judge_some(root: str, queues: Iterable[QueueFiles], options: Options) -> list[Judged]:
    return [_alone(root, queue, options, lambda _: None) for queue in queues]
