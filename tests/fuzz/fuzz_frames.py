"""Octets at random into the frame path: no crash, and no error but an AMQPError, whatever comes and however it is cut.

    PYTHONPATH=src:. python -m tests.fuzz.fuzz_frames --seconds 60 [--inputs N] [--first N] [--seed N]

An input is a conversation put together from whole frames, most often with some octets changed, cut anywhere.  Input
number N of a seed is always the same; state lives for BLOCK inputs, so that one is repeated from its block's first.
Coverage of compiled code is not measured: frames are known well enough to be spoiled where it hurts.
"""

import random
import shutil
import struct
import tempfile
import time

from tests.fuzz.options import options_of, parser_of, tell
from tests.plane import harness

from brokerd import plane
from brokerd.errors import AMQPError, NotFound

BLOCK = 500
TOLD = 50 * BLOCK       # inputs between lines of progress
FRAME_MAX = 4096
CHANNELS = (1, 2, 3)
INTERESTING = (0, 1, 7, 8, 0x3C, 0x7F, 0x80, 0xCE, 0xFE, 0xFF)
NUMBERS = (0, 1, 3, 4, 13, 14, 4087, 4088, 4089, 4096, 0x7FFFFFFF, 0x80000000, 0xFFFFFFF0, 0xFFFFFFF8, 0xFFFFFFFF)
FIELDS = b"\1aS\0\0\0\2xy\1bF\0\0\0\3\1cV\1dA\0\0\0\2t\1\1eI\0\0\0\1"
TABLE = len(FIELDS).to_bytes(4) + FIELDS
PROPERTIES = (
    harness.TRANSIENT, harness.PERSISTENT, b"\x18\x00\x02\x07", b"\x20\x00" + TABLE, b"\x80\x00\x04text",
    b"\xff\xfc\x01t\x01e" + TABLE + b"\2\1\1c\1r\1x\1i" + bytes(8) + b"\1t\1u\1a\1c",
    b"\x01\x00\x010", b"\x01\x00\x0599999", b"\x01\x00\x03abc", b"\x11\x00\x02\x02-1", b"\x09\x00\x05\x0250",
    b"\x02\x00\x15amq.rabbitmq.reply-to", b"\x20\x00\0\0\0\x0d\x02CCA\0\0\0\x06S\0\0\0\x01q",
)


def method(channel, class_id, method_id, arguments=b""):
    return harness.frame(1, channel, struct.pack(">HH", class_id, method_id) + arguments)


class Connection(harness.Connection):
    """A session of few words: opens and closes channels, gets, recovers."""

    fuzzed_queue = None
    ruled_queue = None

    def on_publish(self, channel, method_payload, header, body):
        opened = self.channels[channel]
        opened.count_publish()
        self.core_of.put((self.fuzzed_queue, self.ruled_queue), b"", b"q", header[12:], body)

    def on_method(self, channel, payload):
        index = struct.unpack_from(">HH", payload)
        opened = self.channels.get(channel)
        if index == (20, 10) and opened is None and channel:
            plane.Channel(self, channel)
        elif opened is None:
            return
        elif index in ((20, 40), (20, 41)):
            opened.close()
        elif index == (60, 70):
            opened.get(self.fuzzed_queue, bool(payload[-1] & 1))
        elif index == (60, 110):
            opened.recover()
        elif index == (85, 10):
            opened.select_confirm()
        elif index == (90, 10):
            opened.tx = True
        elif index in ((60, 80), (60, 90), (60, 120)) and opened.tx and len(payload) == 13:
            opened.settle(int.from_bytes(payload[4:12]), bool(payload[12] & 1), requeue=index == (60, 90))


