"""kill -9 at random moments while queues' rules are at work: priorities, delivery limits, dead letters at most and at
least once, times to live, delayed messages, transactions."""

import time
from random import Random

import pytest
from tests.broker import Broker
from tests.faults.client import SECONDS, Client
from tests.faults.ledger import read_body
from tests.faults.rounds import kill_in_the_midst, start_unharmed
from tests.faults.rule_actors import Committer, Publisher, Worker
from tests.faults.test_kill import ENVIRONMENT
from tests.faults.trails import Batches, Trail
from tests.plane import harness

from brokerd.wire import methods

ROUNDS = 8
ROUNDS_MAX = 60         # A busy machine may need more until everything was seen once.
DELAYED = "late"


def dead_to(name, **more):
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": name, **more}


class Rounds:
    def __init__(self, broker, seed):
        self.broker, self.random = broker, Random(seed)
        self.streams = 0
        limit = {"x-delivery-limit": 2}
        safe = {"x-queue-type": "quorum", "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
        self.levels = Trail("levels", {"x-max-priority": 4}, levels=4)
        self.limited = Trail("limited", dead_to("limited.dead", **limit), dead="limited.dead",
                             reasons=("rejected", "delivery_limit"), counts=True)
        self.safe = Trail("safe", dead_to("safe.dead", **safe, **limit), dead="safe.dead",
                          reasons=("rejected", "delivery_limit"), counts=True)
        self.short = Trail("short", dead_to("short.dead", **{"x-message-ttl": 40}), dead="short.dead",
                           reasons=("expired",))
        self.short_safe = Trail("short.safe", dead_to("short.safe.dead", **safe, **{"x-message-ttl": 20}),
                                dead="short.safe.dead", reasons=("expired",))
        self.delayed = Trail("delayed", {}, exchange=DELAYED, delays=(0, 1, 30, 100, 400))
        self.trails = [self.levels, self.limited, self.safe, self.short, self.short_safe, self.delayed]
        self.batches = Batches(["tx.1", "tx.2", "tx.3"])
        self.declare()

    def declare(self):
        with Client(self.broker.port) as client:
            for trail in self.trails:
                self.queue(client, trail.name, trail.arguments)
                if trail.dead:
                    self.queue(client, trail.dead, {})
            for name in self.batches.names:
                self.queue(client, name, {})
            client.ask(methods.ExchangeDeclare(exchange=DELAYED, type="x-delayed-message", durable=True,
                                               arguments={"x-delayed-type": "direct"}), methods.ExchangeDeclareOk)
            client.ask(methods.QueueBind(queue=self.delayed.name, exchange=DELAYED, routing_key=self.delayed.name),
                       methods.QueueBindOk)

    @staticmethod
    def queue(client, name, arguments):
        client.ask(methods.QueueDeclare(queue=name, durable=True, arguments=arguments), methods.QueueDeclareOk)

    @property
    def saw_everything(self):
        """Deaths of each kind, and messages that were returned more than once."""
        return (all(trail.deaths for trail in self.trails if trail.dead)
                and all(trail.highest > 1 for trail in self.trails if trail.counts))

    def crew(self):
        port, crew = self.broker.port, []
        for _ in range(2):
            self.streams += 2
            crew.append(Publisher(port, Random(self.random.random()), self.streams, self.trails))
            crew.append(Committer(port, Random(self.random.random()), self.streams + 1, self.batches))
        crew += [Worker(port, Random(self.random.random()), trail) for trail in (self.levels, self.limited, self.safe)
                 for _ in range(self.random.randrange(3))]
        return crew

    def run(self):
        kill_in_the_midst(self.broker, self.crew(), self.random.randrange(10, 400))
        start_unharmed(self.broker)
        with Client(self.broker.port) as client:
            for trail in self.trails:
                self.look(client, trail)
            self.fence(client)
        self.batches.looked({name: self.drain(name) for name in self.batches.names})

    def look(self, client, trail):
        """All of a trail taken and compared."""
        if trail is self.delayed:
            contents = self.wait_for_delayed(trail)
        else:
            if "x-message-ttl" in trail.arguments:
                self.wait_until_empty(client, trail.name)
            contents = self.drain(trail.name)
            trail.in_order(contents)
            for content in contents:
                trail.receive(content, time.time())
        trail.looked(contents, self.drain(trail.dead) if trail.dead else [])

    @staticmethod
    def fence(client):
        """What was dead-lettered at least once is on disk, and its queue has let go of it: a confirm comes later."""
        client.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)
        client.ask(methods.QueueDeclare(queue="fence", durable=True, arguments={"x-max-length": 1}),
                   methods.QueueDeclareOk)
        client.sock.sendall(harness.publish(1, b"fence", b"fence", persistent=True))
        client.expect(methods.BasicAck)

    @staticmethod
    def count(client, name):
        return client.ask(methods.QueueDeclare(queue=name, passive=True), methods.QueueDeclareOk).message_count

    def wait_until_empty(self, client, name):
        end = time.monotonic() + SECONDS
        while self.count(client, name):
            assert time.monotonic() < end, f"{name} does not expire"

    def wait_for_delayed(self, trail):
        """What is in its queue once the longest delay is over; what went on before the kill may come twice."""
        missing = {message for message, step in trail.steps.items() if step.confirmed}
        contents = {}
        last = max((step.due for step in trail.steps.values()), default=0)
        end = time.monotonic() + SECONDS
        while time.time() < last + 0.05 or missing - contents.keys():
            assert time.monotonic() < end, f"{len(missing - contents.keys())} delayed messages never came"
            for content in self.drain(trail.name):
                message = read_body(content.body)
                # What was not confirmed, or comes twice, may be later than the last look had patience.
                if message in contents or trail.came_late(message):
                    trail.twice += 1
                else:
                    trail.receive(content, time.time())
                    contents[message] = content
        return list(contents.values())

    def drain(self, name):
        """All that is handed out of a queue; a message whose last failure was the kill dies instead."""
        with Client(self.broker.port) as client:
            client.ask(methods.BasicConsume(queue=name, consumer_tag="all"), methods.BasicConsumeOk)
            self.wait_until_empty(client, name)
            client.ask(methods.BasicCancel(consumer_tag="all"), methods.BasicCancelOk)
            contents = client.contents
            if contents:
                client.sock.sendall(harness.ack(1, 0, True))
            self.count(client, name)            # The acks are done.
            return contents


@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_is_lost_between_a_queue_and_where_its_messages_go(tmp_path, seed):
    with Broker(tmp_path, env=ENVIRONMENT) as broker:
        rounds = Rounds(broker, seed)
        done = 0
        while done < ROUNDS or not rounds.saw_everything:
            assert done < ROUNDS_MAX
            rounds.run()
            done += 1
        broker.stop()
