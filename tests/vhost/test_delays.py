"""When a delayed message goes on, where, and what a restart, a full disk or a clock that jumps does to it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.vhost.stand_in import START_MS, Clock, Commit, Real, VHost, octets

from brokerd.errors import PreconditionFailed
from brokerd.exchanges import FanoutExchange, RecentHistoryExchange
from brokerd.exchanges.delayed import DelayedExchange, due_of
from brokerd.plane import Message
from brokerd.queues.dead_letter import DeadLetterRule, read_properties
from brokerd.queues.rules import Rules
from brokerd.vhost import delays as delays_module
from brokerd.vhost.dead_letters import DeadLetters
from brokerd.vhost.delays import LOOK_EVERY_MS, QUEUE_PREFIX, RETRY_MS, Delays, queue_name
from brokerd.wire import methods


class Bench:
    """One vhost with a delayed exchange ``x`` of type fanout (or another), bound to queue ``q`` with key ``k``."""

    def __init__(self, inner="fanout", *, sync=True, durable=True, **arguments):
        self.clock = Clock()
        self.commit = Commit(at_once=not sync)
        self.vhost = VHost(self.clock)
        self.exchange = self.vhost.exchange("x", DelayedExchange, durable=durable,
                                            arguments={"x-delayed-type": inner, **arguments})
        self.q = self.vhost.queue("q")
        self.exchange.bind(self.q, "k")
        self.open()

    def open(self):
        """A broker starts on what is there."""
        self.delays = Delays(self.vhost, epoch_ns=self.clock, wait=self.commit.wait, call_at=self.clock.call_at)
        self.delays.open()

    def restart(self):
        """kill -9: what was in memory is gone."""
        self.clock.timers.clear()
        self.commit.waiting.clear()
        self.open()

    def publish(self, body=b"m", headers=None, key=b"k", **properties):
        """As the data plane does; False: it was not held back."""
        stored = octets(headers, **properties)
        answer = self.exchange.intercept(key.decode(), lambda: read_properties(stored))
        if answer is None:
            return False
        stored = stored if answer.properties is None else answer.properties
        took = self.vhost.core.put(answer.queues, b"x", key, stored, body)
        for participant in answer.participants:
            participant.after_storing(Message(b"x", key, stored, body), None, took)
        return True

    def advance(self, ms):
        self.clock.advance(ms)
        self.commit.end()

    @property
    def room(self):
        return self.vhost.queues["amq.delayed.x"]


@pytest.fixture
def bench():
    return Bench()


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
    assert not bench.clock.timers


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
        bench.publish(headers={"x-deliver-at": "soon"})


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


@given(st.lists(st.integers(1, 20), max_size=40))
def test_each_message_goes_at_its_time_whatever_the_others_do(delays):
    bench = Bench()
    for number, delay in enumerate(delays):
        bench.publish(b"%d" % number, {"x-delay": delay})
    for now in range(1, 21):
        bench.advance(1)
        due = sorted((delay, number) for number, delay in enumerate(delays) if delay <= now)
        assert bench.q.bodies == [b"%d" % number for _, number in due]


def test_a_delay_of_more_than_32_bits_is_kept():
    bench = Bench()
    bench.publish(headers={"x-delay": 1 << 33})
    bench.clock.timers.clear()      # not every look at the clock on the way
    bench.clock.ns += ((1 << 33) - 1) * 1_000_000
    bench.delays.run()
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
    bench.exchange.unbind_all(bench.q)
    bench.exchange.bind(bench.vhost.queue("new"), "")
    bench.advance(10)
    assert (bench.q.bodies, bench.vhost.queues["new"].bodies) == ([], [b"m"])


def test_keys_of_cc_and_bcc_count_and_bcc_is_not_seen():
    bench = Bench("direct")
    for key in ("c", "b"):
        bench.exchange.bind(bench.vhost.queue(key), key)
    bench.publish(headers={"x-delay": 1, "CC": ["c"], "BCC": ["b"]})
    bench.advance(1)
    assert [bench.vhost.queues[name].ready for name in "qcb"] == [1, 1, 1]
    assert bench.q.headers == [{"CC": ["c"], "x-delay": -1}]


def test_a_headers_exchange_reads_the_headers_when_it_goes():
    bench = Bench("headers")
    bench.exchange.bind(bench.vhost.queue("h"), "", {"a": 1})
    bench.publish(b"one", {"x-delay": 1, "a": 1})
    bench.publish(b"two", {"x-delay": 1, "a": 2})
    bench.advance(1)
    assert bench.vhost.queues["h"].bodies == [b"one"]


def test_what_finds_no_queue_is_dropped_and_counted(bench):
    bench.publish(headers={"x-delay": 1})
    bench.exchange.unbind_all(bench.q)
    bench.advance(1)
    assert bench.room.ready == 0


def test_an_alternate_exchange_gets_what_finds_no_queue():
    bench = Bench("direct", **{"alternate-exchange": "other"})
    bench.vhost.fanout("other", "a")
    bench.publish(headers={"x-delay": 1}, key=b"nowhere")
    bench.advance(1)
    assert bench.vhost.queues["a"].bodies == [b"m"]


def test_what_all_queues_refuse_or_the_disk_has_no_room_for_is_tried_again(bench):
    bench.publish(headers={"x-delay": 1})
    bench.q.refuses = True
    bench.advance(1)
    assert bench.room.ready == 1
    bench.q.refuses, bench.vhost.core.full = False, True
    bench.advance(RETRY_MS)
    assert bench.room.ready == 1
    bench.vhost.core.full = False
    bench.advance(RETRY_MS - 1)
    assert bench.q.bodies == []
    bench.advance(1)
    assert (bench.q.bodies, bench.room.ready) == ([b"m"], 0)


def test_a_backlog_gives_others_their_turn(bench, monkeypatch):
    monkeypatch.setattr(delays_module, "RELEASES_PER_TURN", 9)
    for number in range(35):
        bench.publish(b"%d" % number, {"x-delay": 1})
    bench.advance(1)
    assert bench.q.bodies == [b"%d" % number for number in range(35)]
    assert bench.vhost.core.turns == 4


def test_an_inner_type_that_keeps_messages_keeps_those_that_were_delayed_when_they_go(monkeypatch):
    kept = []
    monkeypatch.setattr(RecentHistoryExchange, "remember", lambda self, message: kept.append(message.body))
    monkeypatch.setattr(RecentHistoryExchange, "recent_messages", lambda self: kept)
    bench = Bench("x-recent-history")
    assert bench.exchange.has_history is RecentHistoryExchange.has_history
    bench.publish(b"later", {"x-delay": 100})
    assert not kept
    bench.advance(100)
    assert kept == [b"later"]
    assert bench.exchange.recent_messages() is kept


def test_what_its_waiting_room_refuses_moves_no_other_messages_time(bench):
    bench.publish(b"waits", {"x-delay": 1000})
    bench.room.refuses = True
    bench.publish(b"refused", {"x-delay": 10})
    bench.advance(500)
    assert (bench.q.bodies, bench.room.bodies) == ([], [b"waits"])
    bench.advance(500)
    assert bench.q.bodies == [b"waits"]


# --- where they wait

def test_the_room_is_durable_as_the_exchange_is_and_its_definition_is_synced_first():
    bench = Bench()
    bench.publish(headers={"x-delay": 1})
    assert bench.room.durable
    assert bench.commit.logs == [bench.vhost.log]
    bench = Bench(durable=False)
    bench.publish(headers={"x-delay": 1})
    assert not bench.room.durable
    assert bench.commit.logs == []
    bench.advance(1)
    assert (bench.q.bodies, bench.vhost.core.puts[-1], bench.room.ready) == ([b"m"], False, 0)


def test_the_room_is_nobodys_to_use_and_goes_with_the_exchange(bench):
    bench.publish(headers={"x-delay": 1})
    room = bench.room
    assert bench.delays.holds(room)
    assert not bench.delays.holds(bench.q)
    bench.delays.forget_exchange(bench.exchange)
    assert room.deleted
    assert "amq.delayed.x" not in bench.vhost.queues
    bench.advance(10)
    assert bench.q.bodies == []
    assert not bench.publish(headers={"x-delay": 1})


def test_an_exchange_whose_room_is_gone_can_go(bench):
    bench.publish(headers={"x-delay": 1})
    bench.vhost.delete_queue(bench.room)
    bench.delays.forget_exchange(bench.exchange)
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
    bench.clock.advance(1)
    assert (bench.q.bodies, bench.room.ready, bench.delays.count_waiting("x")) == ([b"m"], 1, 0)
    assert bench.vhost.core.puts[-1] is True
    bench.commit.end()
    assert bench.room.ready == 0


def test_a_broker_killed_in_between_delivers_it_twice_rather_than_never(bench):
    bench.publish(headers={"x-delay": 1})
    bench.clock.advance(1)
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
    assert bench.delays.holds(bench.room)
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


def test_more_than_is_read_at_once_is_found_again(bench, monkeypatch):
    monkeypatch.setattr(delays_module, "READ_AT_ONCE", 3)
    for number in range(10):
        bench.publish(b"%d" % number, {"x-delay": 100})
    bench.restart()
    bench.advance(100)
    assert len(bench.q.bodies) == 10


def test_what_does_not_say_when_goes_at_once_after_a_restart(bench):
    bench.publish(b"m", {"x-delay": 1000})
    bench.room.append(b"", b"amq.delayed.x", octets({"x-deliver-at": "soon"}), b"forged")
    bench.room.append(b"", b"amq.delayed.x", octets(), b"without headers")
    bench.restart()
    bench.advance(0)
    assert bench.q.bodies == [b"forged", b"without headers"]


def test_a_room_without_exchange_is_deleted_at_the_start(bench):
    bench.publish(headers={"x-delay": 1000})
    del bench.vhost.exchanges["x"]
    bench.restart()
    assert "amq.delayed.x" not in bench.vhost.queues


def test_a_clock_set_forward_makes_messages_late_by_one_look_at_most(bench):
    bench.publish(headers={"x-delay": 3_600_000})
    bench.clock.jump(4_000_000)
    bench.advance(LOOK_EVERY_MS)
    assert bench.q.bodies == [b"m"]


def test_a_broker_that_stops_delivers_nothing_more(bench):
    bench.publish(headers={"x-delay": 1})
    bench.delays.close()
    assert not bench.clock.timers


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
    bench.q.refuses = True
    assert bench.delays.deliver_now("x", 1)
    bench.q.refuses = False
    bench.advance(RETRY_MS)
    assert bench.q.bodies == [b"a"]
    bench.advance(100_000)
    assert bench.q.bodies == [b"a"]


def test_many_cancelled_messages_take_no_memory(bench):
    for number in range(1000):
        bench.publish(b"", {"x-delay": 1_000_000 + number})
    for seq in range(1, 1000):
        assert bench.delays.cancel("x", seq)
    waiting = bench.delays._waiting["x"]
    assert len(waiting.heap) + len(waiting.taken) < 250
    assert [message.seq for message in bench.delays.upcoming("x")] == [1000]


# --- dead letters

def test_a_dead_letter_is_delayed_by_a_delayed_exchange_and_never_a_second_time(bench):
    letters = DeadLetters(bench.vhost, epoch_ns=bench.clock, wait=bench.commit.wait, call_at=bench.clock.call_at)
    source = bench.vhost.queue("source")
    source.rules = Rules(dead_letter=DeadLetterRule("x"))
    assert letters.handle_dead(source, "rejected", 1, b"", b"source", octets({"x-delay": 500}), b"m")
    assert bench.q.bodies == []
    bench.advance(500)
    assert bench.q.headers[0]["x-delay"] == -500
    assert bench.q.headers[0]["x-death"][0]["queue"] == "source"
    assert letters.handle_dead(source, "rejected", 2, b"", b"source", bench.q.rows[1][5], b"again")
    assert bench.q.bodies == [b"m", b"again"]


def test_a_dead_letter_whose_time_cannot_be_read_goes_at_once(bench):
    letters = DeadLetters(bench.vhost, epoch_ns=bench.clock, wait=bench.commit.wait, call_at=bench.clock.call_at)
    source = bench.vhost.queue("source")
    source.rules = Rules(dead_letter=DeadLetterRule("x"))
    assert letters.handle_dead(source, "rejected", 1, b"", b"source", octets({"x-deliver-at": "soon"}), b"m")
    assert bench.q.bodies == [b"m"]


def test_what_comes_by_a_binding_from_another_exchange_is_not_delayed(bench):
    fan = bench.vhost.exchange("fan", FanoutExchange)
    fan.bind(bench.exchange, "")
    letters = DeadLetters(bench.vhost, epoch_ns=bench.clock, wait=bench.commit.wait, call_at=bench.clock.call_at)
    source = bench.vhost.queue("source")
    source.rules = Rules(dead_letter=DeadLetterRule("fan"))
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
    real.clock.advance(100)
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
