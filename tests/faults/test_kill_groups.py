"""kill -9 while messages wait for their group, for their next try, and behind a stop: a real broker with disorderly
clients is killed again and again.  Audits of its directory, also while it works, accuse it of nothing, and its counters
are theirs.
"""

import contextlib
import threading
from random import Random

import pika
import pytest
from tests.planter.asking import ask
from tests.planter.planting import EFFECTS_OF_USE
from tests.planter.samples import control, until

from brokerd.audit import waits

ROUNDS, CUSTOMERS, WORKERS = 3, 7, 3
BATCH = 60                          # messages of each queue in a round
OCTETS = 9 << 10                    # of a body: so that a queue has several segments
GROUPS = {"x-message-group": "exclusive", "x-message-group-header": "customer"}
RETRY = {"x-delayed-retry-type": "all", "x-delayed-retry-min": 30, "x-delayed-retry-max": 90}
QUEUES = {
    "grouped": GROUPS,
    "several": GROUPS | {"x-group-max-inflight": 3},
    "sticky": GROUPS | {"x-message-group": "sticky"},
    "urgent": GROUPS | {"x-max-priority": 2},
    "retried": RETRY,
    "urgent.retried": RETRY | {"x-max-priority": 2},
    "group.retried": GROUPS | RETRY,
    "parked": GROUPS | {"x-delivery-limit": 1, "x-delivery-limit-action": "park-group"},
    "stopped": {"x-delivery-limit": 1, "x-delivery-limit-action": "block"},
    "once": GROUPS | {"x-message-deduplication": True},
    "kept": GROUPS | {"x-retention-age": 3_600_000},
}


class Worker(threading.Thread):
    """A connection with a consumer of each queue on a channel of its own, until the broker is gone.  ``seed`` decides
    what it returns."""

    def __init__(self, port, seed):
        super().__init__(daemon=True)
        self.connection = pika.BlockingConnection(pika.ConnectionParameters(port=port, heartbeat=0))
        self.random, self.settled, self.fault = Random(seed), 0, None
        for name in QUEUES:
            channel = self.connection.channel()
            channel.basic_qos(prefetch_count=4)
            channel.basic_consume(name, self.handle)

    def handle(self, channel, method, properties, body):
        choice = self.random.random()
        if choice < 0.75:
            channel.basic_ack(method.delivery_tag)
            self.settled += 1
        elif choice < 0.99:
            channel.basic_nack(method.delivery_tag)
        # What is left stays out until the broker is killed.

    def run(self):
        try:
            while True:
                self.connection.process_data_events(0.05)
        except pika.exceptions.AMQPError:
            pass
        except Exception as fault:
            self.fault = fault


def publish(port, begin):
    with pika.BlockingConnection(pika.ConnectionParameters(port=port, heartbeat=0)) as connection:
        channel = connection.channel()
        for name, arguments in QUEUES.items():
            channel.queue_declare(name, durable=True, arguments={"x-order-journal": True} | arguments)
        for number in range(begin, begin + BATCH):
            for name in QUEUES:
                channel.basic_publish("", name, (b"%d" % number).ljust(OCTETS), pika.BasicProperties(
                    delivery_mode=2, priority=number % 3, headers={
                        "customer": f"c{number % CUSTOMERS}", "x-deduplication-header": f"{number // 2}"}))
        channel.queue_declare("grouped", passive=True)          # All of them are there.


def let_go(directory):
    """An operator lets everything go on that has stopped."""
    for group in {f"c{n}" for n in range(CUSTOMERS)}:
        for name in ("parked", "group.retried"):
            with contextlib.suppress(AssertionError):           # No such group waits.
                control(directory, "group", "release", name, group)
    with contextlib.suppress(AssertionError):
        control(directory, "queue", "release", "stopped")


def accusations(said):
    return {key: row for key, row in said.items() if row.verdict == "violated" and key[1] not in EFFECTS_OF_USE}


@pytest.mark.parametrize("seed", [1])
def test_a_broker_that_is_killed_while_messages_wait_is_never_accused(make_broker, tmp_path, seed):
    broker = make_broker("--segment-octets", str(1 << 20))
    broker.start()
    for number in range(ROUNDS):
        publish(broker.port, number * BATCH)
        workers = [Worker(broker.port, seed * 100 + number * 10 + k) for k in range(WORKERS)]
        for worker in workers:
            worker.start()
        with pika.BlockingConnection(pika.ConnectionParameters(port=broker.port, heartbeat=0)) as connection:
            until(connection, lambda workers=workers: sum(w.settled for w in workers) > 3 * BATCH)
        let_go(broker.directory)
        assert not accusations(ask(broker.directory))           # While it works.
        broker.kill()
        for worker in workers:
            worker.join(60)
            assert not worker.is_alive()
            assert worker.fault is None
        assert not accusations(ask(broker.directory))
        broker.start()
    said = ask(broker.directory)
    assert not accusations(said)
    judged = {key: row.verdict for key, row in said.items() if key[1] in waits.AUDITS}
    assert {audit for _, audit in judged} == set(waits.AUDITS)
    dump = tmp_path / "dump"
    control(broker.directory, "queue", "dump", dump)            # The audit ``counters`` judges dumps.
    counted = ask(dump)
    assert not accusations(counted)
    assert {counted[name, "counters"].verdict for name in QUEUES} <= {"held", "undecidable"}
    assert "held" in {counted[name, "counters"].verdict for name in QUEUES}
