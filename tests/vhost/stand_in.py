"""A vhost over queues that are lists, with a clock, timers and group commit worked by hand."""

from brokerd.exchanges import DefaultExchange, DirectExchange, FanoutExchange
from brokerd.queues.rules import Rules
from brokerd.wire.properties import Properties, decode_header, encode_header

START_MS = 1_700_000_000_000


class Clock:
    """Time and timers: ``advance`` runs what is due, in order."""

    def __init__(self):
        self.ns = START_MS * 1_000_000
        self.timers = []

    def __call__(self):
        return self.ns

    @property
    def ms(self):
        return self.ns // 1_000_000

    def call_at(self, when_ns, callback):
        timer = Timer(self, when_ns, callback)
        self.timers.append(timer)
        return timer

    def advance(self, ms):
        end = self.ns + ms * 1_000_000
        while due := [timer for timer in self.timers if timer.when_ns <= end]:
            first = min(due, key=lambda timer: timer.when_ns)
            self.timers.remove(first)
            self.ns = max(self.ns, first.when_ns)
            first.callback()
        self.ns = end

    def jump(self, ms):
        """The clock is set: timers, which run by another, do not move with it."""
        self.ns += ms * 1_000_000
        for timer in self.timers:
            timer.when_ns += ms * 1_000_000


class Timer:
    def __init__(self, clock, when_ns, callback):
        self.clock, self.when_ns, self.callback = clock, when_ns, callback

    def cancel(self):
        if self in self.clock.timers:
            self.clock.timers.remove(self)


class Commit:
    """``end()`` is the end of the sync all wait for; ``at_once``: nothing is synced."""

    def __init__(self, at_once=False):
        self.at_once = at_once
        self.waiting = []
        self.logs = []

    def wait(self, callback, log=None):
        self.logs.append(log)
        if self.at_once:
            callback()
        else:
            self.waiting.append(callback)

    def end(self):
        waiting, self.waiting = self.waiting, []
        for callback in waiting:
            callback()


class Core:
    def __init__(self, clock):
        self.clock = clock
        self.full = False
        self.turns = 0
        self.puts = []  # sync of each

    def put(self, queues, exchange, routing_key, properties, body, *, connection=0, channel=0, publish_seq=0,
            sync=False):
        if self.full:
            raise OSError(28, "No space left on device")
        self.puts.append(sync)
        refused = 0
        for queue in queues:
            if queue.refuses:
                refused += 1
            else:
                queue.append(exchange, routing_key, properties, body)
        return refused

    def turn(self):
        self.turns += 1


class Queue:
    """What of queues.Queue is used."""

    def __init__(self, core, name, durable=True):
        self.core, self.name, self.durable = core, name, durable
        self.rows = {}
        self.next_seq = 1
        self.bindings = []
        self.owner = None
        self.deleted = self.refuses = False
        self.rules = Rules()
        self.done = []  # dead_done

    def append(self, exchange, routing_key, properties, body):
        self.rows[self.next_seq] = (self.next_seq, self.core.clock(), False, exchange, routing_key, properties, body)
        self.next_seq += 1

    @property
    def ready(self):
        return len(self.rows)

    @property
    def bodies(self):
        return [row[6] for row in self.rows.values()]

    @property
    def headers(self):
        """Of each message."""
        return [decode_header(b"\0\x3c" + bytes(10) + row[5])[1].headers for row in self.rows.values()]

    def browse(self, start_seq, count):
        return [row for seq, row in sorted(self.rows.items()) if seq >= start_seq][:count]

    def remove(self, seq):
        return self.rows.pop(seq, None)

    def dead_done(self, seq):
        self.done.append(seq)


class VHost:
    def __init__(self, clock):
        self.name = "/"
        self.core = Core(clock)
        self.queues = {}
        self.exchanges = {"": DefaultExchange(self.queues)}
        self.policies = None
        self.log = object()

    def queue(self, name, **properties):
        queue = self.queues[name] = Queue(self.core, name, **properties)
        return queue

    def add_queue(self, name, *, durable, auto_delete, arguments):
        return self.queue(name, durable=durable)

    def delete_queue(self, queue):
        del self.queues[queue.name]
        queue.deleted = True

    def exchange(self, name, cls=DirectExchange, **properties):
        exchange = self.exchanges[name] = cls(name, **properties)
        return exchange

    def fanout(self, name, *queues):
        """A fanout exchange to new queues of these names."""
        exchange = self.exchange(name, FanoutExchange)
        for queue in queues:
            exchange.bind(self.queue(queue), "")
        return exchange


def octets(headers=None, **properties):
    """Stored properties."""
    return encode_header(0, Properties(headers=headers, **properties))[12:]
