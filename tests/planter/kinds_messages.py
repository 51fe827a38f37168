"""Faults in the life of one message: in its events, in its acks entries, in both.

Where nothing else is said, the fault stands in the files as a broker with that fault would have written it: checksums
and words are right, events stand in the order of their times, and acks say what the journal says.
"""

from tests.planter import properties
from tests.planter.files import (
    ACKED,
    ASIDE,
    BEFORE_START,
    DEAD,
    DELIVERED,
    DROPPED,
    EXPIRED,
    HANDED_OUT,
    PURGED,
    REDELIVERED,
    REJECTED,
    RETURNED,
)
from tests.planter.planting import NotHere, is_plain, message

WORKED = ("plain", "levels", "limited")
MORE = ("plain", "levels", "got")
EXPIRED_BY_AGE = 2
SLACK = 1_000_000_000           # ns: the side file tells of a consumer a moment after it has come, or gone


def has(kind):
    return lambda one: kind in one.shape


def was_returned(one):
    """Delivered, returned and delivered again, without a start between."""
    return one.shape[:3] == (DELIVERED, RETURNED, DELIVERED)


def never_delivered(one):
    return not one.events and not one.part.kept


# --- who


@message("ack_without_delivery", queues=("plain", "levels", "limited"))
def ack_by_another_consumer(view, one):
    delivered, acked = one.events
    acked.touch(consumer=view.another_consumer(acked.ts, {delivered.consumer}))


@message("ack_without_delivery", queues=("plain", "levels"))
def ack_by_nobody(view, one):
    one.events[-1].touch(consumer=0)


@message(queues=("plain", "limited"), suits=has(RETURNED))
def returned_by_another_consumer(view, one):
    returned = next(event for event in one.events if event.type == RETURNED)
    returned.touch(consumer=view.another_consumer(returned.ts, {returned.consumer, one.events[0].consumer}))


@message(queues=("plain", "levels"))
def delivered_to_nobody(view, one):
    one.events[0].touch(consumer=0)


@message("double_settle delivery_after_settle", queues=MORE)
def out_twice(view, one):
    """It is delivered again while it is out, to the same consumer."""
    delivered, acked = one.events
    ts = view.time_after(delivered.ts, acked.ts)
    view.add(one, DELIVERED, ts, consumer=delivered.consumer, aux=delivered.aux + 1, reason=REDELIVERED)
    view.add_entry(one, HANDED_OUT, at=one.part.acks.entries.index(one.settle_entry()))


@message("double_settle delivery_after_settle", queues=("plain", "levels", "limited"))
def out_with_two_consumers(view, one):
    delivered, acked = one.events
    other = view.another_consumer(delivered.ts, {delivered.consumer})
    ts = view.time_after(delivered.ts, acked.ts)
    view.add(one, DELIVERED, ts, consumer=other, aux=delivered.aux + 1, reason=REDELIVERED)
    view.add_entry(one, HANDED_OUT, at=one.part.acks.entries.index(one.settle_entry()))


@message(queues=("single",))
def two_consumers_of_a_single_active_queue(view, one):
    """A second consumer is served while the active one holds a message."""
    delivered, acked = one.events
    overlaps = any(
        other is not one and other.events and other.events[0].type == DELIVERED and len(other.events) > 1
        and other.events[0].consumer == delivered.consumer
        and other.events[0].ts < delivered.ts < other.events[1].ts for other in view.order)
    if not overlaps:
        raise NotHere("the active consumer holds nothing else")
    other = view.another_consumer(delivered.ts, {delivered.consumer})
    delivered.touch(consumer=other)
    acked.touch(consumer=other)


@message(queues=("plain", "levels"), undecidable=True)
def unknown_consumer(view, one):
    """Its consumer has no line.  Where no later line stands in the side file, that one may have found no room."""
    for event in one.events:
        event.touch(consumer=4_000_000_000)


@message(queues=("plain", "levels", "limited"))
def departed_consumer(view, one):
    """The consumer had gone before the message was delivered."""
    gone = [number for number, (_, ended) in view.consumers().items() if ended + SLACK < one.events[0].ts]
    if not gone:
        raise NotHere("no consumer had gone")
    for event in one.events:
        event.touch(consumer=gone[0])


