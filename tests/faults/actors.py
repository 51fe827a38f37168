"""What clients do to a broker until it dies: publish, consume, get, purge, commit, declare.

Each notes what it was told, and has a ``random`` of its own, so that a seed says what it would do.
"""

import struct

from tests.faults.client import Actor
from tests.faults.ledger import GONE, MAYBE, Copy, Sizes, body_of, read_body
from tests.plane import harness

from brokerd.wire import methods

CONFIRM = (b"\0\x3c\0\x50", b"\0\x3c\0\x78")
QOS_OK = methods.BasicQosOk.INDEX.to_bytes(4)
GET_EMPTY = methods.BasicGetEmpty.INDEX.to_bytes(4)
PURGE_OK = methods.QueuePurgeOk.INDEX.to_bytes(4)
TX_COMMIT_OK, TX_ROLLBACK_OK = (method.INDEX.to_bytes(4) for method in (methods.TxCommitOk, methods.TxRollbackOk))


class Publisher(Actor):
    """Confirmed publishes, persistent and not, to queues and to a fanout exchange bound to several of them."""

    def __init__(self, port, random, stream, accounts, fanned, exchange):
        super().__init__(port)
        self.random, self.stream, self.accounts = random, stream, accounts
        self.fanned, self.exchange = fanned, exchange
        self.sizes = Sizes(random)
        self.window = random.choice((1, 10, 100, 1000))
        self.persistent = random.choice((0.0, 0.5, 1.0))
        self.sent = self.confirmed = 0
        self.copies = {}            # publish number: copies of what is not confirmed
        self.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)

    def wants_write(self):
        return bool(self.out) or self.sent - self.confirmed < self.window

    def fill(self):
        burst = min(self.window - (self.sent - self.confirmed), self.random.randrange(1, 60))
        for _ in range(burst):
            self.publish()

    def publish(self):
        self.sent += 1
        persistent = self.random.random() < self.persistent
        if self.random.random() < 0.1:
            exchange, key, targets = self.exchange, b"", self.fanned
        else:
            target = self.random.choice(self.accounts)
            exchange, key, targets = b"", target.name.encode(), [target]
        message = self.stream, self.sent
        copies = self.copies[self.sent] = []
        for account in targets:
            copy = account.copies[message] = Copy(persistent)
            copies.append(copy)
        self.out += harness.publish(1, body_of(*message, self.sizes.next()), key, exchange=exchange,
                                    persistent=persistent)

    def on_reply(self, payload):
        assert payload[:4] == CONFIRM[0], payload       # Nothing here may be nacked.
        tag, multiple = struct.unpack(">QB", payload[4:])
        assert self.confirmed < tag <= self.sent
        assert multiple or tag == self.confirmed + 1, "confirms out of order"
        for number in range(self.confirmed + 1, tag + 1):
            for copy in self.copies.pop(number):
                copy.confirmed = True
        self.confirmed = tag


class Taker(Actor):
    """What consumers and getters have in common: messages taken, and how they are settled."""

    def __init__(self, port, random, account):
        super().__init__(port)
        self.random, self.account = random, account
        self.unacked = {}           # tag: message
        self.acked = []             # messages whose ack was sent since the last question
        self.asked = []             # ... before each question not yet answered
        account.consumed = True

    def receive_message(self, content):
        message = read_body(content.body)
        self.account.receive(message, content.redelivered)
        if self.account.at_most_once:
            self.account.settled([message])
        return message

    def settle_some(self):
        """Ack or return what is unacked, or leave it."""
        dice = self.random.random()
        first, last = min(self.unacked), max(self.unacked)
        if dice < 0.5:
            tags = [tag for tag in self.unacked if tag <= last]
            self.ack(tags, harness.ack(1, last, True))
        elif dice < 0.7:
            self.ack([first], harness.ack(1, first))
        elif dice < 0.8:
            self.ack([last], harness.reject(1, last, requeue=False))
        elif dice < 0.85:
            self.out += harness.nack(1, last, multiple=True, requeue=True)
            self.unacked.clear()
        elif dice < 0.95:
            self.out += harness.reject(1, first, requeue=True)
            del self.unacked[first]
        if self.random.random() < 0.3:
            self.question()

    def ack(self, tags, octets):
        messages = [self.unacked.pop(tag) for tag in tags]
        self.account.settling(messages)
        self.acked += messages
        self.out += octets

    def question(self):
        """Something that is answered after all before it was done."""
        self.asked.append(self.acked)
        self.acked = []
        self.say(methods.BasicQos(prefetch_count=0, global_=True))

    def on_reply(self, payload):
        if payload[:4] == QOS_OK:
            self.account.settled(self.asked.pop(0))


