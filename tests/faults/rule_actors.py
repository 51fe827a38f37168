"""Clients of queues with rules: publishers of what dies, waits or goes first, workers that return it, transactions."""

import time

from tests.faults import actors
from tests.faults.actors import CONFIRM, QOS_OK
from tests.faults.client import Actor
from tests.faults.ledger import body_of
from tests.faults.trails import BATCH, Step, acked
from tests.plane import harness

from brokerd.wire import methods
from brokerd.wire.values import encode_table

OCTETS = (0, 0, 50, 300, 2000, 9000)


def properties(priority=0, delay=None):
    """Persistent."""
    flags, values = 0x10, b"\2"
    if priority:
        flags |= 0x08
        values += bytes([priority])
    if delay is not None:
        flags |= 0x20
        values = encode_table({"x-delay": delay}) + values
    return bytes([flags, 0]) + values


class Publisher(Actor):
    """Confirmed publishes to all trails."""

    def __init__(self, port, random, stream, trails):
        super().__init__(port)
        self.random, self.stream, self.trails = random, stream, trails
        self.window = random.choice((1, 10, 100))
        self.sent = self.confirmed = 0
        self.waiting = {}               # publish number: step
        self.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)

    def wants_write(self):
        return bool(self.out) or self.sent - self.confirmed < self.window

    def fill(self):
        for _ in range(min(self.window - (self.sent - self.confirmed), self.random.randrange(1, 40))):
            self.sent += 1
            trail = self.random.choice(self.trails)
            priority = self.random.randrange(trail.levels + 1)
            delay = self.random.choice(trail.delays) if trail.delays else None
            step = trail.steps[self.stream, self.sent] = Step(priority, time.time() + (delay or 0) / 1000)
            self.waiting[self.sent] = step
            body = body_of(self.stream, self.sent, self.random.choice(OCTETS))
            self.out += harness.publish(1, body, trail.name.encode(), exchange=trail.exchange.encode(),
                                        properties=properties(priority, delay))

    def on_reply(self, payload):
        assert payload[:4] == CONFIRM[0], payload
        tag, multiple = int.from_bytes(payload[4:12]), payload[12]
        assert multiple or tag == self.confirmed + 1, "confirms out of order"
        for number in range(self.confirmed + 1, tag + 1):
            self.waiting.pop(number).confirmed = True
        self.confirmed = tag


class Worker(Actor):
    """basic.consume: acks, rejects, returns or keeps what comes."""

    def __init__(self, port, random, trail):
        super().__init__(port)
        self.random, self.trail = random, trail
        self.unacked = {}               # tag: message
        self.acked, self.asked = [], []
        self.ask(methods.BasicQos(prefetch_count=random.choice((1, 5, 50))), methods.BasicQosOk)
        self.say(methods.BasicConsume(queue=trail.name))

    def on_content(self, content):
        self.unacked[content.tag] = self.trail.receive(content, time.time())
        if self.random.random() < 0.6:
            self.settle_one()

    def settle_one(self):
        dice, tag = self.random.random(), self.random.choice((min(self.unacked), max(self.unacked)))
        message = self.unacked.pop(tag)
        dies = 0.5 <= dice < 0.7
        if dice < 0.5 or (dies and not self.trail.dead):
            acked(self.trail, [message], surely=False)
            self.acked.append(message)
            self.out += harness.reject(1, tag, requeue=False) if dies else harness.ack(1, tag)
        else:
            self.out += harness.reject(1, tag, requeue=not dies)
        if self.random.random() < 0.2:
            self.asked.append(self.acked)
            self.acked = []
            self.say(methods.BasicQos(global_=True))

    def on_reply(self, payload):
        if payload[:4] == QOS_OK:
            # A message that came again meanwhile is none of these: who acked it was not heard.
            acked(self.trail, self.asked.pop(0), surely=True)


class Committer(actors.Committer):
    """Transactions of messages to several queues."""

    def __init__(self, port, random, stream, batches):
        super().__init__(port, random)
        self.stream, self.batches = stream, batches
        self.count = 0

    def publish_batch(self):
        self.count += 1
        batch = self.stream, self.count
        sent = self.batches.sent[batch] = {}
        for place in range(self.random.randrange(1, BATCH)):
            name, n = self.random.choice(self.batches.names), self.count * BATCH + place
            sent.setdefault(name, []).append(n)
            body = body_of(self.stream, n, self.random.choice(OCTETS))
            self.out += harness.publish(1, body, name.encode(), properties=properties())
        return batch

    def note_end(self, batch):
        self.batches.outcome[batch] = self.commits
