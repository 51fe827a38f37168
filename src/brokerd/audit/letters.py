"""Looks for the dead letters of a queue in the queue to which they went, in the same files: ``dead_letters``.

The journal says that a message became a dead letter.  Its letter was stored before that was written: it has the same
body, and its header x-last-death-queue names the queue in which it died.  At least once, it was on disk as well.

The files say where letters go if that is the default exchange, with a routing key that the queue's settings give.  Only
these are looked for, and count as checked: nothing in the files could contradict the others.  A letter that is not
there is a fault if nothing else explains it.  These leave doubts:

- at most once, a letter is dropped that finds no queue, or that its queue refuses; a loss of power may take it;
- the other queue is not in these files, or was declared later, or is not whole: without a journal settled segments go
  away, retention takes them, compaction takes settled records, a loss of power takes what was not on disk; a queue that
  drops duplicates may have dropped it.

The audit does not look for three kinds of letters.  A message that has died before may have gone in a circle, and is
dropped then.  A message's headers may name another exchange or routing key.  A compaction may have taken the record.
"""

from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from brokerd.audit import many
from brokerd.audit.deliveries import in_force
from brokerd.audit.files import FOREVER, QueueFiles, Source, queue_named
from brokerd.audit.properties import Texts, text, texts
from brokerd.audit.scan import Options, Summary
from brokerd.audit.segment import SegmentData, read_triple
from brokerd.audit.stitch import Findings, read_again
from brokerd.store import format as layout
from brokerd.store import reading

COUNTED = slice(*(layout.ORDER_COUNTERS.index(name) for name in ("dead_lettered_rejected", "rejected")))
NOWHERE, UNKNOWN = -1, -2
LAST_QUEUE = "x-last-death-queue"
# Headers of messages of which the settings alone do not say where their letters go.
OWN_WAYS = (LAST_QUEUE, "x-death", "x-dead-letter-exchange", "x-dead-letter-routing-key")


class Verdict(NamedTuple):
    """``found`` letters are missing, of ``checked`` ones; ``doubts``: why it is not sure of others."""

    found: int
    checked: int
    doubts: tuple[str, ...]


class Deaths(NamedTuple):
    """Messages of one segment that became dead letters: columns.  ``body``: a hash; 0: it is not known, or cannot
    tell whether there must be a letter."""

    ts: np.ndarray
    seq: np.ndarray
    place: np.ndarray
    body: np.ndarray
    summary: np.ndarray


class Letters(NamedTuple):
    """The letters of another queue that a queue has.

    ``bodies``: how many there are of each hash.  ``since``: when its first message came, if all messages since are
    there; FOREVER: not all are.  ``until``: the cut of its copy in a dump, which has one for each queue."""

    bodies: dict[int, int]
    since: int
    until: int = FOREVER


def applies(queue: QueueFiles) -> bool:
    """Whether the queue had dead letters."""
    return any(rule.dead_letters for rule in queue.rules)


