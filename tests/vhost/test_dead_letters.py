"""Where dead letters go, what is kept for want of a target, and when the source lets go of them."""

import logging

import pytest
from tests.vhost.stand_in import Clock, Commit, Real, VHost, octets

from brokerd.exchanges import FanoutExchange, RecentHistoryExchange
from brokerd.queues.dead_letter import DeadLetterRule
from brokerd.queues.rules import Rules
from brokerd.vhost import dead_letters, deletions
from brokerd.vhost.dead_letters import RETRY_MS, DeadLetters
from brokerd.wire import methods


class Bench:
    """One vhost with a source queue, ``source``, whose dead letters go by ``dlx``."""

    def __init__(self, *, sync=True, at_least_once=False, key=None, **settings):
        self.clock = Clock()
        self.commit = Commit(at_once=not sync)
        self.vhost = VHost(self.clock)
        self.letters = DeadLetters(self.vhost, epoch_ns=self.clock, wait=self.commit.wait, call_at=self.clock.call_at,
                                   **settings)
        self.source = self.vhost.queue("source")
        self.rule(key=key, at_least_once=at_least_once)

    def rule(self, exchange="dlx", **rule):
        self.source.rules = Rules(dead_letter=DeadLetterRule(
            exchange, rule.get("key"), rule.get("at_least_once", False)))

    def die(self, body=b"m", *, reason="rejected", seq=1, queue=None, properties=None, key=b"k"):
        return self.letters.handle_dead(queue or self.source, reason, seq, b"x", key, properties or octets(), body)


@pytest.fixture
def bench():
    return Bench()


@pytest.fixture
def safe():
    """At least once."""
    return Bench(at_least_once=True)


@pytest.fixture(autouse=True)
def _log(caplog):
    caplog.set_level(logging.WARNING, "brokerd")


# --- at most once

def test_a_dead_letter_goes_where_the_exchange_routes_it_and_is_settled_at_once(bench):
    bench.vhost.fanout("dlx", "a", "b")
    assert bench.die(b"one")
    a, b = bench.vhost.queues["a"], bench.vhost.queues["b"]
    assert (a.bodies, b.bodies) == ([b"one"], [b"one"])
    assert a.rows[1][3:5] == (b"dlx", b"k")
    assert a.headers[0]["x-death"][0]["time"] == bench.clock.ms // 1000
    assert bench.vhost.core.puts == [False]
    assert not bench.commit.waiting


def test_the_default_exchange_is_a_dead_letter_exchange_too(bench):
    bench.rule("", key="a")
    target = bench.vhost.queue("a")
    assert bench.die()
    assert target.rows[1][3:5] == (b"", b"a")


def test_dead_letters_keep_the_order_in_which_they_died(bench):
    bench.vhost.fanout("dlx", "a")
    for number in range(50):
        assert bench.die(b"%d" % number, seq=number + 1)
    assert bench.vhost.queues["a"].bodies == [b"%d" % number for number in range(50)]


def test_without_a_rule_it_is_dropped(bench):
    bench.vhost.fanout("dlx", "a")
    bench.source.rules = Rules()
    assert bench.die()
    assert not bench.vhost.queues["a"].ready


def test_a_missing_exchange_drops_and_is_told_once(bench, caplog):
    assert bench.die()
    assert bench.die()
    assert [record.getMessage() for record in caplog.records] == [
        "vhost '/': queue 'source': its dead-letter exchange 'dlx' does not exist"]


def test_what_is_logged_once_takes_bounded_memory(bench, caplog):
    for number in range(dead_letters.LOGGED_MAX + 1):
        bench.rule(f"no {number}")
        bench.die()
    assert len(bench.letters._logged) == 1


def test_no_queue_found_drops(bench):
    bench.vhost.exchange("dlx")
    assert bench.die()


def test_every_key_of_cc_is_a_way_unless_there_is_a_dead_letter_routing_key(bench):
    dlx = bench.vhost.exchange("dlx")
    dlx.bind(bench.vhost.queue("a"), "k")
    dlx.bind(bench.vhost.queue("b"), "c")
    bench.die(properties=octets({"CC": ["c"]}))
    assert [bench.vhost.queues[name].ready for name in "ab"] == [1, 1]
    bench.rule(key="c")
    bench.die(properties=octets({"CC": ["k"]}))
    assert [bench.vhost.queues[name].ready for name in "ab"] == [1, 2]


