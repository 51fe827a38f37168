"""Verdicts of engine B that no SQL can give, because the tables lack what they need: the other engine gives them.

    chain           a chain of octets, which SQL cannot follow
    dead_letters    the bodies of messages
    stream          the file ``readers``
    group_order, group_owner, retry_kept, stop_kept, token_kept    the groups of messages, which are in their properties
    dedup_kept, replay_exact    hashes of keys, and events of replays

The tables have the first life of each message alone, and no events that tell why a message waits.  So the other engine
also gives the verdicts of ``LIVES`` and ``TIMES`` on queues of which messages were replayed, and those of ``TIMES`` on
queues in which messages may wait: ``apart``, ``of_queues``.
"""

from collections.abc import Mapping, Set
from typing import Any

from brokerd.audit import chain, holders, kept, letters, replayed, streams, waits
from brokerd.audit.cut import find_queues
from brokerd.audit.files import open_source
from brokerd.audit.scan import Options, scan
from brokerd.audit.verdicts import chain_row, judge

LIVES = frozenset((*replayed.AUDITS, *holders.AUDITS, "returned_first", "priority"))
TIMES = frozenset(("after_cut", "time_order"))
AUDITS = ("dead_letters", "chain", "stream", *waits.AUDITS, *kept.AUDITS)


def rows(path: str, options: Options, queues: str | None) -> list[dict[str, Any]]:
    """The rows of those of these audits that the options ask for.  Raises AuditError."""
    return [*(_letters(path, options, queues) if options.wants("dead_letters") else ()),
            *(_streams(path, options, queues) if options.wants("stream") else ()),
            *(_chains(path, options, queues) if options.wants("chain") else ()),
            *_waits(path, options, queues)]


def apart(path: str, queues: str | None, replayed_: Set[tuple[str, str]]) -> dict[tuple[str, str], frozenset[str]]:
    """{(vhost, queue): audits}: what ``of_queues`` judges in place of SQL.  ``replayed_``: queues of replayed messages.
    Raises AuditError."""
    waiting = ((queue.vhost, queue.queue) for queue in find_queues(open_source(path), queues)
               if any(rule.grouping or rule.groups or rule.retry or rule.stops or rule.dedup for rule in queue.rules))
    return dict.fromkeys(waiting, TIMES) | dict.fromkeys(replayed_, LIVES | TIMES)


def of_queues(path: str, options: Options, queues: str | None,
              names: Mapping[tuple[str, str], frozenset[str]]) -> list[dict[str, Any]]:
    """The rows of these audits on these queues.  Raises AuditError."""
    source, found = open_source(path), []
    for queue in find_queues(source, queues) if names else ():
        alone = options._replace(audits=frozenset(filter(options.wants, names.get((queue.vhost, queue.queue), ()))))
        if alone.audits:
            found += judge(source, queue, [scan(source, triple, alone) for triple in queue.triples], alone).audits
    return found


def _letters(path: str, options: Options, queues: str | None) -> list[dict[str, Any]]:
    source, found, alone = open_source(path), [], options._replace(audits=frozenset({"dead_letters"}))
    for queue in find_queues(source, queues):
        if letters.applies(queue):
            found += judge(source, queue, [scan(source, triple, alone) for triple in queue.triples], alone).audits
    return found


def _streams(path: str, options: Options, queues: str | None) -> list[dict[str, Any]]:
    source, found, alone = open_source(path), [], options._replace(audits=frozenset({"stream"}))
    for queue in find_queues(source, queues):
        if streams.is_stream(source, queue):
            found += judge(source, queue, [scan(source, triple, alone) for triple in queue.triples], alone).audits
    return found


def _waits(path: str, options: Options, queues: str | None) -> list[dict[str, Any]]:
    wanted = frozenset(filter(options.wants, (*waits.AUDITS, *kept.AUDITS)))
    source, found, alone = open_source(path), [], options._replace(audits=wanted)
    for queue in find_queues(source, queues) if wanted else ():
        if any(waits.applies(name, queue) if name in waits.AUDITS else kept.applies(name, queue) for name in wanted):
            found += judge(source, queue, [scan(source, triple, alone) for triple in queue.triples], alone).audits
    return found


def _chains(path: str, options: Options, queues: str | None) -> list[dict[str, Any]]:
    source, found = open_source(path), []
    for queue in source.queues(queues):
        known = [chain.read(source, triple) for triple in queue.triples]
        if any(each.events or each.faults for each in known):
            found.append(chain_row(queue, chain.judge(queue, known, options.chain_log)))
    return found
