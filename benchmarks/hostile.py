"""Clients that mean no good, many in one process: siege.py starts some of these processes.

    PYTHONPATH=src python benchmarks/hostile.py --port 5672 --first 0 --count 2000 --rate 200

Each client is one socket and one generator (its *kind*).  One `next()` is one operation: it sends what was prepared,
and waits for nothing.  A generator that ends hangs up; so does a broker that has had enough.  Either way the client
connects again when its turn comes.  All clients of a process take turns, at most `--rate` operations a second.  On
SIGTERM all of them go, half of them with a reset, and the process prints what they did as one JSON object.

Nothing here reads an answer, except where a kind needs one.  Client N is of kind N modulo the number of kinds.
"""

import argparse
import contextlib
import errno
import itertools
import json
import random
import select
import signal
import socket
import ssl
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from brokerd.cli.perfclient import BODY, HEADER, frame, longstr, method, shortstr, table

FANOUT, FANOUT_QUEUES = "siege.fanout", 1000  # siege.py makes this exchange and its queues
STORM_QUEUES = 20  # for each client of the kind declares
BODY_MOST = 131064
KIB = 1024
LATE_SECONDS = 1.0  # A process that is later than this forgets what it did not do.
READ_OCTETS = 1 << 18

Steps = Iterator[bool]  # False: nothing was done, and the turn goes to the next client


# --- octets

def hello(password: str = "guest", user: str = "guest", heartbeat: int = 0) -> bytes:
    """All that a client says up to its first open channel."""
    login = b"\0" + user.encode() + b"\0" + password.encode()
    return (b"AMQP\0\0\x09\x01"
            + method(0, (10, 11), table({"product": "siege"}) + shortstr("PLAIN") + longstr(login) + shortstr("en_US"))
            + method(0, (10, 31), struct.pack(">HIH", 2047, 131072, heartbeat))
            + method(0, (10, 40), shortstr("/") + b"\0\0") + method(1, (20, 10), b"\0"))


def properties(*, headers: dict[str, object] | None = None, priority: int | None = None, reply_to: str = "",
               persistent: bool = False) -> bytes:  # fmt: skip
    """The flags of a content header, and its fields."""
    flags, fields = 0, b""
    if headers is not None:
        flags, fields = flags | 1 << 13, fields + table(headers)
    if persistent:
        flags, fields = flags | 1 << 12, fields + b"\2"
    if priority is not None:
        flags, fields = flags | 1 << 11, fields + bytes([priority])
    if reply_to:
        flags, fields = flags | 1 << 9, fields + shortstr(reply_to)
    return struct.pack(">H", flags) + fields


def begin(exchange: str, key: str, octets: int, fields: bytes = b"\0\0") -> bytes:
    """The method and the header of a message."""
    return (method(1, (60, 40), b"\0\0" + shortstr(exchange) + shortstr(key) + b"\0")
            + frame(HEADER, 1, struct.pack(">HHQ", 60, 0, octets) + fields))


def publish(exchange: str, key: str, octets: int = 16, fields: bytes = b"\0\0") -> bytes:
    """A whole message."""
    parts = [frame(BODY, 1, bytes(min(BODY_MOST, octets - at))) for at in range(0, octets, BODY_MOST)]
    return begin(exchange, key, octets, fields) + b"".join(parts)


def declare(queue: str, *, exclusive: bool = True, durable: bool = False, **arguments: Any) -> bytes:
    """queue.declare without an answer; x_max_length=1 is the argument x-max-length."""
    asked = {name.replace("_", "-"): value for name, value in arguments.items()}
    bits = durable << 1 | exclusive << 2 | 16
    return method(1, (50, 10), b"\0\0" + shortstr(queue) + bytes([bits]) + table(asked))


def declare_exchange(name: str, kind: str) -> bytes:
    """exchange.declare, auto-delete, without an answer."""
    return method(1, (40, 10), b"\0\0" + shortstr(name) + shortstr(kind) + bytes([4 | 16]) + table({}))


def bind(queue: str, exchange: str, key: str, arguments: dict[str, object] | None = None) -> bytes:
    """queue.bind without an answer."""
    return method(1, (50, 20), b"\0\0" + shortstr(queue) + shortstr(exchange) + shortstr(key) + b"\1"
                  + table(arguments or {}))


