"""Dead letters that the data plane makes and stores for a vhost: they follow every change of where messages go."""

import logging

import pytest
from tests.vhost.stand_in import Real

from brokerd.policies import Policies, Policy
from brokerd.store.disk import Disk
from brokerd.vhost.dead_letters import DeadLetters
from brokerd.wire import methods

TO_DLQ = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "dlq"}


@pytest.fixture
def real(tmp_path):
    return Real(tmp_path)


@pytest.fixture
def handled(monkeypatch):
    """The bodies that the data plane left to handle_dead()."""
    bodies, handle = [], DeadLetters.handle_dead

    def handle_dead(self, *message):
        bodies.append(message[-1])
        return handle(self, *message)

    monkeypatch.setattr(DeadLetters, "handle_dead", handle_dead)
    return bodies


def die(real, body):
    real.publish(body, key="a", delivery_mode=2)
    real.reject("a")


def test_dead_letters_follow_the_bindings_that_there_are_when_they_die(real, handled):
    real.client.ask(methods.ExchangeDeclare(exchange="dlx", type="direct", durable=True))
    for name in ("one", "two"):
        real.queue(name)
    real.queue("a", x_dead_letter_exchange="dlx")
    for body, change in (
        (b"first", None),
        (b"to one", methods.QueueBind(queue="one", exchange="dlx", routing_key="a")),
        (b"to both", methods.QueueBind(queue="two", exchange="dlx", routing_key="a")),
        (b"to two", methods.QueueUnbind(queue="one", exchange="dlx", routing_key="a")),
        (b"last", methods.QueueUnbind(queue="two", exchange="dlx", routing_key="a")),
    ):
        if change is not None:
            real.client.ask(change)
        die(real, body)
    assert (real.bodies("one"), real.bodies("two")) == ([b"to one", b"to both"], [b"to both", b"to two"])
    assert handled == []


def test_a_target_that_is_deleted_and_declared_again_gets_dead_letters_again(real, handled):
    real.queue("a", **TO_DLQ)
    for _ in range(2):
        real.queue("dlq")
        die(real, b"one")
        assert real.bodies("dlq") == [b"one"]
        real.client.ask(methods.QueueDelete(queue="dlq"))
        die(real, b"nowhere")
    assert handled == []


def test_a_dead_letter_exchange_that_is_deleted_and_declared_again_routes_again(real, handled, caplog):
    caplog.set_level(logging.WARNING, "brokerd")
    real.queue("one")
    real.queue("two")
    real.queue("a", x_dead_letter_exchange="dlx")
    for kind, name in (("fanout", "one"), ("direct", "two")):
        real.client.ask(methods.ExchangeDeclare(exchange="dlx", type=kind, durable=True))
        real.client.ask(methods.QueueBind(queue=name, exchange="dlx", routing_key="a"))
        die(real, name.encode())
        real.client.ask(methods.ExchangeDelete(exchange="dlx"))
        die(real, b"without it")
    assert (real.bodies("one"), real.bodies("two")) == ([b"one"], [b"two"])
    assert handled == [b"without it"] * 2
    assert len(caplog.records) == 1


def test_a_policy_that_changes_or_goes_changes_how_the_data_plane_makes_the_letters(real, handled, tmp_path):
    policies = real.vhost.policies = Policies(str(tmp_path), Disk())
    queue, fixed = real.queue("a"), real.queue("fixed", **TO_DLQ)
    for name in ("dlq", "one", "two"):
        real.queue(name)
    own, met = fixed.letters, [queue.letters]
    for body, key in ((b"to one", "one"), (b"to two", "two"), (b"lost", None), (b"to one again", "one")):
        if key is None:
            policies.delete("p")
        else:
            policies.put(Policy("p", "^(a|fixed)$", {"dead-letter-exchange": "", "dead-letter-routing-key": key}))
        real.vhost.apply_rules()
        met.append(queue.letters)
        die(real, body)
    assert [letters is None for letters in met] == [True, False, False, True, False]
    assert len(set(map(id, met))) == 4
    assert (real.bodies("one"), real.bodies("two")) == ([b"to one", b"to one again"], [b"to two"])
    assert handled == []
    assert fixed.letters is own                # An argument stands above a policy.


AT_LEAST_ONCE = {**TO_DLQ, "x_queue_type": "quorum", "x_dead_letter_strategy": "at-least-once"}


def test_a_change_of_strategy_holds_at_once(real, handled, tmp_path):
    policies = real.vhost.policies = Policies(str(tmp_path), Disk())
    real.queue("dlq")
    queue = real.queue("a", **TO_DLQ, x_queue_type="quorum")
    die(real, b"at most once")
    assert (handled, queue.aside) == ([], 0)
    policies.put(Policy("p", "", {"dead-letter-strategy": "at-least-once"}))
    real.vhost.apply_rules()
    die(real, b"at least once")
    assert (handled, queue.aside) == ([], 1)
    policies.delete("p")
    real.vhost.apply_rules()
    die(real, b"at most once again")
    assert (handled, queue.aside) == ([], 1)
    real.commit.end()
    assert (real.bodies("dlq"), queue.aside) == ([b"at most once", b"at least once", b"at most once again"], 0)
    queue.check()


