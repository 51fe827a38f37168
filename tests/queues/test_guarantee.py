"""The guarantee in force, from what is known of a queue."""

import pytest

from brokerd.queues.dead_letter import DeadLetterRule
from brokerd.queues.guarantee import BEST_EFFORT, PER_PRIORITY, STRICT, Facts, Reader, facts_of, find_guarantee
from brokerd.queues.rules import Rules, rules_of

ONE = Reader("a", 1)


@pytest.mark.parametrize(("facts", "name", "reasons"), [
    (Facts(), STRICT, ["no consumer"]),
    (Facts((ONE,)), STRICT, ["one consumer with prefetch 1: a message is settled before the next is delivered"]),
    (Facts((ONE, ONE)), BEST_EFFORT, ["2 consumers compete"]),
    (Facts((Reader("a", 10),)), BEST_EFFORT, ["prefetch 10: up to 9 messages may overtake a returned one"]),
    (Facts((Reader("a", 2),)), BEST_EFFORT, ["prefetch 2: 1 message may overtake a returned one"]),
    (Facts((Reader("a"),)), BEST_EFFORT, ["unlimited prefetch: any number of messages may overtake a returned one"]),
    (Facts((Reader("a", 5), Reader("b", 5), Reader("c"))), BEST_EFFORT, [
        "3 consumers compete", "unlimited prefetch: any number of messages may overtake a returned one",
        "prefetch 5: up to 4 messages may overtake a returned one"]),
    (Facts((Reader("x", 1, no_ack=True),)), BEST_EFFORT,
     ["consumer 'x' takes messages without acks: what it loses does not come back"]),
    (Facts((ONE,), getters=1), BEST_EFFORT, ["basic.get takes messages beside the consumers"]),
    (Facts(getters=1), BEST_EFFORT, ["basic.get takes messages, as many at a time as it likes"]),
    (Facts((Reader("a", 1), Reader("b", 9, active=True)), rules=Rules(single_active=True)), BEST_EFFORT,
     ["prefetch 9: up to 8 messages may overtake a returned one"]),
    (Facts((ONE,), max_priority=5), PER_PRIORITY,
     ["messages of higher priority go first, 6 levels", "one consumer with prefetch 1"]),
    (Facts(max_priority=1), PER_PRIORITY, ["messages of higher priority go first, 2 levels", "no consumer"]),
    (Facts((ONE, ONE), max_priority=5), BEST_EFFORT, ["2 consumers compete"]),
])
def test_the_name_follows_from_who_reads_how(facts, name, reasons):
    found = find_guarantee(facts)
    assert (found.name, found.reasons) == (name, reasons)


def test_a_single_active_consumer_counts_as_one():
    found = find_guarantee(Facts((Reader("a", 1, active=True), Reader("b", 9)), rules=Rules(single_active=True)))
    assert found.name == STRICT
    assert found.notes == ["single active consumer: 1 of 2 consumers is served"]
    assert find_guarantee(Facts((ONE,), rules=Rules(single_active=True))).notes == []


@pytest.mark.parametrize(("facts", "notes"), [
    (Facts(rules=Rules(message_ttl_ms=5)), ["messages that wait longer than 5 ms are dropped"]),
    (Facts(rules=Rules(max_length=7, max_octets=9)), [
        "over 7 messages the oldest are dropped", "over 9 octets the oldest are dropped"]),
    (Facts(rules=Rules(max_length=7, overflow="reject-publish")), ["over 7 messages new messages are refused"]),
    (Facts(rules=Rules(delivery_limit=2)), ["a message that has come back 2 times is dropped at the next return"]),
    (Facts(rules=Rules(max_length=1, max_octets=1, delivery_limit=1)), [
        "over 1 message the oldest are dropped", "over 1 octet the oldest are dropped",
        "a message that has come back once is dropped at the next return"]),
    (Facts(rules=Rules(delivery_limit=2, delivery_limit_action="drop", dead_letter=DeadLetterRule("d"))), [
        "a message that has come back 2 times is dropped at the next return",
        "rejected messages are dead-lettered to exchange 'd'"]),
    (Facts(rules=Rules(message_ttl_ms=5, dead_letter=DeadLetterRule(""))), [
        "messages that wait longer than 5 ms are dead-lettered to exchange ''",
        "rejected messages are dead-lettered to exchange ''"]),
])
def test_what_takes_messages_out_is_noted_and_weakens_nothing(facts, notes):
    found = find_guarantee(facts._replace(consumers=(ONE,)))
    assert (found.name, found.notes) == (STRICT, notes)


class Channel:
    def __init__(self, global_prefetch=0):
        self.global_prefetch = global_prefetch


class Consumer:
    def __init__(self, tag, prefetch, global_prefetch=0, no_ack=False):
        self.tag, self.prefetch, self.no_ack = tag, prefetch, no_ack
        self.channel = Channel(global_prefetch)


class Queue:
    max_priority, getter_count, active, gate, paused_at = 3, 4, None, None, None

    def __init__(self, arguments, *consumers):
        self.rules = rules_of(arguments, {})
        self.consumers = list(consumers) or None


def test_the_facts_are_those_of_the_queue():
    both, none = Consumer(b"a\xff", 10, 3), Consumer(b"b", 0, 0, True)
    queue = Queue({"x-message-ttl": 1, "x-max-length": 2, "x-max-length-bytes": 3, "x-overflow": "reject-publish",
                   "x-delivery-limit": 4, "x-delivery-limit-action": "drop", "x-dead-letter-exchange": "d",
                   "x-single-active-consumer": True}, both, none)
    queue.active = none
    assert facts_of(queue) == Facts(
        (Reader("a\ufffd", 3), Reader("b", 0, True, True)), 3, 4, queue.rules)
    assert facts_of(Queue({})) == Facts(max_priority=3, getters=4)
