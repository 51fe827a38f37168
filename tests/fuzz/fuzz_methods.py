"""Every method of AMQP at a real broker, from many connections at once, in any order and with anything wrong in it.

    PYTHONPATH=src:. python -m tests.fuzz.fuzz_methods --seconds 60 [--blocks N] [--first N] [--seed N]

A block is one data directory with one broker, which is ended and started again now and then, also by kill -9.  Hostile
connections log in well and then say what ``talk`` makes up; connection number K of a block always says the same, but
how the connections interleave is left to chance.  After each round of inputs a well-behaved connection must get its
message through, nothing of the hostile ones may be left, and the log may have no fault of the broker's own.  After each
start all messages that were confirmed to it must be there.
"""

import contextlib
import errno
import os
import random
import re
import select
import shutil
import signal
import socket
import struct
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.broker import FAULTS, Broker
from tests.faults.client import Client, Gone
from tests.fuzz import talk
from tests.fuzz.fuzz_frames import pieces_of
from tests.fuzz.options import options_of, parser_of, tell
from tests.plane import harness

from brokerd.wire import methods
from brokerd.wire.frames import PROTOCOL_HEADER

BLOCK, ROUND = 40_000, 4_000        # inputs
TOGETHER = 12                       # hostile connections
SECONDS = 120                       # limit of every wait: none is reached while all is well
UNITS = (1, 2, 5, 12, 30)           # inputs that are written without reading
FEW_DESCRIPTORS = ("bash", "-c", 'ulimit -n 120; exec "$@"', "bash")     # Queues must close their files.
LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} (\w+)")
CLOSE_OK, CHANNEL_CLOSE_OK = methods.ConnectionCloseOk().frame(0), methods.ChannelCloseOk()
DELIVER, GET_OK, CHANNEL_CLOSE, CHANNEL_CLOSED, CLOSE, CLOSED = (
    struct.pack(">HH", *index) for index in ((60, 60), (60, 71), (20, 40), (20, 41), (10, 50), (10, 51)))
INTERNAL_ERROR = 541
# Each start of a block's broker chooses among these.
OPTIONS = {
    "SYNC": ("false", "false", "true"), "SEGMENT_OCTETS": (1 << 20,), "IDLE_QUEUE_SECONDS": (1, 30),
    "MESSAGE_OCTETS_MAX": (20_000, 300_000), "FRAME_MAX_OCTETS": (talk.FRAME_MAX,), "FREE_DISK_MIN_OCTETS": (0,),
    "DELIVER_OCTETS_PER_TURN": (4096, 1 << 20), "FAILED_LOGINS_PER_SECOND": (0,), "STOP_TIMEOUT_SECONDS": (5,),
    "LOG_EXCHANGE": ("false", "false", "true"), "CONSUMERS_PER_CHANNEL_MAX": (0, 20),
}


class Fault(AssertionError):
    """The broker did what it must not do."""


def faults_of(lines):
    """Lines of a broker's log that tell of a fault of its own."""
    found = []
    for line in lines:
        level = LINE.match(line)
        if level is None or level[1] in ("ERROR", "CRITICAL") or any(fault in line for fault in FAULTS):
            found.append(line)
    return found


def login(rng, hostile):
    """The octets of a login; a few hostile clients spoil theirs."""
    frames = [methods.ConnectionStartOk(client_properties={"capabilities": {
                  "consumer_cancel_notify": rng.random() < 0.5, "connection.blocked": True,
                  "authentication_failure_close": rng.random() < 0.5}},
                  mechanism="PLAIN", response=b"\0guest\0guest", locale="en_US").frame(0),
              methods.ConnectionTuneOk(channel_max=2047, frame_max=talk.FRAME_MAX, heartbeat=0).frame(0),
              methods.ConnectionOpen(virtual_host="/").frame(0)]
    octets = b"".join(frames)
    if hostile and rng.random() < 0.1:
        changed = bytearray(octets)
        talk.spoil(rng, changed, octets)
        octets = bytes(changed)
    return PROTOCOL_HEADER + octets


