"""Faults of records, segments, headers and words, and of what stands beside them: counters, manifest, side file."""

from tests.planter.files import ACKED, DELIVERED, MARK, Entry, Event
from tests.planter.planting import NotHere, is_plain, message, queue, segment

ALL = ("plain", "levels", "bare")
BOTH = ("plain", "levels")


def any_message(one):
    return True


def in_kept(one):
    return one.part.kept


# --- records


def _remove(one, *, events=True):
    one.part.msgs.records.remove(one.record)
    one.drop_entries(one.entries)
    if events:
        one.drop_events(one.events)


@message("holes", queues=(*BOTH, "dead"), suits=any_message)
def record_lost(view, one):
    """The record and its entries are gone; the journal has its events."""
    _remove(one, events=False)


@message("holes", queues=(*BOTH, "single", "got"), suits=any_message)
def message_lost(view, one):
    """Nothing is left of it."""
    _remove(one)


@message("holes", queues=("plain", "levels", "limited"), suits=lambda one: not one.settled and not one.part.kept)
def lost_in_a_compacted_segment(view, one):
    """A message that waits is lost, in a segment that looks compacted."""
    one.part.msgs.generation = one.part.acks.generation = 1
    _remove(one, events=False)


@message("holes", queues=("plain", "levels"), suits=lambda one: not one.events and not one.part.kept)
def ready_lost_in_a_compacted_segment(view, one):
    """As before, with a message that has no event."""
    one.part.msgs.generation = one.part.acks.generation = 1
    _remove(one)


@message("holes damage", queues=(*BOTH, "bare"), suits=any_message)
def one_number_in_two_segments(view, one):
    """The record stands also at the begin of the next segment of its level."""
    parts = [part for part in view.queue.parts if part.level == one.level]
    following = parts[parts.index(one.part) + 1:]
    if not following:
        raise NotHere("there is no next segment")
    following[0].msgs.records.insert(0, one.record.copy())


@message("holes damage", queues=BOTH, suits=any_message)
def one_number_twice_in_a_segment(view, one):
    one.part.msgs.records.insert(one.index + 1, one.record.copy())


@message("holes", queues=(*BOTH, "bare"), suits=any_message)
def number_beyond_the_next(view, one):
    one.record.touch(seq=one.seq + 1_000_000)


@message("holes damage", queues=BOTH, suits=lambda one: one.index > 0)
def two_records_change_places(view, one):
    records = one.part.msgs.records
    records[one.index - 1], records[one.index] = records[one.index], records[one.index - 1]


@message("priority damage", queues=ALL, suits=any_message)
def priority_of_another_folder(view, one):
    """In a queue without priorities it is that of no property of the message."""
    one.record.touch(priority=one.level + 1 if one.level < 2 else 0)


@message("publish_order", queues=ALL, suits=any_message)
def published_before_its_predecessor(view, one):
    """It and the next one of its channel, in whichever level or segment that stands, exchange their numbers."""
    other = _next_of_channel(view, one)
    mine, its = one.record.publish_seq, other.record.publish_seq
    one.record.touch(publish_seq=its)
    other.record.touch(publish_seq=mine)


@message("publish_order", queues=ALL, suits=any_message)
def one_publish_twice(view, one):
    other = _next_of_channel(view, one)
    other.record.touch(publish_seq=one.record.publish_seq)


def _next_of_channel(view, one):
    stream = one.record.connection, one.record.channel
    for other in view.order[view.order.index(one) + 1:]:
        if (other.record.connection, other.record.channel) == stream:
            return other
    raise NotHere("it is the last one of its channel")


@message("damage", queues=ALL, suits=any_message, sees=False)
def record_with_a_wrong_crc(view, one):
    one.record.wrong = True


@message("damage", queues=BOTH, suits=lambda one: bool(one.events))
def event_with_a_wrong_crc(view, one):
    one.events[-1].wrong = True