@message(queues=("plain", "levels", "limited"))
def consumer_of_later(view, one):
    """The consumer came only after the message had been acked."""
    later = [number for number, (begun, _) in view.consumers().items() if begun - SLACK > one.events[-1].ts]
    if not later:
        raise NotHere("no consumer came later")
    for event in one.events:
        event.touch(consumer=later[0])


@message(queues=("plain", "levels", "single"))
def prefetch_exceeded(view, one):
    """Its ack comes after so many further deliveries that the consumer holds one too many."""
    delivered, acked = one.events
    line = next((line for line in view.queue.lines if line["what"] == "consumer"
                 and line["number"] == delivered.consumer), {})
    limit = line.get("prefetch")
    if not limit:
        raise NotHere("it has no limit")
    held, after = set(), None
    for event in view.events():
        if event.consumer != delivered.consumer:
            continue
        if event.type == DELIVERED:
            held.add(event.seq)
            if event.ts >= acked.ts and len(held) > limit:
                after = event
                break
        elif event is not acked:
            held.discard(event.seq)
    if after is None:
        raise NotHere("it would hold no more than it may")
    one.part.move(acked, view.time_after(after.ts))


# --- when


@message("ack_without_delivery fifo priority returned_first", queues=MORE)
def delivered_before_published(view, one):
    one.part.move(one.events[0], view.time_before(one.record.ts))


@message("ack_without_delivery", queues=("plain", "levels"))
def acked_before_delivered(view, one):
    delivered, acked = one.events
    one.part.move(acked, view.time_before(delivered.ts, one.record.ts))


@message("damage holes", queues=("plain", "levels", "bare"), suits=lambda one: one.seq > 1)
def time_goes_back(view, one):
    """The record has a time before that of the record with the number before."""
    before = view.messages.get(one.seq - 1)
    if before is None:
        raise NotHere("the one before is not there")
    one.record.touch(ts=view.time_before(before.record.ts))


@message("damage", queues=("plain", "levels", "single"))
def two_journals_at_one_time(view, one):
    """Its last event has the time of the event that follows, which stands in another journal."""
    events = view.events()
    place = events.index(one.events[-1])
    if place + 1 == len(events) or view.messages[events[place + 1].seq].part is one.part:
        raise NotHere("the next event stands in the same journal")
    one.events[-1].touch(ts=events[place + 1].ts)


def _is_last_event(one):
    return bool(one.events) and not one.part.kept and one.events[-1] is one.part.journal.events[-1]


@message(queues=WORKED, suits=_is_last_event)
def event_behind_the_cut(view, one):
    one.events[-1].touch(ts=view.queue.entry["cut"] + 1_000_000_000)


@message(queues=("plain", "levels", "bare"), suits=lambda one: one.record is one.part.records()[-1])
def record_behind_the_cut(view, one):
    if one is not view.order[-1]:
        raise NotHere("later ones would go back in time")
    one.record.touch(ts=view.queue.entry["cut"] + 1_000_000_000)


def _waits_long(one):
    place = properties.places(one.record.meta).get("expiration")
    return place is not None and is_plain(one) and one.events[0].ts - one.record.ts > 5_000_000


@message(queues=("aged",), suits=_waits_long)
def delivered_after_its_time(view, one):
    """Its publisher gave it a millisecond."""
    one.record.touch(meta=properties.with_expiration(one.record.meta, 1))


@message(queues=("aged",), suits=lambda one: bool(one.events) and one.events[-1].reason == EXPIRED_BY_AGE
         and one.events[-1].type == DEAD)
def expired_before_its_time(view, one):
    one.record.touch(meta=properties.with_expiration(one.record.meta, 3_600_000))


# --- how it ended


def _end_as(one, kind, reason=0, consumer=0):
    one.events[-1].touch(type=kind, reason=reason, consumer=consumer)
    one.settle_entry().touch(type=kind, reason=reason)


@message("ack_without_delivery", queues=("plain", "levels", "aged"))
def expired_while_out(view, one):
    _end_as(one, EXPIRED)


