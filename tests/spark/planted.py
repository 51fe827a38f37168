"""Makes a data directory with a queue for each kind of fault, and some queues without faults."""

import json
import os
import shutil
from typing import Any, NamedTuple

import numpy as np
from tests.audit import plant
from tests.audit.faulty import by_audit
from tests.audit.runs import VHOST, in_groups, whole
from tests.audit.writer import (
    Level,
    Options,
    after_a_loss_of_power,
    events,
    messages,
    put_word,
    simple_level,
    write_queue,
)

from brokerd.store import format as layout
from brokerd.store.format import ACKED, BEFORE_START, DELIVERED, REDELIVERED, RESTARTED, RETURNED, STARTED

FOUND = 3
LIMIT = 3
LIMITED = ("delivery_limit", "limit_kept")
START = 1_780_000_000_000_000_000


def build(root):
    """Make the directory at ``root``, and return {audit: Planted}; each fault is in the queue with the audit's name."""
    clean = f"{root}.clean"
    whole(clean, share=0.3)     # Spark is slow.
    os.makedirs(f"{root}/{VHOST}")
    shutil.copy(f"{clean}/{VHOST}/.vhost", f"{root}/{VHOST}/.vhost")
    planted = {}
    for name in ("plain", "levels", *plant.PLANTS):
        folder = f"{root}/{VHOST}/{name}"
        if name == "group_fifo":
            in_groups(root, name)
        else:
            shutil.copytree(f"{clean}/{VHOST}/{'levels' if name in ('levels', 'priority') else 'plain'}", folder)
            with open(f"{folder}/.queue", "w") as file:
                file.write(name)
        if name in LIMITED:
            _limit(folder)
        if name in plant.PLANTS:
            story = plant.Story(folder)
            planted[name] = plant.plant(story, name, FOUND)
            story.save()
    shutil.rmtree(clean)
    _others(root)
    return planted


def _limit(folder):
    with open(f"{folder}/{layout.SIDE_FILE}") as file:
        lines = [json.loads(line) for line in file]
    with open(f"{folder}/{layout.SIDE_FILE}", "w") as file:
        for line in lines:
            file.write(json.dumps(line | ({"delivery_limit": LIMIT} if line["what"] == "settings" else {})) + "\n")


def _others(root):
    """Add queues whose deliveries break a promise each, and queues that lack something: one without a journal, one with
    a late journal, one that has lost a segment."""
    for name, story in by_audit().items():
        story.write(root, queue=f"broken {name}", segment=6, folder=f"broken-{name}")
    _misplaced(root)
    _held(root)
    level = simple_level(300, start=START)
    unjournaled = Options(segment_messages=100, journal=False)
    write_queue(root, level, unjournaled, queue="unjournaled", folder="unjournaled")
    write_queue(root, level, unjournaled, queue="settled and gone", folder="gone")
    os.remove(f"{root}/vhost/gone/{layout.segment_name(2)}")
    _settled_again(root)
    _spoiled(root)
    late = Options(segment_messages=100, begun=int(level.messages["ts"][150]))
    write_queue(root, level, late, queue="journaled late", folder="late")
    for name, hole_behind in (("power lost", False), ("power lost, and more", True)):
        lost = after_a_loss_of_power(start=START, hole_behind=hole_behind)
        write_queue(root, lost, Options(segment_messages=400), queue=name, folder=name.replace(", ", "-"))
    write_queue(root, Level(level.messages[:0], level.events[:0]), Options(), queue="empty", folder="empty")
    _told_otherwise(root)


def _spoiled(root):
    """Add queues with faults of which many audits see something; each is there to be judged alike by both engines."""
    for name, spoil in SPOILED.items():
        whole_ = came_back(simple_level(300, start=START), 50, 150, 250)
        at = int(whole_.messages["ts"][220]) - 1
        rows = np.append(whole_.events, events([(at, at - 1, STARTED, RESTARTED, 0, 0)]))
        level = Level(whole_.messages, rows[np.argsort(rows["ts"], kind="stable")])
        write_queue(root, level, Options(segment_messages=100), queue=name, folder=name.replace(" ", "-"))
        story = plant.Story(f"{root}/vhost/{name.replace(' ', '-')}")
        spoil(story)
        story.save()


def renumbered(story, seq, other):
    """A record has another number."""
    part, index = story.record(story.row(seq))
    start, _ = part.span(index)
    part.octets[start + 16:start + 24] = other.to_bytes(8, "little")
    part.sign(index)


def event_in_another_journal(story):
    for place in of(story, 50)[2:]:
        story.events["seq"][place] = 250
        story.touch([place])


