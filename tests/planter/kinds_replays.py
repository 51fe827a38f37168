"""Faults of what became of messages since they were replayed.

Each kind names the audit that must find it.  As in ``kinds_messages``, the files are as a broker with that fault would
have written them.
"""

from tests.planter.files import (
    ACKED,
    BEFORE_START,
    DELIVERED,
    DROPPED,
    EXPIRED,
    HANDED_OUT,
    MARK,
    NO_ACKS,
    PURGED,
    REDELIVERED,
    RETURNED,
)
from tests.planter.kinds_groups import EARLY_NS, HOUR_MS, group_of, hand_out
from tests.planter.planting import NotHere, message
from tests.planter.play_groups import (
    GROUP_PARKED,
    GROUP_RELEASED,
    PARKED,
    RELEASED,
    REPLAY,
    REPLAYED,
    RETRY,
    TOKEN,
)

REPLAYED_ENTRY = 13


def since(one):
    """Its events since the last replay, without what says that the replay is over."""
    begin = max((place + 1 for place, event in enumerate(one.events) if event.type == REPLAYED), default=0)
    return [event for event in one.events[begin:] if event.type != REPLAY] if begin else []


def entries_since(one):
    begin = max(place + 1 for place, entry in enumerate(one.entries) if entry.type == REPLAYED_ENTRY)
    return one.entries[begin:]


def is_done_again(one):
    """Since its replay it was delivered once, and acked once."""
    found = since(one)
    return [event.type for event in found] == [DELIVERED, ACKED] and not found[0].reason & (NO_ACKS | BEFORE_START)


def _kind(right, audit, *, undecidable=False):
    return message(right, queues=("replayed",), suits=is_done_again, audit=audit, undecidable=undecidable)


@_kind("ack_without_delivery", "wrong_consumer")
def ack_by_another_after_a_replay(view, one):
    delivered, acked = since(one)
    acked.touch(consumer=delivered.consumer + 1)


@_kind("", "redelivered")
def replayed_one_is_not_marked(view, one):
    delivered, _ = since(one)
    delivered.touch(reason=delivered.reason & ~REDELIVERED)


@_kind("", "out_twice")
def out_twice_after_a_replay(view, one):
    delivered, acked = since(one)
    ts = view.time_after(delivered.ts, acked.ts)
    view.add(one, DELIVERED, ts, consumer=delivered.consumer, aux=delivered.aux + 1, reason=REDELIVERED)
    view.add_entry(one, HANDED_OUT, at=one.part.acks.entries.index(entries_since(one)[-1]))


@_kind("ack_without_delivery", "ack_without_delivery")
def delivery_after_a_replay_lost(view, one):
    one.drop_events(since(one)[:1])


@_kind("", "agreement")
def hand_out_after_a_replay_lost_in_acks(view, one):
    one.drop_entries([entry for entry in entries_since(one) if entry.type == HANDED_OUT][:1])


@_kind("", "agreement")
def ack_after_a_replay_lost_in_acks(view, one):
    one.drop_entries([entry for entry in entries_since(one) if entry.type == ACKED])


@_kind("returned_first", "agreement", undecidable=True)
def ack_after_a_replay_lost_in_journal(view, one):
    """Of the last one that was settled before a kill, it is undecidable."""
    one.drop_events(since(one)[-1:])


@_kind("double_settle", "double_settle")
def acked_twice_after_a_replay(view, one):
    acked = since(one)[-1]
    view.add(one, ACKED, view.time_after(acked.ts), consumer=acked.consumer)
    view.add_entry(one, ACKED, at=one.part.acks.entries.index(entries_since(one)[-1]) + 1)


@_kind("delivery_after_settle", "delivery_after_settle")
def delivered_after_its_second_ack(view, one):
    acked = since(one)[-1]
    view.add(one, DELIVERED, view.time_after(acked.ts), consumer=acked.consumer, reason=REDELIVERED, aux=9999)
    view.add_entry(one, HANDED_OUT, at=one.part.acks.entries.index(entries_since(one)[-1]) + 1)


def _is_last_before_a_start(one):
    """Its replay is the last thing that its journal tells of that life of the broker."""
    events = one.part.events()
    ends = [place for place, event in enumerate(events) if event.type == REPLAY and event.seq == one.seq]
    return bool(ends) and [event.type for event in events[ends[-1] - 1:ends[-1] + 2]] == [REPLAYED, REPLAY, MARK]


