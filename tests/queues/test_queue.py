"""A queue's rules in force: what the data plane is told, when, and that plain queues are told nothing.

Names, properties and equivalence are told through a session: tests/session/test_topology.py.
"""

import gc
import tracemalloc

import pytest
from tests.session.harness import Client, Node

from brokerd.errors import ResourceLocked
from brokerd.policies import Policies, Policy
from brokerd.queues.dead_letter import DeadLetterRule
from brokerd.queues.deduplication import Deduplication
from brokerd.queues.queue import Queue
from brokerd.queues.rules import PLAIN, Rules, plane_rules
from brokerd.store.disk import Disk
from brokerd.store.recovery import recover
from brokerd.wire import methods


class Told(Queue):
    """Keeps what the data plane is told."""

    __slots__ = ("told",)

    def set_rules(self, **rules):
        self.told.append(rules)


@pytest.fixture
def core(tmp_path):
    return Node(tmp_path).core


@pytest.fixture
def policies(tmp_path):
    return Policies(str(tmp_path), Disk())


@pytest.fixture
def make(core, tmp_path):
    def make(name="q", **arguments):
        queue = Told(core, str(tmp_path / name), name=name, vhost_name="/", durable=True,
                     arguments={f"x-{key.replace('_', '-')}": value for key, value in arguments.items()})
        queue.told = []
        return queue

    return make


def test_a_queue_without_rules_tells_the_data_plane_nothing(make, policies):
    queue = make()
    queue.apply_rules(None)
    queue.apply_rules(policies)
    policies.put(Policy("p", "^other", {"max-length": 1}))
    queue.apply_rules(policies)
    assert (queue.told, queue.rules) == ([], PLAIN)
    assert queue.rules is PLAIN


def test_arguments_are_told_once(make, policies):
    queue = make(message_ttl=5, overflow="reject-publish")
    for _ in range(2):
        queue.apply_rules(policies)
    assert queue.told == [plane_rules(Rules(message_ttl_ms=5, overflow="reject-publish"))]


def test_a_policy_is_told_when_it_comes_changes_and_goes(make, policies):
    queue = make("orders", max_length=10)
    queue.apply_rules(policies)
    for limit in (5, 20, 7):
        policies.put(Policy("p", "^ord", {"max-length": limit}))
        queue.apply_rules(policies)
    policies.delete("p")
    queue.apply_rules(policies)
    assert [told["max_length"] for told in queue.told] == [10, 5, 10, 7, 10]


def test_rules_that_end_are_told_as_none(make, policies):
    queue = make()
    policies.put(Policy("p", "", {"message-ttl": 5}))
    queue.apply_rules(policies)
    policies.delete("p")
    queue.apply_rules(policies)
    assert [told["ttl_ms"] for told in queue.told] == [5, -1]
    assert queue.rules == PLAIN


def test_what_is_not_the_data_planes_is_not_told_to_it(make, policies):
    queue = make()
    policies.put(Policy("p", "", {"expires": 5}))
    queue.apply_rules(policies)
    assert queue.told == []
    assert queue.rules == Rules(expires_ms=5)


def test_another_dead_letter_exchange_holds_without_a_word_to_the_data_plane(make, policies):
    queue = make()
    for exchange in ("a", "b"):
        policies.put(Policy("p", "", {"dead-letter-exchange": exchange}))
        queue.apply_rules(policies)
        assert queue.rules.dead_letter == DeadLetterRule(exchange)
    assert [told["dead_letters"] for told in queue.told] == [True]


def test_whoever_deletes_unused_queues_hears_of_each_change_of_expires(make, policies):
    heard = []
    policies.on_expires = lambda queue: heard.append((queue.name, queue.rules.expires_ms))
    make("plain").apply_rules(policies)
    queue = make("q", expires=50)
    queue.apply_rules(policies)
    queue.apply_rules(policies)
    policies.put(Policy("p", "^q$", {"expires": 20}))
    queue.apply_rules(policies)
    other = make("other")
    policies.put(Policy("o", "other", {"expires": 7}))
    other.apply_rules(policies)
    policies.delete("o")
    other.apply_rules(policies)
    assert heard == [("q", 50), ("q", 20), ("other", 7), ("other", None)]


@pytest.mark.parametrize(("type_", "kind"), [("classic", "classic_queues"), ("quorum", "quorum_queues")])
def test_policies_know_a_queue_by_its_type(make, policies, type_, kind):
    queue = make(queue_type=type_)
    assert (queue.kind, make().kind) == (kind, "classic_queues")
    policies.put(Policy("p", "", {"max-length": 3}, apply_to=kind))
    queue.apply_rules(policies)
    assert queue.rules.max_length == 3
    assert queue.policy == "p"


@pytest.mark.parametrize(("arguments", "priority"), [
    ({}, 0), ({"max_length": 1}, 0), ({"max_priority": 0}, 0), ({"max_priority": 9}, 9),
])
def test_the_highest_priority_is_given_when_the_queue_is_made(make, arguments, priority):
    assert make(**arguments).max_priority == priority