@message("ack_without_delivery", queues=MORE)
def purged_while_out(view, one):
    _end_as(one, PURGED)


@message("ack_without_delivery", queues=("plain", "levels"))
def dropped_while_out(view, one):
    """Dropped as one too many for the length of the queue, while a consumer held it."""
    _end_as(one, DROPPED, 3)


@message("ack_without_delivery", queues=("plain", "short"), suits=is_plain)
def dead_of_length_while_out(view, one):
    _end_as(one, DEAD, 3)


@message("limit_kept delivery_limit", queues=("limited",))
def dead_before_its_limit(view, one):
    """It failed once, and became a dead letter of the limit two."""
    acked = one.events[-1]
    view.add(one, RETURNED, view.time_before(acked.ts, one.events[0].ts), count=1, reason=1)
    view.add_entry(one, RETURNED, reason=1, count=1, at=one.part.acks.entries.index(one.settle_entry()))
    _end_as(one, DEAD, 4)
    acked.touch(count=1)
    one.settle_entry().touch(count=1)


@message("limit_kept delivery_limit", queues=("plain",))
def dead_of_a_limit_that_is_not_there(view, one):
    acked = one.events[-1]
    view.add(one, RETURNED, view.time_before(acked.ts, one.events[0].ts), count=1, reason=1)
    view.add_entry(one, RETURNED, reason=1, count=1, at=one.part.acks.entries.index(one.settle_entry()))
    _end_as(one, DROPPED, 4)
    acked.touch(count=1)
    one.settle_entry().touch(count=1)


def _died_of_limit(one):
    return one.settled and one.events[-1].reason == 4 and one.events[-1].type in (DEAD, DROPPED)


@message("limit_kept", queues=("limited",), suits=_died_of_limit)
def not_dead_at_its_limit(view, one):
    """It has failed too often, and waits."""
    one.drop_events(one.events[-1:])
    one.drop_entries([one.settle_entry()])


@message("delivery_limit limit_kept", queues=("limited",), suits=_died_of_limit)
def delivered_beyond_its_limit(view, one):
    """It goes out once more in place of dying, and is acked."""
    dead = one.events[-1]
    ts, count = dead.ts, max(event.count for event in one.events)
    one.part.move(dead, view.time_after(ts))
    view.add(one, DELIVERED, ts, consumer=one.events[0].consumer, aux=999, count=count, reason=REDELIVERED)
    view.add_entry(one, HANDED_OUT, count=count, at=one.part.acks.entries.index(one.settle_entry()))
    _end_as(one, ACKED, 0, one.events[0].consumer)


def _was_out_at_a_start(one):
    return one.shape == (DELIVERED, DELIVERED, ACKED) and bool(one.events[1].reason & BEFORE_START)


@message("delivery_limit limit_kept", queues=("limited",), suits=_was_out_at_a_start)
def beyond_its_limit_by_a_start(view, one):
    """It was out when the broker ended, which is a failure, and then came back as often as its limit allows alone."""
    second, acked = one.events[1:]
    ts, consumer = second.ts, second.consumer
    for count in (second.count + 1, second.count + 2):
        ts = view.time_after(ts, acked.ts)
        view.add(one, RETURNED, ts, consumer=consumer, count=count, reason=1)
        view.add_entry(one, RETURNED, reason=1, count=count, at=one.part.acks.entries.index(one.settle_entry()))
        ts = view.time_after(ts, acked.ts)
        view.add(one, DELIVERED, ts, consumer=consumer, aux=second.aux + count, count=count, reason=REDELIVERED)
        view.add_entry(one, HANDED_OUT, count=count, at=one.part.acks.entries.index(one.settle_entry()))


@message(queues=("limited", "aged"), together=True)
def dead_letter_lost(view, one):
    """The journal says that it became a dead letter; the queue of dead letters, in the same dump, does not have it."""
    _end_as(one, DEAD, 1, one.events[-1].consumer)


# --- counts and marks


@message(queues=("plain", "levels", "limited", "single"), suits=was_returned)
def redelivered_missing(view, one):
    second = one.events[2]
    second.touch(reason=second.reason & ~REDELIVERED)