def test_an_alternate_exchange_gets_what_the_dead_letter_exchange_has_no_queue_for(bench):
    bench.vhost.exchange("dlx", arguments={"alternate-exchange": "other"})
    bench.vhost.fanout("other", "a")
    bench.die()
    assert bench.vhost.queues["a"].bodies == [b"m"]


def test_an_exchange_that_keeps_messages_keeps_dead_letters(bench):
    dlx = bench.vhost.exchange("dlx", RecentHistoryExchange)
    dlx.bind(bench.vhost.queue("a"), "")
    bench.die(b"one")
    assert [message.body for message in dlx.follow()] == [b"one"]


def test_a_target_that_refuses_loses_it(bench):
    bench.vhost.fanout("dlx", "a", "b")
    bench.vhost.queues["a"].refuses = True
    assert bench.die()
    bench.vhost.queues["b"].refuses = True
    assert bench.die()


def test_a_refused_publish_is_dead_lettered_and_never_kept(safe):
    safe.vhost.fanout("dlx", "a")
    assert safe.die(reason="maxlen", seq=0)
    assert safe.vhost.queues["a"].ready == 1
    safe.vhost.core.full = True
    assert safe.die(reason="maxlen", seq=0)
    assert safe.letters.waiting == 0


def test_where_the_disk_is_full_it_is_kept_and_tried_again(bench):
    bench.vhost.fanout("dlx", "a")
    bench.vhost.core.full = True
    assert not bench.die()
    bench.vhost.core.full = False
    bench.clock.advance(RETRY_MS)
    assert bench.vhost.queues["a"].bodies == [b"m"]
    assert bench.source.done == [1]
    assert bench.letters.waiting == 0


# --- cycles

@pytest.mark.parametrize("names", ["a", "ab"])
def test_an_exchange_keeps_a_dead_letter_once_however_many_targets_are_synced(safe, names):
    dlx = safe.vhost.exchange("dlx", RecentHistoryExchange)
    for name in names:
        dlx.bind(safe.vhost.queue(name), "")
    safe.die(b"one")
    assert [message.body for message in dlx.follow()] == [b"one"]


def test_what_comes_back_by_itself_is_not_sent_there_and_told_once(bench, caplog):
    dlx = bench.vhost.fanout("dlx", "a")
    dlx.bind(bench.source, "")
    bench.die(reason="expired")
    assert (bench.source.ready, bench.vhost.queues["a"].ready) == (0, 1)
    bench.die(reason="maxlen")
    assert len(caplog.records) == 1


def test_what_was_rejected_may_come_back(bench):
    dlx = bench.vhost.exchange("dlx", FanoutExchange)
    dlx.bind(bench.source, "")
    bench.die()
    assert bench.source.ready == 1


def test_a_cycle_over_two_queues_ends_where_it_began(bench):
    dlx = bench.vhost.fanout("dlx", "b")
    b = bench.vhost.queues["b"]
    b.rules = Rules(dead_letter=DeadLetterRule("", "source"))
    assert bench.die(reason="expired")
    assert bench.die(reason="expired", queue=b, properties=b.rows[1][5])
    assert bench.source.ready == 0
    assert bench.die(reason="rejected", queue=b, properties=b.rows[1][5])
    assert bench.source.ready == 1
    assert dlx is not None


def died_in(*queues):
    return octets({"x-death": [
        {"queue": queue, "reason": "expired", "count": 1, "exchange": "", "routing-keys": [""]} for queue in queues]})


@pytest.mark.parametrize(("deaths", "targets", "goes"), [
    (3, 10, True), (4, 10, False), (1, 100, True), (2, 101, False), (50, 1, True), (12, 2, True), (13, 2, False),
])
def test_a_message_that_dies_again_and_again_into_several_queues_ends(bench, caplog, deaths, targets, goes):
    bench.vhost.fanout("dlx", *[f"t{number}" for number in range(targets)])
    before = died_in(*[f"d{number}" for number in range(deaths)])
    bench.die(reason="expired", properties=before)
    bench.die(reason="maxlen", properties=before)
    assert {bench.vhost.queues[f"t{number}"].ready for number in range(targets)} == {2 * goes}
    assert len(caplog.records) == (not goes)
    assert bench.letters.too_many == 2 * (not goes)