@message("damage", queues=ALL, suits=lambda one: bool(one.entries))
def entry_with_a_wrong_check(view, one):
    one.entries[-1].wrong = True


@message("damage", queues=BOTH, suits=is_plain)
def event_of_an_unknown_type(view, one):
    one.events[-1].touch(type=12)


@message("damage", queues=BOTH, suits=is_plain)
def delivery_with_an_unknown_reason(view, one):
    one.events[0].touch(reason=64)


@message("damage", queues=ALL, suits=lambda one: bool(one.entries))
def entry_of_an_unknown_type(view, one):
    one.entries[-1].touch(type=14)


@message("damage", queues=ALL, suits=lambda one: bool(one.entries))
def entry_of_no_record(view, one):
    one.entries[-1].record, one.entries[-1].position = None, one.record.position + 8


@message("damage ack_without_delivery", queues=BOTH, suits=is_plain)
def event_in_another_journal(view, one):
    parts = [part for part in view.queue.parts if part is not one.part and part.level == one.level]
    if not parts:
        raise NotHere("there is no other journal")
    event = one.events[-1]
    one.drop_events([event])
    parts[0].insert(event.touch())


@message("damage holes", queues=BOTH, suits=is_plain)
def event_of_no_message(view, one):
    one.part.insert(Event(9_999_999, view.time_after(one.events[-1].ts), 1, 1, 0, DELIVERED, 0))


# --- segments

EVENTS_GONE = "fifo returned_first priority ack_without_delivery delivery_after_settle limit_kept"



def journaled(part):
    return part.journal is not None and bool(part.journal.events)


def eventful(part):
    return len(part.events()) > 20


def settled_part(part):
    return part.kept and eventful(part)


@segment(EVENTS_GONE, queues=("plain", "levels", "limited", "single", "got"), suits=settled_part)
def journal_emptied(view, part):
    part.journal.events.clear()


@segment(EVENTS_GONE, queues=("plain", "levels", "limited", "single"), suits=eventful)
def events_cut_from_the_middle(view, part):
    events = part.journal.events
    third = len(events) // 3
    del events[third:2 * third]


@segment(EVENTS_GONE, queues=BOTH, suits=eventful)
def first_events_cut(view, part):
    del part.journal.events[:10]


@segment(EVENTS_GONE, queues=BOTH, suits=eventful)
def last_events_cut(view, part):
    del part.journal.events[-10:]


@segment(queues=("plain", "levels", "limited", "single"), suits=lambda part: bool(part.entries()))
def acks_emptied(view, part):
    part.acks.entries.clear()


@segment(queues=BOTH, suits=lambda part: len(part.entries()) > 20)
def entries_cut_from_the_middle(view, part):
    third = len(part.acks.entries) // 3
    del part.acks.entries[third:2 * third]


def _without(kind):
    def plant(view, part):
        path = f"{view.queue.folder}/{part.folder}/{kind}.{part.number:010d}".replace("//", "/")
        view.queue.removed.add(path)
        setattr(part, kind, None)
    return plant


@segment("damage holes", queues=BOTH, suits=journaled, undecidable=True)
def journal_gone(view, part):
    _without("journal")(view, part)


@segment("damage holes", queues=BOTH, undecidable=True)
def acks_gone(view, part):
    _without("acks")(view, part)


@segment("damage holes", queues=BOTH)
def messages_gone(view, part):
    _without("msgs")(view, part)


@segment("damage holes", queues=BOTH)
def segment_gone(view, part):
    for kind in ("msgs", "acks", "journal"):
        if getattr(part, kind) is not None:
            _without(kind)(view, part)


@segment("damage", queues=ALL, undecidable=True)
def acks_of_a_later_version(view, part):
    part.acks.version = 4


@segment("damage", queues=ALL, undecidable=True)
def messages_of_a_later_version(view, part):
    part.msgs.version = 2


