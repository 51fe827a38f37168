"""A vhost over queues that are lists, with a clock, timers and group commit worked by hand."""

from tests.session.harness import Client, Node

from brokerd.exchanges import DefaultExchange, DirectExchange, FanoutExchange
from brokerd.queues.rules import Rules
from brokerd.store.disk import Disk
from brokerd.store.recovery import recover
from brokerd.vhost.delays import Delays
from brokerd.vhost.features import DeadLettersOnDemand, Services
from brokerd.wire import methods
from brokerd.wire.frames import body_frames, header_frame
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
            sync=False, keys=None):
        if self.full:
            raise OSError(28, "No space left on device")
        self.puts.append(sync)
        stored = tuple([queue for queue in queues if not queue.refuses])
        for queue in stored:
            queue.append(exchange, routing_key, properties, body)
        return stored

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
        self.deduplication = None
        self.done = []  # settle_aside

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

    def letter_headers(self, seq):
        return b""

    def settle_aside(self, seq):
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


class Real:
    """The same over the real data plane, with a client; ``restart`` is kill -9 and another start."""

    def __init__(self, directory, *, sync=True):
        self.directory = directory
        self.sync = sync
        self.clock = Clock()
        self.start()

    def start(self):
        self.clock.timers.clear()
        self.commit = Commit(at_once=not self.sync)
        self.node = Node(self.directory)
        self.node.core.clock = self.clock
        self.vhost = self.node.vhost
        services = Services(self.clock, self.commit.wait, self.clock.call_at)
        self.letters = self.vhost.dead_letters = DeadLettersOnDemand(self.vhost, services)
        self.delays = self.vhost.delays = Delays(self.vhost, epoch_ns=self.clock, wait=self.commit.wait)
        self.client = Client(self.node).open()
        self.vhost.accesses["guest"] = self.client.connection.access

    def restart(self):
        known = [(queue.name, queue.arguments) for queue in self.vhost.queues.values()]
        exchanges = dict(self.vhost.exchanges)
        self.start()
        for name, arguments in known:
            queue = self.vhost._make_queue(name, durable=True, auto_delete=False, arguments=arguments)
            queue.dead_letters = self.letters
            recover(queue, Disk(), False, print)
            queue.apply_rules(None)
        for name, exchange in exchanges.items():
            if name.startswith("x"):
                again = self.vhost.exchanges[name] = type(exchange)(name, durable=True, arguments=exchange.arguments)
                for binding in exchange.bindings():
                    again.bind(self.vhost.queues[binding.destination.name], binding.routing_key)
        self.delays.open()
        self.node.core.turn()

    def queue(self, name, **arguments):
        arguments = {key.replace("_", "-"): value for key, value in arguments.items()}
        queue = self.vhost.add_queue(name, durable=True, auto_delete=False, arguments=arguments)
        queue.dead_letters = self.letters
        queue.apply_rules(None)
        return queue

    def exchange(self, name, cls, **arguments):
        exchange = self.vhost.exchanges[name] = cls(name, durable=True, arguments=arguments)
        return exchange

    def publish(self, body, headers=None, *, exchange="", key="", **properties):
        header = encode_header(len(body), Properties(headers=headers, **properties))
        self.client.raw(methods.BasicPublish(exchange=exchange, routing_key=key).frame(1) + header_frame(1, header)
                        + body_frames(1, body, 4096))

    def reject(self, name):
        """Take the first message and reject it."""
        self.client.send((1, methods.BasicGet(queue=name)))
        self.tag = getattr(self, "tag", 0) + 1
        self.client.send((1, methods.BasicReject(delivery_tag=self.tag, requeue=False)))

    def bodies(self, name):
        return [row[6] for row in self.vhost.queues[name].browse(0, 1 << 20)]

    def headers(self, name):
        rows = self.vhost.queues[name].browse(0, 1 << 20)
        return [decode_header(b"\0\x3c" + bytes(10) + row[5])[1].headers for row in rows]

    def advance(self, ms):
        self.pass_time(ms)
        self.commit.end()
        self.node.core.turn()

    def pass_time(self, ms):
        """As ``advance``, and no sync ends."""
        self.clock.advance(ms)
        for _ in range(100):    # What is due takes several turns, and each has its time.
            self.node.core.expire()
            self.clock.ns += 1