def judge(source: Source, queue: QueueFiles, summaries: list[Summary], options: Options,
          findings: Findings) -> Verdict:
    """Look for all letters of a queue.  Reads the segments once more in which messages died, and the other queues."""
    parts = [_deaths(source, s, options, k) for k, s in enumerate(summaries) if s.counters[COUNTED].any()]
    if not parts:
        return Verdict(0, 0, ())
    deaths = Deaths(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    deaths = Deaths(*(column[np.argsort(deaths.ts, kind="stable")] for column in deaths))
    names, to, sure = _routes(queue, deaths.ts)
    sure &= not any(s.power_cut for s in summaries)
    unknown = (to < 0) | (deaths.body == 0)
    missing, bad = np.zeros(to.size, bool), np.zeros(to.size, bool)
    for k, name in enumerate(names):
        own = np.flatnonzero((to == k) & ~unknown)
        there = _letters(source, queue, name, options)
        gone = own[_beyond(deaths.body[own], there.bodies)]
        missing[gone] = True
        bad[gone] = sure[gone] & (deaths.ts[gone] > there.since) & (deaths.ts[gone] < there.until)
    for number in np.unique(deaths.summary[bad]).tolist():
        some = bad & (deaths.summary == number)
        findings.add(summaries[number], "dead_letters", "journal", "became a dead letter, which is not in the queue to "
                     "which it went", deaths.seq[some], deaths.place[some], deaths.ts[some], deaths.ts[some],
                     deaths.ts[some])
    unclear = int(np.count_nonzero(missing & ~bad))
    doubt = f"of {many(unclear, 'message')} the dead letter is not there, which more than a fault explains"
    return Verdict(int(np.count_nonzero(bad)), int(np.count_nonzero(~unknown)), (doubt,) if unclear else ())


def _beyond(bodies: np.ndarray, there: dict[int, int]) -> np.ndarray:
    """Which of the deaths (in order of time) have no letter: of equal bodies the last ones."""
    order = np.argsort(bodies, kind="stable")
    rank = np.arange(order.size) - np.searchsorted(bodies[order], bodies[order])
    beyond = np.zeros(bodies.size, bool)
    beyond[order] = rank >= np.array([there.get(body, 0) for body in bodies[order].tolist()], np.int64)
    return beyond


def _deaths(source: Source, summary: Summary, options: Options, number: int) -> Deaths:
    p = read_again(source, summary, options)
    data, life = p.data, p.life
    which = np.flatnonzero((life.type == layout.DEAD_LETTERED) & (life.why != layout.REASON_REMOVED))
    record = life.record[life.of[which]]
    there = record >= 0
    body = np.zeros(which.size, np.int64)
    body[there] = hashes_of_bodies(data, record[there])
    for name in OWN_WAYS:
        own = texts(data.octets, _records(data, record[there]), name, header=True).index
        body[np.flatnonzero(there)[own]] = 0
    return Deaths(life.ts[which], life.seq[life.of[which]], data.event_places[life.event[which]], body,
                  np.full(which.size, number))


def _records(data: SegmentData, which: np.ndarray) -> reading.Records:
    return reading.Records(data.headers[which], data.positions[which], [])


def hashes_of_bodies(data: SegmentData, which: np.ndarray) -> np.ndarray:
    """A hash of the body of each of these records (indices); never 0."""
    view, records = memoryview(data.octets), _records(data, which)
    stops = records.positions + records.headers["length"].astype(np.int64)
    starts = stops - reading.body_octets(data.octets, records)
    made = [int.from_bytes(blake2b(view[start:stop], digest_size=8).digest(), "little", signed=True) or 1
            for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
    return np.array(made, np.int64)


def _routes(queue: QueueFiles, ts: np.ndarray) -> tuple[list[str], np.ndarray, np.ndarray]:
    """The names of queues to which letters go; which of these it is for each time of a death, or ``UNKNOWN``; and
    whether it goes there at least once."""
    names = sorted({rule.letters_to for rule in queue.rules if rule.letters_to is not None} - {queue.queue})
    to, sure = np.full(ts.size, NOWHERE), np.ones(ts.size, bool)
    for rule, some in in_force(queue.rules, ts, ts):
        if rule.dead_letters:
            its = names.index(rule.letters_to) if rule.letters_to in names else UNKNOWN
            to[some] = np.where((to[some] == NOWHERE) | (to[some] == its), its, UNKNOWN)
            sure[some] &= rule.at_least_once
    return names, to, sure


def _letters(source: Source, queue: QueueFiles, name: str, options: Options) -> Letters:
    """The letters of ``queue`` in the queue of that name and of the same vhost."""
    other = queue_named(source, queue, name)
    bodies: dict[int, int] = {}
    if other is None:
        return Letters(bodies, FOREVER)
    whole = bool(other.rules) and all(rule.journal for rule in other.rules) and not (other.removed or other.damage)
    arguments = other.settings.get("arguments")
    whole &= not (isinstance(arguments, dict) and arguments.get("x-message-deduplication"))
    last, count, since = 0, 0, FOREVER
    for triple in other.triples:
        data = read_triple(source, triple, crc=options.crc)
        sound = np.flatnonzero(data.sound)
        whole &= not (data.damage or data.gone or data.generation or data.power_cuts.size)
        seq = data.headers["seq"][sound].astype(np.int64)
        last = max(last, int(seq.max(initial=0)))
        count += sound.size
        since = min(since, int(data.headers["ts"][sound].min(initial=FOREVER)))
        rows = sound[data.headers["connection"][sound] == 0]
        where = texts(data.octets, _records(data, rows), LAST_QUEUE, header=True)
        own = rows[where.index[_are(data.octets, where, queue.queue)]]
        for body in hashes_of_bodies(data, own).tolist():
            bodies[body] = bodies.get(body, 0) + 1
    until = (other.manifest or {}).get("cut")
    return Letters(bodies, since if whole and last == count else FOREVER,      # Numbers begin with 1.
                   until if isinstance(until, int) else FOREVER)


def _are(octets: bytes, where: Texts, name: str) -> np.ndarray:
    wanted = name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return np.array([k for k in range(where.index.size) if text(octets, where, k) == wanted], np.int64)