def test_a_message_that_clients_reject_may_go_on_for_ever(bench):
    bench.vhost.fanout("dlx", *[f"t{number}" for number in range(10)])
    bench.die(reason="rejected", properties=died_in(*[f"d{number}" for number in range(20)]))
    assert bench.vhost.queues["t0"].ready == 1


# --- per message

def test_a_message_goes_by_its_own_exchange_only_where_that_is_switched_on():
    for allowed in (False, True):
        bench = Bench(per_message=allowed)
        bench.vhost.fanout("dlx", "a")
        bench.vhost.fanout("own", "b")
        bench.die(properties=octets({"x-dead-letter-exchange": "own"}))
        assert [bench.vhost.queues[name].ready for name in "ab"] == [not allowed, allowed]


# --- at least once

def test_the_source_keeps_it_until_all_targets_have_it_on_disk(safe):
    safe.vhost.fanout("dlx", "a", "b")
    assert not safe.die(seq=7)
    assert safe.vhost.core.puts == [True]       # in both, and with a sync
    assert safe.source.done == []
    safe.commit.end()
    assert safe.source.done == [7]
    assert not safe.clock.timers


def test_without_sync_it_is_settled_at_once():
    bench = Bench(at_least_once=True, sync=False)
    bench.vhost.fanout("dlx", "a")
    assert bench.die()
    assert bench.source.done == []


def test_what_finds_no_queue_stays_is_told_once_and_goes_when_there_is_one(safe, caplog):
    safe.vhost.exchange("dlx", FanoutExchange)
    assert not safe.die(b"one", seq=1)
    assert not safe.die(b"two", seq=2)
    assert len(caplog.records) == 1
    safe.clock.advance(RETRY_MS)
    assert safe.letters.waiting == 2
    safe.vhost.exchanges["dlx"].bind(safe.vhost.queue("a"), "")
    safe.clock.advance(RETRY_MS)
    assert safe.vhost.queues["a"].bodies == [b"one", b"two"]
    safe.commit.end()
    assert safe.source.done == [1, 2]
    assert safe.letters.waiting == 0
    assert not safe.clock.timers


def test_a_missing_exchange_keeps_it_until_it_is_made(safe):
    assert not safe.die()
    safe.vhost.fanout("dlx", "a")
    safe.letters.retry()
    safe.clock.advance(0)
    safe.commit.end()
    assert safe.source.done == [1]


def test_what_is_tried_again_is_kept_until_its_target_is_on_disk_too(safe):
    assert not safe.die(seq=3)
    safe.vhost.fanout("dlx", "a")
    safe.clock.advance(RETRY_MS)
    assert safe.vhost.queues["a"].bodies == [b"m"]
    assert safe.vhost.core.puts == [True]
    assert (safe.source.done, safe.letters.waiting) == ([], 0)
    safe.commit.end()
    assert safe.source.done == [3]


def test_asked_for_another_round_while_one_is_under_way_there_is_one(safe, monkeypatch):
    monkeypatch.setattr(dead_letters, "RETRIES_PER_TURN", 1)
    dlx = safe.vhost.exchange("dlx")
    for seq, key in ((1, b"a"), (2, b"b")):
        assert not safe.die(seq=seq, key=key)
    for _ in range(1000):
        safe.letters.retry()
    assert len(safe.clock.timers) == 1
    safe.clock.timers.pop().callback()      # looks at the first
    dlx.bind(safe.vhost.queue("q"), "a")
    safe.letters.retry()
    safe.clock.advance(0)
    safe.commit.end()
    assert safe.source.done == [1]
    assert [timer.when_ns - safe.clock.ns for timer in safe.clock.timers] == [RETRY_MS * 1_000_000]


def test_the_time_of_death_is_not_that_of_the_retry(safe):
    assert not safe.die()
    died = safe.clock.ms // 1000
    safe.vhost.fanout("dlx", "a")
    safe.clock.advance(RETRY_MS)
    assert safe.vhost.queues["a"].headers[0]["x-death"][0]["time"] == died


def test_only_the_target_that_refused_is_tried_again(safe):
    safe.vhost.fanout("dlx", "a", "b")
    safe.vhost.queues["b"].refuses = True
    assert not safe.die()
    safe.commit.end()
    assert safe.source.done == []
    safe.vhost.queues["b"].refuses = False
    safe.clock.advance(RETRY_MS)
    safe.commit.end()
    assert [safe.vhost.queues[name].bodies for name in "ab"] == [[b"m"], [b"m"]]
    assert safe.source.done == [1]


