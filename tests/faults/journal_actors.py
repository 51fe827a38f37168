"""Clients that disturb the order of a queue in every way there is: returns by each cause, dropped connections, gets,
purges.  They note nothing but what was confirmed: what they did is in the queue's journal, and that is the point.
"""

from tests.faults.actors import CONFIRM, GET_EMPTY
from tests.faults.client import Actor
from tests.faults.ledger import body_of
from tests.faults.rule_actors import properties
from tests.plane import harness

from brokerd.wire import methods

OCTETS = (0, 0, 50, 300, 2000, 9000)
RECOVER_OK, CHANNEL_CLOSE_OK = (method.INDEX.to_bytes(4) for method in (methods.BasicRecoverOk, methods.ChannelCloseOk))


class Publisher(Actor):
    """Confirmed publishes to several queues.  ``confirmed``: queue -> (stream, n) of what is surely stored."""

    def __init__(self, port, random, stream, queues, confirmed, octets=OCTETS):
        super().__init__(port)
        self.random, self.stream, self.queues, self.confirmed, self.octets_ = random, stream, queues, confirmed, octets
        self.window = random.choice((1, 10, 100))
        self.sent = self.told = 0
        self.waiting = {}
        self.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)

    def wants_write(self):
        return bool(self.out) or self.sent - self.told < self.window

    def fill(self):
        for _ in range(min(self.window - (self.sent - self.told), self.random.randrange(1, 40))):
            self.sent += 1
            name = self.random.choice(self.queues)
            self.waiting[self.sent] = name
            self.out += harness.publish(1, body_of(self.stream, self.sent, self.random.choice(self.octets_)),
                                        name.encode(), properties=properties(self.random.randrange(5)))

    def on_reply(self, payload):
        assert payload[:4] in CONFIRM, payload
        tag, multiple = int.from_bytes(payload[4:12]), payload[12]
        for number in range(self.told + 1, tag + 1) if multiple else (tag,):
            name = self.waiting.pop(number)
            if payload[:4] == CONFIRM[0]:
                self.confirmed[name].add((self.stream, number))
        self.told = max(self.told, tag)


class Taker(Actor):
    """Settles what it has in any order, returns it by every cause, and sometimes just goes."""

    def __init__(self, port, random, queue):
        super().__init__(port)
        self.random, self.queue = random, queue
        self.tags = []
        self.deaf = False           # Until a channel is open again, or recovered: tags that come are none.

    def act(self):
        dice, tags = self.random.random(), self.tags
        tag = self.random.choice((tags[0], tags[-1], self.random.choice(tags)))
        if dice < 0.45:
            self.settled(harness.ack(1, tag, multiple=True), tag, multiple=True)
        elif dice < 0.65:
            self.settled(harness.ack(1, tag), tag)
        elif dice < 0.77:
            self.settled(harness.nack(1, tag), tag)
        elif dice < 0.82:
            self.settled(harness.nack(1, tag, multiple=True), tag, multiple=True)
        elif dice < 0.91:
            self.settled(harness.reject(1, tag), tag)
        elif dice < 0.975:
            self.settled(harness.reject(1, tag, requeue=False), tag)
        elif dice < 0.99:
            self.forget(methods.BasicRecover(requeue=True))
        elif dice < 0.998:
            self.forget(methods.ChannelClose())
        else:
            raise ConnectionAbortedError("on purpose")

    def settled(self, octets, tag, *, multiple=False):
        self.out += octets
        self.tags = [one for one in self.tags if one > tag or (not multiple and one != tag)]

    def forget(self, method):
        self.tags, self.deaf = [], True
        self.say(method)

    def on_reply(self, payload):
        if payload[:4] == CHANNEL_CLOSE_OK:
            self.say(methods.ChannelOpen())
            self.start()
        if payload[:4] in (CHANNEL_CLOSE_OK, RECOVER_OK):
            self.deaf = False

    def start(self):
        """The channel is open."""


class Reader(Taker):
    """basic.consume."""

    def __init__(self, port, random, queue):
        super().__init__(port, random, queue)
        self.prefetch = random.choice((1, 2, 5, 20, 50))
        self.no_ack = random.random() < 0.05
        self.patience = random.random()
        self.start()

    def start(self):
        self.say(methods.BasicQos(prefetch_count=self.prefetch))
        self.say(methods.BasicConsume(queue=self.queue, no_ack=self.no_ack))

    def on_content(self, content):
        if self.no_ack or self.deaf:
            return
        self.tags.append(content.tag)
        while self.tags and (len(self.tags) >= self.prefetch or self.random.random() < self.patience):
            self.act()


class Getter(Taker):
    """basic.get, one after the other; a few are kept for a while."""

    waits = loose = False

    def wants_write(self):
        return bool(self.out) or not (self.waits or self.deaf)

    def fill(self):
        if not (self.waits or self.deaf):
            self.waits, self.loose = True, self.random.random() < 0.1
            self.say(methods.BasicGet(queue=self.queue, no_ack=self.loose))

    def on_content(self, content):
        self.waits = False
        if not self.loose:
            self.tags.append(content.tag)
            if len(self.tags) > 4 or self.random.random() < 0.5:
                self.act()

    def on_reply(self, payload):
        if payload[:4] == GET_EMPTY:
            self.waits = False
        super().on_reply(payload)
