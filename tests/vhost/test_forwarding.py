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
    real.publish(body, key="a")
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


def test_dead_letters_at_least_once_are_all_made_here_and_a_change_of_strategy_holds_at_once(real, handled, tmp_path):
    policies = real.vhost.policies = Policies(str(tmp_path), Disk())
    real.queue("dlq")
    queue = real.queue("a", **TO_DLQ, x_queue_type="quorum")
    assert queue.letters is not None
    die(real, b"at most once")
    assert (handled, queue.aside) == ([], 0)
    policies.put(Policy("p", "", {"dead-letter-strategy": "at-least-once"}))
    real.vhost.apply_rules()
    assert queue.letters is None
    die(real, b"at least once")
    assert (handled, queue.aside) == ([b"at least once"], 1)
    real.commit.end()
    assert (real.bodies("dlq"), queue.aside) == ([b"at most once", b"at least once"], 0)
