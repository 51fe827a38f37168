"""Messages of a waiting room go on when they are due, in the order of their times, and leave when they are on disk."""


import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plane.harness import Bench, read
from tests.plane.test_letters import PLAIN_NAMES, PLAIN_VALUES, properties_of

from brokerd import plane
from brokerd.exchanges.delayed import due_of
from brokerd.queues.dead_letter import read_properties, write_properties
from brokerd.wire.properties import Properties
from brokerd.wire.values import Float32, Int8, Int16, Int64, Timestamp, UInt8, UInt16, UInt32


class Gate(plane.Delay):
    def __init__(self, letters, retry_ms):
        self.asked, self.stored = [], []
        self.answer = lambda seq: None

    def on_due(self, seq, known):
        self.asked.append(seq)
        self.answer(seq)

    def on_stored(self, upto):
        self.stored.append(upto)


class Room:
    """A waiting room of exchange x, and queue q; it is 1,000 ms after the epoch."""

    def __init__(self, directory, **options):
        self.bench = Bench(directory, **options)
        self.now = 1000
        self.bench.at(self.now)
        self.routes = plane.Routes(self.bench.core, self.bench.resolve)
        self.target = self.bench.queue(b"q")
        self.open(self.bench.queue(b"room"))

    def open(self, queue):
        self.queue = queue
        self.gate = Gate(plane.Letters(self.routes, b"", b"x"), 500)
        queue.gate = self.gate

    def put(self, body, headers, key=b"q", **properties):
        octets = write_properties(Properties(headers=headers, delivery_mode=2, **properties))
        self.bench.core.put((self.queue,), b"x", key, octets, body)
        self.bench.turns()

    def at(self, ms):
        """So many ms after the begin."""
        for turn in range(20):
            self.bench.core.clock = lambda turn=turn: (self.now + ms) * 1_000_000 + turn
            self.bench.core.expire()
            self.bench.turns()
        self.queue.check()

    def bodies(self):
        return [row[6] for row in self.target.browse(1, 10_000)]

    def settle(self):
        """The sync is over."""
        for upto in self.gate.stored:
            self.gate.settle(upto)
        self.gate.stored.clear()
        self.queue.check()


@pytest.fixture
def room(tmp_path):
    room = Room(tmp_path)
    yield room
    room.bench.close()


def test_messages_go_at_their_times_and_equal_ones_in_the_order_in_which_they_came(room):
    for body, delay in ((b"c", 300), (b"a", 100), (b"b1", 200), (b"b2", 200)):
        room.put(body, {"x-delay": delay})
    room.at(99)
    assert room.bodies() == []
    room.at(200)
    assert room.bodies() == [b"a", b"b1", b"b2"]
    room.at(300)
    assert room.bodies() == [b"a", b"b1", b"b2", b"c"]
    assert room.gate.asked == []


def test_a_message_is_aside_until_its_queues_have_it_on_disk(room):
    room.put(b"1", {"x-delay": 1})
    room.put(b"2", {"x-delay": 2})
    room.at(1)
    room.at(2)
    assert (room.queue.ready, room.queue.aside, room.gate.stored) == (0, 2, [1, 2])
    assert [path for path in room.bench.sync() if "/q/msgs." in path]
    room.gate.settle(1)
    assert room.queue.aside == 1
    room.settle()
    assert room.queue.aside == 0
    assert [segment["settled"] for segment in room.queue.segments()] in ([2], [])


def test_what_needs_no_sync_leaves_at_once(room):
    room.bench.core.put((room.queue,), b"x", b"q", write_properties(Properties(headers={"x-delay": 1})), b"transient")
    room.at(1)
    assert (room.bodies(), room.queue.aside, room.gate.stored) == ([b"transient"], 0, [])