@segment("damage", queues=BOTH, undecidable=True)
def journal_of_a_later_version(view, part):
    part.journal.version = 4


@segment("damage", queues=BOTH, undecidable=True)
def another_magic(view, part):
    part.msgs.magic = b"BSEX"


@segment("damage", queues=BOTH, undecidable=True)
def acks_of_another_segment(view, part):
    part.acks.number += 1


@segment("damage", queues=BOTH, undecidable=True)
def journal_of_another_segment(view, part):
    """All of its events are right for that number."""
    part.journal.number += 1
    for event in part.journal.events:
        event.touch()


@segment("damage", queues=BOTH, undecidable=True)
def messages_of_another_segment(view, part):
    part.msgs.number += 1
    for record in part.msgs.records:
        record.touch()


@segment("damage", queues=ALL, undecidable=True)
def generations_differ(view, part):
    part.acks.generation += 1


@segment("damage holes", queues=BOTH, suits=lambda part: bool(part.records()))
def base_of_another_message(view, part):
    part.msgs.base_seq += 1


@segment("damage", queues=ALL, undecidable=True)
def header_of_messages_with_a_wrong_crc(view, part):
    part.msgs.wrong = True


@segment("damage", queues=ALL, undecidable=True)
def header_of_acks_with_a_wrong_crc(view, part):
    part.acks.wrong = True


@segment("damage", queues=BOTH, undecidable=True)
def header_of_journal_with_a_wrong_crc(view, part):
    part.journal.wrong = True


# --- words


@segment("damage holes", queues=ALL, counted=False, suits=lambda part: bool(part.records()))
def a_record_more_in_the_word(view, part):
    part.msgs.count_word += 1


@segment("damage holes", queues=ALL, counted=False, suits=lambda part: len(part.records()) > 1)
def a_record_fewer_in_the_word(view, part):
    part.msgs.count_word -= 1


@segment("damage holes", queues=ALL, counted=False, suits=lambda part: len(part.records()) > 1)
def end_before_the_last_record(view, part):
    """Both words of the segment leave its last record out; it stands in the file."""
    last = part.msgs.records[-1]
    part.msgs.end = last.position
    part.msgs.count_word -= 1


@segment("damage", queues=ALL, counted=False)
def sealed_word_open_before_others(view, part):
    """A segment that others follow is open, as if messages still came into it."""
    if part is [each for each in view.queue.parts if each.level == part.level][-1]:
        raise NotHere("no other follows")
    part.msgs.sealed = 0


@segment("damage", queues=BOTH, counted=False)
def sealed_word_of_no_meaning(view, part):
    part.msgs.sealed = 7


@segment("damage double_settle", queues=ALL, counted=False)
def one_more_settled_in_the_word(view, part):
    part.acks.settled += 1


@segment("damage double_settle", queues=ALL, counted=False, suits=lambda part: part.acks is not None
         and part.acks.settled > 0)
def one_fewer_settled_in_the_word(view, part):
    part.acks.settled -= 1


@segment("damage", queues=BOTH, counted=False, suits=lambda part: bool(part.entries()))
def last_entry_not_counted(view, part):
    part.acks.count_word -= 1


@segment("damage", queues=BOTH, counted=False, suits=eventful)
def last_event_not_counted(view, part):
    part.journal.count_word -= 1


@segment("damage", queues=BOTH, counted=False, suits=journaled)
def an_event_more_in_the_word(view, part):
    part.journal.count_word += 1


@segment(queues=BOTH, counted=False, suits=lambda part: bool(part.records()) and not part.kept
         and part.acks.delivered < part.msgs.end)
def cursor_behind_messages_that_wait(view, part):
    """The acks say that all has been handed out; the journal knows of no such delivery."""
    part.acks.delivered = part.msgs.end


@segment(queues=BOTH, counted=False, suits=lambda part: bool(part.records()) and part.acks.delivered > 64)
def cursor_before_delivered_messages(view, part):
    part.acks.delivered = 64


