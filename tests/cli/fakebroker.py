"""A broker just good enough to put load on: one thread a connection, queues in memory, confirms, no routing.

`refuse`: what to answer a queue.declare with, (code, text).  `swap`: deliver every two messages the wrong way round.
`mute`: take publishes and never deliver.
"""

import contextlib
import socket
import struct
import threading

from tests.broker import SECONDS

from brokerd.cli.perfclient import frame, longstr, method, shortstr, table


class FakeBroker:
    def __init__(self, refuse=None, swap=False, mute=False):
        self.refuse, self.swap, self.mute = refuse, swap, mute
        self.queues, self.consumers, self.acks = {}, {}, []
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.uri = f"amqp://guest:guest@127.0.0.1:{self.port}/"
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self):
        self._threads[0].start()
        return self

    def __exit__(self, *exception):
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(SECONDS)
        self._listener.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                thread = threading.Thread(target=Session(self, connection).run)
                self._threads.append(thread)
                thread.start()

    def publish(self, queue, body):
        with self._lock:
            self.queues.setdefault(queue, []).append(body)
            self._deliver(queue)

    def consume(self, queue, session):
        with self._lock:
            self.consumers[queue] = session
            self._deliver(queue)

    def _deliver(self, queue):
        """Deliver what waits in the queue; with `swap` pairs, so that the last of an odd number waits on."""
        messages = self.queues.setdefault(queue, [])
        if self.mute or queue not in self.consumers:
            return
        while len(messages) > self.swap:
            self.consumers[queue].deliver(messages.pop(1 if self.swap else 0))
            if self.swap:
                self.consumers[queue].deliver(messages.pop(0))


class Session:
    def __init__(self, broker, connection):
        self.broker, self.socket = broker, connection
        self.stream = connection.makefile("rb")
        self.confirming = False
        self.published = self.delivered = 0
        self.tag = ""

    def run(self):
        with contextlib.suppress(OSError, struct.error), self.socket, self.stream:
            self.stream.read(8)
            self.send(method(0, (10, 10), b"\0\x09" + table({}) + longstr(b"PLAIN") + longstr(b"en_US")))
            while True:
                kind, _, size = struct.unpack(">BHI", self.stream.read(7))
                payload = self.stream.read(size + 1)[:-1]
                if kind == 1:
                    self.take(struct.unpack(">HH", payload[:4]), payload[4:])
                elif kind == 2:
                    self.body, self.left = b"", struct.unpack(">Q", payload[4:12])[0]
                elif kind == 3:
                    self.body, self.left = self.body + payload, self.left - size
                if kind in (2, 3) and self.left == 0:
                    self.published += 1
                    self.broker.publish(self.key, self.body)
                    if self.confirming:
                        self.send(method(1, (60, 80), struct.pack(">QB", self.published, 0)))

    def send(self, octets):
        self.socket.sendall(octets)

    def take(self, index, arguments):
        name = arguments[3:3 + arguments[2]].decode() if len(arguments) > 3 else ""
        if index == (60, 40):
            at = 3 + len(name)
            self.key = arguments[at + 1:at + 1 + arguments[at]].decode()
        elif index == (50, 10) and self.broker.refuse:
            code, text = self.broker.refuse
            self.send(method(1, (20, 40), struct.pack(">H", code) + shortstr(text) + bytes(4)))
        elif index == (50, 10):
            count = len(self.broker.queues.setdefault(name, []))
            self.send(method(1, (50, 11), shortstr(name) + struct.pack(">II", count, 0)))
        elif index == (60, 20):
            at = 3 + len(name)
            self.tag = arguments[at + 1:at + 1 + arguments[at]].decode()
            if not arguments[at + 1 + len(self.tag)] & 8:
                self.send(method(1, (60, 21), shortstr(self.tag)))
            self.broker.consume(name, self)
        elif index == (60, 80):
            self.broker.acks.append(struct.unpack(">QB", arguments))
        elif index == (10, 50):
            raise OSError("the client said goodbye")
        else:
            self.answer(index, name)

    def answer(self, index, name):
        self.confirming |= index == (85, 10)
        if index == (50, 40):
            self.broker.queues.pop(name, None)
            self.broker.consumers.pop(name, None)
        answers = {(10, 11): (0, (10, 30), struct.pack(">HIH", 0, 4096, 60)), (10, 40): (0, (10, 41), b"\0"),
                   (20, 10): (1, (20, 11), bytes(4)), (50, 20): (1, (50, 21), b""), (50, 40): (1, (50, 41), bytes(4)),
                   (60, 10): (1, (60, 11), b""), (85, 10): (1, (85, 11), b"")}
        if index in answers:
            channel, found, arguments = answers[index]
            self.send(method(channel, found, arguments))

    def deliver(self, body):
        self.delivered += 1
        with contextlib.suppress(OSError):
            self.send(delivery(self.delivered, body, self.tag))


def delivery(tag, body, consumer="0", frame_max=4096):
    """basic.deliver with its content."""
    most = frame_max - 8
    octets = method(1, (60, 60), shortstr(consumer) + struct.pack(">QB", tag, 0) + shortstr("") + shortstr("k"))
    octets += frame(2, 1, struct.pack(">HHQH", 60, 0, len(body), 0))
    return octets + b"".join(frame(3, 1, body[at:at + most]) for at in range(0, len(body), most))