@pytest.mark.parametrize("arguments", [
    {"message_ttl": 5, "max_length": 6, "max_length_bytes": 7, "overflow": "reject-publish-dlx"},
    {"dead_letter_exchange": "", "delivery_limit": 3, "delivery_limit_action": "drop", "queue_type": "quorum"},
    {"single_active_consumer": True, "consumer_timeout": 9, "consumer_timeout_action": "close"},
])
def test_the_data_plane_takes_what_it_is_told(core, tmp_path, arguments):
    given = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    queue = Queue(core, str(tmp_path / "q"), name="q", vhost_name="/", durable=True, arguments=given)
    queue.apply_rules(None)
    assert queue.rules != PLAIN


# --- dead messages

class DeadLetters:
    def __init__(self):
        self.dead = []

    def handle_dead(self, *message):
        self.dead.append(message)
        return False


MESSAGE = (7, b"x", b"k", b"\0\0", b"body")


def test_a_dead_message_goes_where_dead_letters_go(make):
    queue = make(dead_letter_exchange="d")
    assert queue.on_dead("rejected", *MESSAGE, 1) is True       # to nowhere so far
    queue.dead_letters = there = DeadLetters()
    assert queue.on_dead("rejected", *MESSAGE, 1) is False
    assert there.dead == [(queue, "rejected", *MESSAGE)]


# --- what it costs

def test_the_rules_of_plain_queues_take_no_memory(core, policies):
    Queue(core, "/nowhere", name="q", vhost_name="/", durable=False).apply_rules(policies)
    tracemalloc.start()
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    queues = [Queue(core, "/nowhere", name="q", vhost_name="/", durable=False) for _ in range(1000)]
    middle = tracemalloc.get_traced_memory()[0]
    for queue in queues:
        queue.apply_rules(policies)
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert after - middle < 1000
    assert (middle - before) / 1000 < 1000


# --- order journals

def test_rules_switch_the_journal_and_tell_who_keeps_it(core, tmp_path, policies, make):
    told = []
    policies.on_journal = told.append
    queue = make()
    queue.apply_rules(policies)
    assert (queue.journaled, told) == (False, [])
    policies.put(Policy("p", "", {"order-journal": True}))
    queue.apply_rules(policies)
    assert (queue.journaled, queue.policy, told) == (True, "p", [queue])
    policies.put(Policy("p", "", {"order-journal": True, "order-journal-retention-bytes": 5}))
    queue.apply_rules(policies)
    policies.delete("p")
    queue.apply_rules(policies)
    assert (queue.journaled, queue.policy, told) == (False, None, [queue] * 3)


def test_a_queue_that_is_not_durable_has_no_journal_whatever_a_policy_says(core, tmp_path, policies):
    policies.put(Policy("p", "", {"order-journal": True}))
    queue = Queue(core, str(tmp_path / "t"), name="t", vhost_name="/", durable=False)
    queue.apply_rules(policies)
    assert (queue.rules.journal, queue.journaled) == (True, False)


@pytest.mark.parametrize(("arguments", "policy", "journaled"), [
    ({}, None, False), ({"order_journal": True}, None, True), ({}, True, True), ({"order_journal": False}, True, False),
])
def test_before_recovery_the_journal_alone_is_put_in_force(make, policies, arguments, policy, journaled):
    if policy is not None:
        policies.put(Policy("p", "", {"order-journal": policy, "max-length": 5}))
    queue = make(**arguments)
    queue.begin_recovery(policies)
    assert (queue.journaled, queue.told, queue.rules) == (journaled, [], PLAIN)


def test_the_name_in_a_queues_folder_is_renewed_only_where_it_is_not_right(make, tmp_path):
    queue = make()
    queue.renew_name()                      # It has no folder, and gets none.
    assert not (tmp_path / "q").exists()
    queue.make_directory()
    file, = (tmp_path / "q").iterdir()
    written = file.stat().st_mtime_ns, file.stat().st_ino
    queue.renew_name()
    assert (file.stat().st_mtime_ns, file.stat().st_ino) == written
    for damage in (lambda: file.write_bytes(b"r"), file.unlink):
        damage()
        queue.renew_name()
        assert file.read_bytes() == b"q"


def test_a_queue_of_one_connection_is_open_to_that_one_alone(make):
    queue, owner = make(), object()
    queue.check_access(object())
    queue.owner = owner
    queue.check_access(owner)
    with pytest.raises(ResourceLocked):
        queue.check_access(object())


def test_keys_are_read_once_at_a_start_and_with_what_is_known_of_the_power(core, tmp_path, policies, monkeypatch):
    loads = []
    monkeypatch.setattr(Deduplication, "load", lambda self, *_, suspect: loads.append(suspect) or [])
    queue = Queue(core, str(tmp_path / "q"), name="q", vhost_name="/", durable=True,
                  arguments={"x-message-deduplication": True})
    queue.key_files = object
    queue.begin_recovery(policies)
    assert loads == []
    recover(queue, Disk(), True, print)
    assert loads == [True]


def test_a_queue_is_exclusively_consumed_by_one_consumer_that_asked_for_it(tmp_path):
    node = Node(tmp_path)
    queue = node.vhost.add_queue("q", durable=False, auto_delete=False, arguments={})
    client = Client(node).open()
    for exclusive in (False, True):
        assert not queue.exclusively_consumed
        client.ask(methods.BasicConsume(queue="q", consumer_tag="t", exclusive=exclusive))
        assert queue.exclusively_consumed is exclusive
        client.ask(methods.BasicCancel(consumer_tag="t"))