def out_over_a_start(story):
    """Nobody acked message 50.  The journal of its segment does not tell of the start, as one that was settled before.
    """
    part, index = story.record(story.row(50))
    part.forget(index)
    ends = [place for place in of(story, 50) if story.events["type"][place] == ACKED]
    starts = np.flatnonzero((story.events["type"] == STARTED) & (story.events["part"] < 2)).tolist()
    story.remove([*ends, *starts])


def start_that_one_journal_lacks(story):
    """Message 220 is out at the start, and went out again after it."""
    row = of(story, 220)[-1]
    story.add(220, story.last_start + 1, DELIVERED, REDELIVERED | BEFORE_START, like=row)
    story.remove([row, *np.flatnonzero((story.events["type"] == STARTED) & (story.events["part"] == 2)).tolist()])


def record_gone(story):
    """Its events are there; and what stands where it stood begins as no record does."""
    part, index = story.record(story.row(150))
    start, _ = part.span(index)
    part.octets[start:start + 4] = bytes(4)
    part.changed.add("msgs")


SPOILED = {
    "event in another journal": event_in_another_journal, "out over a start": out_over_a_start,
    "start that one journal lacks": start_that_one_journal_lacks, "record gone": record_gone,
    "number far away": lambda story: renumbered(story, 140, 1 << 45),
    "number beyond others": lambda story: renumbered(story, 40, 350),
}


def _settled_again(root):
    """Add a queue without a journal: one of its messages is settled twice, and of three others an entry stands behind
    the one that settles them; but one of these has the place of a message that a loss of power took."""
    level = came_back(simple_level(30, start=START), 2, 12, 22)
    write_queue(root, level, Options(segment_messages=10, journal=False), queue="settled again", folder="settled-again")
    story = plant.Story(f"{root}/vhost/settled-again")
    part, own = _own(story, 5)
    part.entries = np.append(part.entries, part.entries[own])
    for seq in (2, 12, 22):
        part, own = _own(story, seq)
        part.entries[own] = part.entries[own[[2, 0, 1]]]
    story.save()
    for seq in (12, 23):
        part, index = story.record(story.row(seq))
        put_word(part.path("acks"), 48, int(part.positions[index]))


def _told_otherwise(root):
    """Add queues whose faults no single record or event shows; ``OTHERWISE`` says what is to be found in each."""
    for name, change in OTHERWISE.items():
        level = LEVELS.get(name, lambda level: level)(simple_level(300, start=START))
        options = Options(segment_messages=100, settings={"delivery_limit": 1} if name == "out at each kill" else {})
        write_queue(root, level, options, queue=name, folder=name.replace(" ", "-"))
        story = plant.Story(f"{root}/vhost/{name.replace(' ', '-')}")
        if change.plant is not None:
            change.plant(story)
            story.save()


class Otherwise(NamedTuple):
    """A change to a queue of 300 messages that were delivered and acked in turn, and what audits find (audit: found).
    Of those that are not named all are held, but ``undecidable``."""

    plant: Any
    found: dict
    undecidable: frozenset = frozenset()


def killed(level, times):
    """Message 50 is out whenever the broker is killed, and goes on."""
    at = int(level.events["ts"][-1])
    rows = [(int(e["ts"]), int(e["seq"]), int(e["type"]), int(e["reason"]), 1, 0) for e in level.events]
    rows = [row for row in rows if row[1:3] != (50, layout.ACKED)]
    for life in range(times):
        rows += [(at + 10 * life + 1, at + 10 * life, layout.STARTED, layout.RESTARTED, 0, 0),
                 (at + 10 * life + 2, 50, layout.DELIVERED, layout.REDELIVERED | layout.BEFORE_START, 1, life + 1)]
    return Level(level.messages, events([*rows, (at + 10 * times, 50, layout.ACKED, 0, 1, times)]))


def came_back(level, *seqs, start=False):
    """These messages come back once, at once, and go out again; ``start``: a start follows upon that of the last."""
    rows = [(int(e["ts"]), int(e["seq"]), int(e["type"]), int(e["reason"]), 1,
             int(e["seq"] in seqs and e["type"] == ACKED)) for e in level.events]
    for seq in seqs:
        first = int(level.events["ts"][2 * seq - 2])
        rows += [(first + 1, seq, RETURNED, layout.CAUSE_NACK, 1, 1), (first + 2, seq, DELIVERED, REDELIVERED, 1, 1)]
        if start and seq == seqs[-1]:
            rows += [(first + 3, first + 2, STARTED, RESTARTED, 0, 0),
                     (first + 4, seq, DELIVERED, REDELIVERED | BEFORE_START, 1, 1)]
    return Level(level.messages, events(rows))


def started_at_the_end(level):
    """A broker's start is the last that the journals have."""
    rows = [(int(e["ts"]), int(e["seq"]), int(e["type"]), int(e["reason"]), 1, 0) for e in level.events]
    at = rows[-1][0] + 10
    return Level(level.messages, events([*rows, (at, at - 1, STARTED, RESTARTED, 0, 0)]))