@message(queues=MORE)
def redelivered_wrong(view, one):
    """A first delivery says that it is none."""
    one.events[0].touch(reason=one.events[0].reason | REDELIVERED)


@message(queues=WORKED, suits=was_returned)
def failures_counted_twice(view, one):
    """The first return counts two, in the journal and in the acks; all that follows counts on from there."""
    for event in one.events[1:]:
        if event.count:
            event.touch(count=event.count + 1)
    for entry in one.entries:
        if entry.count:
            entry.touch(count=entry.count + 1)


@message(queues=WORKED, suits=was_returned)
def failure_not_counted(view, one):
    for each in (*one.events, *one.entries):
        if each.count:
            each.touch(count=each.count - 1)


@message(queues=WORKED)
def failures_of_a_first_delivery(view, one):
    one.events[0].touch(count=2)


@message(queues=("plain", "limited"), suits=lambda one: any(entry.type == RETURNED for entry in one.entries))
def failures_differ_in_acks(view, one):
    entry = next(entry for entry in one.entries if entry.type == RETURNED)
    entry.touch(count=entry.count + 3)


# --- events that are too many or too few


@message("ack_without_delivery", queues=MORE)
def delivery_lost(view, one):
    """The journal has no delivery of what was acked."""
    one.drop_events(one.events[:1])


@message("fifo priority returned_first", queues=MORE)
def ack_lost_in_journal(view, one):
    one.drop_events(one.events[-1:])


@message(queues=MORE)
def ack_lost_in_acks(view, one):
    one.drop_entries([one.settle_entry()])


@message("fifo returned_first priority", queues=("plain", "levels"))
def ack_lost_in_both(view, one):
    """It is out for ever, over the starts of the broker, and stands in a settled segment."""
    start = max((event.ts for part in view.queue.parts for event in part.events() if event.type == 9), default=0)
    if not one.part.kept and one.events[-1].ts > start:
        raise NotHere("it may well be out")
    one.drop_events(one.events[-1:])
    one.drop_entries([one.settle_entry()])


@message("fifo priority", queues=("plain", "levels", "single", "got"))
def skipped(view, one):
    """It lies ready, was never delivered, and later ones were."""
    one.drop_events(one.events)
    one.drop_entries(one.entries)
    view.add_entry(one, ASIDE)


@message("fifo priority", queues=("plain", "levels"))
def skipped_by_the_cursor(view, one):
    """As before, and the acks do not say that it was set aside."""
    one.drop_events(one.events)
    one.drop_entries(one.entries)


@message("double_settle delivery_after_settle", queues=MORE)
def acked_twice(view, one):
    view.add(one, ACKED, view.time_after(one.events[-1].ts))
    view.add_entry(one, ACKED)


@message("double_settle", queues=MORE)
def acked_twice_in_journal(view, one):
    view.add(one, ACKED, view.time_after(one.events[-1].ts))


@message("double_settle", queues=MORE)
def acked_and_rejected(view, one):
    view.add(one, REJECTED, view.time_after(one.events[-1].ts))
    view.add_entry(one, REJECTED)


@message("double_settle", queues=(*MORE, "bare"), suits=lambda one: any(entry.type == ACKED for entry in one.entries))
def acked_twice_in_acks(view, one):
    view.add_entry(one, ACKED)


@message("double_settle", queues=("plain", "bare"), suits=lambda one: any(entry.type == ACKED for entry in one.entries))
def two_ends_in_acks(view, one):
    view.add_entry(one, PURGED)


@message(queues=("plain", "levels", "got"))
def ends_differ(view, one):
    """Acked in the journal, purged in the acks."""
    one.settle_entry().touch(type=PURGED)


@message("delivery_after_settle double_settle", queues=MORE)
def delivered_after_ack(view, one):
    acked = one.events[-1]
    view.add(one, DELIVERED, view.time_after(acked.ts), reason=REDELIVERED, aux=one.events[0].aux + 7)


@message("delivery_after_settle double_settle returned_first priority", queues=("plain", "levels"))
def returned_after_ack(view, one):
    """The message is back at its place, and acked."""
    view.add(one, RETURNED, view.time_after(one.events[-1].ts), reason=1, count=1)


