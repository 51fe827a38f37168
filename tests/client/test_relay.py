"""The relay by itself: octets in, octets out, with a model of both brokers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.carriers.rewriting import ID, NUMBERS, REDELIVERED, TIME, add_id
from brokerd.client._relay import Frames, Relay, StreamError
from brokerd.wire import methods
from brokerd.wire.frames import FRAME_BODY, FRAME_HEADER, FRAME_METHOD, FrameScanner, body_frames, header_frame
from brokerd.wire.properties import Properties, decode_header, encode_header
from brokerd.wire.values import Int8, Int16, Int64, Timestamp, UInt16, UInt32, encode_table


def delivery(tag, body, redelivered=False, key="k", frame_max=4096, header=None):
    method = methods.BasicDeliver(consumer_tag="c", delivery_tag=tag, redelivered=redelivered, exchange="e",
                                  routing_key=key)
    return method.frame(1) + header_frame(1, header or encode_header(len(body))) + body_frames(1, body, frame_max)


class Pipe:
    """A relay with the octets of both sides, in pieces of some size."""

    def __init__(self, mode="on-confirm", exchange=b"", key=b"q", piece=1 << 20, **more):
        self.relay = Relay(mode, exchange, key, **more)
        self.others = []
        self.source = Frames(lambda *frame: self.others.append(frame), 1 << 16)
        self.destination = Frames(lambda *frame: self.others.append(frame), 1 << 16)
        self.source.give(self.relay, True)
        self.destination.give(self.relay, False)
        self.piece = piece
        self._scanner = FrameScanner()

    def feed(self, frames, octets):
        while octets:
            piece = octets[:min(self.piece, len(frames.room()))]
            frames.room()[:len(piece)] = piece
            frames.fed(len(piece))
            octets = octets[len(piece):]

    def deliver(self, *arguments, **more):
        self.feed(self.source, delivery(*arguments, **more))

    def confirm(self, tag, multiple=False):
        self.feed(self.destination, methods.BasicAck(delivery_tag=tag, multiple=multiple).frame(1))

    def refuse(self, tag, multiple=False):
        self.feed(self.destination, methods.BasicNack(delivery_tag=tag, multiple=multiple).frame(1))

    def published(self):
        """The bodies that are to be sent now."""
        bodies, left = [], 0
        for frame in FrameScanner().feed(self.relay.take()):
            if frame.kind == FRAME_METHOD:
                assert isinstance(methods.decode(frame.payload), methods.BasicPublish)
                assert not left
            elif frame.kind == FRAME_HEADER:
                left = int.from_bytes(frame.payload[4:12])
                bodies.append(b"")
            else:
                assert frame.kind == FRAME_BODY
                bodies[-1] += frame.payload
                left -= len(frame.payload)
        assert not left
        return bodies

    def settled(self):
        """What is to be told to the source: (name, tag, multiple or requeue)."""
        found = []
        for frame in FrameScanner().feed(self.relay.acks()):
            method = methods.decode(frame.payload)
            found.append((method.NAME, method.delivery_tag, getattr(method, "multiple", getattr(method, "requeue", 0))))
        return found


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_deliveries_become_publishes_whatever_pieces_they_come_in(piece):
    pipe = Pipe(piece=piece)
    sent = [b"one", b"", b"x" * 9000]
    for tag, body in enumerate(sent, 1):
        pipe.deliver(tag, body)
    assert pipe.published() == sent
    assert not pipe.others


def test_what_is_confirmed_out_of_order_is_acknowledged_as_far_as_there_is_no_gap():
    pipe = Pipe()
    for tag in range(1, 6):
        pipe.deliver(tag, b"")
    assert len(pipe.published()) == 5
    pipe.confirm(2)
    pipe.confirm(3)
    assert pipe.settled() == []
    pipe.confirm(1)
    assert pipe.settled() == [("basic.ack", 3, True)]
    pipe.confirm(5, multiple=True)
    assert pipe.settled() == [("basic.ack", 5, True)]
    assert pipe.relay.unsettled == 0


@pytest.mark.parametrize("mode", ["on-confirm", "on-publish", "no-ack"])
def test_kept_is_what_is_whole_and_not_settled(mode):
    """A message that comes does not count: who reads no more because of it would never have it whole."""
    pipe = Pipe(mode)
    octets = delivery(1, bytes(50_000), frame_max=4096)
    pipe.feed(pipe.source, octets[:40_000])
    assert pipe.relay.kept_octets == 0
    pipe.feed(pipe.source, octets[40_000:])
    assert pipe.relay.kept_octets > 50_000
    pipe.published()
    assert (pipe.relay.kept_octets > 50_000) == (mode == "on-confirm")
    if mode == "on-confirm":
        pipe.confirm(1)
        assert pipe.settled() == [("basic.ack", 1, True)]
        assert pipe.relay.kept_octets == 0


def test_refused_messages_go_again_one_at_a_time_before_new_ones():
    pipe = Pipe()
    for tag in range(1, 5):
        pipe.deliver(tag, b"%d" % tag)
    assert len(pipe.published()) == 4
    pipe.confirm(1)
    pipe.refuse(2)
    pipe.confirm(3)
    pipe.refuse(4)
    pipe.deliver(5, b"5")
    assert pipe.relay.halted
    assert pipe.published() == []
    assert pipe.settled() == [("basic.ack", 1, True)]
    pipe.relay.retry()
    assert pipe.published() == [b"2"]
    assert pipe.published() == []
    pipe.confirm(5)
    assert pipe.settled() == [("basic.ack", 3, True)]
    assert pipe.published() == [b"4"]
    pipe.confirm(6)
    assert pipe.published() == [b"5"]
    pipe.confirm(7)
    assert pipe.settled() == [("basic.ack", 5, True)]


def test_a_message_that_is_given_up_is_rejected_at_its_place():
    pipe = Pipe()
    for tag in range(1, 4):
        pipe.deliver(tag, b"")
    pipe.published()
    pipe.refuse(2)
    pipe.confirm(1)
    pipe.confirm(3)
    assert pipe.relay.tries == 1
    pipe.relay.give_up()
    pipe.relay.retry()
    assert pipe.settled() == [("basic.ack", 1, True), ("basic.reject", 2, False), ("basic.ack", 3, True)]


def test_a_returned_message_counts_as_refused_although_it_is_confirmed():
    pipe = Pipe(mandatory=True)
    pipe.deliver(1, b"a")
    pipe.deliver(2, b"bb")
    pipe.published()
    back = methods.BasicReturn(reply_code=312, reply_text="NO_ROUTE", exchange="", routing_key="q").frame(1)
    pipe.feed(pipe.destination, back + header_frame(1, encode_header(2)) + body_frames(1, b"bb", 0))
    pipe.confirm(2, multiple=True)
    assert pipe.settled() == [("basic.ack", 1, True)]
    assert pipe.relay.halted
    assert pipe.relay.reason == "the destination returned a message: 312 NO_ROUTE"


def test_without_acknowledgements_nothing_is_kept_and_on_publish_all_is_acknowledged_once_sent():
    pipe = Pipe("no-ack")
    pipe.deliver(1, b"a")
    assert pipe.published() == [b"a"]
    assert (pipe.settled(), pipe.relay.kept_octets) == ([], 0)
    pipe = Pipe("on-publish")
    pipe.deliver(1, b"a")
    assert pipe.settled() == []
    assert pipe.published() == [b"a"]
    assert pipe.settled() == [("basic.ack", 1, True)]


def test_beyond_its_limit_a_relay_takes_nothing():
    pipe = Pipe(limit=1)
    pipe.deliver(1, b"a")
    pipe.deliver(2, b"b")
    assert pipe.published() == [b"a"]
    pipe.confirm(1)
    assert pipe.settled() == [("basic.ack", 1, True)]
    assert pipe.relay.finished


def test_a_function_may_change_or_drop_messages():
    def rewrite(exchange, key, header, redelivered):
        assert (exchange, key, redelivered) == (b"e", b"k", False)
        return None if header.startswith(encode_header(1)[:12]) else (exchange, b"other", header)

    pipe = Pipe(exchange=None, key=None, rewrite=rewrite)
    pipe.deliver(1, b"x")
    pipe.deliver(2, b"xx")
    octets = pipe.relay.take()
    assert methods.decode(FrameScanner().feed(octets)[0].payload).routing_key == "other"
    assert pipe.settled() == [("basic.ack", 1, True)]


def headers_sent(pipe):
    """The payloads of the content headers that are to be sent now."""
    return [frame.payload for frame in FrameScanner().feed(pipe.relay.take()) if frame.kind == FRAME_HEADER]


def test_only_redelivered_messages_are_marked():
    pipe = Pipe(marks=True)
    pipe.deliver(1, b"")
    pipe.deliver(2, b"", redelivered=True)
    assert [decode_header(payload)[1].headers for payload in headers_sent(pipe)] == [None, {REDELIVERED: True}]


OURS = st.sampled_from([NUMBERS, TIME, ID, REDELIVERED])
NAMES = OURS | st.text(max_size=10)
NUMBERS_OF_SOURCES = st.integers(0, 2**63 - 1).map(Int64)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-2**63, 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=20)
    | st.binary(max_size=20) | st.integers(-128, 127).map(Int8) | st.integers(0, 2**16 - 1).map(UInt16)
    | st.integers(-2**15, 2**15 - 1).map(Int16) | st.integers(0, 2**32 - 1).map(UInt32)
    | st.integers(-2**63, 2**63 - 1).map(Int64) | st.integers(0, 2**64 - 1).map(Timestamp)
    | st.decimals(allow_nan=False, allow_infinity=False, min_value=-9999, max_value=9999, places=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=5)
TABLES = st.none() | st.dictionaries(NAMES, ANYTHING, max_size=6) | st.builds(
    lambda number, when, others: {NUMBERS: number, TIME: when, **others}, NUMBERS_OF_SOURCES, NUMBERS_OF_SOURCES,
    st.dictionaries(st.text(max_size=10) | st.just(ID), ANYTHING, max_size=4))
PROPERTIES = st.builds(Properties, content_type=st.none() | st.text(max_size=9), headers=TABLES, expiration=st.none() |
                       st.just("5"), content_encoding=st.none() | st.text(max_size=60), priority=st.none() | st.just(3),
                       timestamp=st.none() | st.integers(0, 2**64 - 1), cluster_id=st.none() | st.text(max_size=60))


@given(PROPERTIES, st.booleans(), st.booleans(), st.text(max_size=300))
def test_ids_and_marks_are_those_that_python_writes_into_the_properties(properties, wants_ids, redelivered, ids):
    """Octets may differ in the order of headers alone."""
    octets = encode_header(3, properties)
    pipe = Pipe(marks=True, ids=ids.encode() if wants_ids else None)
    pipe.deliver(1, b"abc", redelivered=redelivered, header=octets)
    _, expected = decode_header(octets)
    none = []
    if wants_ids:
        add_id(ids, lambda: none.append(1))(expected)
    if redelivered:
        expected.headers = {**(expected.headers or {}), REDELIVERED: True}
    [made] = headers_sent(pipe)
    size, found = decode_header(made)
    assert (size, found) == (3, expected)
    assert list(map(repr, sorted((found.headers or {}).items(), key=lambda item: item[0]))) == list(
        map(repr, sorted((expected.headers or {}).items(), key=lambda item: item[0])))     # Types, too.
    if not wants_ids and not redelivered:
        assert made == octets
    assert (pipe.relay.unnumbered, pipe.relay.overlong) == (len(none), 0)


def test_of_two_numbers_in_one_table_the_first_counts_and_both_go():
    fields = b"".join(encode_table({NUMBERS: Int64(number), TIME: Int64(5)})[4:] for number in (1, 2))
    octets = encode_header(0)[:12] + b"\x20\0" + len(fields).to_bytes(4) + fields
    pipe = Pipe(ids=b"s")
    pipe.deliver(1, b"", header=octets)
    assert decode_header(headers_sent(pipe)[0])[1].headers == {ID: "s 1 5"}


@pytest.mark.parametrize("redelivered", [False, True])
def test_a_message_has_no_id_where_its_header_would_be_longer_than_a_frame(redelivered):
    room = 4096 - 8 - 14 - 4
    pipe = Pipe(ids=b"i" * 300, marks=True, frame_max=4096)
    numbers = {NUMBERS: Int64(1), TIME: Int64(2)}
    for tag, octets in enumerate((room - 300 - 5 - 12 - 4 - 23 - 9, room - 200), 1):
        pipe.deliver(tag, b"", redelivered=redelivered,
                     header=encode_header(0, Properties(headers={"h": "x" * octets, **numbers})))
    short, long = [decode_header(payload)[1].headers for payload in headers_sent(pipe)]
    assert short[ID] == "i" * 300 + " 1 2"
    assert set(long) == ({"h", REDELIVERED} if redelivered else {"h"})
    assert (pipe.relay.unnumbered, pipe.relay.overlong) == (0, 1)


def test_a_header_that_is_longer_than_a_frame_of_the_destination_is_told():
    pipe = Pipe(frame_max=4096)
    with pytest.raises(StreamError, match="a content header of 5023 octets is more than the destination takes"):
        pipe.deliver(1, b"", header=encode_header(0, Properties(headers={"h": "x" * 4998})))


@given(PROPERTIES, st.integers(0, 10_000), st.integers(0, 255), st.integers(0, 10_000))
def test_damaged_headers_are_refused_or_read_within_their_bounds(properties, at, octet, cut):
    octets = bytearray(encode_header(0, properties))
    octets[12 + at % (len(octets) - 12)] = octet
    octets = octets[:max(14, len(octets) - cut % 20)]
    pipe = Pipe(ids=b"s", marks=True)
    try:
        pipe.deliver(1, b"", header=bytes(octets))
    except StreamError:
        return
    [made] = headers_sent(pipe)
    assert made[:12] == octets[:12]


@pytest.mark.parametrize("octets", [b"AMQP\0\0\x09\x01", b"\1\0\1\0\0\0\4abcdX", b"\3\0\1\0\0\0\1a\xce",
                                    b"\2\0\1\0\0\0\1a\xce", b"\1\0\1\xff\0\0\0abc",
                                    b"\1\0\1\0\0\0\4\0\x3c\0\x3c\xce", b"\1\0\1\0\0\0\x06\0\x3c\0\x3c\x20a\xce"])
def test_what_is_not_amqp_is_refused(octets):
    pipe = Pipe()
    with pytest.raises(StreamError):
        pipe.feed(pipe.source, octets)


@pytest.mark.parametrize("tag", [0, 1, 3])
def test_a_confirm_of_what_was_not_sent_is_refused(tag):
    pipe = Pipe()
    if tag:
        pipe.deliver(1, b"")
    with pytest.raises(StreamError, match="not sent"):
        pipe.confirm(tag)


class Model:
    """What both brokers see of a relay that works on-confirm."""

    def __init__(self):
        self.pipe = Pipe()
        self.delivered = 0
        self.sent = []          # tags of publishes by sequence number, from 1
        self.open = []          # sequence numbers that are not settled
        self.taken = set()      # tags that the destination has
        self.acknowledged = 0

    def deliver(self, count):
        for _ in range(count):
            self.delivered += 1
            self.pipe.deliver(self.delivered, b"%d" % self.delivered)

    def take(self):
        relay = self.pipe.relay
        bodies = self.pipe.published()
        assert not (relay.halted and bodies)
        for body in bodies:
            tag = int(body)
            assert tag not in self.taken
            # What goes now goes before all that has not gone.
            assert set(range(1, tag)) <= set(self.sent)
            self.sent.append(tag)
            self.open.append(len(self.sent))

    def settle(self, which, positive, multiple):
        if not self.open:
            return
        seq = self.open[which % len(self.open)]
        seqs = [each for each in self.open if each <= seq] if multiple else [seq]
        self.open = [each for each in self.open if each not in seqs]
        if positive:
            self.taken.update(self.sent[each - 1] for each in seqs)
        (self.pipe.confirm if positive else self.pipe.refuse)(seq, multiple)

    def retry(self):
        if self.pipe.relay.halted and not self.open:
            self.pipe.relay.retry()

    def look(self):
        for name, tag, multiple in self.pipe.settled():
            assert (name, multiple) == ("basic.ack", True)
            self.acknowledged = tag
        expected = self.acknowledged
        while expected + 1 in self.taken:
            expected += 1
        assert self.acknowledged == expected
        assert self.pipe.relay.unsettled == self.delivered - self.acknowledged
        assert self.pipe.relay.in_flight == len(self.open)


STEPS = st.one_of(
    st.tuples(st.just("deliver"), st.integers(1, 40)),
    st.tuples(st.just("take")),
    st.tuples(st.just("settle"), st.integers(0, 50), st.booleans(), st.booleans()),
    st.tuples(st.just("retry")),
)


@given(st.lists(STEPS, max_size=80))
def test_what_is_acknowledged_is_exactly_the_run_of_messages_that_the_destination_has(steps):
    model = Model()
    for name, *arguments in steps:
        getattr(model, name)(*arguments)
        model.look()
    while model.pipe.relay.unsettled:       # A destination that takes everything gets everything.
        model.retry()
        model.take()
        while model.open:
            model.settle(0, True, False)
        model.look()
    assert model.taken == set(range(1, model.delivered + 1))


@pytest.mark.parametrize("piece", [1, 1000, 1 << 20])
def test_a_frame_as_large_as_was_agreed_comes_whole_though_the_memory_begins_small(piece):
    whole = bytes(range(256)) * 255
    pipe = Pipe(piece=piece, frame_max=1 << 16)
    first = len(pipe.source.room())
    pipe.deliver(1, whole, frame_max=1 << 16)
    pipe.deliver(2, b"after")
    assert first < len(whole) + 8
    assert pipe.published() == [whole, b"after"]


def test_the_memory_grows_also_while_the_event_loop_holds_the_view_that_it_has_read_into():
    pipe = Pipe()
    view = pipe.source.room()
    octets = delivery(1, bytes(len(view)))
    view[:] = octets[:len(view)]
    pipe.source.fed(len(view))
    pipe.feed(pipe.source, octets[len(view):])
    assert pipe.published() == [bytes(len(view))]
    assert len(pipe.source.room()) > len(view)
