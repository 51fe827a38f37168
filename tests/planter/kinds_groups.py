"""Faults of message groups, retries, parks, fencing tokens, redrives, deduplication keys and replays.

Each kind names the audit that must find it.  As in ``kinds_messages``, the files are as a broker with that fault would
have written them.
"""

from tests.planter import properties
from tests.planter.files import (
    ACKED,
    ASIDE,
    BEFORE_START,
    DEAD,
    DELIVERED,
    DROPPED,
    HANDED_OUT,
    MARK,
    NO_ACKS,
    PURGED,
    REDELIVERED,
    RETURNED,
)
from tests.planter.planting import NotHere, message
from tests.planter.play_groups import (
    AGAIN,
    DUPLICATE,
    GROUP_PARKED,
    GROUP_RELEASED,
    REDRIVEN,
    REPLAY,
    REPLAYED,
    RETRY,
    TOKEN,
)
from tests.planter.samples_groups import KEYS

IN_GROUPS = ("grouped", "orders")
HOUR_MS = 3_600_000
EARLY_NS = 30_000_000           # after a return, by its delay, no try is due


def is_done(one):
    """Delivered once, perhaps with a token, and acked once."""
    return (one.shape in ((DELIVERED, ACKED), (TOKEN, DELIVERED, ACKED))
            and not one.events[-2].reason & (NO_ACKS | BEFORE_START))


def is_tried_again(one):
    """It waited for its next try, and was delivered again in the same life of the broker."""
    again = delivery_after(one, RETRY) if RETRY in one.shape else None
    return again is not None and not again.reason & BEFORE_START


def has(*kinds):
    """Whether a message has an event of each of these types: a group that is parked may not be released any more."""
    return lambda one: all(kind in one.shape for kind in kinds)


def event_of(one, kind):
    return next(event for event in one.events if event.type == kind)


def delivery_after(one, kind):
    """The first delivery behind an event of this kind; None: there is none."""
    since = event_of(one, kind).ts
    return next((event for event in one.events if event.type == DELIVERED and event.ts > since), None)


def group_of(view, one):
    (name,) = view.queue.setting("groups")["headers"]
    return properties.header(one.record.meta, name)


def next_of_group(view, one, suits=is_done):
    """The next message of its group, if that suits."""
    for other in view.order:
        if other.seq > one.seq and group_of(view, other) == group_of(view, one):
            if suits(other):
                return other
            break
    raise NotHere("the next one of the group has another life")


def hand_out(view, one, delivered, after, before, consumer=None):
    """Let this delivery, and the token before it, happen between two times."""
    token = next((event for event in reversed(one.events) if event.type == TOKEN and event.ts < delivered.ts), None)
    ts = after
    for event in filter(None, (token, delivered)):
        ts = view.time_after(ts, before)
        one.part.move(event, ts)
        if consumer is not None:
            event.touch(consumer=consumer)


# --- groups and their owners


@message("group_order", queues=IN_GROUPS, suits=is_done, audit="group_order")
def later_one_of_its_group_first(view, one):
    """The next message of its group goes out, and is acked, before it."""
    other = next_of_group(view, one)
    ts = one.events[0].ts
    if other.record.ts >= ts:
        raise NotHere("the next one was published later")
    for event in reversed(list(other.events)):
        ts = view.time_before(ts, other.record.ts)
        other.part.move(event, ts)


@message("group_owner group_order", queues=IN_GROUPS, suits=is_done, audit="group_owner")
def two_owners_of_a_group(view, one):
    """The next message of its group goes to another consumer before it is acked."""
    other = next_of_group(view, one)
    delivered, acked = one.events[-2:]
    consumer = view.another_consumer(delivered.ts, {delivered.consumer})
    hand_out(view, other, other.events[-2], delivered.ts, acked.ts, consumer)
    other.events[-1].touch(consumer=consumer)


@message("group_owner", queues=IN_GROUPS, suits=is_done, audit="group_owner")
def two_of_a_group_are_out(view, one):
    """The next message of its group goes to its consumer, too, before it is acked; one of a group may be out."""
    other = next_of_group(view, one)
    delivered, acked = one.events[-2:]
    hand_out(view, other, other.events[-2], delivered.ts, acked.ts, delivered.consumer)
    other.events[-1].touch(consumer=delivered.consumer)


# --- tokens


def _token_before(view, one):
    """The last token of its group before its own."""
    own = event_of(one, TOKEN)
    earlier = [event for other in view.order for event in other.events
               if event.type == TOKEN and event.ts < own.ts and group_of(view, other) == group_of(view, one)]
    if not earlier:
        raise NotHere("it is the first token of the group")
    return own, max(earlier, key=lambda event: event.ts)


@message(queues=("grouped",), suits=is_done, audit="token_kept")
def token_given_twice(view, one):
    own, before = _token_before(view, one)
    own.touch(aux=before.aux, count=before.count, reason=before.reason)