@message("ack_without_delivery", queues=("plain", "levels"))
def returned_without_delivery(view, one):
    ts = view.time_before(one.events[0].ts, one.record.ts)
    view.add(one, RETURNED, ts, reason=1, count=1)


@message(queues=("plain", "levels"), suits=never_delivered)
def ready_and_acked_in_acks(view, one):
    view.add_entry(one, ACKED)


@message("ack_without_delivery", queues=("plain", "levels", "single"), suits=never_delivered)
def ready_and_acked(view, one):
    consumer = view.another_consumer(view.queue.times()[-1], ())
    view.add(one, ACKED, view.time_after(view.queue.times()[-1], view.queue.entry["cut"]), consumer=consumer)
    view.add_entry(one, ACKED)


@message(queues=("plain", "limited"), suits=lambda one: any(entry.type == RETURNED for entry in one.entries))
def causes_differ(view, one):
    """The journal and the acks have two causes of one return."""
    entry = next(entry for entry in one.entries if entry.type == RETURNED)
    entry.touch(reason=6 if entry.reason != 6 else 1)


@message(queues=("plain", "limited"), suits=lambda one: any(entry.type == RETURNED for entry in one.entries))
def return_lost_in_acks(view, one):
    one.drop_entries([next(entry for entry in one.entries if entry.type == RETURNED)])


@message(queues=("plain", "levels", "limited"), suits=was_returned)
def return_lost_in_journal(view, one):
    one.drop_events(one.events[1:2])


@message(queues=("plain", "limited"), suits=lambda one: any(entry.type == HANDED_OUT for entry in one.entries))
def hand_out_lost_in_acks(view, one):
    one.drop_entries([next(entry for entry in one.entries if entry.type == HANDED_OUT)])


@message(queues=("plain", "levels", "single"), audit="agreement")
def first_hand_out_told_in_acks(view, one):
    """The cursor tells of it, and an entry does as well."""
    view.add_entry(one, HANDED_OUT, at=one.part.acks.entries.index(one.settle_entry()))


# --- the order of deliveries


def _swap(view, one, other):
    first, second = one.events[0], other.events[0]
    if not first.ts < second.ts < one.events[1].ts:
        raise NotHere("the first is acked before the second goes out")
    at, then = first.ts, second.ts
    first.touch(aux=second.aux)
    second.touch(aux=first.aux)
    one.part.move(first, then)
    other.part.move(second, at)


@message("fifo", queues=("plain", "levels", "limited", "aged"))
def later_one_first(view, one):
    """The next message goes out before it."""
    other = view.neighbour(one)
    if not is_plain(other) or other.events[0].consumer != one.events[0].consumer:
        raise NotHere("the next one has another life")
    _swap(view, one, other)


@message("priority", queues=("levels",), suits=lambda one: one.level > 0 and is_plain(one))
def lower_priority_first(view, one):
    """A message of a lower level goes out while this one is ready."""
    delivered = one.events[0]
    lower = [other for other in view.order if other.level < one.level and is_plain(other)
             and other.record.ts < delivered.ts < other.events[0].ts]
    if not lower:
        raise NotHere("nothing lower waited")
    other = min(lower, key=lambda each: each.events[0].ts)
    if other.events[0].ts < one.events[1].ts:
        _swap(view, one, other)
    else:
        other.part.move(other.events[0], view.time_before(delivered.ts, max(one.record.ts, other.record.ts)))


@message("returned_first", queues=("plain", "levels", "limited"), suits=was_returned)
def returned_one_waits(view, one):
    """It came back, and a later one goes out before it."""
    again = one.events[2]
    later = [other for other in view.order if other.level == one.level and other.seq > one.seq
             and other.events and other.events[0].type == DELIVERED and other.events[0].ts > again.ts]
    if not later:
        raise NotHere("no later one goes out")
    other = min(later, key=lambda each: each.events[0].ts)
    event, at = other.events[0], again.ts
    if len(one.events) > 3 and event.ts > one.events[3].ts:
        raise NotHere("it goes out too late to change places")
    one.part.move(again, event.ts)
    other.part.move(event, at)