LEVELS = {"out at each kill": lambda level: killed(level, 5),
          "told otherwise": lambda level: came_back(level, 50, 60, 70, 80),
          "in another order": lambda level: came_back(level, 50, 60, 70, 80),
          "out and set aside": lambda level: came_back(level, 300),
          "of no version": lambda level: came_back(level, 50),
          "killed in the midst": lambda level: came_back(level, 90, start=True),
          "acked by nobody": started_at_the_end}


def of(story, *seqs):
    """The places of all events of these messages."""
    return np.flatnonzero(np.isin(story.events["seq"].astype(np.int64), seqs)
                          & (story.events["type"] != layout.STARTED)).tolist()


def skip(story, *seqs):
    """Nothing ever happened to these messages."""
    for seq in seqs:
        part, index = story.record(story.row(seq))
        part.forget(index)
    story.remove(of(story, *seqs))


def put_cursor(story, seq):
    """The cursor stands before this message."""
    part, index = story.record(story.row(seq))
    put_word(part.path("acks"), 24, int(part.span(index)[0]))


def set_aside(story, *seqs):
    """These messages were set aside, which explains nothing in a queue without dead letters."""
    skip(story, *seqs)
    for seq in seqs:
        story.tell(story.row(seq), layout.SET_ASIDE)


def at_one_time(story):
    """The last event of the first journal and the first one of the second have one time."""
    story.move(of(story, 100)[1], int(story.events["ts"][of(story, 101)[0]]))


def of_another_priority(story):
    """The record has a priority, and its properties have none."""
    part, index = story.record(story.row(120))
    part.octets[part.span(index)[0] + 14] = 3
    part.sign(index)


def empty_journal(story):
    """The journal of the second segment has no events, and says so."""
    story.remove(np.flatnonzero(story.events["part"] == 1).tolist())


def no_acks(story):
    """The acks of the second segment have no entries, and say so."""
    part = story.parts[1]
    part.entries = part.entries[:0]
    part.changed.add("acks")


def ack_of_a_ready_message(story):
    """The last message of all was never delivered, but the acks settle it."""
    story.remove(of(story, 300))


def _entries(story, seq, kind):
    """The part of a message, and the indices of its entries of that type."""
    part, index = story.record(story.row(seq))
    part.changed.add("acks")
    return part, np.flatnonzero((part.entries["position"] == part.positions[index])
                                & (part.entries["kind"] & 15 == kind))


def told_otherwise(story):
    """Of four messages that came back once, the acks have another cause, another count, no return, no hand-out."""
    part, which = _entries(story, 50, RETURNED)
    part.entries["kind"][which] = RETURNED | layout.CAUSE_NACK + 1 << 4
    part, which = _entries(story, 60, RETURNED)
    part.entries["count"][which] = 3
    for seq, kind in ((70, RETURNED), (80, layout.HANDED_OUT)):
        part, which = _entries(story, seq, kind)
        part.entries = np.delete(part.entries, which)


def _own(story, seq):
    part, index = story.record(story.row(seq))
    part.changed.add("acks")
    return part, np.flatnonzero(part.entries["position"] == part.positions[index])


def in_another_order(story):
    """Of four messages that came back once, the entries of two stand in another order than the events."""
    for seq, places in ((50, (1, 0, 2)), (60, (0, 2, 1))):
        part, own = _own(story, seq)
        part.entries[own] = part.entries[own[list(places)]]


def out_and_set_aside(story):
    """300 is out again, and its last entry says that it was set aside."""
    part, which = _entries(story, 300, ACKED)
    part.entries["kind"][which] = layout.SET_ASIDE | layout.WAS_OUT << 4
    story.remove([place for place in of(story, 300) if story.events["type"][place] == ACKED])


def publish_far_away(story):
    """The first publish has a number that no broker reaches."""
    part, index = story.record(story.row(1))
    part.octets[part.span(index)[0] + 47] |= 0x80
    part.sign(index)


def of_no_version(story):
    """The acks of the first segment say version 1, and have a hand-out."""
    head = bytearray(layout.acks_fixed(1, 0)[:24])
    head[4:8] = (1).to_bytes(4, "little")
    head[20:24] = layout.crc32c(bytes(head[:20])).to_bytes(4, "little")
    with open(story.parts[0].path("acks"), "r+b") as file:
        file.write(head)


def killed_in_the_midst(story):
    """The last event of a life is a hand-out, and has no entry."""
    part, which = _entries(story, 90, layout.HANDED_OUT)
    part.entries = np.delete(part.entries, which[0])


