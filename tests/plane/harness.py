"""A broker's data plane without a broker: connections that are fed octets and whose output is read back as frames.

``Bench`` holds a Core and closes all that was made on it.  Nothing here knows what the plane should do; the few
replies that only the session would write are not written.
"""

import os
import struct

from brokerd import plane

CE = b"\xce"
HEADER = b"AMQP\0\0\x09\x01"
ACK, REJECT, NACK, PUBLISH = 80, 90, 120, 40
CHECKED_MESSAGES_MAX = 2000      # A larger queue is not counted after each chunk.
PERSISTENT = b"\x10\x00\x02"
TRANSIENT = b"\x00\x00"


def frame(kind, channel, payload):
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + CE


def shortstr(octets):
    return bytes([len(octets)]) + octets


def publish_method(key, exchange=b"", bits=0):
    return struct.pack(">HHH", 60, PUBLISH, 0) + shortstr(exchange) + shortstr(key) + bytes([bits])


def content_header(size, properties=TRANSIENT, class_id=60):
    return struct.pack(">HHQ", class_id, 0, size) + properties


def publish(channel, body, key=b"q", *, exchange=b"", mandatory=False, persistent=False, properties=None,
            frame_max=131072, piece=None):
    """basic.publish and its content; body frames of `piece` octets, or as large as may be."""
    if properties is None:
        properties = PERSISTENT if persistent else TRANSIENT
    piece = piece or frame_max - 8
    out = frame(1, channel, publish_method(key, exchange, int(mandatory)))
    out += frame(2, channel, content_header(len(body), properties))
    return out + b"".join(frame(3, channel, body[at:at + piece]) for at in range(0, len(body), piece))


def ack(channel, tag, multiple=False):
    return frame(1, channel, struct.pack(">HHQB", 60, ACK, tag, multiple))


def nack(channel, tag, multiple=False, requeue=True):
    return frame(1, channel, struct.pack(">HHQB", 60, NACK, tag, multiple | requeue << 1))


def reject(channel, tag, requeue=True):
    return frame(1, channel, struct.pack(">HHQB", 60, REJECT, tag, requeue))


def cut(octets):
    """(kind, channel, payload) of each whole frame; nothing else may be in `octets`."""
    frames, at = [], 0
    while at < len(octets):
        kind, channel, size = struct.unpack_from(">BHI", octets, at)
        payload = octets[at + 7:at + 7 + size]
        assert len(payload) == size
        assert octets[at + 7 + size:at + 8 + size] == CE, (kind, channel, size)
        frames.append((kind, channel, payload))
        at += size + 8
    return frames


class Deliver:
    """basic.deliver, basic.get-ok or basic.return, with its content."""

    def __init__(self, channel, payload):
        self.channel = channel
        self.method = int.from_bytes(payload[2:4])
        at, self.tag, self.redelivered, self.consumer, self.remaining, self.reply = 4, 0, False, None, None, None
        if self.method == 60:
            self.consumer, at = take_shortstr(payload, at)
        if self.method == 50:
            self.reply = int.from_bytes(payload[4:6])
            self.reply_text, at = take_shortstr(payload, 6)
        else:
            self.tag, self.redelivered = struct.unpack_from(">QB", payload, at)
            self.redelivered = bool(self.redelivered)
            at += 9
        self.exchange, at = take_shortstr(payload, at)
        self.key, at = take_shortstr(payload, at)
        if self.method == 71:
            self.remaining = int.from_bytes(payload[at:at + 4])
            at += 4
        assert at == len(payload)
        self.size = self.properties = None
        self.body = b""
        self.parts, self.pieces, self.octets = [], [], 0

    def add(self, payload):
        """A body frame; `body` is there with the last one."""
        self.parts.append(payload)
        self.pieces.append(len(payload))
        self.octets += len(payload)

    def __repr__(self):
        return f"<{self.method} tag={self.tag} {self.body[:20]!r} redelivered={self.redelivered}>"


def take_shortstr(octets, at):
    end = at + 1 + octets[at]
    return octets[at + 1:end], end