@message(queues=("grouped",), suits=is_done, audit="token_kept")
def token_goes_back(view, one):
    own, before = _token_before(view, one)
    if not before.aux:
        raise NotHere("there is no lower one")
    own.touch(aux=before.aux - 1, count=before.count, reason=before.reason)


@message("damage", queues=("grouped",), suits=has(TOKEN), audit="damage")
def token_for_another_consumer(view, one):
    """Its delivery goes to another consumer than the one that was told the token."""
    own = event_of(one, TOKEN)
    own.touch(consumer=own.consumer + 1)


@message("damage", queues=("grouped",), suits=has(TOKEN), audit="damage")
def token_of_a_message_that_is_not_there(view, one):
    event_of(one, TOKEN).touch(seq=one.seq + 100_000)


@message("group_owner group_order", queues=("grouped",), suits=is_done, audit="token_kept")
def former_owner_settles(view, one):
    """The next message of the group has gone to a new owner with a newer token; the former one settles all the same."""
    two_owners_of_a_group(view, one)


# --- retries


@message(queues=("grouped", "tried"), suits=is_tried_again, audit="retry_kept")
def tried_too_early(view, one):
    again, since = delivery_after(one, RETRY), event_of(one, RETRY).ts
    hand_out(view, one, again, max(since, event_of(one, RETURNED).ts), again.ts)
    if again.ts > since + EARLY_NS:
        raise NotHere("there is no time between")


@message(queues=("tried",), suits=lambda one: RETRY in one.shape and one.entries, audit="retry_kept")
def retry_is_not_told(view, one):
    """The acks say when it is tried again, and the journal says nothing of it."""
    one.drop_events([event_of(one, RETRY)])


@message(queues=("grouped", "tried"), suits=is_tried_again, audit="retry_kept", undecidable=True)
def tried_before_the_time_it_says(view, one):
    """Its try was to be an hour later.  Just behind another event, that may be a clock that was put back."""
    event_of(one, RETRY).touch(aux=HOUR_MS)


@message(queues=("grouped", "tried"), suits=lambda one: RETRY in one.shape and one.entries, audit="retry_kept")
def next_try_at_an_earlier_time_by_the_journal(view, one):
    """The acks have the right time."""
    event_of(one, RETRY).touch(aux=1)


@message("group_order group_owner", queues=("grouped",), suits=is_tried_again, audit="retry_kept")
def group_goes_on_during_a_retry(view, one):
    """The next message of its group goes out while it waits for its next try."""
    other = next_of_group(view, one)
    since = max(event_of(one, RETRY).ts, event_of(one, RETURNED).ts)
    if other.record.ts > since:
        raise NotHere("it was published later")
    hand_out(view, other, other.events[-2], since, min(delivery_after(one, RETRY).ts, since + EARLY_NS))


# --- parks


@message(queues=("grouped",), suits=has(GROUP_PARKED, GROUP_RELEASED), audit="stop_kept")
def parked_one_goes_out(view, one):
    """Nobody released its group."""
    one.drop_events([event_of(one, GROUP_RELEASED)])


@message(queues=("grouped",), suits=has(GROUP_PARKED, GROUP_RELEASED), audit="stop_kept")
def released_after_it_went_out(view, one):
    again = delivery_after(one, GROUP_PARKED)
    one.part.move(event_of(one, GROUP_RELEASED), view.time_after(again.ts))


@message("group_order group_owner", queues=("grouped",), suits=has(GROUP_PARKED, GROUP_RELEASED), audit="stop_kept")
def parked_group_goes_on(view, one):
    """The next message of its group goes out while it is parked."""
    other = next_of_group(view, one)
    hand_out(view, other, other.events[-2], event_of(one, GROUP_PARKED).ts, event_of(one, GROUP_RELEASED).ts)
    other.events[-2].touch(consumer=next(event.consumer for event in one.events if event.type == DELIVERED))


# --- redrives


def _is_back(one):
    return one.shape == (REDRIVEN, DELIVERED, ACKED)


@message("group_order group_owner", queues=("orders",), suits=_is_back, audit="group_order")
def later_one_before_a_redriven_one(view, one):
    """A later message of its group goes out after it was put back, and before it."""
    put_back, delivered, _ = one.events
    later = [other for other in view.order if is_done(other) and group_of(view, other) == group_of(view, one)
             and properties.header(one.record.meta, "x-group-seq") < other.seq and other.seq != one.seq
             and other.events[0].ts > put_back.ts and not other.record.flags & AGAIN]
    if not later:
        raise NotHere("no later one goes out")
    other = min(later, key=lambda each: each.events[0].ts)
    hand_out(view, other, other.events[-2], put_back.ts, delivered.ts)


@message(queues=("orders",), suits=_is_back, audit="group_order")
def redriven_one_goes_out_before_it_is_back(view, one):
    """Its delivery comes before the event that puts it back."""
    one.part.move(one.events[0], view.time_after(one.events[-1].ts))


@message(queues=("orders",), suits=_is_back, audit="group_order")
def redriven_one_is_never_back(view, one):
    """No event puts it back, and others of its redrive have theirs."""
    others = [other for other in view.order if other is not one and other.record.connection == one.record.connection]
    if not any(REDRIVEN in other.shape for other in others):
        raise NotHere("it is alone")
    one.drop_events([event_of(one, REDRIVEN)])