class Fuzz:
    """One block of inputs, on one Core."""

    def __init__(self):
        self.directory = tempfile.mkdtemp(prefix="brokerd-fuzz-")
        self.bench = harness.Bench(self.directory, segment_octets=8192, message_octets_max=20_000)
        self.queue = self.bench.queue()
        self.other = self.bench.queue(b"other", durable=False)
        self.ruled = self.bench.queue(b"ruled", max_priority=3, max_length=20, dead_letters=True, delivery_limit=2,
                                      delivery_counts=True)
        self.runs = 0
        self.bench.routes = plane.Routes(self.bench.core, self.resolve)
        self.asked = plane.Asked()
        self.asked.add(TABLE)
        self.reader = self.bench.connection(1)
        harness.consume(self.reader.channels[1], self.other, b"reader", no_ack=True)
        self.errors = 0

    def resolve(self, exchange, key, header, channel):
        if key == b"missing":
            raise NotFound("no exchange")
        queues = {b"q": (self.queue,), b"other": (self.other,), b"both": (self.queue, self.other),
                  b"ruled": (self.ruled,), b"all": (self.ruled, self.queue)}
        return plane.Answer(queues.get(key, ()), cacheable=not exchange.endswith(b"headers"),
                            by_headers=(self.asked,) if exchange == b"by headers" else ())

    def run(self, pieces):
        """Feed one input; what the plane must keep is checked behind it."""
        connection = Connection(self.bench.core)
        connection.fuzzed_queue, connection.ruled_queue, connection.core_of = self.queue, self.ruled, self.bench.core
        self.runs += 1
        self.ruled.dead, self.ruled.keeps = [], self.runs % 3 == 0
        self.ruled.set_rules(ttl_ms=self.runs % 4 - 1, max_length=self.runs % 30 - 1, overflow=self.runs % 3,
                             dead_letters=self.runs % 5 > 0, delivery_limit=self.runs % 4 - 1, delivery_counts=True,
                             single_active=self.runs % 2 == 0, consumer_timeout_ms=self.runs % 3 - 1)
        connection.routes = self.bench.routes
        connection.frame_max = FRAME_MAX
        connection.feed(harness.HEADER)
        for number in CHANNELS:
            plane.Channel(connection, number)
        connection.channels[2].prefetch = 3
        harness.consume(connection.channels[2], self.queue, b"acks")
        harness.consume(connection.channels[1], self.ruled, b"ruled")
        connection.channels[3].select_confirm()
        while self.queue.ready + self.queue.unacked < 6:
            self.reader.feed(harness.publish(1, b"before", persistent=True))
        self.bench.core.turn()
        for piece in pieces:
            connection.feed(piece)
        self.bench.turns()
        self.bench.core.return_overdue()
        for _, seq, *_ in self.ruled.dead:
            self.ruled.settle_aside(seq)
        for channel, error, _, _ in connection.errors:
            assert isinstance(error, AMQPError), (channel, error)
        assert len(connection.errors) < 50
        self.errors += len(connection.errors)
        harness.cut(connection.out.octets)
        connection.detach()
        self.bench.turns()
        assert (self.queue.unacked, self.queue.consumer_count) == (0, 0)
        assert (self.ruled.unacked, self.ruled.consumer_count) == (0, 0)
        if self.ruled.ready > 50:
            self.ruled.remove(self.ruled.browse(0, 30)[-1][0])
            self.ruled.purge()
        if self.queue.ready > 50:
            self.queue.purge()
        if len(self.reader.out.octets) > 100_000:
            self.reader.frames()
        if self.bench.sync_requests:
            self.bench.sync_requests = 0
            self.bench.sync()

    def close(self):
        for queue in (self.queue, self.other, self.ruled):
            queue.purge()
            assert (queue.ready, queue.unacked, queue.ready_octets) == (0, 0, 0)
        assert not self.bench.damages
        assert not self.bench.storage_errors
        self.bench.close()
        shutil.rmtree(self.directory)


def conversation(rng):
    """Whole frames in a likely order."""
    parts = []
    for _ in range(rng.randrange(1, 7)):
        channel = rng.choice((1, 2, 3)) if rng.random() < 0.97 else rng.choice((0, 4, 0xFFFF))
        kind = rng.randrange(12)
        if kind < 6:
            body = bytes(rng.choice((0, 1, 5, 200, 4088, 4089, 6000)))
            key = rng.choice((b"q", b"q", b"ruled", b"ruled", b"all", b"both", b"other", b"", b"k" * 255))
            key = b"missing" if rng.random() < 0.02 else key
            parts.append(harness.publish(
                channel, body, key, exchange=rng.choice((b"", b"headers", b"by headers", b"e" * 255)),
                mandatory=rng.random() < 0.3, properties=rng.choice(PROPERTIES), frame_max=FRAME_MAX,
                piece=rng.choice((None, None, 3, 1000)) if len(body) < 300 else None))
        elif kind < 10:
            tag, multiple, settled = rng.choice((0, 1, 2, 3)), rng.random() < 0.5, rng.choice((1, 2))
            tag = rng.choice((0, 4, 5, 6, 1 << 63)) if rng.random() < 0.2 else tag
            parts.append(rng.choice((
                harness.ack(settled, tag, multiple), harness.nack(settled, tag, multiple, rng.random() < 0.7),
                harness.reject(settled, tag, rng.random() < 0.5))))
        else:
            parts.append(rng.choice((
                harness.frame(8, 0, b""), method(channel, 20, 10, b"\0"), method(channel, 20, 40, bytes(7)),
                method(channel, 60, 70, b"\0\0\1q\0"), method(channel, 60, 70, b"\0\0\1q\1"),
                method(channel, 60, 110, b"\1"), method(channel, 85, 10, b"\0"),
                method(channel, 90, 10), method(0, 10, 50, bytes(7)))))
    return b"".join(parts)