class Transport:
    def __init__(self):
        self.octets = b""
        self.reading = True
        self.on_write = None
        self.closing = False        # It drops what it is given, as uvloop's do.

    def is_closing(self):
        return self.closing

    def write(self, octets):
        if not self.closing:
            self.octets += octets
        if self.on_write is not None:
            self.on_write()

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True


class Queue(plane.Queue):
    """Notes what died in it; ``keeps`` and ``after_death`` say what becomes of that."""

    keeps = False
    after_death = None

    def make_directory(self):
        os.makedirs(self.directory, exist_ok=True)

    def on_dead(self, reason, seq, exchange, routing_key, properties, body, count):
        self.dead = [*getattr(self, "dead", ()), (reason, seq, exchange, routing_key, properties, body, count)]
        if self.after_death is not None:
            self.after_death(exchange, routing_key, properties, body)
        return not self.keeps

    @property
    def died(self):
        """(reason, body) of what died."""
        return [(one[0], one[5]) for one in getattr(self, "dead", ())]


class Connection(plane.Connection):
    """Records what is asked of it; errors stop it as the session would."""

    bench = None

    def __init__(self, core):
        super().__init__(core)
        self.out = Transport()
        self.attach(self.out, -1)
        self.methods, self.errors, self.headers, self.told_blocked = [], [], [], 0

    def feed(self, octets):
        """Work the octets; then all counts of all queues agree with what they count."""
        super().feed(octets)
        for queue in self.bench.queues.values() if self.bench is not None else ():
            if queue.ready + queue.unacked + queue.aside < CHECKED_MESSAGES_MAX:
                queue.check()

    def on_method(self, channel, payload):
        self.methods.append((channel, payload))

    def on_protocol_header(self, octets):
        self.headers.append(octets)

    def on_publisher_blocked(self):
        self.told_blocked += 1

    def on_error(self, channel, error, class_id, method_id):
        self.errors.append((channel, error, class_id, method_id))
        if len(self.errors) > 100:
            self.detach()               # whoever reports the same octets for ever shall fail, not hang
            return
        opened = (self.channels or {}).get(channel)
        if getattr(error, "hard", True) or opened is None:
            self.discard = True
        else:
            opened.closing = True

    @property
    def fault(self):
        """(channel, reply code, hard, text, class-id, method-id) of the only error."""
        assert len(self.errors) == 1, self.errors
        channel, error, class_id, method_id = self.errors[0]
        return channel, error.reply_code, error.hard, str(error), class_id, method_id

    def frames(self):
        """Frames written since the last call."""
        octets, self.out.octets = self.out.octets, b""
        return cut(octets)

    def said(self):
        """The same put together: Deliver objects, and ("ack", channel, tag, multiple) for confirms."""
        said, open_contents = [], {}
        for kind, channel, payload in self.frames():
            if kind == 1 and payload[:2] == b"\0\x3c" and payload[3] in (60, 71, 50):
                assert channel not in open_contents
                open_contents[channel] = Deliver(channel, payload)
                said.append(open_contents[channel])
            elif kind == 1 and payload[:4] == struct.pack(">HH", 60, ACK):
                said.append(("ack", channel, *struct.unpack(">QB", payload[4:])))
            elif kind == 1 and payload[:4] == struct.pack(">HH", 60, 120):
                said.append(("nack", channel, *struct.unpack(">QB", payload[4:])))
            elif kind == 2:
                content = open_contents[channel]
                assert payload[:4] == b"\0\x3c\0\0"
                content.size, content.properties = int.from_bytes(payload[4:12]), payload[12:]
            elif kind == 3:
                open_contents[channel].add(payload)
            else:
                said.append((kind, channel, payload))
            content = open_contents.get(channel)
            if content is not None and content.size == content.octets:
                open_contents.pop(channel).body = b"".join(content.parts)
        assert not open_contents
        return said

    def delivered(self):
        """The deliveries alone; that there was nothing else is part of the bargain."""
        said = self.said()
        assert all(isinstance(one, Deliver) for one in said), said
        return said

    def bodies(self):
        return [one.body for one in self.delivered()]