def test_at_least_once_a_message_stays_aside_until_its_letter_is_on_disk(real, handled):
    real.queue("dlq")
    queue = real.queue("a", **AT_LEAST_ONCE)
    for body in (b"one", b"two"):
        die(real, body)
    assert (real.bodies("dlq"), queue.aside, queue.dead_lettered) == ([b"one", b"two"], 2, 0)
    assert real.node.core.begin_sync(64)
    first, real.commit.waiting = real.commit.waiting, []
    die(real, b"three")                     # after the sync began
    for callback in first:
        callback()
    assert (queue.aside, queue.dead_lettered) == (1, 2)
    assert [row[6] for row in queue.browse_aside(0, 9)] == [b"three"]
    real.commit.end()
    assert (queue.aside, queue.dead_lettered, handled) == (0, 3, [])
    queue.check()


def test_at_least_once_what_needs_no_sync_waits_for_those_before_it_that_do(real, handled):
    real.queue("dlq")
    queue = real.queue("a", **AT_LEAST_ONCE)
    real.publish(b"transient", key="a", delivery_mode=1)
    real.reject("a")
    assert (queue.aside, real.commit.waiting) == (0, [])
    die(real, b"persistent")
    real.publish(b"transient too", key="a", delivery_mode=1)
    real.reject("a")
    assert queue.aside == 2
    real.commit.end()
    assert (queue.aside, handled, len(real.bodies("dlq"))) == (0, [], 3)


def test_at_least_once_the_broker_that_dies_before_the_sync_finds_the_messages_again(real, handled):
    real.queue("dlq")
    real.queue("a", **AT_LEAST_ONCE)
    for body in (b"one", b"two"):
        die(real, body)
    real.restart()
    assert real.bodies("a") == [b"one", b"two"]
    real.commit.end()
    assert (real.vhost.queues["a"].aside, real.bodies("dlq")) == (0, [b"one", b"two"])
    real.tag = 0                            # of the new channel
    real.reject("a")
    real.commit.end()
    assert real.bodies("a") == [b"two"]
    real.restart()
    assert real.bodies("a") == [b"two"]
    assert handled == []


@pytest.mark.parametrize("dlq", [None, {"x_max_length": 1, "x_overflow": "reject-publish"}])
def test_at_least_once_a_letter_that_finds_no_queue_or_may_be_refused_goes_up(real, handled, dlq):
    if dlq is not None:
        real.queue("dlq", **dlq)
    queue = real.queue("a", **AT_LEAST_ONCE)
    for body in (b"one", b"two"):
        die(real, body)
    assert handled == [b"one", b"two"]
    real.commit.end()
    assert queue.aside == (2 if dlq is None else 1)


def test_at_least_once_many_deaths_at_once_are_all_settled_in_their_order(real, handled):
    real.queue("dlq")
    queue = real.queue("a", **AT_LEAST_ONCE, x_message_ttl=10)
    count = 3000
    for number in range(count):
        real.publish(b"%d" % number, key="a", delivery_mode=2)
    real.pass_time(11)
    assert (queue.ready, queue.aside, queue.dead_lettered) == (0, count, 0)
    assert real.bodies("dlq") == [b"%d" % number for number in range(count)]
    before = count
    while real.commit.waiting:
        real.commit.waiting.pop(0)()
        assert queue.aside < before
        assert [row[6] for row in queue.browse_aside(0, 1)] == [b"%d" % (count - queue.aside)][:queue.aside]
        before = queue.aside
    assert (queue.aside, queue.dead_lettered, handled) == (0, count, [])
    queue.check()


def test_at_least_once_a_queue_that_is_deleted_meanwhile_takes_its_messages_along(real, handled):
    real.queue("dlq")
    real.queue("a", **AT_LEAST_ONCE)
    die(real, b"one")
    real.client.ask(methods.QueueDelete(queue="a"))
    real.commit.end()
    assert (real.bodies("dlq"), handled) == ([b"one"], [])


def test_at_least_once_a_message_that_was_settled_by_hand_meanwhile_changes_nothing(real, handled):
    real.queue("dlq")
    queue = real.queue("a", **AT_LEAST_ONCE)
    die(real, b"one")
    die(real, b"two")
    queue.settle_aside(1)
    assert (queue.aside, queue.dead_lettered) == (1, 1)
    real.commit.end()
    assert (queue.aside, queue.dead_lettered, handled) == (0, 2, [])