def test_a_target_that_is_gone_is_not_waited_for_once_another_has_it(safe):
    dlx = safe.vhost.fanout("dlx", "a", "b")
    safe.vhost.queues["b"].refuses = True
    assert not safe.die()
    dlx.unbind_all(safe.vhost.queues["a"])
    dlx.unbind_all(safe.vhost.queues["b"])
    safe.clock.advance(RETRY_MS)
    safe.commit.end()
    assert safe.source.done == [1]


def test_a_full_disk_keeps_it(safe):
    safe.vhost.fanout("dlx", "a")
    safe.vhost.core.full = True
    assert not safe.die()
    safe.clock.advance(RETRY_MS)
    safe.vhost.core.full = False
    safe.clock.advance(RETRY_MS)
    safe.commit.end()
    assert safe.source.done == [1]


def test_what_a_full_disk_did_not_take_is_settled_when_it_took_it(safe):
    safe.vhost.fanout("dlx", "a")
    safe.vhost.core.full = True
    assert not safe.die()
    safe.clock.advance(RETRY_MS)
    safe.commit.end()
    assert safe.source.done == []
    safe.vhost.core.full = False
    safe.clock.advance(RETRY_MS)
    safe.commit.end()
    assert (safe.vhost.queues["a"].bodies, safe.source.done) == ([b"m"], [1])


def test_a_cycle_is_kept_and_not_sent(safe):
    safe.vhost.exchange("dlx", FanoutExchange).bind(safe.source, "")
    assert not safe.die(reason="expired")
    assert safe.source.ready == 0
    assert safe.letters.waiting == 1


def test_of_a_deleted_source_nothing_is_left(safe):
    assert not safe.die()
    safe.vhost.delete_queue(safe.source)
    safe.clock.advance(RETRY_MS)
    assert safe.letters.waiting == 0
    assert safe.source.done == []


def test_a_source_deleted_while_the_disk_syncs_is_not_told(safe):
    safe.vhost.fanout("dlx", "a")
    assert not safe.die()
    safe.vhost.delete_queue(safe.source)
    safe.commit.end()
    assert safe.source.done == []


def test_a_rule_that_was_taken_away_lets_go_of_what_was_kept(safe):
    assert not safe.die()
    safe.source.rules = Rules()
    safe.clock.advance(RETRY_MS)
    assert safe.source.done == [1]


def test_a_rule_that_was_changed_holds_for_what_was_kept(safe):
    assert not safe.die()
    safe.vhost.fanout("other", "a")
    safe.rule("other")
    safe.clock.advance(RETRY_MS)
    assert safe.vhost.queues["a"].rows[1][3] == b"other"
    assert safe.source.done == [1]


def test_a_round_of_retries_gives_others_their_turn(safe, monkeypatch):
    monkeypatch.setattr(dead_letters, "RETRIES_PER_TURN", 10)
    for seq in range(1, 26):
        assert not safe.die(seq=seq)
    safe.vhost.fanout("dlx", "a")
    safe.clock.advance(RETRY_MS)
    safe.commit.end()
    assert safe.vhost.core.turns == 3
    assert safe.source.done == list(range(1, 26))


def test_too_many_that_wait_stay_where_they_are_and_take_no_memory(safe, monkeypatch, caplog):
    monkeypatch.setattr(dead_letters, "WAITING_OCTETS_MAX", 100)
    for seq in range(1, 6):
        assert not safe.die(bytes(40), seq=seq)
    assert safe.letters.waiting == 2
    assert any("until the broker starts again" in record.getMessage() for record in caplog.records)
    safe.vhost.fanout("dlx", "a")
    safe.clock.advance(RETRY_MS)
    safe.commit.end()
    assert safe.source.done == [1, 2]
    safe.rule("none", at_least_once=True)
    assert not safe.die(bytes(98), seq=9)
    assert safe.letters.waiting == 1               # Those that went on make room.


def test_a_broker_that_stops_tries_nothing_again(safe):
    assert not safe.die()
    safe.letters.close()
    assert not safe.clock.timers


# --- over the real data plane

TO_DLQ = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "dlq"}
SAFELY = {"x_queue_type": "quorum", "x_dead_letter_strategy": "at-least-once"}