class Bench:
    """One Core, what was made on it, and what it asked for."""

    def __init__(self, directory, **options):
        self.directory = str(directory)
        self.scheduled = self.sync_requests = 0
        self.deadlines = []
        self.storage_errors, self.damages = [], []
        options.setdefault("segment_octets", 1 << 16)
        self.core = plane.Core(schedule=self._schedule, request_sync=self._request_sync,
                               storage_failed=self.storage_errors.append, damaged=self._damaged,
                               deadline=self.deadlines.append, **options)
        self.queues, self.connections, self.resolved, self.tallies = {}, [], [], {}
        self.cacheable = True
        self.participants = ()
        self.bound = {}                     # (exchange, key): names of queues, instead of the queue named as the key
        self.routes = plane.Routes(self.core, self.resolve)

    def _schedule(self):
        self.scheduled += 1

    def _request_sync(self):
        self.sync_requests += 1

    def _damaged(self, *what):
        self.damages.append(what)

    def resolve(self, exchange, key, header, channel):
        self.resolved.append((exchange, key, header))
        names = self.bound.get((exchange, key), (key,))
        return plane.Answer(tuple(self.queues[name] for name in names if name in self.queues),
                            tally=self.tallies.get(exchange), cacheable=self.cacheable,
                            participants=self.participants)

    def queue(self, name=b"q", durable=True, folder=None, max_priority=0, **rules):
        queue = Queue(self.core, os.path.join(self.directory, folder or name.decode()), durable=durable,
                      max_priority=max_priority)
        if rules:
            queue.set_rules(**rules)
        self.queues[name] = queue
        self.routes.clear()
        return queue

    def recovered(self, name=b"q", *, durable=True, suspect=False, folder=None, findings=None, **options):
        """A queue with what its directory holds, by the broker's own recovery."""
        from brokerd.store.disk import Disk
        from brokerd.store.recovery import recover

        queue = self.queue(name, durable=durable, folder=folder, **options)
        recover(queue, Disk(), suspect, (findings if findings is not None else []).append)
        return queue

    def connection(self, *channels, greeted=True, frame_max=131072):
        connection = Connection(self.core)
        connection.bench = self
        connection.routes = self.routes
        connection.frame_max = frame_max
        connection.number = len(self.connections) + 1
        self.connections.append(connection)
        if greeted:
            connection.feed(HEADER)
        for number in channels:
            plane.Channel(connection, number)
        return connection

    def turns(self):
        """Turns until nothing is left over."""
        while True:
            before = self.scheduled
            self.core.turn()
            if self.scheduled == before:
                return

    def at(self, ms):
        """It is so many milliseconds after the epoch; what is due by then is done."""
        self.core.clock = lambda: ms * 1_000_000
        self.core.expire()
        self.turns()

    def begin_sync(self):
        """The paths that are to be synced."""
        paths = []
        for fd, path in self.core.begin_sync(1 << 20):
            os.close(fd)
            paths.append(path)
        return paths

    def sync(self):
        """A whole sync; the paths that were in it."""
        paths = self.begin_sync()
        self.core.end_sync()
        self.core.turn()
        return paths

    def collect_garbage(self):
        paths = self.core.take_garbage()
        for path in paths:
            try:
                os.unlink(path)
            except FileNotFoundError:
                pass
        return paths

    def close(self):
        for connection in self.connections:
            connection.detach()
        for queue in self.queues.values():
            queue.close()
        self.queues = {}


def consume(channel, queue, tag=b"c", *, no_ack=False, exclusive=False, priority=0, **more):
    return channel.consume(queue, tag, no_ack=no_ack, exclusive=exclusive, priority=priority, arguments={}, **more)


def read(bench, queue):
    """All that is ready, by a fresh connection."""
    reader = bench.connection(1)
    while reader.channels[1].get(queue, True):
        pass
    bench.turns()
    got = reader.delivered()
    reader.detach()
    return got