def test_what_needs_no_sync_settles_nothing_that_waits_for_one(room):
    room.put(b"1", {"x-delay": 1})
    room.put(b"2", {"x-delay": 2}, key=b"nowhere")
    room.put(b"3", {"x-delay": "3"})
    for ms in (1, 2, 3):
        room.at(ms)
    assert (room.queue.aside, room.gate.stored) == (2, [1, 2])
    room.settle()
    assert room.queue.aside == 0
    room.put(b"4", {"x-delay": 1}, key=b"nowhere")
    room.at(9)
    assert (room.queue.aside, room.gate.stored) == (0, [])


def test_after_a_crash_what_was_not_settled_is_due_again_and_what_waits_has_its_time(tmp_path):
    room = Room(tmp_path)
    for number, delay in enumerate((1, 2, 30)):
        room.put(b"%d" % number, {"x-delay": delay})
    room.at(1)
    room.settle()
    room.at(2)
    again = Room.__new__(Room)
    again.bench, again.now = Bench(tmp_path), 1000
    again.bench.at(1000)
    again.routes = plane.Routes(again.bench.core, again.bench.resolve)
    again.target = again.bench.recovered(b"q")
    again.open(again.bench.recovered(b"room"))
    again.at(2)
    assert again.bodies() == [b"0", b"1", b"1"]
    again.at(30)
    assert again.bodies() == [b"0", b"1", b"1", b"2"]


@pytest.mark.parametrize("headers", [
    None, {}, {"x-delay": "100"}, {"x-delay": 1.5}, {"x-delay": -1}, {"x-delay": True}, {"x-delay": Timestamp(9)},
    {"x-delay": 9, "x-deliver-at": 0}, {"x-delay": 9, "x-deliver-at": "2040-01-01"},
    {"x-delay": 9, "CC": ["a"]}, {"x-delay": 9, "BCC": ["a"]},
    {"x-delay": 9, "x-delayed-expiration": "9"}])  # fmt: skip
def test_a_delay_that_is_not_plain_is_the_control_planes(room, headers):
    assert plane.plain_due(write_properties(Properties(headers=headers)), 1000) == 0
    room.put(b"m", headers)
    room.at(0)
    assert (room.gate.asked, room.bodies(), room.queue.ready) == ([1], [], 1)
    room.gate.note(1, 1050)
    room.at(49)
    assert room.gate.asked == [1]
    room.at(50)
    assert room.gate.asked == [1, 1]


@pytest.mark.parametrize(
    "delay", [1, Int8(127), UInt8(255), Int16(300), UInt16(65535), UInt32(1 << 31), 1 << 40, Int64(5)])
def test_any_whole_number_is_a_plain_delay(delay):
    octets = write_properties(Properties(headers={"a": "b", "x-delay": delay, "c": None}))
    assert plane.plain_due(octets, 1000) == 1000 + delay
    assert plane.plain_due(write_properties(Properties(headers={"x-delay": delay}, expiration="1")), 1000) == 0


@pytest.mark.parametrize("others", [{}, {"x-delay": 9}, {"x-delay": 1 << 40}])
@pytest.mark.parametrize(("at", "due"), [(1001, 1001), (Int64(1 << 62), 1 << 62), (Timestamp(7), 7000)])
def test_a_whole_number_or_a_timestamp_says_when_a_message_is_due_whatever_its_delay(at, due, others):
    for headers in ({"x-deliver-at": at} | others, others | {"x-deliver-at": at}):
        assert plane.plain_due(write_properties(Properties(headers=headers)), 1000) == due


def test_a_timestamp_behind_all_times_is_no_plain_one():
    assert plane.plain_due(write_properties(Properties(headers={"x-deliver-at": Timestamp((1 << 63) - 1)})), 0) == 0


def test_a_message_that_says_when_goes_on_then_and_says_it_still(room):
    room.put(b"m", {"x-deliver-at": 1030, "a": 1})
    room.at(29)
    assert (room.gate.asked, room.bodies()) == ([], [])
    room.at(30)
    assert read_properties(room.target.browse(1, 1)[0][5]).headers == {"x-deliver-at": 1030, "a": 1}
    assert (room.gate.asked, room.bodies()) == ([], [b"m"])


