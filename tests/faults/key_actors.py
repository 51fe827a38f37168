"""Clients of places that drop duplicates: publishers and transactions that repeat keys, workers."""

from tests.faults import actors
from tests.faults.actors import CONFIRM
from tests.faults.client import Actor
from tests.faults.key_ledger import body_of
from tests.plane import harness

from brokerd.wire import methods
from brokerd.wire.properties import Properties, encode_header

OCTETS = (0, 100, 1000, 4000, 15000)
OWN_TTLS_S = (None, None, 0.2, 5.0)
LATE = 60                       # so many of the last keys are repeated more often than others


def octets_of(random, ledger, place, key, sizes=OCTETS):
    """The attempt's number, and a publish of ``key``."""
    number = ledger.attempt(place, key)
    headers = {"x-deduplication-header": key.number if key.number % 2 else f"key {key.number}"}
    if place.groups:
        # Two keys of two groups have one name.
        headers = {"x-deduplication-header": key.number // place.groups, "group-id": f"g{key.number % place.groups}"}
    if place.ttl_s is not None:
        own = random.choice(OWN_TTLS_S)
        key.ttl_s = place.ttl_s if own is None else own
        if own is not None:
            headers["x-cache-ttl"] = round(own * 1000)
    properties = encode_header(0, Properties(
        headers=headers, delivery_mode=random.choice((1, 2)), priority=random.randrange(place.levels + 1),
    ))[12:]
    body = body_of(key.number, number, random.choice(sizes))
    return number, harness.publish(1, body, b"" if place.exchange else place.name.encode(),
                                   exchange=place.exchange.encode(), properties=properties)


class Repeater:
    """What publishers publish: new keys, and now and then one that was published before."""

    def __init__(self, random, ledger, places):
        self.random, self.ledger, self.places = random, ledger, places

    def next_publish(self):
        """The attempt's number, and its publish."""
        random, place = self.random, self.random.choice(self.places)
        known = list(place.keys.values())[-LATE:] if place.for_ever and random.random() < 0.25 else ()
        key = random.choice(known) if known else self.ledger.new_key(place)
        return octets_of(random, self.ledger, place, key)


class Publisher(Actor):
    """Confirmed publishes."""

    def __init__(self, port, random, ledger, places):
        super().__init__(port)
        self.random, self.ledger, self.repeater = random, ledger, Repeater(random, ledger, places)
        self.window = random.choice((1, 10, 100))
        self.sent = self.told = 0
        self.waiting = {}               # number of the publish: attempt
        self.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)

    def wants_write(self):
        return bool(self.out) or self.sent - self.told < self.window

    def fill(self):
        for _ in range(min(self.window - (self.sent - self.told), self.random.randrange(1, 40))):
            self.sent += 1
            self.waiting[self.sent], octets = self.repeater.next_publish()
            self.out += octets

    def on_reply(self, payload):
        assert payload[:4] == CONFIRM[0], payload
        tag, multiple = int.from_bytes(payload[4:12]), payload[12]
        assert multiple or tag == self.told + 1, "confirms out of order"
        for number in range(self.told + 1, tag + 1):
            self.ledger.confirmed(self.waiting.pop(number))
        self.told = tag


class Committer(actors.Committer):
    """Transactions of such publishes."""

    def __init__(self, port, random, ledger, places):
        super().__init__(port, random)
        self.ledger, self.repeater = ledger, Repeater(random, ledger, places)
        self.sent = 0

    def publish_batch(self):
        batch = []
        for _ in range(self.random.randrange(1, 12)):
            number, octets = self.repeater.next_publish()
            batch.append(number)
            self.sent += 1
            self.out += octets
        self.ledger.batches.append(batch)
        return batch

    def note_end(self, batch):
        self.ledger.batches.remove(batch)
        if self.commits:
            for number in batch:
                self.ledger.confirmed(number)


class Worker(Actor):
    """basic.consume: most of what comes is settled soon."""

    def __init__(self, port, random, ledger, queue):
        super().__init__(port)
        self.random, self.ledger, self.queue = random, ledger, queue
        self.tags = []
        self.ask(methods.BasicQos(prefetch_count=random.choice((1, 10, 200))), methods.BasicQosOk)
        self.say(methods.BasicConsume(queue=queue))

    def on_content(self, content):
        self.ledger.receive(self.queue, content.body)
        self.tags.append(content.tag)
        while self.tags and self.random.random() < 0.7:
            dice, tag = self.random.random(), self.tags.pop(self.random.choice((0, -1)))
            self.out += harness.ack(1, tag) if dice < 0.8 else harness.reject(1, tag, requeue=dice > 0.9)