def compacted_away(story, *seqs):
    """The second segment was compacted; of these messages the journal does not know why they went."""
    part = story.parts[1]
    for seq in sorted((*seqs, 120), reverse=True):
        part.cut(story.row(seq) - 100)
    story.remove(of(story, *seqs))
    part.octets[32:36] = (1).to_bytes(4, "little")
    part.octets[36:40] = layout.crc32c(bytes(part.octets[:36])).to_bytes(4, "little")
    with open(part.path("acks"), "r+b") as file:
        file.write(layout.acks_fixed(part.number, 1))


def twice(story):
    """The last record of the first segment and the first of the second have one number."""
    part = story.parts[1]
    start, _ = part.span(0)
    part.octets[start + 16:start + 24] = (100).to_bytes(8, "little")
    part.sign(0)
    for place in of(story, 101):
        story.events["seq"][place] = 100
        story.touch([place])


OTHERWISE = {
    "passed over": Otherwise(lambda story: skip(story, 50, 100, 299), {"fifo": 3, "agreement": 3}),
    "none behind it": Otherwise(lambda story: (skip(story, 300), put_cursor(story, 300)), {}),
    "cursor before what went out": Otherwise(lambda story: put_cursor(story, 298), {"agreement": 3, "words": 1}),
    "cursor behind what waits": Otherwise(lambda story: skip(story, 299, 300), {"agreement": 2}),
    "set aside and passed over": Otherwise(lambda story: set_aside(story, 51), {"fifo": 1}),
    "two journals at one time": Otherwise(at_one_time, {"time_order": 1}),
    "of another priority": Otherwise(of_another_priority, {"wrong_level": 1}),
    "journal emptied": Otherwise(empty_journal, {"agreement": 100}),
    "events cut out": Otherwise(lambda story: story.remove(of(story, *range(110, 160))), {"agreement": 50}),
    "acks emptied": Otherwise(no_acks, {"agreement": 100}),
    "ready and acked": Otherwise(ack_of_a_ready_message, {"agreement": 1}),
    "told otherwise": Otherwise(told_otherwise, {"agreement": 4}),
    "in another order": Otherwise(in_another_order, {"agreement": 2}),
    "out and set aside": Otherwise(out_and_set_aside, {"agreement": 1}),
    "publish far away": Otherwise(publish_far_away, {"publish_order": 299}),
    "of no version": Otherwise(of_no_version, {"damage": 1}, frozenset({"agreement", "double_settle", "words"})),
    "killed in the midst": Otherwise(killed_in_the_midst, {}, frozenset({"agreement"})),
    "acked by nobody": Otherwise(ack_of_a_ready_message, {"agreement": 1}),
    "compacted away": Otherwise(lambda story: compacted_away(story, 130, 131), {"holes": 2}),
    "one number twice": Otherwise(twice, {"holes": 2, "numbers": 1}),
    "out at each kill": Otherwise(None, {"delivery_limit": 1, "limit_kept": 1}),
}


def _misplaced(root):
    """Add a queue with three priorities: publishes out of order, times that go back, and a message of another level."""
    made = {}
    for level in range(3):
        seqs = np.arange(1 + level, 121, 3)
        made[level] = Level(messages(seqs, START + 1000 * seqs), events([]))
    made[1].messages["publish_seq"][20] += 10_000           # Number 62.
    made[2].messages["ts"][10] -= 9000                      # Number 33.
    made[0].messages["ts"][30] += 9000                      # Number 91.
    write_queue(root, made, Options(segment_messages=15), queue="misplaced", folder="misplaced")
    story = plant.Story(f"{root}/vhost/misplaced")
    part, index = story.record(story.row(50))
    part.octets[part.span(index)[0] + 14] = 2
    part.sign(index)
    part, index = story.record(story.row(3))                # Its properties say 2.
    part.octets[part.span(index)[0] + 14] = 9
    part.sign(index)
    story.save()


def _held(root):
    """Add a queue with a single active consumer that serves two, one beyond its prefetch, and one that is gone."""
    steps = [(1, DELIVERED, 11), (2, DELIVERED, 11), (3, DELIVERED, 12), (1, ACKED, 11), (2, ACKED, 11), (3, ACKED, 12),
             (4, DELIVERED, 11), (0, STARTED, 0, RESTARTED), (4, DELIVERED, 12, REDELIVERED | BEFORE_START)]
    rows = [(START + 1000 * k, step[0] or START, step[1], step[3] if len(step) > 3 else 0, step[2], int(k == 9))
            for k, step in enumerate(steps, 1)]
    level = Level(messages(range(1, 5), [START - 10 + k for k in range(4)]), events(rows))
    log = [{"at": START - 1, "what": "consumer", "number": 11, "prefetch": 1, "no_ack": False},
           {"at": START - 5_000_000_000, "what": "consumer_gone", "number": 12}]
    options = Options(segment_messages=2, settings={"single_active_consumer": True}, log=log)
    write_queue(root, level, options, queue="held", folder="held")