def test_the_delay_of_malformed_properties_is_a_fault():
    for octets in (b"", b"\x20", b"\x20\0\0\0\0\5"):
        with pytest.raises(ValueError, match="malformed properties"):
            plane.plain_due(octets, 0)


def test_what_is_due_later_waits_until_the_control_plane_has_sent_on_what_is_due_earlier(room):
    def answer(seq):
        if len(room.gate.asked) == 1:
            room.gate.note(seq, 1005)
        else:
            row = room.queue.remove(seq)
            room.bench.core.put((room.target,), *row[3:])

    room.gate.answer = answer
    room.put(b"odd", {"x-delay": "5"})
    room.put(b"plain", {"x-delay": 5})
    room.at(5)
    assert room.bodies() == [b"odd", b"plain"]


def test_a_route_that_may_not_be_remembered_leaves_its_messages_to_the_control_plane(room):
    room.bench.cacheable = False
    room.put(b"m", {"x-delay": 1})
    room.at(1)
    assert (room.gate.asked, room.bodies(), room.queue.ready) == ([1], [], 1)


def test_what_its_queue_refuses_keeps_its_place_and_is_tried_again(room):
    room.target.set_rules(max_length=0, overflow=1)
    for body in (b"a", b"b"):
        room.put(body, {"x-delay": 1})
    room.at(1)
    assert (room.gate.asked, room.bodies(), room.queue.ready, room.queue.aside) == ([], [], 2, 0)
    room.target.set_rules()
    room.at(500)
    assert room.bodies() == []
    room.at(501)
    assert (room.gate.asked, room.bodies()) == ([], [b"a", b"b"])


def test_one_queue_that_takes_a_message_is_enough(room):
    room.bench.queue(b"r", max_length=0, overflow=1)
    room.bench.bound = {(b"x", b"q"): (b"r", b"q")}
    room.put(b"m", {"x-delay": 1})
    room.at(1)
    assert (room.bodies(), room.queue.ready) == ([b"m"], 0)


def test_what_cannot_be_stored_now_is_tried_again(room):
    room.put(b"m", {"x-delay": 1})
    room.target.make_directory = None           # The queue has no folder yet, and none can be made.
    room.at(1)
    assert (room.gate.asked, room.bodies(), room.queue.ready) == ([], [], 1)
    del room.target.make_directory
    room.at(501)
    assert room.bodies() == [b"m"]


def test_a_delay_begins_when_the_message_came_and_now_if_the_clock_was_set_back(room):
    room.at(10_000)
    for _ in range(3):
        room.put(b"late", {"x-delay": 5})
    room.now = 5_000                            # Records rise all the same.
    room.at(0)
    room.put(b"soon", {"x-delay": 5})
    room.at(5)
    assert room.bodies() == [b"soon"]


def test_messages_that_were_taken_out_count_too(room):
    for _ in range(600):
        room.put(b"gone", {"x-delay": 1})
    for seq in range(1, 601):
        room.queue.remove(seq)
    room.put(b"there", {"x-delay": 1})
    room.bench.core.clock = lambda: 1001 * 1_000_000
    room.bench.core.expire()
    assert room.bodies() == []
    room.at(1)
    assert room.bodies() == [b"there"]


def test_large_messages_take_a_turn_each(room):
    for _ in range(3):
        room.put(bytes(2 << 20), {"x-delay": 1})
    room.bench.core.clock = lambda: 1001 * 1_000_000
    room.bench.core.expire()
    assert room.target.ready == 1


def test_what_finds_no_queue_is_gone(room):
    room.put(b"m", {"x-delay": 1}, key=b"nowhere")
    room.at(1)
    assert (room.gate.asked, room.queue.ready, room.queue.aside) == ([], 0, 0)


def test_what_was_taken_out_by_hand_does_not_go(room):
    for body in (b"a", b"b", b"c"):
        room.put(body, {"x-delay": 5})
    room.queue.remove(2)
    room.at(5)
    assert (room.bodies(), room.gate.asked) == ([b"a", b"c"], [])