@pytest.fixture
def real(tmp_path):
    return Real(tmp_path)


def history(real, name):
    return [[(death["queue"], death["reason"], death["count"]) for death in headers["x-death"]]
            for headers in real.headers(name)]


def test_rejected_and_too_many_and_expired_ones_come_in_order_with_their_history(real):
    real.queue("dlq")
    real.queue("a", **TO_DLQ, x_max_length=2, x_message_ttl=1000)
    for body in (b"1", b"2", b"3"):
        real.publish(body, key="a")
    real.reject("a")
    real.advance(1001)
    real.node.core.expire()
    assert real.bodies("dlq") == [b"1", b"2", b"3"]
    assert history(real, "dlq") == [[("a", "maxlen", 1)], [("a", "rejected", 1)], [("a", "expired", 1)]]
    assert real.vhost.queues["a"].ready == 0


def test_a_refused_publish_comes_too(real):
    real.queue("dlq")
    real.queue("a", **TO_DLQ, x_max_length=1, x_overflow="reject-publish-dlx")
    for body in (b"1", b"2"):
        real.publish(body, key="a")
    assert (real.bodies("a"), real.bodies("dlq")) == ([b"1"], [b"2"])


def test_a_chain_of_queues_that_are_full_ends(real):
    real.queue("dlq")
    for number in range(20):
        real.queue(f"q{number}", x_dead_letter_exchange="", x_max_length=0,
                   x_dead_letter_routing_key=f"q{number + 1}" if number < 19 else "dlq")
    real.publish(b"m", key="q0")
    real.advance(0)
    assert real.bodies("dlq") == [b"m"]
    assert history(real, "dlq") == [[(f"q{number}", "maxlen", 1) for number in reversed(range(20))]]


def test_two_full_queues_that_point_at_each_other_drop_it(real):
    real.queue("a", x_dead_letter_exchange="", x_dead_letter_routing_key="b", x_max_length=0)
    real.queue("b", x_dead_letter_exchange="", x_dead_letter_routing_key="a", x_max_length=0)
    real.publish(b"m", key="a")
    real.advance(0)
    assert (real.bodies("a"), real.bodies("b")) == ([], [])


@pytest.mark.parametrize("delivery_mode", [1, 2])
def test_what_has_expired_does_not_go_with_its_queue(real, delivery_mode):
    real.queue("dlq")
    real.queue("a", **TO_DLQ, x_message_ttl=100)
    bodies = [b"%d" % number for number in range(3000)]         # more than expire at a time
    for body in bodies:
        real.publish(body, key="a", delivery_mode=delivery_mode)
    real.clock.ns += 50_000_000
    real.publish(b"young", key="a")
    real.clock.ns += 51_000_000
    reply = real.client.ask(methods.QueueDelete(queue="a"))
    assert (real.bodies("dlq"), reply) == (bodies, methods.QueueDeleteOk(message_count=1))
    assert history(real, "dlq") == [[("a", "expired", 1)]] * 3000


def test_a_queue_in_which_all_has_expired_is_empty_for_its_deletion(real):
    real.queue("dlq")
    real.queue("a", **TO_DLQ, x_message_ttl=100)
    real.publish(b"m", key="a")
    real.clock.ns += 100_000_000
    assert real.client.ask(methods.QueueDelete(queue="a", if_empty=True)) == methods.QueueDeleteOk(message_count=0)
    assert real.bodies("dlq") == [b"m"]


def test_a_deletion_does_a_bounded_share_for_the_dead_and_says_that_others_are_lost(real, monkeypatch, caplog):
    for limit in ("DEATHS_AT_DELETE_MAX", "DEATHS_AT_ONCE", "DEATH_PIECES_MAX"):
        monkeypatch.setattr(f"brokerd.vhost.deletions.{limit}", 1)
    real.queue("dlq")
    real.queue("a", **TO_DLQ, x_message_ttl=100)
    for number in range(2000):
        real.publish(b"%d" % number, key="a")
    real.clock.ns += 101_000_000
    real.vhost.delete_queue(real.vhost.queues["a"])
    assert 0 < len(real.bodies("dlq")) < 2000
    assert "queue 'a' in vhost '/' is deleted before all its dead messages were" in caplog.text