class Hostile:
    """One connection that says ``inputs`` inputs and goes, one way or another."""

    def __init__(self, seed):
        self.rng = rng = random.Random(seed)
        self.inputs = rng.choice((3, 20, 40, 80, 150))
        hostility = rng.choice((0, 0, 0, 0, 0.1, 0.2, 0.5, 1))
        self.inputs = min(self.inputs, int(4 / hostility)) if hostility else self.inputs
        self.talker = talk.Talker(rng, hostility)
        self.deaf = rng.random() < 0.08
        self.ending = rng.choice(("close", "close", "close", "fin", "reset", "half"))
        self.octets = login(rng, bool(hostility)) + b"".join(self.talker.start())
        self.pieces = pieces_of(rng, self.octets)
        self.answers = b""          # what the broker's closes ask for
        self.said = 0
        self.out = {channel: [] for channel in talk.CHANNELS}       # delivery tags
        self.came = bytearray()
        self.codes = []             # of closes from the broker
        self.ended = self.finished = False
        self.sock = None

    def connect(self, port):
        self.sock = socket.socket()
        if self.deaf:       # Else the kernel would take what the client does not.
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.sock.settimeout(SECONDS)
        self.sock.connect(("127.0.0.1", port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.setblocking(False)

    # --- writing

    def fill(self):
        """The next pieces to write; at the end what the client takes its leave with."""
        rng = self.rng
        octets, self.answers = self.answers, b""
        if self.said < self.inputs:
            count = min(rng.choice(UNITS), self.inputs - self.said)
            self.said += count
            parts = [octets]
            for _ in range(count):
                made = self.talker.next()
                parts.append(made if isinstance(made, bytes) else made.octets(self.out[made.channel]))
            self.pieces = pieces_of(rng, b"".join(parts))
        elif not self.finished:
            self.finished = True
            if self.ending == "half":
                octets += talk.publish(rng, "", "plain", 1)[:rng.randrange(1, 60)]
            elif self.ending == "close":
                octets += methods.ConnectionClose(reply_code=200).frame(0)
            self.pieces = [octets]
        elif octets:
            self.pieces = [octets]

    def write(self):
        """Whether something was done."""
        if not self.pieces:
            if self.finished and not self.answers:
                return False
            self.fill()
        piece = self.pieces.pop(0)
        if piece:
            try:
                sent = self.sock.send(piece)
            except BlockingIOError:
                sent = 0
            if sent < len(piece):
                self.pieces.insert(0, piece[sent:])
                return bool(sent)
        if self.finished and not self.pieces and not self.answers:
            self.leave()
        return True

    def leave(self):
        if self.ending == "reset":
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.end()
        elif self.ending != "close" or self.talker.hostility:
            # Behind octets that are no frame the broker may not find a close.
            try:
                self.sock.shutdown(socket.SHUT_WR)
            except OSError as error:
                if error.errno != errno.ENOTCONN:   # The broker, which may have been killed, was the first to go.
                    raise

    def end(self):
        self.sock.close()
        self.ended = True

    # --- reading

    def read(self):
        """Whether something came."""
        try:
            octets = self.sock.recv(1 << 17)
        except BlockingIOError:
            return False
        if not octets:
            self.end()
            return True
        came = self.came
        came += octets
        at, end = 0, len(came)
        while at + 8 <= end:
            kind, channel, size = struct.unpack_from(">BHI", came, at)
            if at + 8 + size > end:
                break
            if came[at + 7 + size] != 0xCE:
                raise Fault(f"no frame of the broker's: {bytes(came[at:at + 60])!r}")
            if kind == 1:
                self.take(channel, came[at + 7:at + 7 + size])
            at += 8 + size
        del came[:at]
        return True

    def take(self, channel, payload):
        """A method of the broker's."""
        index = bytes(payload[:4])
        if index == DELIVER and payload[5:6] != talk.NO_ACK.encode() and channel in self.out:
            self.out[channel].append(int.from_bytes(payload[5 + payload[4]:13 + payload[4]]))
        elif index == GET_OK and channel in self.out:
            self.out[channel].append(int.from_bytes(payload[4:12]))
        elif index in (CHANNEL_CLOSE, CLOSE):
            self.closed(channel, int.from_bytes(payload[4:6]), bytes(payload[7:7 + payload[6]]))
        elif index == CHANNEL_CLOSED and channel in self.out:
            self.out[channel].clear()
        elif index == CLOSED:
            self.end()

    def closed(self, channel, code, text):
        if code == INTERNAL_ERROR:
            raise Fault(f"the broker sent 541: {text!r}")
        self.codes.append((bool(channel), code))
        if channel:
            if channel in self.out:
                self.out[channel].clear()
            if not self.finished:
                mode = self.rng.choice((b"", b"", methods.ConfirmSelect().frame(channel),
                                        methods.TxSelect().frame(channel)))
                self.answers += CHANNEL_CLOSE_OK.frame(channel) + methods.ChannelOpen().frame(channel) + mode
        else:
            with contextlib.suppress(OSError):
                self.sock.send(CLOSE_OK)
            self.end()

    def step(self):
        """Read and write once; whether something was done."""
        if self.ended:
            return False
        try:
            done = not (self.deaf and not self.finished) and self.read()
            wrote = not self.ended and self.write()
            if self.deaf and not wrote:
                self.deaf = False       # The broker does no more for it either.
                return True
            return done or wrote
        except ConnectionError:
            self.end()
            return True


class Guard:
    """The well-behaved client.  ``ledger``: numbers of its confirmed messages, in a queue that they stay in."""

    def __init__(self):
        self.ledger = []
        self.client = self.asking = None

    def connect(self, broker):
        self.client = Client(broker.port)
        self.asking = Client(broker.port)       # Its channel is closed again and again.
        self.client.ask(methods.QueueDeclare(queue="guard's ledger", durable=True), methods.QueueDeclareOk)
        self.client.ask(methods.QueueDeclare(queue="guard", durable=True), methods.QueueDeclareOk)
        self.client.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)
        self.client.ask(methods.BasicConsume(queue="guard"), methods.BasicConsumeOk)

    def close(self):
        self.client.close()
        self.asking.close()

    def publish(self, queue, body):
        self.client.sock.sendall(harness.publish(1, body, queue, persistent=True, mandatory=True))
        self.client.expect(methods.BasicAck)

    def check(self):
        """Publish, confirm, deliver, ack."""
        body = os.urandom(20)
        self.publish(b"guard", body)
        [content] = self.client.wait_for_contents(1)
        if content.body != body:
            raise Fault("another message came than was published")
        self.client.write(methods.BasicAck(delivery_tag=content.tag))
        number = len(self.ledger)
        self.publish(b"guard's ledger", b"%d" % number)
        self.ledger.append(number)

    def check_ledger(self):
        """Each confirmed message is in its place, in order."""
        with_acks = methods.BasicGet(queue="guard's ledger")
        came = []
        for _ in self.ledger:
            self.client.write(with_acks)
            came.append(int(self.client.wait_for_contents(1)[0].body))
        if came != self.ledger:
            raise Fault(f"confirmed {self.ledger}, came {came}")
        self.client.ask(with_acks, methods.BasicGetEmpty)
        self.client.ask(methods.BasicRecover(requeue=True), methods.BasicRecoverOk)

    def locked(self, names):
        """The queues that belong to another connection."""
        found = []
        for name in names:
            try:
                self.asking.ask(methods.QueueDeclare(queue=name, passive=True), methods.QueueDeclareOk)
            except Gone as gone:
                if gone.code == 405:
                    found.append(name)
        return found


class Block:
    """One data directory, from the first start of its broker to the last end."""

    def __init__(self, seed, number, env=None, kills=True):
        self.seed, self.number, self.kills = seed, number, kills
        self.rng = random.Random(seed << 40 | number)
        self.directory = tempfile.mkdtemp(prefix="brokerd-fuzz-")
        self.env = dict(env or {})
        before = FEW_DESCRIPTORS if self.rng.random() < 0.3 else ()
        self.broker = Broker(Path(self.directory) / "data", before=before)
        self.guard = Guard()
        self.connections = self.begun = 0
        self.open = []
        self.counts, self.codes = Counter(), Counter()

    # --- the broker

    def start(self):
        options = {f"BROKERD_{name}": str(self.rng.choice(values)) for name, values in OPTIONS.items()}
        self.broker.env = self.env | options
        self.broker.start()
        self.guard.connect(self.broker)
        self.guard.check_ledger()
        self.sockets = self.count_sockets()
        self.counts["starts"] += 1

    def count_sockets(self):
        return sum(name.startswith("socket:") for name in self.broker.open_files())

    def restart(self, kill):
        """End the broker in the midst of its work, and start it again."""
        self.guard.close()
        if kill and self.kills:
            self.broker.kill()
            while self.open:
                self.step()
        else:
            os.kill(self.broker.pid, signal.SIGTERM)
            while self.open:
                self.step()
            status = self.broker.wait()
            if status:
                raise Fault(f"the broker ended with status {status}")
        self.check_log()
        self.start()

    def check_log(self):
        lines, self.broker.lines[:] = self.broker.lines[:], []
        found = faults_of(lines)
        if found:
            raise Fault("\n".join(["the broker's log tells of a fault:", *found[:100]]))

    # --- hostile connections

    def step(self):
        """All open connections do something, or wait until one of them can."""
        busy = False
        for each in self.rng.sample(self.open, len(self.open)):
            busy |= each.step()
        gone = [each for each in self.open if each.ended]
        for each in gone:
            self.counts["inputs"] += each.said
            self.codes.update(each.codes)
            self.open.remove(each)
        if not busy and self.open:
            poll = select.poll()
            for each in self.open:
                poll.register(each.sock, select.POLLIN | (select.POLLOUT if each.pieces else 0))
            if not poll.poll(1000 * SECONDS):
                raise Fault("the broker neither answers nor ends")

    def round(self):
        """So many inputs, and the judgement behind them."""
        planned, interrupted = 0, self.rng.random() < 0.15
        interrupt_at = self.rng.randrange(ROUND)
        while planned < ROUND or self.open:
            while planned < ROUND and len(self.open) < TOGETHER:
                hostile = Hostile(self.seed << 50 | self.number << 24 | self.connections)
                self.connections += 1
                planned += hostile.inputs
                hostile.connect(self.broker.port)
                self.open.append(hostile)
            self.step()
            if interrupted and planned > interrupt_at:
                self.restart(kill=self.rng.random() < 0.6)
                interrupted = False
        if not self.broker.running:
            raise Fault("the broker ended")
        self.begun += planned
        self.judge()

    def judge(self):
        self.guard.check()
        deadline = time.monotonic() + SECONDS
        while (locked := self.guard.locked(talk.QUEUE_NAMES)) or self.count_sockets() > self.sockets:
            if time.monotonic() > deadline:
                raise Fault(f"left behind: queues {locked}, sockets {self.count_sockets()} of {self.sockets}")
        self.check_log()

    def run(self, inputs):
        self.start()
        while self.begun < inputs:
            self.round()
        self.restart(kill=self.rng.random() < 0.5)
        self.guard.close()
        self.broker.stop()
        self.check_log()

    def close(self):
        self.broker.kill()
        shutil.rmtree(self.directory)


def fuzz(*, seed=0, first=0, blocks=None, seconds=None, inputs=BLOCK, env=None, kills=True,
         tell=lambda line: None):
    """Blocks first, first + 1, ...; what was counted, and the closes by (of a channel, code)."""
    stop = time.monotonic() + seconds if seconds is not None else None
    counts, codes, number = Counter(), Counter(), first
    while (blocks is None or number < first + blocks) and (stop is None or time.monotonic() < stop):
        block = Block(seed, number, env, kills)
        begin = time.monotonic()
        try:
            block.run(inputs)
        except BaseException as error:
            error.add_note(f"block {number} of seed {seed}; repeat with --seed {seed} --first {number} --blocks 1")
            error.add_note(f"the last lines of its log:\n{os.linesep.join(block.broker.lines[-300:])}")
            raise
        finally:
            block.close()
        counts += block.counts
        counts["connections"] += block.connections
        codes += block.codes
        number += 1
        said, rate = block.counts["inputs"], block.counts["inputs"] / (time.monotonic() - begin)
        tell(f"block {number - 1} of seed {seed}: {said} inputs from {block.connections} connections, "
             f"{rate:.0f} a second; {counts['inputs']} in all")
    return counts, codes


def in_words(codes):
    """How often the broker closed channels and connections, by code."""
    return ", ".join(f"{'channel' if of_channel else 'connection'} {code}: {count}"
                     for (of_channel, code), count in sorted(codes.items()))


def main():
    parser = parser_of(__doc__, "blocks")
    parser.add_argument("--no-kills", dest="kills", action="store_false",
                        help="end the broker by SIGTERM only: a count of coverage is written at a clean end")
    options = options_of(parser, "blocks")
    counts, codes = fuzz(**options)
    tell(f"{counts['inputs']} inputs of seed {options['seed']} from {counts['connections']} connections, "
         f"{counts['starts']} starts, no fault.  Closed by the broker: {in_words(codes)}")


if __name__ == "__main__":
    main()