def test_after_a_purge_nothing_goes_and_what_was_stored_is_settled(room):
    room.put(b"gone", {"x-delay": 1})
    room.put(b"purged", {"x-delay": 5})
    room.at(1)
    assert room.queue.aside == 1
    assert room.queue.purge() == 1
    room.settle()           # which comes too late
    assert (room.queue.ready, room.queue.aside, room.gate.upcoming(9)) == (0, 0, [])
    room.put(b"new", {"x-delay": 8})
    room.at(9)
    assert (room.bodies(), room.queue.aside) == ([b"gone", b"new"], 1)
    room.settle()
    assert room.queue.aside == 0


def test_a_sync_from_before_a_purge_settles_nothing_that_came_after_it(room):
    room.put(b"a", {"x-delay": 1})
    room.at(1)
    early = list(room.gate.stored)
    room.queue.purge()
    room.put(b"b", {"x-delay": 1})
    room.at(2)
    for upto in early:
        room.gate.settle(upto)
    assert room.queue.aside == 1


def test_a_queue_that_goes_while_messages_are_not_settled_takes_them_with_it(room):
    room.put(b"a", {"x-delay": 1})
    room.put(b"b", {"x-delay": 9})
    room.at(1)
    upto = list(room.gate.stored)
    room.queue.drop()
    for number in upto:
        room.gate.settle(number)
    room.gate.note(2, 0)
    room.gate.tidy()
    room.bench.core.expire()
    assert (room.bodies(), room.gate.asked) == ([b"a"], [])


def test_no_consumer_gets_what_waits(room):
    room.put(b"m", {"x-delay": 1})
    assert read(room.bench, room.queue) == []
    assert room.queue.ready == 1


def test_next_come_those_whose_time_is_first_and_many_that_were_taken_out_are_forgotten(room):
    for number in range(500):
        room.put(b"", {"x-delay": 5000 - number})
    assert room.gate.upcoming(2) == [(5501, 500), (5502, 499)]
    for seq in range(2, 500):
        room.queue.remove(seq)
    room.gate.tidy()
    assert room.gate.upcoming(9) == [(5501, 500), (6000, 1)]
    room.at(5000)
    assert len(room.bodies()) == 2


def test_a_delay_beyond_all_time_never_ends(room):
    room.put(b"m", {"x-delay": (1 << 63) - 1})
    room.at(1 << 40)
    assert (room.bodies(), room.queue.ready) == ([], 1)


def test_many_that_are_due_at_once_take_several_turns(room):
    for number in range(600):
        room.put(b"%d" % number, {"x-delay": 1})
    room.bench.core.clock = lambda: 1001 * 1_000_000
    room.bench.core.expire()
    assert 0 < room.target.ready < 600
    room.at(1)
    assert room.bodies() == [b"%d" % number for number in range(600)]