def test_dead_letters_of_a_queue_that_goes_are_sent_in_pieces_and_none_is_lost(real):
    exchange = real.vhost.add_exchange("many", "fanout", durable=True, auto_delete=False, internal=False, arguments={})
    for number in range(20):
        real.queue(f"t{number}")
        real.vhost.bind(exchange, real.vhost.queues[f"t{number}"], "", {})
    real.queue("a", x_dead_letter_exchange="many", x_message_ttl=100)
    for number in range(300):
        real.publish(b"%d" % number, key="a")
    real.clock.ns += 101_000_000
    work = deletions.delete_queue(real.vhost, real.vhost.queues["a"])
    for _ in range(4):
        next(work)                  # Each stores some 1,024 copies.
    assert 0 < real.vhost.queues["t0"].ready < 300
    assert "a" in real.vhost.queues
    deletions.finish(work)
    assert [real.vhost.queues[f"t{number}"].ready for number in range(20)] == [300] * 20
    assert "a" not in real.vhost.queues


def test_at_least_once_settles_when_the_target_is_on_disk(real):
    real.queue("dlq")
    source = real.queue("a", **TO_DLQ, **SAFELY)
    real.publish(b"m", key="a", delivery_mode=2)
    real.reject("a")
    assert (real.bodies("dlq"), source.aside) == ([b"m"], 1)
    real.commit.end()
    assert source.aside == 0


def test_at_least_once_comes_twice_rather_than_never_when_the_broker_is_killed(real):
    real.queue("dlq")
    real.queue("a", **TO_DLQ, **SAFELY)
    real.publish(b"m", key="a", delivery_mode=2)
    real.reject("a")
    real.restart()
    assert real.bodies("dlq") == [b"m"]
    assert real.bodies("a") == [b"m"]
    del real.tag
    real.reject("a")
    real.commit.end()
    assert real.bodies("dlq") == [b"m", b"m"]
    assert history(real, "dlq") == [[("a", "rejected", 1)]] * 2
    real.restart()
    assert (real.bodies("dlq"), real.bodies("a")) == ([b"m", b"m"], [])


def test_what_finds_no_queue_is_in_its_source_after_the_broker_is_killed(real):
    source = real.queue("a", **TO_DLQ, **SAFELY)
    real.publish(b"m", key="a")
    real.reject("a")
    assert (source.ready, source.aside) == (0, 1)
    real.restart()
    assert real.bodies("a") == [b"m"]


def test_a_key_that_no_message_can_have_drops_it_and_is_told(real, caplog, monkeypatch):
    """Brokers before this one took such a key, so it may stand in their definitions."""
    monkeypatch.setattr("brokerd.arguments.SHORT_STRING_OCTETS_MAX", 256)
    dlx = real.exchange("xf", FanoutExchange)
    dlx.bind(real.queue("dlq"), "")
    real.queue("a", x_dead_letter_exchange="xf", x_dead_letter_routing_key="k" * 256)
    real.publish(b"m", key="a")
    real.reject("a")
    assert (real.bodies("dlq"), real.bodies("a")) == ([], [])
    assert len(caplog.records) == 1


# --- a message that a newer one replaces

@pytest.fixture
def replaced(tmp_path):
    """Two messages in a queue; the older one is to go when the newer one is on disk."""
    real = Real(tmp_path)
    queue = real.queue("q")
    for body in (b"older", b"newer"):
        real.publish(body, key="q", delivery_mode=2)
    real.letters.remove_when_synced(queue, 1)
    assert (queue.ready, queue.aside) == (1, 1)
    return real


def test_a_message_that_is_replaced_goes_when_the_newer_one_is_on_disk(replaced):
    replaced.commit.end()
    queue = replaced.vhost.queues["q"]
    assert (queue.ready, queue.aside) == (1, 0)
    replaced.restart()
    assert [row[6] for row in replaced.vhost.queues["q"].browse(1, 9)] == [b"newer"]


def test_a_message_that_is_replaced_is_there_again_if_the_broker_dies_before_the_sync(replaced):
    replaced.restart()
    assert [row[6] for row in replaced.vhost.queues["q"].browse(1, 9)] == [b"older", b"newer"]


def test_a_queue_that_is_deleted_before_the_sync_is_left_alone(replaced):
    queue = replaced.vhost.queues["q"]
    replaced.vhost.delete_queue(queue)
    replaced.commit.end()
    assert (queue.ready, queue.aside) == (0, 0)
