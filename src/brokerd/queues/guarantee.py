"""The guarantee of order that a queue gives now, and why: facts about the queue in, a name and plain words out.

    strict-fifo          each message is settled before a later one is delivered, redeliveries included
    fifo-per-priority    the same within each priority level
    fifo-per-group       the same within each message group, however many consumers work
    best-effort          clients may already have worked on messages behind one that comes back

Every queue delivers its lowest ready message first, under each of these names.  The name is about the order in which
clients work on the messages.  Knows nothing of what has happened: ``plane.Queue.order_counts`` counts that.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from brokerd import plane
from brokerd.queues.rules import PLAIN, Rules

if TYPE_CHECKING:
    from brokerd.queues.groups import GroupRule

RETRY_REASONS = {
    "all": "delayed retry: later messages overtake a returned one while it waits",
    "failed": "delayed retry: later messages overtake a rejected one, and one of a lost channel, while it waits",
    "returned": "delayed retry: later messages overtake a returned one while it waits, unless it was rejected or lost",
}
STRICT, PER_PRIORITY, PER_GROUP, BEST_EFFORT = "strict-fifo", "fifo-per-priority", "fifo-per-group", "best-effort"


class Reader(NamedTuple):
    """One consumer.  ``prefetch`` 0: no limit; ``active``: it is the single active one."""

    tag: str
    prefetch: int = 0
    no_ack: bool = False
    active: bool = False


class Facts(NamedTuple):
    """The facts that decide the guarantee."""

    consumers: tuple[Reader, ...] = ()
    max_priority: int = 0
    getters: int = 0  # open channels that have taken messages by basic.get
    rules: Rules = PLAIN
    stops: tuple[tuple[int, int], ...] = ()  # the first messages behind which nothing goes out: number, failures
    waiting: int = 0  # messages that wait before they are tried again
    paused: bool = False  # by an operator


class Guarantee(NamedTuple):
    """The guarantee in force, why it is not stronger, and what removes messages without disturbing the others."""

    name: str
    reasons: list[str]
    notes: list[str]


def find_guarantee(facts: Facts) -> Guarantee:
    """The guarantee that holds now.  ``reasons`` of a strict order say what makes it strict."""
    working = _find_served(facts)
    if facts.rules.group is not None:
        return _guarantee_of_groups(facts, facts.rules.group, working)
    weak = list(_disturbances(facts, working))
    notes = [*_standstill(facts), *_notes(facts)]
    if facts.rules.single_active and len(facts.consumers) > 1:
        notes.insert(0, f"single active consumer: 1 of {len(facts.consumers)} consumers is served")
    if weak:
        return Guarantee(BEST_EFFORT, weak, notes)
    if not working:
        why = "no consumer"
    elif facts.max_priority:
        why = "one consumer with prefetch 1"
    else:
        why = "one consumer with prefetch 1: a message is settled before the next is delivered"
    if facts.max_priority:
        levels = f"messages of higher priority go first, {facts.max_priority + 1} levels"
        return Guarantee(PER_PRIORITY, [levels, why], notes)
    return Guarantee(STRICT, [why], notes)


def _guarantee_of_groups(facts: Facts, rule: "GroupRule", working: tuple[Reader, ...]) -> Guarantee:
    """Within a group, a message is settled before a later one of the group, unless consumers take without acks."""
    notes = list(_notes(facts))
    if rule.keyless == "free":
        notes.insert(0, "messages without a group key are in no group, and have no order among them")
    if facts.max_priority:
        notes.insert(0, "priorities choose between groups, never inside one")
    lost = [f"consumer '{each.tag}' takes messages without acks: what it loses does not come back"
            for each in working if each.no_ack]
    if lost:
        return Guarantee(BEST_EFFORT, lost, notes)
    if rule.sticky:
        reasons = ["sticky groups: all messages of a group that are out are with one consumer",
                   "a returned message takes the later ones of its group back"]
    elif rule.most > 1:
        reasons = [f"exclusive groups: up to {rule.most} messages of a group are out, in order, all with one consumer",
                   "a returned message takes the later ones of its group back"]
    else:
        reasons = ["exclusive groups: a message is settled before the next of its group is delivered"]
    if facts.rules.retry is not None:
        reasons.append("delayed retry: a group waits behind its returned message, and other groups go on")
    where = f"header {' or '.join(rule.headers)}" if rule.by == "header" else f"property {rule.by}"
    return Guarantee(PER_GROUP, [*reasons, f"the group is in {where}"], notes)


def facts_of(queue: Any) -> Facts:
    """The facts of a queues.Queue."""
    return Facts(
        consumers=tuple([_reader(each, queue.active) for each in queue.consumers or ()]),
        max_priority=queue.max_priority,
        getters=queue.getter_count,
        rules=queue.rules,
        paused=queue.paused_at is not None,
        **_held(queue.gate),
    )


def _held(gate: Any) -> dict[str, Any]:
    if not isinstance(gate, plane.Retry):
        return {}
    return {"stops": tuple(gate.stops(1)), "waiting": gate.waiting}


def _reader(consumer: Any, active: Any) -> Reader:
    limits = [limit for limit in (consumer.prefetch, consumer.channel.global_prefetch) if limit]
    tag = consumer.tag.decode("utf-8", "replace")
    return Reader(tag, min(limits, default=0), consumer.no_ack, consumer is active)


def _find_served(facts: Facts) -> tuple[Reader, ...]:
    """The consumers that are served.  A single active consumer is alone, and has settled all before another follows."""
    if not facts.rules.single_active or len(facts.consumers) < 2:
        return facts.consumers
    return tuple([each for each in facts.consumers if each.active][:1]) or facts.consumers[:1]


def _disturbances(facts: Facts, working: tuple[Reader, ...]) -> Iterable[str]:
    if len(working) > 1:
        yield f"{len(working)} consumers compete"
    for prefetch in sorted({each.prefetch for each in working if not each.no_ack}):
        if prefetch == 0:
            yield "unlimited prefetch: any number of messages may overtake a returned one"
        elif prefetch == 2:
            yield "prefetch 2: 1 message may overtake a returned one"
        elif prefetch > 2:
            yield f"prefetch {prefetch}: up to {prefetch - 1} messages may overtake a returned one"
    for each in working:
        if each.no_ack:
            yield f"consumer '{each.tag}' takes messages without acks: what it loses does not come back"
    if facts.rules.retry is not None:
        yield RETRY_REASONS[facts.rules.retry.type]
    if facts.getters:
        yield (
            "basic.get takes messages beside the consumers" if facts.consumers
            else "basic.get takes messages, as many at a time as it likes"
        )  # fmt: skip


def _standstill(facts: Facts) -> Iterable[str]:
    """Why messages that are there do not go out."""
    for seq, failed in facts.stops:
        times = "once" if failed == 1 else f"{failed} times"
        yield (f"the queue has stopped behind message {seq}, which has failed {times}: `queue release` tries it again, "
               "`queue skip` gives it up")
    if facts.waiting:
        yield f"{facts.waiting} returned message{' waits' if facts.waiting == 1 else 's wait'} for the next try"


def _notes(facts: Facts) -> Iterable[str]:
    rules, dead = facts.rules, "dropped"
    if facts.paused:
        yield "an operator has paused the queue: no message goes out until `queue resume`"
    if rules.dead_letter is not None:
        dead = f"dead-lettered to exchange '{rules.dead_letter.exchange}'"
    if rules.message_ttl_ms is not None:
        yield f"messages that wait longer than {rules.message_ttl_ms} ms are {dead}"
    for limit, unit in ((rules.max_length, "message"), (rules.max_octets, "octet")):
        if limit is not None:
            what = f"the oldest are {dead}" if rules.overflow == "drop-head" else "new messages are refused"
            yield f"over {limit} {unit if limit == 1 else f'{unit}s'} {what}"
    if rules.delivery_limit is not None:
        end = "is dropped" if rules.delivery_limit_action == "drop" else f"is {dead}"
        if rules.limit_stops:
            stopped = "the queue" if rules.group is None else "its group"
            end = f"stops {stopped} until an operator acts"
        times = "once" if rules.delivery_limit == 1 else f"{rules.delivery_limit} times"
        yield f"a message that has come back {times} {end} at the next return"
    if rules.dead_letter is not None:
        yield f"rejected messages are {dead}"