@message("", queues=("replayed", "again"), suits=_is_last_before_a_start, audit="agreement", undecidable=True)
def replay_cut_off_before_its_event(view, one):
    """kill -9 came between the entry and the event."""
    one.drop_events([event for event in one.events if event.type in (REPLAYED, REPLAY)][-2:])


@_kind("", "failure_counts")
def failures_from_before_a_replay(view, one):
    delivered, _ = since(one)
    delivered.touch(count=1)
    entries_since(one)[0].touch(count=1)


@_kind("", "early_death")
def expired_after_a_replay(view, one):
    """It is said to have expired in place of its delivery and its ack."""
    delivered, acked = since(one)
    handed = [entry for entry in entries_since(one) if entry.type == HANDED_OUT]
    settles = [entry for entry in entries_since(one) if entry.type == ACKED]
    one.drop_events([acked])
    one.drop_entries(handed)
    delivered.touch(type=EXPIRED, consumer=0, reason=0, aux=0)
    settles[0].touch(type=EXPIRED)


@_kind("", "wrong_consumer")
def returned_without_delivery_after_a_replay(view, one):
    delivered, _ = since(one)
    before = max(event.ts for event in one.events if event.type in (REPLAYED, REPLAY) and event.ts < delivered.ts)
    view.add(one, RETURNED, view.time_after(before, delivered.ts), consumer=delivered.consumer, reason=1, count=1)
    view.add_entry(one, RETURNED, reason=1, count=1, at=one.part.acks.entries.index(entries_since(one)[0]))


@_kind("returned_first", "returned_first")
def later_one_before_a_replayed_one(view, one):
    """It waits since its replay, and a later one, replayed or not, goes out before it."""
    delivered, acked = since(one)
    later = [(event.ts, event, other) for other in view.order if other.seq > one.seq for event in other.events
             if event.type == DELIVERED and delivered.ts < event.ts < acked.ts
             and event.consumer == delivered.consumer]
    if not later:
        raise NotHere("no later one goes out while it is out")
    ts, event, other = min(later, key=lambda each: each[0])
    at, tag = delivered.ts, delivered.aux
    delivered.touch(aux=event.aux)
    event.touch(aux=tag)
    one.part.move(delivered, ts)
    other.part.move(event, at)


def _is_in_a_level(one):
    return one.level > 0 and is_done_again(one)


@message("priority", queues=("again",), suits=_is_in_a_level, audit="priority")
def lower_priority_before_a_replayed_one(view, one):
    """It waits since its replay, and one of a lower level goes out before it."""
    delivered, acked = since(one)
    later = [(event.ts, event, other) for other in view.order if other.level < one.level for event in other.events
             if event.type == DELIVERED and delivered.ts < event.ts < acked.ts
             and event.consumer == delivered.consumer]
    if not later:
        raise NotHere("no lower one goes out while it is out")
    ts, event, other = min(later, key=lambda each: each[0])
    at, tag = delivered.ts, delivered.aux
    delivered.touch(aux=event.aux)
    event.touch(aux=tag)
    one.part.move(delivered, ts)
    other.part.move(event, at)


@message("limit_kept", queues=("again",), audit="limit_kept",
         suits=lambda one: [event.type for event in since(one)][-2:] == [RETURNED, DROPPED])
def purged_after_it_failed_too_often_since_a_replay(view, one):
    since(one)[-1].touch(type=PURGED, reason=0)
    entries_since(one)[-1].touch(type=PURGED, reason=0)


# --- groups, retries, stops and tokens


def _last_spell(one):
    """Its events since its last replay, or since its publish, without what says that the replay is over."""
    return since(one) or [event for event in one.events if event.type != REPLAY]


def _is_done(events):
    return ([event.type for event in events if event.type != TOKEN] == [DELIVERED, ACKED]
            and not events[-2].reason & (NO_ACKS | BEFORE_START))


def _is_done_in_a_group(one):
    return REPLAYED in one.shape and _is_done(since(one))


def _next_of_group(view, one):
    """The next message of its group that goes out after its replay: its events, and since when it is ready."""
    begun = max(event.ts for event in one.events if event.type == REPLAYED)
    for other in view.order:
        if other.seq > one.seq and group_of(view, other) == group_of(view, one):
            spell = _last_spell(other)
            if _is_done(spell) and spell[0].ts > begun:
                return other, spell, max([other.record.ts, begun] + [
                    event.ts for event in other.events if event.type == REPLAYED])
    raise NotHere("nothing of its group goes out later")