@message("damage", queues=("orders", "tried"), suits=lambda one: not one.record.flags & AGAIN, audit="damage")
def marked_as_redriven(view, one):
    """It says that it was redriven, and not where it stood."""
    one.record.touch(flags=one.record.flags | AGAIN)


# --- failures


@message(queues=("late", "short"), suits=lambda one: one.shape in ((DROPPED,), (DEAD,)), audit="failure_counts")
def failure_of_one_that_was_never_out(view, one):
    """It never went out, a start lies before its end, and that counts a failure.  It was set aside behind its group, or
    an earlier one waited, too."""
    starts = [event.ts for event in one.part.journal.events if event.type == MARK and event.ts < one.events[0].ts]
    earlier = [other for other in view.order if other.part is one.part and other.seq < one.seq]
    if not starts or starts[-1] < one.record.ts or not (
            any(entry.type == ASIDE for entry in one.entries)
            or any(other.events and other.events[0].ts > starts[-1] for other in earlier)):
        raise NotHere("it may have been out")
    one.events[0].touch(count=1)
    one.settle_entry().touch(count=1)


# --- keys


def _has_key(one):
    return one.record.dedup_hash != 0


def _with_key_of(view, one, steps):
    other = view.messages.get(one.seq + steps)
    if other is None:
        raise NotHere("there is no such message")
    other.record.touch(dedup_hash=one.record.dedup_hash)


@message(queues=("keyed", "tasks"), suits=_has_key, audit="dedup_kept")
def key_stored_twice(view, one):
    _with_key_of(view, one, 1)


@message(queues=("keyed",), suits=_has_key, audit="dedup_kept")
def key_stored_twice_at_the_end_of_its_window(view, one):
    _with_key_of(view, one, KEYS - 1)


@message(queues=("keyed",), suits=has(DUPLICATE), audit="dedup_kept")
def duplicate_stored_after_another_one_was_found(view, one):
    """The broker knew the key, and then stored a message with it."""
    known = event_of(one, DUPLICATE).ts
    later = [other for other in view.order if other.record.ts > known and 0 < other.seq - one.seq < KEYS]
    if not later:
        raise NotHere("nothing was stored later in its window")
    later[-1].record.touch(dedup_hash=one.record.dedup_hash)


@message("damage", queues=("keyed",), suits=has(DUPLICATE), audit="damage")
def duplicate_of_a_message_without_a_key(view, one):
    one.record.touch(dedup_hash=0)


@message("damage", queues=("keyed",), suits=has(DUPLICATE), audit="damage")
def duplicate_of_a_message_that_is_not_there(view, one):
    event_of(one, DUPLICATE).touch(seq=one.seq + 100_000)


# --- replays


@message(queues=("replayed",), suits=has(REPLAY), audit="replay_exact")
def replay_says_one_more(view, one):
    event = event_of(one, REPLAY)
    event.touch(aux=event.aux + 1)


@message("delivery_after_settle double_settle", queues=("replayed",), suits=has(REPLAYED), audit="replay_exact")
def replayed_one_has_no_event(view, one):
    """It was made ready again; the journal does not say so."""
    one.drop_events([event_of(one, REPLAYED)])


@message("ack_without_delivery delivery_after_settle double_settle fifo returned_first", queues=("replayed",),
         suits=has(REPLAYED), audit="replay_exact")
def replayed_one_was_not_settled(view, one):
    """The ack before its replay is in no file."""
    one.drop_events([event_of(one, ACKED)])
    one.drop_entries([one.settle_entry()])


@message("ack_without_delivery", queues=("replayed",), suits=has(REPLAYED), audit="replay_exact")
def purged_one_is_replayed(view, one):
    event_of(one, ACKED).touch(type=PURGED, consumer=0)
    one.settle_entry().touch(type=PURGED)


@message("delivery_after_settle double_settle", queues=("replayed",),
         suits=lambda one: one.shape == (DELIVERED, ACKED) and not one.part.kept, audit="replay_exact")
def settled_one_comes_again(view, one):
    """It is replayed, beside those that the operator asked for, and acked once more."""
    acked = one.events[-1]
    end = [event for other in view.order if other.part is one.part for event in other.events
           if event.type == REPLAY and event.ts > acked.ts]
    if not end:
        raise NotHere("nothing of its segment was replayed later")
    ts = view.time_before(end[0].ts, acked.ts)
    consumer, entry = acked.consumer, one.settle_entry()
    view.add(one, REPLAYED, ts, consumer=0)
    at = view.time_after(end[0].ts)
    view.add(one, DELIVERED, at, consumer=consumer, reason=REDELIVERED, aux=9999)
    view.add(one, ACKED, view.time_after(at), consumer=consumer)
    where = one.part.acks.entries.index(entry) + 1
    for kind in (ACKED, HANDED_OUT, 13):
        view.add_entry(one, kind, at=where)
