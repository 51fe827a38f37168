"""Spans of messages: what they are of, whose children they are, and which traces have them."""

import pytest

from brokerd.spans import lives as module
from brokerd.spans.lives import Lives, Parent, Place, read_traceparent
from brokerd.store import format as layout

PLACE = Place("/", "orders", 0, b"here")
TRACE, SPAN = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
PARENT = Parent(TRACE, SPAN, True)
TEXT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(("text", "parent"), [
    (TEXT, PARENT), (TEXT[:-1] + "0", PARENT._replace(sampled=False)), (TEXT[:-2] + "03", PARENT),
    ("01" + TEXT[2:] + "-more", PARENT), (TEXT + "-more", None), ("ff" + TEXT[2:], None), (TEXT.upper(), None),
    (TEXT[:-1], None), ("", None), ("00-" + "0" * 32 + TEXT[35:], None), (TEXT[:36] + "0" * 16 + "-01", None),
    (TEXT + "\n", None),
])
def test_a_traceparent_is_read_as_w3c_says(text, parent):
    assert read_traceparent(text) == parent


def told(lives):
    """Name, parent's name, start, end and outcome of each span."""
    names = {each.span: each.name for each in lives.spans} | {SPAN: "sender"}
    assert len(names) == len(lives.spans) + 1  # Each has its own identity.
    assert {each.trace for each in lives.spans} == {TRACE}
    return [(each.name.removesuffix(" orders"), names[each.parent].removesuffix(" orders"), each.start, each.end,
             each.attributes.get("brokerd.outcome")) for each in lives.spans]


def test_a_message_that_comes_back_is_delivered_and_settled_twice():
    lives = Lives(1)
    lives.came(PLACE, 7, 100, PARENT, "", "orders")
    for ts, type_ in ((150, layout.DELIVERED), (180, layout.RETURNED), (200, layout.DELIVERED), (260, layout.ACKED),
                      (300, layout.DELIVERED)):
        lives.happened(PLACE, 7, ts, type_, 0, 3)
    assert told(lives) == [
        ("publish", "sender", 100, 100, None),
        ("deliver", "publish", 100, 150, None), ("settle", "deliver", 150, 180, "returned"),
        ("deliver", "publish", 180, 200, None), ("settle", "deliver", 200, 260, "acked"),
    ]
    assert [each.parent_is_remote for each in lives.spans] == [True, False, False, False, False]


@pytest.mark.parametrize(("type_", "outcome"), [(layout.EXPIRED, "expired"), (layout.DROPPED, "dropped"),
                                                (layout.PURGED, "purged"), (layout.DEAD_LETTERED, "dead-lettered")])
def test_a_message_that_ends_without_a_delivery_has_waited_till_then(type_, outcome):
    lives = Lives(1)
    lives.came(PLACE, 7, 100, PARENT, "", "orders")
    lives.happened(PLACE, 7, 150, type_, 0, 0)
    assert told(lives)[1:] == [("settle", "publish", 100, 150, outcome)]


def test_messages_of_other_queues_and_priorities_are_not_confused():
    lives = Lives(1)
    lives.came(PLACE, 7, 100, PARENT, "", "orders")
    lives.happened(PLACE._replace(priority=1), 7, 150, layout.ACKED, 0, 0)
    lives.happened(PLACE._replace(identity=b"there"), 7, 150, layout.ACKED, 0, 0)
    lives.happened(PLACE, 8, 150, layout.ACKED, 0, 0)
    assert len(lives.spans) == 1


def test_the_same_event_has_the_same_span_in_every_process():
    twice = []
    for _ in range(2):
        lives = Lives(1)
        lives.came(PLACE, 7, 100, PARENT, "", "orders")
        lives.happened(PLACE, 7, 150, layout.DELIVERED, 0, 0)
        twice.append(lives.spans)
    assert twice[0] == twice[1]


def test_the_oldest_message_is_forgotten_where_too_many_are_open(monkeypatch):
    monkeypatch.setattr(module, "OPEN_MAX", 2)
    lives = Lives(1)
    for seq in (1, 2, 3):
        lives.came(PLACE, seq, 100, PARENT, "", "orders")
    lives.spans.clear()
    for seq in (1, 2, 3):
        lives.happened(PLACE, seq, 200, layout.ACKED, 0, 0)
    assert [each.attributes["brokerd.seq"] for each in lives.spans] == [2, 3]
    assert lives.forgotten == 1


def test_one_of_some_traces_is_told_and_none_that_its_publisher_does_not_want():
    lives = Lives(4)
    wanted = [lives.is_wanted(Parent(number << 54 | 1, 1, True)) for number in range(8)]
    assert wanted == [True, False, False, False] * 2
    assert not lives.is_wanted(Parent(1, 1, False))