def spoil(rng, changed, others):
    """One thing wrong with a bytearray."""
    at = rng.randrange(min(len(changed), 200) + 1) if rng.random() < 0.7 else rng.randrange(len(changed) + 1)
    kind = rng.randrange(7)
    if kind == 0 and at < len(changed):
        changed[at] ^= 1 << rng.randrange(8)
    elif kind == 1 and at < len(changed):
        changed[at] = rng.choice(INTERESTING)
    elif kind == 2:
        changed[at:at + 4] = struct.pack(">I", rng.choice(NUMBERS))
    elif kind == 3:
        del changed[at:at + rng.randrange(1, 20)]
    elif kind == 4:
        changed[at:at] = rng.randbytes(rng.randrange(1, 20))
    elif kind == 5:
        begin = rng.randrange(len(changed) + 1)
        changed[at:at] = changed[begin:begin + rng.randrange(1, 60)]
    else:
        changed[at:at] = others[:rng.randrange(1, 60)]


def spoiled(rng, octets):
    """The same with a few things wrong: inside frames that stay frames, with their order, or with any octets."""
    kind = rng.randrange(10)
    if kind == 0:
        return octets
    if kind < 3:
        changed = bytearray(octets)
        for _ in range(rng.choice((1, 1, 2, 4))):
            spoil(rng, changed, octets)
        return bytes(changed)
    frames = harness.cut(octets)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        at = rng.randrange(len(frames))
        if kind < 8:
            frame_kind, channel, payload = frames[at]
            changed = bytearray(payload)
            spoil(rng, changed, octets)
            frames[at] = frame_kind, channel, bytes(changed)
        else:
            change = rng.randrange(4)
            if change == 0 and len(frames) > 1:
                del frames[at]
            elif change == 1:
                frames.insert(rng.randrange(len(frames) + 1), frames[at])
            elif change == 2:
                frames.insert(rng.randrange(len(frames)), frames.pop(at))
            else:
                frames[at] = (rng.choice((1, 2, 3, 8, frames[at][0])), rng.choice((1, 2, 3, 3, 0, 4)), frames[at][2])
    return b"".join(harness.frame(*one) for one in frames)


def pieces_of(rng, octets):
    count = rng.choice((0, 0, 1, 2, 6))
    cuts = sorted(rng.randrange(len(octets) + 1) for _ in range(count))
    if rng.random() < 0.02:
        cuts = list(range(1, min(len(octets), 400)))
    return [octets[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(octets)], strict=True)]


def make_input(seed, index):
    rng = random.Random(seed << 40 | index)
    octets = rng.randbytes(rng.randrange(1, 300)) if rng.random() < 0.02 else spoiled(rng, conversation(rng))
    return pieces_of(rng, octets)


def fuzz(*, seed=0, first=0, inputs=None, seconds=None, tell=lambda line: None):
    """Inputs first, first + 1, ...; how many were run, and how many errors the plane found in them."""
    stop = time.monotonic() + seconds if seconds is not None else None
    done = errors = 0
    while (inputs is None or done < inputs) and (stop is None or time.monotonic() < stop):
        block = Fuzz()
        begin = first + done
        if done % TOLD == 0:
            tell(f"inputs from {begin}, seed {seed}; {errors} errors found by the plane so far")
        for index in range(begin, begin + min(BLOCK, inputs - done if inputs is not None else BLOCK)):
            try:
                block.run(make_input(seed, index))
            except BaseException as error:
                error.add_note(f"input {index} of seed {seed}; repeat with --seed {seed} --first {begin} "
                               f"--inputs {index - begin + 1}")
                raise
            done += 1
        block.close()
        errors += block.errors
    return done, errors


def main():
    options = options_of(parser_of(__doc__, "inputs"), "inputs")
    done, errors = fuzz(**options)
    tell(f"{done} inputs of seed {options['seed']} from {options['first']}: {errors} errors found by the plane, "
         "no fault of its own")


if __name__ == "__main__":
    main()