class Consumer(Taker):
    """basic.consume with a prefetch, and acks of many kinds.  First deliveries must come in order."""

    def __init__(self, port, random, account):
        super().__init__(port, random, account)
        self.no_ack = account.at_most_once
        self.last = {}
        self.ask(methods.BasicQos(prefetch_count=random.choice((1, 5, 50, 500))), methods.BasicQosOk)
        self.say(methods.BasicConsume(queue=account.name, no_ack=self.no_ack))

    def on_content(self, content):
        stream, n = self.receive_message(content)
        if not content.redelivered:
            before = self.last.get(stream, 0)
            assert before < n, f"{self.account.name}: {(stream, n)} came after {before}"
            self.last[stream] = n
        if not self.no_ack:
            self.unacked[content.tag] = stream, n
            if self.random.random() < 0.2 or len(self.unacked) > 20:
                self.settle_some()


class Getter(Taker):
    """basic.get, one after the other."""

    def fill(self):
        if self.waits:
            return
        self.waits = True
        self.say(methods.BasicGet(queue=self.account.name, no_ack=self.account.at_most_once))

    waits = False

    def wants_write(self):
        return bool(self.out) or not self.waits

    def on_content(self, content):
        self.waits = False
        message = self.receive_message(content)
        if not self.account.at_most_once:
            self.unacked[content.tag] = message
            self.settle_some()

    def on_reply(self, payload):
        if payload[:4] == GET_EMPTY:
            self.waits = False
        super().on_reply(payload)


class Purger(Actor):
    """queue.purge now and then: with this chance, whenever the socket would take it."""

    def __init__(self, port, random, queue, chance):
        super().__init__(port)
        self.random, self.queue, self.chance = random, queue, chance
        self.waits = False

    def wants_write(self):
        return bool(self.out) or not self.waits

    def fill(self):
        if not self.waits and self.random.random() < self.chance:
            self.waits = True
            self.say(methods.QueuePurge(queue=self.queue))

    def on_reply(self, payload):
        assert payload[:4] == PURGE_OK, payload
        self.waits = False


class AccountedPurger(Purger):
    """Purges a queue that nobody consumes from, and notes in its account what must be gone, and what may be."""

    def __init__(self, port, random, account, chance):
        super().__init__(port, random, account.name, chance)
        self.account = account
        self.before = []            # what was confirmed when the purge under way was sent

    def fill(self):
        if self.waits:
            return
        super().fill()
        if self.waits:
            self.before = [copy for copy in self.account.copies.values() if copy.confirmed]
            self.maybe()

    def on_reply(self, payload):
        super().on_reply(payload)
        for copy in self.before:
            copy.settled = GONE
        # What was published while the purge was under way may have been before or after it.
        self.maybe()

    def maybe(self):
        for copy in self.account.copies.values():
            copy.settled = max(copy.settled, MAYBE)

    def close(self):
        super().close()
        if self.waits:      # Not answered: when it was done, if it was, what came until now may be gone.
            self.maybe()


class Committer(Actor):
    """Transactions, one after the other; some are rolled back.  A subclass says what is published in them."""

    def __init__(self, port, random):
        super().__init__(port)
        self.random = random
        self.batch = None           # the transaction under way
        self.commits = False
        self.ask(methods.TxSelect(), methods.TxSelectOk)

    def wants_write(self):
        return bool(self.out) or self.batch is None

    def fill(self):
        if self.batch is None:
            self.batch = self.publish_batch()
            self.commits = self.random.random() < 0.9
            self.say(methods.TxCommit() if self.commits else methods.TxRollback())

    def on_reply(self, payload):
        assert payload[:4] in (TX_COMMIT_OK, TX_ROLLBACK_OK), payload
        self.note_end(self.batch)
        self.batch = None

    def publish_batch(self):
        """Write the publishes of a transaction.  Returns what note_end() is to know it by."""
        raise NotImplementedError

    def note_end(self, batch):
        """The transaction was answered: it was committed if ``commits``, or rolled back."""
        raise NotImplementedError


class Declarer(Actor):
    """Durable queues, exchanges and bindings made and unmade, one at a time.

    ``known``: (kind, name) -> True (there), False (not), None (asked for when the broker died).
    """

    def __init__(self, port, random, known, exchange, sink):
        super().__init__(port)
        self.random, self.known = random, known
        self.exchange, self.sink = exchange, sink
        self.under_way = None

    def wants_write(self):
        return bool(self.out) or self.under_way is None

    def fill(self):
        if self.under_way is not None:
            return
        kind = self.random.choice(("queue", "exchange", "binding"))
        name = f"{kind}-{self.random.randrange(40)}"
        there = not self.known.get((kind, name), False)
        if kind == "queue":
            method = methods.QueueDeclare(queue=name, durable=True) if there else methods.QueueDelete(queue=name)
        elif kind == "exchange":
            method = (methods.ExchangeDeclare(exchange=name, type="topic", durable=True) if there
                      else methods.ExchangeDelete(exchange=name))
        else:
            verb = methods.QueueBind if there else methods.QueueUnbind
            method = verb(queue=self.sink, exchange=self.exchange, routing_key=name)
        self.under_way = kind, name, there
        self.known[kind, name] = None
        self.say(method)

    def on_reply(self, payload):
        kind, name, there = self.under_way
        self.known[kind, name] = there
        self.under_way = None