# --- what a journal says of itself, and marks


@segment("damage holes fifo ack_without_delivery returned_first", queues=BOTH, undecidable=True, suits=journaled)
def events_lost_to_a_full_disk(view, part):
    part.journal.lost = 5


@segment("damage holes fifo ack_without_delivery returned_first", queues=BOTH, undecidable=True, suits=journaled,
         sees=False)
def journal_begun_late(view, part):
    part.journal.begun = part.journal.events[-1].ts - 1


def has_mark(part):
    return any(event.type == MARK for event in part.events())


@segment("ack_without_delivery double_settle", queues=("plain", "limited", "single"), suits=has_mark)
def mark_of_a_start_gone(view, part):
    """What was out when the broker ended never came back."""
    for mark in [event for event in part.journal.events if event.type == MARK]:
        if any(_is_out(one, mark.ts) and one.events[-1].ts > mark.ts for one in view.order if one.part is part):
            part.journal.events.remove(mark)
            return
    raise NotHere("nothing was out")


def _is_out(one, ts):
    before = [event for event in one.events if event.ts < ts]
    return bool(before) and before[-1].type == DELIVERED


@segment("returned_first ack_without_delivery", queues=BOTH, suits=journaled)
def mark_of_a_start_that_was_not(view, part):
    """A start stands between a delivery and its ack."""
    for one in view.order:
        if one.part is part and is_plain(one):
            ts = view.time_after(one.events[0].ts, one.events[1].ts)
            part.insert(Event(ts - 1, ts, 0, 0, 0, MARK, 1))
            return
    raise NotHere("no life suits")


