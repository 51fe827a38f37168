"""When a delayed message goes on, where, and what a restart, a full disk or a clock that jumps does to it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.vhost.stand_in import START_MS, Real, octets
from tests.vhost.test_features_together import World

from brokerd.errors import PreconditionFailed
from brokerd.exchanges import FanoutExchange, RecentHistoryExchange
from brokerd.exchanges.delayed import DelayedExchange, due_of
from brokerd.node import LOOK_EVERY_NS
from brokerd.queues.dead_letter import DeadLetterRule, read_properties
from brokerd.queues.queue import Queue
from brokerd.queues.rules import Rules
from brokerd.vhost.dead_letters import DeadLetters
from brokerd.vhost.delays import QUEUE_PREFIX, RETRY_MS, Delays, queue_name
from brokerd.wire import methods
from brokerd.wire.frames import body_frames, header_frame
from brokerd.wire.properties import Properties, encode_header


class Seen:
    """What tests ask of a queue."""

    def __init__(self, queue):
        self.queue = queue

    def __getattr__(self, name):
        return getattr(self.queue, name)

    @property
    def rows(self):
        return {row[0]: row for row in self.queue.browse(0, 1 << 20)}

    @property
    def bodies(self):
        return [row[6] for row in self.rows.values()]

    @property
    def headers(self):
        return [read_properties(row[5]).headers for row in self.rows.values()]

    def refuse(self, refuses=True):
        """Refuse all messages, as a full queue with reject-publish."""
        self.queue.set_rules(max_length=0 if refuses else -1, overflow=1)


class Bench(Real):
    """One vhost with a delayed exchange ``x`` of type fanout (or another), bound to queue ``q`` with key ``k``."""

    def __init__(self, directory, inner="fanout", *, sync=True, durable=True, **arguments):
        super().__init__(directory, sync=sync)
        self.vhost.exchanges["x"] = DelayedExchange(
            "x", durable=durable, arguments={"x-delayed-type": inner, **arguments})
        self.bind(self.queue("q"), "k")
        self.delays.open()

    @property
    def x(self):
        return self.vhost.exchanges["x"]

    @property
    def q(self):
        return self.see("q")

    @property
    def room(self):
        return self.see("amq.delayed.x")

    def see(self, name):
        return Seen(self.vhost.queues[name])

    def bind(self, queue, key="", arguments=None):
        self.vhost.exchanges["x"].bind(queue, key, arguments or {})
        self.vhost.forget_routes()

    def publish(self, body=b"m", headers=None, key="k", **properties):
        """False: it was not held back."""
        before = self.delays.count_waiting("x")
        super().publish(body, headers, exchange="x", key=key, **{"delivery_mode": 2} | properties)
        return self.delays.count_waiting("x") > before


@pytest.fixture
def make_bench(tmp_path_factory):
    return lambda *args, **options: Bench(tmp_path_factory.mktemp("delays"), *args, **options)


@pytest.fixture
def bench(make_bench):
    return make_bench()


# --- messages wait and go

def test_a_message_waits_for_its_time(bench):
    assert bench.publish(b"m", {"x-delay": 1000, "a": 1}, message_id="id", delivery_mode=2)
    bench.advance(999)
    assert (bench.q.bodies, bench.delays.count_waiting("x")) == ([], 1)
    bench.advance(1)
    assert (bench.q.bodies, bench.delays.count_waiting("x")) == ([b"m"], 0)
    assert bench.q.headers == [{"a": 1, "x-delay": -1000}]
    assert bench.q.rows[1][3:5] == (b"x", b"k")
    assert read_properties(bench.q.rows[1][5]).message_id == "id"


def test_a_message_that_comes_when_none_waits_any_more_waits_for_its_time_too(bench):
    for body in (b"a", b"b"):
        bench.publish(body, {"x-delay": 1000})
        bench.advance(1000)
    assert bench.q.bodies == [b"a", b"b"]


def test_what_is_not_to_be_delayed_is_not_held_back(bench):
    assert not bench.publish(headers={"x-delay": -1000})
    assert not bench.publish(headers={"x-delay": "soon"})
    assert not bench.publish()
    assert "amq.delayed.x" not in bench.vhost.queues


def test_an_unreadable_time_is_the_publishers_fault(bench):
    with pytest.raises(PreconditionFailed):
        bench.x.intercept("k", lambda: read_properties(octets({"x-deliver-at": "soon"})))


def test_a_time_of_delivery_is_kept_and_does_not_delay_again(bench):
    assert bench.publish(headers={"x-deliver-at": START_MS + 50})
    bench.advance(50)
    assert bench.q.headers == [{"x-deliver-at": START_MS + 50}]
    assert due_of(bench.q.headers[0], bench.clock.ms) is None


def test_messages_go_in_the_order_of_their_times_and_equal_ones_in_that_of_publishing(bench):
    for body, delay in ((b"c", 300), (b"a", 100), (b"b1", 200), (b"d", 400), (b"b2", 200), (b"b3", 200)):
        bench.publish(body, {"x-delay": delay})
    bench.advance(400)
    assert bench.q.bodies == [b"a", b"b1", b"b2", b"b3", b"c", b"d"]


@given(st.lists(st.tuples(st.integers(1, 20), st.booleans()), max_size=40))
def test_each_message_goes_at_its_time_whatever_the_others_do(tmp_path_factory, delays):
    bench = Bench(tmp_path_factory.mktemp("delays"))
    for number, (delay, plain) in enumerate(delays):
        bench.publish(b"%d" % number, {"x-delay": delay if plain else str(delay)})
    for now in range(1, 21):
        bench.advance(1)
        due = sorted((delay, number) for number, (delay, _) in enumerate(delays) if delay <= now)
        assert bench.q.bodies == [b"%d" % number for _, number in due]


def test_a_delay_of_more_than_32_bits_is_kept(bench):
    bench.publish(headers={"x-delay": 1 << 33})
    bench.advance((1 << 33) - 1)
    assert bench.q.bodies == []
    bench.advance(1)
    assert bench.q.headers == [{"x-delay": -(1 << 33)}]


def test_an_expiration_counts_from_when_it_goes(bench):
    bench.publish(b"a", {"x-delay": 1000}, expiration="10", type="t")
    bench.publish(b"b", {"x-delay": 1000, "x-delayed-expiration": "forged"})
    waiting = [read_properties(row[5]) for row in bench.room.rows.values()]
    assert [message.expiration for message in waiting] == [None, None]
    bench.restart()
    bench.advance(1000)
    gone = [read_properties(row[5]) for row in bench.q.rows.values()]
    assert [(message.expiration, message.type) for message in gone] == [("10", "t"), (None, None)]
    assert bench.q.headers == [{"x-delay": -1000}] * 2


def test_it_is_routed_as_bindings_are_when_it_goes(bench):
    bench.publish(headers={"x-delay": 10})
    bench.x.unbind_all(bench.q.queue)
    bench.vhost.forget_routes()
    bench.bind(bench.queue("new"), "")
    bench.advance(10)
    assert (bench.q.bodies, bench.see("new").bodies) == ([], [b"m"])


def test_keys_of_cc_and_bcc_count_and_bcc_is_not_seen(make_bench):
    bench = make_bench("direct")
    for key in ("c", "b"):
        bench.bind(bench.queue(key), key)
    bench.publish(headers={"x-delay": 1, "CC": ["c"], "BCC": ["b"]})
    bench.advance(1)
    assert [bench.see(name).ready for name in "qcb"] == [1, 1, 1]
    assert bench.q.headers == [{"CC": ["c"], "x-delay": -1}]


def test_a_headers_exchange_reads_the_headers_when_it_goes(make_bench):
    bench = make_bench("headers")
    bench.bind(bench.queue("h"), "", {"a": 1})
    bench.publish(b"one", {"x-delay": 1, "a": 1})
    bench.publish(b"two", {"x-delay": 1, "a": 2})
    bench.advance(1)
    assert bench.see("h").bodies == [b"one"]


def test_what_finds_no_queue_is_dropped_and_counted(bench):
    bench.publish(headers={"x-delay": 1})
    bench.x.unbind_all(bench.q.queue)
    bench.vhost.forget_routes()
    bench.advance(1)
    assert bench.room.ready == 0


def test_an_alternate_exchange_gets_what_finds_no_queue(make_bench):
    bench = make_bench("direct", **{"alternate-exchange": "other"})
    bench.exchange("other", FanoutExchange).bind(bench.queue("a"), "")
    bench.publish(headers={"x-delay": 1}, key="nowhere")
    bench.advance(1)
    assert bench.see("a").bodies == [b"m"]


def test_what_all_queues_refuse_or_the_disk_has_no_room_for_is_tried_again(bench, monkeypatch):
    bench.publish(headers={"x-delay": 1})
    bench.q.refuse()
    bench.advance(1)
    assert bench.room.ready == 1
    bench.q.refuse(False)

    def full(queue):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Queue, "make_directory", full)
        bench.advance(RETRY_MS)
    assert bench.room.ready == 1
    bench.advance(RETRY_MS - 1)
    assert bench.q.bodies == []
    bench.advance(1)
    assert (bench.q.bodies, bench.room.ready) == ([b"m"], 0)


@pytest.mark.parametrize("headers", [{"x-delay": "5"}, {"x-delay": 5, "CC": ["c"]}])
def test_a_fault_of_ours_delays_a_message_and_loses_none(bench, monkeypatch, caplog, headers):
    bench.publish(b"m", headers)
    with monkeypatch.context() as patch:
        patch.setattr(Delays, "_release", lambda self, waiting, row: 1 // 0)
        bench.advance(5)
    assert "a message that is due could not be sent on" in caplog.text
    assert (bench.q.bodies, bench.room.ready) == ([], 1)
    bench.advance(RETRY_MS)
    assert (bench.q.bodies, bench.room.ready) == ([b"m"], 0)


@pytest.mark.parametrize("delay", [5, "5"])
def test_a_clock_set_back_delays_no_message_by_more_than_its_delay(bench, delay):
    bench.advance(3_600_000)
    bench.publish(b"m", {"x-delay": 1})
    bench.advance(1)
    bench.clock.ns -= 3_600_000_000_000
    bench.publish(b"later", {"x-delay": delay})
    bench.advance(5)
    assert bench.q.bodies == [b"m", b"later"]


def test_a_queue_that_refuses_keeps_no_message_from_the_others(bench):
    bench.bind(bench.queue("r"))
    bench.see("r").refuse()
    bench.publish(headers={"x-delay": 1})
    bench.advance(1)
    assert (bench.q.bodies, bench.see("r").bodies, bench.room.ready) == ([b"m"], [], 0)


def test_a_backlog_gives_others_their_turn(bench):
    for number in range(1000):
        bench.publish(b"%d" % number, {"x-delay": 1})
    bench.clock.ns += 1_000_000
    seen = [0]
    while seen[-1] < 1000:
        bench.node.core.expire()
        bench.clock.ns += 1
        seen.append(bench.q.ready)
    assert len(seen) > 3
    assert bench.q.bodies == [b"%d" % number for number in range(1000)]


def test_an_inner_type_that_keeps_messages_keeps_those_that_were_delayed_when_they_go(make_bench, monkeypatch):
    kept = []
    monkeypatch.setattr(RecentHistoryExchange, "remember", lambda self, message: kept.append(message.body))
    monkeypatch.setattr(RecentHistoryExchange, "follow", lambda self: kept)
    bench = make_bench("x-recent-history")
    assert bench.x.has_history is RecentHistoryExchange.has_history
    bench.publish(b"later", {"x-delay": 100})
    assert not kept
    bench.advance(100)
    assert kept == [b"later"]
    assert bench.x.follow() is kept


def test_what_its_waiting_room_refuses_moves_no_other_messages_time(bench):
    bench.publish(b"waits", {"x-delay": 1000})
    bench.room.refuse()
    bench.publish(b"refused", {"x-delay": 10})
    bench.advance(500)
    assert (bench.q.bodies, bench.room.bodies) == ([], [b"waits"])
    bench.advance(500)
    assert bench.q.bodies == [b"waits"]


# --- where they wait

def test_the_room_is_durable_as_the_exchange_is_and_its_definition_is_synced_first(make_bench):
    bench = make_bench()
    bench.publish(headers={"x-delay": 1})
    assert bench.room.durable
    assert bench.commit.logs == [bench.vhost.log]
    bench = make_bench(durable=False)
    bench.publish(headers={"x-delay": 1})
    assert not bench.room.durable
    assert bench.commit.logs == []
    bench.advance(1)
    assert (bench.q.bodies, bench.room.ready, bench.commit.waiting) == ([b"m"], 0, [])


def test_the_room_is_nobodys_to_use_and_goes_with_the_exchange(bench):
    bench.publish(headers={"x-delay": 1})
    room = bench.room.queue
    assert bench.delays.holds(room)
    assert not bench.delays.holds(bench.q.queue)
    bench.delays.forget_exchange(bench.x)
    assert room.deleted
    assert "amq.delayed.x" not in bench.vhost.queues
    bench.advance(10)
    assert bench.q.bodies == []
    assert not bench.publish(headers={"x-delay": 1})


def test_an_exchange_whose_room_is_gone_can_go(bench):
    bench.publish(headers={"x-delay": 1})
    bench.vhost.delete_queue(bench.room.queue)
    bench.delays.forget_exchange(bench.x)
    assert not bench.publish(headers={"x-delay": 1})


@pytest.mark.parametrize("name", ["x", "", "ü" * 121, "y" * 243])
def test_a_room_has_the_name_of_its_exchange(name):
    assert queue_name(name) == QUEUE_PREFIX + name


@pytest.mark.parametrize("name", ["ü" * 122, "y" * 244, "y" * 255])
def test_or_its_digest_where_that_is_too_long(name):
    assert len(queue_name(name)) == len(QUEUE_PREFIX) + 40


# --- restarts

def test_it_is_taken_out_of_its_room_when_it_is_on_disk_where_it_goes(bench):
    bench.publish(headers={"x-delay": 1})
    bench.pass_time(1)
    assert (bench.q.bodies, bench.room.aside, bench.delays.count_waiting("x")) == ([b"m"], 1, 0)
    bench.room.check()
    bench.commit.end()
    assert (bench.room.ready, bench.room.aside) == (0, 0)


def test_a_broker_killed_in_between_delivers_it_twice_rather_than_never(bench):
    bench.publish(headers={"x-delay": 1})
    bench.pass_time(1)
    bench.restart()
    bench.advance(0)
    assert bench.q.bodies == [b"m", b"m"]
    assert bench.room.ready == 0


def test_what_waits_is_found_again_with_its_times(bench):
    for body, delay in ((b"c", 300), (b"a", 100), (b"b", 200)):
        bench.publish(body, {"x-delay": delay})
    bench.publish(b"d", {"x-deliver-at": START_MS + 400})
    bench.restart()
    assert bench.delays.count_waiting("x") == 4
    assert bench.delays.holds(bench.room.queue)
    bench.advance(199)
    assert bench.q.bodies == [b"a"]
    bench.restart()
    bench.advance(201)
    assert bench.q.bodies == [b"a", b"b", b"c", b"d"]


def test_what_was_due_while_the_broker_was_down_goes_at_once_in_order(bench):
    bench.publish(b"b", {"x-delay": 200})
    bench.publish(b"a", {"x-delay": 100})
    bench.clock.timers.clear()
    bench.clock.ns += 10**12
    bench.restart()
    bench.advance(0)
    assert bench.q.bodies == [b"a", b"b"]


def test_more_than_a_segment_holds_is_found_again(bench):
    bench.publish(b"gone", {"x-delay": 50})
    for number in range(200):
        bench.publish(b"%03d" % number + bytes(100_000), {"x-delay": 1000 - number})
    bench.advance(50)
    assert len(bench.room.segments()) > 1
    bench.restart()
    bench.advance(1000)
    assert [body[:3] for body in bench.q.bodies[1:]] == [b"%03d" % number for number in reversed(range(200))]


def test_what_was_due_while_the_broker_was_down_goes_in_the_order_of_its_times_whatever_their_kinds(bench):
    kinds = [{"x-delay": 400}, {"x-delay": "400"}, {"x-delay": 400.5}, {"x-deliver-at": START_MS + 400},
             {"x-delay": 400, "CC": ["c"]}]
    for number in range(20):
        bench.publish(b"%d" % number, kinds[number % 5])
    bench.publish(b"first", {"x-delay": "100"})
    bench.clock.ns += 10**12
    bench.restart()
    bench.advance(0)
    assert bench.q.bodies == [b"first", *[b"%d" % number for number in range(20)]]


def test_what_does_not_say_when_goes_at_once_after_a_restart(bench):
    bench.publish(b"m", {"x-delay": 1000})
    for headers, body in (({"x-deliver-at": "soon"}, b"forged"), (None, b"without headers")):
        bench.node.core.put((bench.room.queue,), b"", b"amq.delayed.x", octets(headers), body)
    bench.restart()
    bench.advance(0)
    assert bench.q.bodies == [b"forged", b"without headers"]


def test_a_room_without_exchange_is_deleted_at_the_start(bench):
    bench.publish(headers={"x-delay": 1000})
    del bench.vhost.exchanges["x"]
    bench.restart()
    assert "amq.delayed.x" not in bench.vhost.queues


def test_a_clock_set_forward_makes_messages_late_by_one_look_at_most(tmp_path):
    world = World(tmp_path, [])
    for method in (methods.ExchangeDeclare(exchange="late", type="x-delayed-message", durable=True,
                                           arguments={"x-delayed-type": "fanout"}),
                   methods.QueueBind(queue="q", exchange="late", routing_key="")):
        world.client.ask(method)
    header = encode_header(1, Properties(headers={"x-delay": 3_600_000}, delivery_mode=2))
    world.client.raw(methods.BasicPublish(exchange="late").frame(1) + header_frame(1, header)
                     + body_frames(1, b"m", 99))
    world.clock.jump(4_000_000)
    assert world.vhost.queues["q"].ready == 0
    world.clock.advance(LOOK_EVERY_NS // 1_000_000)
    assert world.vhost.queues["q"].ready == 1
    world.node.close()


# --- having a hand in it

def test_what_comes_next_is_shown_with_what_comes_first_in_front(bench):
    for body, delay in ((b"c", 300), (b"a", 100), (b"b", 200)):
        bench.publish(body, {"x-delay": delay})
    assert [(m.seq, m.due_ms - START_MS, m.body) for m in bench.delays.upcoming("x", 2)] == [
        (2, 100, b"a"), (3, 200, b"b")]
    assert bench.delays.upcoming("other") == []
    assert bench.delays.count_waiting("other") == 0


def test_a_cancelled_message_never_goes(bench):
    bench.publish(b"a", {"x-delay": 100})
    bench.publish(b"b", {"x-delay": 100})
    assert bench.delays.cancel("x", 1)
    assert not bench.delays.cancel("x", 1)
    assert not bench.delays.cancel("x", 99)
    assert not bench.delays.cancel("other", 1)
    assert [message.body for message in bench.delays.upcoming("x", 1)] == [b"b"]
    bench.advance(100)
    assert bench.q.bodies == [b"b"]


def test_as_many_as_asked_for_are_shown_though_others_were_cancelled(bench):
    for body, delay in ((b"c", 300), (b"a", 100), (b"b", 200)):
        bench.publish(body, {"x-delay": delay})
    assert bench.delays.cancel("x", 1)
    assert [message.body for message in bench.delays.upcoming("x", 1)] == [b"a"]


def test_a_message_delivered_now_goes_once(bench):
    bench.publish(b"a", {"x-delay": 100})
    assert bench.delays.deliver_now("x", 1)
    assert not bench.delays.deliver_now("x", 1)
    assert not bench.delays.cancel("x", 1)
    assert bench.delays.upcoming("x") == []
    bench.advance(100)
    assert (bench.q.bodies, bench.room.ready) == ([b"a"], 0)
    assert not bench.delays.deliver_now("x", 1)
    assert not bench.delays.deliver_now("other", 1)


def test_what_cannot_be_delivered_now_is_tried_again(bench):
    bench.publish(b"a", {"x-delay": 100_000})
    bench.q.refuse()
    assert bench.delays.deliver_now("x", 1)
    bench.q.refuse(False)
    bench.advance(RETRY_MS)
    assert bench.q.bodies == [b"a"]
    bench.advance(100_000)
    assert bench.q.bodies == [b"a"]


def test_many_cancelled_messages_take_no_memory(bench):
    for number in range(1000):
        bench.publish(b"", {"x-delay": 1_000_000 + number})
    for seq in range(1, 1000):
        assert bench.delays.cancel("x", seq)
    assert len(bench.delays._waiting["x"].gate.upcoming(2000)) < 250
    assert [message.seq for message in bench.delays.upcoming("x")] == [1000]


# --- dead letters

class Source:
    """A queue in which messages die."""

    name, deleted = "source", False

    def __init__(self, exchange):
        self.rules = Rules(dead_letter=DeadLetterRule(exchange))

    def letter_headers(self, _seq):
        return b""      # Its messages have no group.


def test_a_dead_letter_is_delayed_by_a_delayed_exchange_and_never_a_second_time(bench):
    letters = DeadLetters(bench.vhost, epoch_ns=bench.clock, wait=bench.commit.wait, call_at=bench.clock.call_at)
    source = Source("x")
    assert letters.handle_dead(source, "rejected", 1, b"", b"source", octets({"x-delay": 500}), b"m")
    assert bench.q.bodies == []
    bench.advance(500)
    assert bench.q.headers[0]["x-delay"] == -500
    assert bench.q.headers[0]["x-death"][0]["queue"] == "source"
    assert letters.handle_dead(source, "rejected", 2, b"", b"source", bench.q.rows[1][5], b"again")
    assert bench.q.bodies == [b"m", b"again"]


def test_a_dead_letter_whose_time_cannot_be_read_goes_at_once(bench):
    letters = DeadLetters(bench.vhost, epoch_ns=bench.clock, wait=bench.commit.wait, call_at=bench.clock.call_at)
    source = Source("x")
    assert letters.handle_dead(source, "rejected", 1, b"", b"source", octets({"x-deliver-at": "soon"}), b"m")
    assert bench.q.bodies == [b"m"]


def test_what_comes_by_a_binding_from_another_exchange_is_not_delayed(bench):
    bench.exchange("fan", FanoutExchange).bind(bench.x, "")
    letters = DeadLetters(bench.vhost, epoch_ns=bench.clock, wait=bench.commit.wait, call_at=bench.clock.call_at)
    source = Source("fan")
    assert letters.handle_dead(source, "rejected", 1, b"", b"source", octets({"x-delay": 500}), b"m")
    assert bench.q.bodies == [b"m"]


# --- over the real data plane

@pytest.fixture
def real(tmp_path):
    real = Real(tmp_path)
    exchange = real.exchange("x", DelayedExchange, **{"x-delayed-type": "direct"})
    exchange.bind(real.queue("q"), "k")
    real.delays.open()
    return real


def test_a_client_publishes_and_gets_it_later(real):
    real.publish(b"late", {"x-delay": 1000}, exchange="x", key="k", delivery_mode=2)
    real.publish(b"now", exchange="x", key="k")
    assert real.bodies("q") == [b"now"]
    real.advance(1000)
    assert real.bodies("q") == [b"now", b"late"]
    assert real.headers("q")[1] == {"x-delay": -1000}
    assert real.bodies("amq.delayed.x") == []


def test_bcc_counts_when_it_goes_and_is_not_seen(real):
    real.vhost.exchanges["x"].bind(real.queue("b"), "b")
    real.publish(b"m", {"x-delay": 10, "BCC": ["b"]}, exchange="x", key="k")
    real.advance(10)
    assert (real.headers("q"), real.headers("b")) == ([{"x-delay": -10}], [{"x-delay": -10}])


def test_an_expiration_does_not_count_while_it_waits(real):
    real.publish(b"m", {"x-delay": 1000}, exchange="x", key="k", expiration="10")
    real.clock.ns += 500_000_000
    real.node.core.expire()
    real.advance(500)
    assert real.bodies("q") == [b"m"]
    real.clock.ns += 11_000_000
    real.node.core.expire()
    assert real.bodies("q") == []


def test_nobody_may_use_the_room(real):
    real.publish(b"m", {"x-delay": 1000}, exchange="x", key="k")
    for method in (methods.BasicGet(queue="amq.delayed.x"), methods.QueuePurge(queue="amq.delayed.x"),
                   methods.QueueDelete(queue="amq.delayed.x"), methods.BasicConsume(queue="amq.delayed.x"),
                   methods.QueueBind(queue="amq.delayed.x", exchange="amq.direct", routing_key="k")):
        assert real.client.refusal(method)[0] == 405
    assert real.bodies("amq.delayed.x") == [b"m"]


def test_what_waits_outlives_kill_9_and_goes_in_order(real):
    for body, delay in ((b"c", 300), (b"a", 100), (b"b", 200)):
        real.publish(body, {"x-delay": delay}, exchange="x", key="k", delivery_mode=2)
    real.advance(100)
    real.restart()
    real.advance(100)
    real.restart()
    real.advance(100)
    assert real.bodies("q") == [b"a", b"b", b"c"]
    assert real.bodies("amq.delayed.x") == []


def test_killed_before_the_sync_ended_it_comes_twice(real):
    real.publish(b"m", {"x-delay": 100}, exchange="x", key="k", delivery_mode=2)
    real.pass_time(100)
    real.restart()
    real.advance(0)
    assert real.bodies("q") == [b"m", b"m"]
    assert real.bodies("amq.delayed.x") == []


def test_one_is_cancelled_and_one_goes_before_its_time(real):
    for body in (b"a", b"b", b"c"):
        real.publish(body, {"x-delay": 100}, exchange="x", key="k")
    assert real.delays.cancel("x", 1)
    assert real.delays.deliver_now("x", 3)
    assert real.bodies("q") == [b"c"]
    real.advance(100)
    assert real.bodies("q") == [b"c", b"b"]
    assert real.vhost.queues["amq.delayed.x"].ready == 0


SMALL = st.integers(-3, 30)
VALUES = st.one_of(SMALL, SMALL.map(str), st.sampled_from([None, True, 2.5, "soon", 1 << 40]))


@given(st.lists(st.tuples(st.booleans(), VALUES, st.booleans(), st.booleans()), max_size=20))
def test_each_message_is_delayed_by_its_own_headers_whatever_came_before_it(tmp_path_factory, messages):
    """The data plane remembers where messages like one before went."""
    bench = Bench(tmp_path_factory.mktemp("delays"), "direct")
    for number, (named, value, more, expires) in enumerate(messages):
        headers = ({"x-delay": value} if named else {}) | ({"a": number} if more else {})
        held = bench.publish(b"%d" % number, headers or None, expiration="600000" if expires else None)
        assert held == (due_of(headers, START_MS) is not None), (headers, number)
    late = {number for number, (named, value, _, _) in enumerate(messages) if named and value == 1 << 40}
    bench.advance(100)
    assert {int(body) for body in bench.q.bodies} == set(range(len(messages))) - late
    for row in bench.q.rows.values():
        named, value, more, expires = messages[int(row[6])]
        message = read_properties(row[5])
        assert message.expiration == ("600000" if expires else None)
        assert (message.headers or {}).get("a") == (int(row[6]) if more else None)