def unbind(queue: str, exchange: str, key: str) -> bytes:
    """queue.unbind, which always has an answer."""
    return method(1, (50, 50), b"\0\0" + shortstr(queue) + shortstr(exchange) + shortstr(key) + table({}))


def consume(queue: str, tag: str, *, no_ack: bool) -> bytes:
    """basic.consume without an answer."""
    return method(1, (60, 20), b"\0\0" + shortstr(queue) + shortstr(tag) + bytes([no_ack << 1 | 8]) + table({}))


def get(queue: str) -> bytes:
    """basic.get with an ack to come."""
    return method(1, (60, 70), b"\0\0" + shortstr(queue) + b"\0")


def reject(tag: int) -> bytes:
    """basic.reject with requeue."""
    return method(1, (60, 90), struct.pack(">QB", tag, 1))


# --- a client

class Peer:
    """One hostile client.  ``input`` has what came, while ``keeps``."""

    __slots__ = ("_address", "_events", "_ports", "counts", "input", "keeps", "kind", "number", "out", "place", "poll",
                 "reads", "shared", "sock", "steps")

    def __init__(self, number: int, kinds: list[str], ports: tuple[int, int] = (0, 0),
                 poll: select.epoll | None = None, shared: dict[str, list[str]] | None = None) -> None:
        """``ports``: for AMQP, and for AMQP over TLS; ``shared``: what the clients of a process know of each other."""
        names = kinds
        self.number, self._ports = number, ports
        self.poll = poll or select.epoll()
        self.shared = shared or {}
        self.place = number // len(names)  # among those of its kind
        self.kind = names[number % len(names)]
        # An address for each kind: guesses of passwords must not lock others out, and ports must last.
        self._address = f"127.0.{1 + number % len(names)}.{1 + self.place % 250}"
        self.sock: socket.socket | None = None
        self.counts: Counter[str] = Counter()
        self._reset()

    def _reset(self) -> None:
        self.out, self.input = b"", b""
        self.keeps, self.reads, self._events = False, True, 0
        self.steps: Steps = iter(())

    @property
    def name(self) -> str:
        """A name for what this client makes."""
        return f"siege.{self.kind}.{self.number}"

    def turn(self) -> bool:
        """Do one operation; False: no operation was left."""
        if self.sock is None:
            self._connect()
            return True
        if self.out:
            self.counts["the broker does not read"] += 1
            return False
        try:
            done = next(self.steps)
        except StopIteration:
            self.hang_up(reset=self.number % 2 == 0)
            done = True
        self.counts["operations"] += done
        return done

    def _connect(self) -> None:
        self._reset()
        sock = self.sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setsockopt(socket.IPPROTO_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT: connect() chooses the port
        sock.bind((self._address, 0))
        port = self._ports[self.kind == "tls"]
        if sock.connect_ex(("127.0.0.1", port)) not in (0, errno.EINPROGRESS):
            sock.close()
            self.sock = None
            self.counts["cannot connect"] += 1
            return
        self.counts["connections"] += 1
        self.poll.register(sock, 0)
        self.steps = KINDS[self.kind](self)
        next(self.steps, None)
        self.watch()

    def send(self, octets: bytes) -> None:
        """Send; what the socket does not take goes later."""
        self.out += octets
        self.flush()

    def flush(self) -> None:
        """Send what waits."""
        try:
            while self.out and self.sock is not None:
                self.out = self.out[self.sock.send(self.out):]
        except BlockingIOError:
            pass
        except OSError:
            self.hang_up()
        self.watch()

    def stop_reading(self) -> None:
        """Read no more of what the broker sends."""
        self.reads = False
        self.watch()

    def watch(self) -> None:
        """Tell epoll what this client waits for."""
        wanted = select.EPOLLRDHUP | (select.EPOLLIN if self.reads else 0) | (select.EPOLLOUT if self.out else 0)
        if self.sock is not None and wanted != self._events:
            self._events = wanted
            self.poll.modify(self.sock, wanted)

    def happened(self, events: int) -> None:
        """Epoll has something for this client."""
        if events & select.EPOLLOUT:
            self.flush()
        if events & select.EPOLLIN and self.reads and self.sock is not None:
            try:
                octets = self.sock.recv(READ_OCTETS)
            except BlockingIOError:
                return
            except OSError:
                octets = b""
            if self.keeps:
                self.input = (self.input + octets)[-READ_OCTETS:]
            if octets:
                return
        if events & (select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR) and self.sock is not None:
            self.counts["ended by the broker"] += 1
            self.hang_up()

    def hang_up(self, *, reset: bool = False) -> None:
        """Close the socket without a word."""
        sock, self.sock = self.sock, None
        if sock is None:
            return
        with contextlib.suppress(OSError):
            self.poll.unregister(sock)
            if reset:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()


# --- kinds: each generator's first step comes with the connection

def idle() -> Steps:
    """Nothing, for ever."""
    while True:
        yield False


def silent(p: Peer) -> Steps:
    """Connects, and says nothing."""
    yield from idle()


def half_greeting(p: Peer) -> Steps:
    """Sends half a protocol header."""
    p.send(b"AMQP\0")
    yield from idle()


def logins(p: Peer) -> Steps:
    """Guesses passwords."""
    p.send(hello(password=f"guess {random.random()}", user=("guest", "admin", f"user {p.number}")[p.number // 7 % 3]))
    yield from idle()


def octet_by_octet(p: Peer) -> Steps:
    """Logs in and publishes, one octet at a time."""
    p.send(hello() + declare(p.name, x_max_length=10))
    yield True
    for octet in itertools.cycle(publish("", p.name)):
        p.send(bytes([octet]))
        yield True


def unfinished(p: Peer) -> Steps:
    """Announces 100 MiB, and sends 64 KiB of it each time, to some 8 MiB."""
    p.send(hello() + begin("", p.name, 100 * KIB * KIB))
    part = frame(BODY, 1, bytes(64 * KIB))
    for _ in range(128):
        yield True
        p.send(part)
    yield from idle()


def unread_deliveries(p: Peer) -> Steps:
    """Consumes without acks, publishes what it gets, and does not read."""
    p.stop_reading()
    p.send(hello() + declare(p.name, x_max_length=100) + consume(p.name, "c", no_ack=True))
    while True:
        p.send(publish("", p.name, 8 * KIB) * 16)
        yield True


def unread_gets(p: Peer) -> Steps:
    """Gets 64 KiB again and again, and does not read."""
    p.stop_reading()
    p.send(hello() + declare(p.name, x_max_length=10) + publish("", p.name, 64 * KIB))
    tags = itertools.count(1)
    while True:
        yield True
        p.send(b"".join(get(p.name) + reject(next(tags)) for _ in range(20)))


def unread_replies(p: Peer) -> Steps:
    """One of two waits for direct replies and does not read them; the other sends replies to all that wait."""
    names = p.shared["replies"]
    if p.place % 2:
        p.send(hello())
        while True:
            yield True
            p.send(b"".join(publish("", name, 8 * KIB) for name in random.sample(names, min(len(names), 8))))
    p.keeps = True
    p.send(hello() + declare(p.name) + consume("amq.rabbitmq.reply-to", "c", no_ack=True)
           + publish("", p.name, 1, properties(reply_to="amq.rabbitmq.reply-to")) + get(p.name))
    yield True
    start = p.input.find(b"amq.rabbitmq.reply-to.")
    if start > 0:
        names.append(p.input[start:start + p.input[start - 1]].decode())
        del names[:-200]
    p.keeps, p.input = False, b""
    p.stop_reading()
    for _ in range(30):
        yield True
    p.hang_up(reset=True)


def declares(p: Peer) -> Steps:
    """Declares queues, every second one durable, and deletes them."""
    p.send(hello())
    names = [f"{p.name}.{number}" for number in range(STORM_QUEUES)]
    octets = b"".join(declare(name, exclusive=False, durable=number % 2 == 0) for number, name in enumerate(names))
    octets += b"".join(method(1, (50, 40), b"\0\0" + shortstr(name) + b"\4") for name in names)
    while True:
        yield True
        p.send(octets)


def binds(p: Peer) -> Steps:
    """Binds many patterns to a topic exchange, publishes a key of many words, and unbinds them."""
    p.send(hello() + declare(p.name, x_max_length=10) + declare_exchange(p.name, "topic"))
    patterns = [".".join("#*a"[number // 3 ** at % 3] for at in range(5)) for number in range(0, 3 ** 5, 5)]
    octets = b"".join(bind(p.name, p.name, pattern) for pattern in (*patterns, "keep"))
    octets += publish(p.name, ".".join("a" * 60))
    octets += b"".join(unbind(p.name, p.name, pattern) for pattern in patterns)
    while True:
        yield True
        p.send(octets)


def consumers(p: Peer) -> Steps:
    """Starts consumers and cancels them."""
    p.send(hello() + declare(p.name, x_max_length=10) + publish("", p.name) * 10)
    tags = [str(number) for number in range(50)]
    octets = b"".join(consume(p.name, tag, no_ack=False) for tag in tags)
    octets += b"".join(method(1, (60, 30), shortstr(tag) + b"\1") for tag in tags)
    octets += method(1, (60, 110), b"\1")
    while True:
        yield True
        p.send(octets)


def channels(p: Peer) -> Steps:
    """Opens channels and closes them."""
    p.send(hello())
    close = struct.pack(">H", 200) + shortstr("") + bytes(4)
    octets = b"".join(method(number, (20, 10), b"\0") for number in range(2, 102))
    octets += b"".join(method(number, (20, 40), close) for number in range(2, 102))
    while True:
        yield True
        p.send(octets)


def headers(p: Peer) -> Steps:
    """Publishes with large tables, and with deep ones, to a headers exchange that asks for other headers each time."""
    p.send(hello() + declare(p.name, x_max_length=10) + declare_exchange(p.name, "headers"))
    deep: dict[str, object] = {}
    for _ in range(60):
        deep = {"deeper": deep}
    for turn in itertools.count():
        large: dict[str, object] = {f"header {number} {turn}": "x" * 30 for number in range(1500)}
        p.send(bind(p.name, p.name, "", {"x-match": "any", f"header 7 {turn}": "x" * 30})
               + publish(p.name, "", fields=properties(headers=large))
               + publish(p.name, "", fields=properties(headers=deep)))
        yield True


MALFORMED = (
    bytes(64), b"\xff" * 64, b"GET / HTTP/1.1\r\n\r\n", b"AMQP\1\0\0\0",
    hello() + b"\1\0\1\xff\xff\xff\xff" + bytes(9),
    hello() + b"\1\0\1\0\0\0\4\0\x3c\0\x28\xcd",
    hello() + b"\x09\0\1\0\0\0\0\xce",
    hello() + frame(HEADER, 1, struct.pack(">HHQH", 60, 0, 1, 0)),
    hello() + method(1, (50, 10), b"\0\0\xffshort"),
    hello() + method(1, (99, 99)),
    hello() + method(9, (50, 10), b"\0\0\0\0" + table({})),
    hello() + begin("", "x", 1, struct.pack(">H", 1 << 13) + b"\xff" * 9),
    hello() + method(1, (60, 80), struct.pack(">QB", 77, 0)),
    hello() + begin("", "x", 2) + frame(BODY, 1, bytes(9)),
    hello() + begin("", "x", 1 << 60),
    hello() + method(1, (60, 40), b"\0\0\0\0\0") + method(1, (20, 10), b"\0"),
    hello() + b"\x08\0\1\0\0\0\1\0\xce",
    hello()[:60] + b"\xce" * 500,
)


def malformed(p: Peer) -> Steps:
    """Sends octets that are no AMQP, and connects again."""
    p.send(MALFORMED[(p.counts["connections"] + p.number) % len(MALFORMED)])
    yield True
    yield True


def fanout(p: Peer) -> Steps:
    """Publishes to 1,000 queues."""
    p.send(hello())
    while True:
        yield True
        p.send(publish(FANOUT, "", 100))


def transactions(p: Peer) -> Steps:
    """Publishes in a transaction that it never commits, up to some 4 MiB, and goes."""
    p.send(hello() + declare(p.name, exclusive=False, x_max_length=10, x_expires=60_000) + method(1, (90, 10)))
    for _ in range(64):
        yield True
        p.send(publish("", p.name, 64 * KIB, properties(persistent=True)))


def requeues(p: Peer) -> Steps:
    """Takes messages and returns them, all at once."""
    p.send(hello() + declare(p.name, x_max_length=100) + publish("", p.name, 1000) * 50
           + method(1, (60, 10), struct.pack(">IHB", 0, 50, 0)) + consume(p.name, "c", no_ack=False))
    while True:
        yield True
        p.send(method(1, (60, 120), struct.pack(">QB", 0, 3)) * 4)


def cycles(p: Peer) -> Steps:
    """Messages expire from one queue into another and back."""
    there, back = f"{p.name}.a", f"{p.name}.b"
    p.send(hello())
    for one, other in ((there, back), (back, there)):
        p.send(declare(one, x_message_ttl=20, x_max_length=200, x_dead_letter_exchange="",
                       x_dead_letter_routing_key=other))
    while True:
        yield True
        p.send(publish("", there, 200) * 50)


def priorities(p: Peer) -> Steps:
    """Publishes with 16 of 255 priorities, and gets."""
    p.send(hello() + declare(p.name, x_max_priority=255, x_max_length=100))
    octets = b"".join(publish("", p.name, fields=properties(priority=number)) for number in range(0, 256, 17))
    octets += method(1, (60, 70), b"\0\0" + shortstr(p.name) + b"\1") * 8
    while True:
        yield True
        p.send(octets)


def no_heartbeats(p: Peer) -> Steps:
    """Agrees on heartbeats, and sends none."""
    p.send(hello(heartbeat=5))
    yield from idle()


def resets(p: Peer) -> Steps:
    """Logs in, makes a queue, publishes and consumes, and resets the connection."""
    p.send(hello() + declare(p.name) + publish("", p.name, 1000) * 5 + consume(p.name, "c", no_ack=False))
    yield True
    p.hang_up(reset=True)


def client_hello() -> bytes:
    """The first octets of a TLS handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    outgoing = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    return outgoing.read()


def tls(p: Peer) -> Steps:
    """Begins a TLS handshake, and connects again."""
    p.send(client_hello())
    yield True
    if p.place % 4:
        yield from idle()


KINDS: dict[str, Callable[[Peer], Steps]] = {
    "silent": silent, "half greeting": half_greeting, "logins": logins, "octet by octet": octet_by_octet,
    "unfinished": unfinished, "unread deliveries": unread_deliveries, "unread gets": unread_gets,
    "unread replies": unread_replies, "declares": declares, "binds": binds, "consumers": consumers,
    "channels": channels, "headers": headers, "malformed": malformed, "fanout": fanout,
    "transactions": transactions, "requeues": requeues, "cycles": cycles, "priorities": priorities,
    "no heartbeats": no_heartbeats, "resets": resets, "tls": tls,
}


def made_by(count: int, kinds: list[str]) -> list[str]:
    """Queues that so many clients may have left behind."""
    found = []
    poll = select.epoll()
    for number in range(count):
        peer = Peer(number, kinds, poll=poll)
        if peer.kind == "declares":
            found += [f"{peer.name}.{each}" for each in range(STORM_QUEUES)]
        elif peer.kind == "transactions":
            found.append(peer.name)
    poll.close()
    return found


def run(peers: list[Peer], poll: select.epoll, rate: float, is_over: Callable[[], bool]) -> None:
    """Give each client its turns until it is over."""
    order = itertools.cycle(peers)
    by_socket: dict[int, Peer] = {}
    due = time.monotonic()
    while not is_over():
        now = time.monotonic()
        due = max(due, now - LATE_SECONDS)
        while due <= now:
            for peer in itertools.islice(order, len(peers)):
                if peer.turn():
                    if peer.sock is not None:
                        by_socket[peer.sock.fileno()] = peer
                    break
            due += 1 / rate
        for number, events in poll.poll(max(0.0, min(due - time.monotonic(), 0.1)), 256):
            by_socket[number].happened(events)


def main() -> None:
    """Run the clients that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--tls-port", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first client")
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True, help="operations a second, of all clients together")
    parser.add_argument("--kinds", default=",".join(KINDS), help=", of: " + ", ".join(KINDS))
    options = parser.parse_args()
    over: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: over.append(number))
    poll = select.epoll()
    shared: dict[str, list[str]] = {"replies": []}
    kinds = options.kinds.split(",")
    peers = [Peer(number, kinds, (options.port, options.tls_port), poll, shared)
             for number in range(options.first, options.first + options.count)]
    run(peers, poll, options.rate, lambda: bool(over))
    told: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
    for peer in peers:
        told[peer.kind].update(peer.counts)
        told[peer.kind]["held"] += peer.sock is not None
        peer.hang_up(reset=peer.place % 2 == 0)
    print(json.dumps(told))


if __name__ == "__main__":
    main()