@segment(queues=BOTH, undecidable=True, suits=journaled)
def mark_of_a_power_cut(view, part):
    middle = part.journal.events[len(part.journal.events) // 2]
    ts = view.time_after(middle.ts)
    part.insert(Event(ts - 1, ts, 0, 0, 0, MARK, 2))


@segment("damage", queues=BOTH, suits=lambda part: len(part.events()) > 4)
def two_events_change_places(view, part):
    events = part.journal.events
    middle = len(events) // 2
    events[middle], events[middle + 1] = events[middle + 1], events[middle]


# --- counters, manifest, side file


def _counters(view):
    return list((view.queue.entry or {}).get("counters", {}))


@queue(queues=("plain", "limited"), places=_counters)
def counter_one_too_high(view, name):
    """In the file ``order`` and in the manifest alike."""
    entry = view.queue.entry
    entry["counters"][name] += 1
    if view.queue.counters is None:
        raise NotHere("there is no file of counters")
    view.queue.counters = list(entry["counters"].values())


@queue(queues=("levels",), places=_counters)
def counter_of_the_manifest_differs(view, name):
    view.queue.entry["counters"][name] += 1


@queue(queues=("plain", "limited"))
def counters_begin_anew(view, place):
    if not any(view.queue.counters or ()):
        raise NotHere("there are no counters")
    view.queue.counters = [0] * len(view.queue.counters)
    view.queue.entry["counters"] = dict.fromkeys(view.queue.entry["counters"], 0)


@queue(queues=("plain", "levels", "bare"))
def next_number_below_the_last(view, place):
    view.queue.entry["next_seq"] = view.order[-1].seq


@queue("holes", queues=("plain", "levels"))
def next_number_far_away(view, place):
    """Five messages at the end are missing."""
    view.queue.entry["next_seq"] += 5


@queue("holes", queues=("plain", "levels"))
def first_kept_below_what_is_there(view, place):
    """The first messages are gone, and their segments with them; the manifest says that they are kept."""
    part = view.queue.parts[0]
    for kind in ("msgs", "acks", "journal"):
        _without(kind)(view, part)


@queue(queues=("plain", "levels"), places=lambda view: ("ready", "unacked"))
def count_of_the_manifest(view, name):
    view.queue.entry[name] += 1


@queue(queues=("plain",))
def cut_before_the_last_events(view, place):
    events = view.events()
    view.queue.entry["cut"] = events[len(events) // 2].ts


@queue("fifo returned_first ack_without_delivery damage", queues=("plain",), undecidable=True)
def side_file_gone(view, place):
    view.queue.removed.add(f"{view.queue.folder}/order.jsonl")
    view.queue.lines = None


@queue(queues=("plain", "levels"), places=lambda view: ("first", "last"), undecidable=True)
def line_of_a_consumer_gone(view, place):
    # Not the last line: it may not have been written yet.
    lines = [line for line in view.queue.lines[:-1] if line["what"] == "consumer"]
    view.queue.lines.remove(lines[0 if place == "first" else -1])


@queue(queues=("plain", "levels"), places=lambda view: ("first", "last"), undecidable=True)
def consumer_goes_before_its_deliveries(view, place):
    """Its line ``consumer_gone`` is a nanosecond older than a delivery to it.

    The files cannot tell that from a clock that was put back by less than a second in between.
    """
    events = [event for event in view.events() if event.type == DELIVERED
              and view.consumers().get(event.consumer, (1 << 62,))[0] < event.ts]
    event = events[0] if place == "first" else events[-1]
    gone = [line for line in view.queue.lines if line["what"] == "consumer_gone" and line["number"] == event.consumer]
    if gone:
        gone[0]["at"] = event.ts - 1
    else:
        view.queue.lines.append({"at": event.ts - 1, "what": "consumer_gone", "number": event.consumer})
    view.queue.lines.sort(key=lambda line: line["at"])


def _setting(view, name, value):
    for line in view.queue.lines:
        if line["what"] == "settings":
            line[name] = value
    if view.queue.entry is not None:
        view.queue.entry["settings"][name] = value


@queue(queues=("plain",))
def single_active_all_along(view, place):
    """The settings say that one consumer at a time was served; two were."""
    _setting(view, "single_active_consumer", True)


@queue("delivery_limit limit_kept", queues=("plain", "limited"))
def limit_of_nothing(view, place):
    """The settings say that no message may come back; some did, and went out again."""
    _setting(view, "delivery_limit", 0)


@queue(queues=("plain", "aged"))
def a_millisecond_to_live(view, place):
    """The settings say that messages live for a millisecond; they were delivered later."""
    _setting(view, "message_ttl_ms", 1)


@queue(queues=("plain", "levels"))
def prefetch_of_one(view, place):
    """The lines of the consumers say that each held one message at most; they held more."""
    for line in view.queue.lines:
        if line["what"] == "consumer":
            line["prefetch"] = 1


@queue("holes", queues=("levels",), places=lambda view: (0, 1, 2))
def level_gone(view, level):
    for part in [part for part in view.queue.parts if part.level == int(level)]:
        for kind in ("msgs", "acks", "journal"):
            if getattr(part, kind) is not None:
                _without(kind)(view, part)


@queue(queues=("plain",), undecidable=True)
def schema_of_a_later_version(view, place):
    view.tree.root["schema_version"] = b"9\n"


@queue(queues=("plain",), undecidable=True)
def manifest_of_a_later_version(view, place):
    view.tree.manifest["manifest"] = 9


@queue("holes", queues=("dead",), together=True, places=lambda view: ("last",))
def letter_lost_without_a_trace(view, place):
    """The last dead letter is gone, and all numbers are as if it had never come."""
    one = view.order[-1]
    if one.events or one.entries:
        raise NotHere("it has events")
    one.part.msgs.records.remove(one.record)
    view.queue.entry["next_seq"] -= 1
    view.queue.entry["ready"] -= 1


@queue("double_settle", queues=("bare",))
def every_message_acked_twice(view, place):
    for part in view.queue.parts:
        part.acks.entries.extend([Entry(each.record, ACKED, 0, 0) for each in list(part.acks.entries)
                                  if each.type == ACKED])