@pytest.mark.parametrize("targets", [2, 50, 500])
def test_messages_that_go_to_many_queues_take_more_turns(room, targets):
    queues = [room.bench.queue(b"%d" % number) for number in range(targets)]
    room.bench.bound[b"x", b"fan"] = tuple(b"%d" % number for number in range(targets))
    for number in range(200):
        room.put(b"%d" % number, {"x-delay": 1}, key=b"fan")
    at_once = -(-256 // targets)
    for turn in range(3):
        before = queues[0].ready
        room.bench.core.clock = lambda turn=turn: 1001 * 1_000_000 + turn
        room.bench.core.expire()
        assert min(200, before + 1) <= queues[0].ready <= before + 2 * at_once      # expire() includes a turn.
    ms = 1
    while room.queue.ready:
        ms += 1
        room.at(ms)
    assert [queue.ready for queue in queues] == [200] * targets
    assert [int(row[6]) for row in queues[-1].browse(1, 200)] == list(range(200))


def test_room_for_a_message_in_many_queues_is_found_in_several_turns(tmp_path):
    room = Room(tmp_path, work_ns=1, go_on=lambda: None)
    queues = [room.bench.queue(b"%d" % number) for number in range(100)]
    room.bench.bound[b"x", b"fan"] = tuple(b"%d" % number for number in range(100))
    for body in (b"one", b"two"):
        room.put(body, {"x-delay": 1}, key=b"fan")
    turns = 0
    while not queues[0].ready:
        assert not any(queue.ready for queue in queues)     # It is stored in all of them at once.
        assert room.queue.ready == 2
        room.bench.core.clock = lambda turns=turns: 1001 * 1_000_000 + turns
        room.bench.core.expire()
        turns += 1
    assert turns > 40           # expire() includes a turn.
    room.at(2)
    assert [[row[6] for row in queue.browse(1, 9)] for queue in queues] == [[b"one", b"two"]] * 100
    assert room.gate.asked == []
    room.settle()
    room.bench.close()


DELAYS = st.one_of(st.integers(1, 1 << 62).map(Int64), st.integers(1, 127).map(Int8), st.integers(1, 1 << 31),
                   st.integers(1, 255).map(UInt8))
OTHERS = st.dictionaries(PLAIN_NAMES, PLAIN_VALUES, max_size=6)
WHEN = st.one_of(DELAYS.map(lambda delay: {"x-delay": delay}), DELAYS.map(lambda at: {"x-deliver-at": at}),
                 st.tuples(DELAYS, DELAYS).map(lambda both: {"x-deliver-at": both[0], "x-delay": both[1]}))
HEADERS = st.builds(lambda headers, when, after: headers | when | after, OTHERS, WHEN, OTHERS)


@given(properties_of(HEADERS | st.dictionaries(PLAIN_NAMES | st.just("x-delay"), PLAIN_VALUES | st.just(Float32(1.0)))))
@settings(deadline=None)
def test_the_properties_are_those_that_the_control_plane_writes(tmp_path_factory, octets):
    room = Room(tmp_path_factory.mktemp("room"))
    room.bench.core.put((room.queue,), b"x", b"q", octets, b"body")
    due = plane.plain_due(octets, 0)
    room.bench.core.clock = lambda: ((1 << 63) - 1) // 1_000_000 * 1_000_000
    room.bench.core.expire()
    message = read_properties(octets)
    headers = message.headers or {}
    assert due == 0 or due == due_of(headers, 0)
    if due and room.gate.asked == [] and room.target.ready:
        delayed = {"x-delay": -headers["x-delay"]} if "x-delay" in headers else {}
        message.headers = dict(sorted((headers | delayed).items()))
        assert room.target.browse(1, 1)[0][3:] == (b"x", b"q", write_properties(message), b"body")
    else:
        assert room.target.ready == 0
    room.queue.check()
    room.bench.close()


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_the_room_does_as_a_sorted_list(tmp_path_factory, data):
    """Messages come, go, are taken out, settled, and purged; segments are small, so that some retire."""
    room = Room(tmp_path_factory.mktemp("room"), segment_octets=4096)
    waiting, expected, now, seq = {}, [], 0, 0
    for _ in range(data.draw(st.integers(1, 25))):
        what = data.draw(st.sampled_from(["put", "put", "put", "pass", "remove", "settle", "purge"]))
        if what == "put":
            for delay in data.draw(st.lists(st.integers(1, 30), min_size=1, max_size=8)):
                seq += 1
                room.put(b"%d" % seq + bytes(300), {"x-delay": delay})
                waiting[seq] = now + delay
        elif what == "pass":
            now += data.draw(st.integers(1, 15))
            room.at(now)
            due = sorted((when, number) for number, when in waiting.items() if when <= now)
            expected += [number for _, number in due]
            for _, number in due:
                del waiting[number]
        elif what == "remove" and waiting:
            number = data.draw(st.sampled_from(sorted(waiting)))
            assert room.queue.remove(number) is not None
            del waiting[number]
        elif what == "settle":
            room.settle()
        elif what == "purge" and data.draw(st.booleans()):
            room.queue.purge()
            waiting.clear()
        assert [int(body.rstrip(b"\0")) for body in room.bodies()] == expected
        assert room.queue.ready == len(waiting)
        room.queue.check()
    assert room.gate.asked == []
    room.bench.close()