@message("group_order group_owner", queues=("regrouped",), suits=_is_done_in_a_group, audit="group_order")
def later_one_of_its_group_before_a_replayed_one(view, one):
    """It waits since its replay, and a later one of its group goes out, and is acked, before it."""
    other, spell, after = _next_of_group(view, one)
    ts = since(one)[0].ts
    for event in reversed(spell):
        ts = view.time_before(ts, after)
        other.part.move(event, ts)


@message("group_owner group_order", queues=("regrouped",), suits=_is_done_in_a_group, audit="group_owner")
def two_owners_after_a_replay(view, one):
    """A later one of its group goes to another consumer before it is acked."""
    other, spell, after = _next_of_group(view, one)
    delivered, acked = since(one)[-2:]
    consumer = view.another_consumer(delivered.ts, {delivered.consumer})
    hand_out(view, other, spell[-2], max(delivered.ts, after), acked.ts, consumer)
    spell[-1].touch(consumer=consumer)


@message("group_owner group_order", queues=("regrouped",), suits=_is_done_in_a_group, audit="token_kept")
def former_owner_settles_after_a_replay(view, one):
    """As before, and the other one was told a newer token."""
    two_owners_after_a_replay(view, one)
    _, spell, _ = _next_of_group(view, one)
    if spell[0].type != TOKEN:
        raise NotHere("its owner was told no token")


def _tries(one):
    """Of its last spell: the event that names its next try, its return, and the delivery behind both."""
    events = since(one)
    retry = next((event for event in events if event.type == RETRY), None)
    if retry is None:
        return None
    back = min((event for event in events if event.type == RETURNED), key=lambda event: abs(event.ts - retry.ts))
    again = next((event for event in events if event.type == DELIVERED and event.ts > max(retry.ts, back.ts)), None)
    return (retry, back, again) if again is not None and not again.reason & BEFORE_START else None


@message(queues=("regrouped", "retried"), suits=_tries, audit="retry_kept")
def tried_too_early_since_a_replay(view, one):
    retry, back, again = _tries(one)
    hand_out(view, one, again, max(retry.ts, back.ts), again.ts)
    if again.ts > retry.ts + EARLY_NS:
        raise NotHere("there is no time between")


@message(queues=("regrouped", "retried"), suits=_tries, audit="retry_kept", undecidable=True)
def tried_before_the_time_it_says_since_a_replay(view, one):
    _tries(one)[0].touch(aux=HOUR_MS)


@message(queues=("regrouped", "retried"), suits=_tries, audit="retry_kept")
def next_try_at_an_earlier_time_since_a_replay(view, one):
    """By the journal; the acks have the right time."""
    _tries(one)[0].touch(aux=1)


@message(queues=("retried",), suits=_tries, audit="retry_kept")
def retry_is_not_told_since_a_replay(view, one):
    one.drop_events(_tries(one)[:1])


@message("group_order group_owner", queues=("regrouped",), suits=_tries, audit="retry_kept")
def group_goes_on_during_a_retry_since_a_replay(view, one):
    retry, back, again = _tries(one)
    other, spell, after = _next_of_group(view, one)
    hand_out(view, other, spell[-2], max(retry.ts, back.ts, after), again.ts)


def _stops(one):
    """Since its replay something stopped at it, and went on: both events."""
    events = since(one)
    stop = next((event for event in events if event.type in (PARKED, GROUP_PARKED)), None)
    go = next((event for event in events if event.type in (RELEASED, GROUP_RELEASED)), None)
    return (stop, go) if stop is not None and go is not None else None


@message(queues=("regrouped", "retried"), suits=_stops, audit="stop_kept")
def nobody_released_it_since_its_replay(view, one):
    one.drop_events(_stops(one)[1:])


@message(queues=("retried",), suits=_stops, audit="stop_kept")
def stop_is_not_told_since_a_replay(view, one):
    """The acks say that the queue stopped, and the journal does not."""
    one.drop_events(_stops(one)[:1])


@message(queues=("tasks",), suits=lambda one: any(event.type == REPLAYED for event in one.events), audit="dedup_kept")
def key_stored_while_a_replayed_message_waits(view, one):
    """By the rule of its queue a key counts until its message is settled, and since a replay again."""
    begin = max(event.ts for event in one.events if event.type == REPLAYED)
    end = next((event.ts for event in since(one) if event.settles), 1 << 62)
    later = [other for other in view.order if begin < other.record.ts < end and other.seq > one.seq]
    if not later or later[0].record.dedup_hash == one.record.dedup_hash:
        raise NotHere("nothing else was stored meanwhile")
    later[0].record.touch(dedup_hash=one.record.dedup_hash)
