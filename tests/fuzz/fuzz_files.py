"""Every file that a broker keeps, changed inside with checksums made right, and then a start.

    PYTHONPATH=src:. python -m tests.fuzz.fuzz_files --seconds 60 [--inputs N] [--first N] [--seed N]

An input is a data directory as a broker left it (one of TEMPLATES, with every kind of file, after a clean end, a crash
or a power cut) in which one to three files are changed by ``damage``.  The whole node starts on it in this process.  It
must come up, or end with one line that names a changed file; then all queues are drained, and ``brokerctl inspect`` and
the audit read the files.  Some inputs are given to a real process.  Input number N of a seed is always the
same change, in directories that differ in their times alone.

Inputs run in child processes, BLOCK in each, with limits of time and memory: so a crash says which input it was.
"""

import faulthandler
import json
import logging
import mmap
import os
import random
import resource
import shutil
import signal
import tempfile
import time
import traceback
from collections import Counter
from functools import partial
from pathlib import Path

from tests.broker import Broker
from tests.faults.power import Machine
from tests.fuzz import damage, talk
from tests.fuzz.options import options_of, parser_of, tell
from tests.plane import harness

from brokerd.audit import AuditError
from brokerd.audit.files import open_source
from brokerd.audit.verdicts import audit
from brokerd.cli import ctl_inspect
from brokerd.errors import StoreError
from brokerd.store.disk import Disk
from brokerd.upkeep.indexes import write_index
from brokerd.wire import methods
from brokerd.wire.properties import Properties, encode_header

BLOCK = 100
TEMPLATES = 9
REAL_EVERY, AUDIT_EVERY = 100, 3
SECONDS_MAX = 60            # of CPU time, for one input; none comes near that while all is well
MEMORY_OCTETS_MAX = 1 << 30     # more than the process had before its first input
ENDS = ("clean", "crashed", "power lost")
VALUES = ("eu", "us")       # of messages of the stream; half of them have none
OFFSET = b"\x0fx-stream-offsetl"
WITH_KEY = encode_header(0, Properties(delivery_mode=2, headers={"x-deduplication-header": "k"}))[12:]
POLICIES = [{"name": "p", "pattern": "^few", "apply-to": "queues", "definition": {"max-length": 40, "expires": 100_000},
             "priority": 1},
            {"name": "q", "pattern": "", "apply-to": "exchanges", "definition": {"alternate-exchange": "letters"}}]
OPERATOR_POLICIES = [{"name": "o", "pattern": ".", "apply-to": "all", "definition": {"max-length": 500}}]
TOPICS = [{"user": "guest", "vhost": "/", "exchange": "topic", "write": ".*", "read": ".*"}]
REAL_OPTIONS = {"BROKERD_SEGMENT_OCTETS": str(1 << 20), "BROKERD_FREE_DISK_MIN_OCTETS": "0", "BROKERD_SYNC": "false"}


class Fault(AssertionError):
    """The broker, or a reader of its files, did what it must not do."""


# --- data directories


def write_json(path, value):
    path.write_text(json.dumps(value))


def make_template(directory, number):
    """A data directory with much in it; returns what boot identity its next broker has."""
    rng = random.Random(number)
    end = ENDS[number % len(ENDS)]
    for start in (1, 2):        # The second finds what the first left.
        machine = Machine(str(directory), "boot-1", Disk())
        client = machine.client()
        fill(machine, client, rng)
        if start == 1:
            machine.stop()
            [vhost] = [path.parent for path in directory.rglob(".vhost")]
            write_json(vhost / "policies.json", POLICIES)
            write_json(vhost / "operator-policies.json", OPERATOR_POLICIES)
            write_json(directory / "topic_permissions.json", TOPICS)
        elif end == "clean":
            machine.stop()
        else:
            # A commit that is under way: its file stays.
            client.tell(methods.ChannelOpen().frame(4) + methods.TxSelect().frame(4))
            for _ in range(8 + 60 * (number % 2)):      # Few go into the shared log, many into one of their own.
                client.tell(harness.publish(4, bytes(20_000), b"journal", properties=harness.PERSISTENT))
            client.tell(methods.TxCommit().frame(4))
            assert client.frames()[-1][2] == methods.TxSelectOk().frame(4)[7:-1], "the connection was closed"
            machine.vanish()
            machine.bury()
    for path in directory.rglob("readers"):     # The life of these brokers is too short for all indexes.
        for segment in path.parent.glob("msgs.*"):
            write_index(str(path.parent), int(segment.name[5:]), Disk())
    return "boot-2" if end == "power lost" else "boot-1"


def fill(machine, client, rng):
    """Queues and exchanges of some kinds, messages in them, some settled; a transaction that is not committed."""
    filler = Filler(machine, client)
    tell = filler.tell
    for channel in (1, 2, 3):
        tell(methods.ChannelOpen().frame(channel))
    tell(methods.TxSelect().frame(3))
    durable = [name for name, shape in talk.QUEUES.items()
               if shape["durable"] and not shape["exclusive"] and not name.startswith(("expires", "late"))
               and name not in ("journal", "keys")]
    settles = random.Random(rng.random())       # Of its own: how many come out by a given time is not always the same.
    queues = ["journal", "keys", *rng.sample(durable, 5)]
    exchanges = [name for name, shape in talk.EXCHANGES.items() if shape["durable"]]
    exchanges = ["once", "delay.topic", *rng.sample(exchanges, 3)]
    for name in exchanges:
        tell(methods.ExchangeDeclare(exchange=name, **talk.EXCHANGES[name]).frame(1))
    for name in queues:
        tell(methods.QueueDeclare(queue=name, **talk.QUEUES[name]).frame(1))
        exchange = rng.choice(exchanges)
        key = str(rng.randrange(1, 4)) if exchange.startswith("hash") else rng.choice(talk.PATTERNS[:20])
        tell(methods.QueueBind(queue=name, exchange=exchange, routing_key=key).frame(1))
        tell(methods.BasicConsume(queue=name, consumer_tag=name).frame(2))
    machine.sync()
    for n in range(90):
        body = bytes(rng.choice((5, 60, 300, 5000)))
        properties = rng.choice((harness.PERSISTENT, harness.PERSISTENT, rng.choice(talk.PROPERTIES)))
        key = rng.choice(queues).encode()
        exchange = b"" if rng.random() < 0.7 else rng.choice(exchanges).encode()
        if rng.random() < 0.3:
            properties = with_key(n % 26)
        tell(harness.publish(3 if n > 60 else 1, body, key, exchange=exchange, properties=properties))
        if n % 10 == 0:
            for tag in filler.out():
                if settles.random() < 0.8:
                    tell(settles.choice((harness.ack, harness.ack, harness.nack, harness.reject))(2, tag))
        if n == 75:
            tell(methods.TxCommit().frame(3))
            machine.sync()
    fill_with_keys(filler)
    fill_stream(filler)
    machine.node.tick()
    machine.sync()


def fill_with_keys(filler):
    """Settled segments, from which keys are left."""
    shape = talk.shape(message_deduplication=True, cache_size=100)
    filler.tell(methods.QueueDeclare(queue="keys.many", **shape).frame(1))
    filler.tell(methods.BasicConsume(queue="keys.many", consumer_tag="keys.many").frame(2))
    for n in range(20):
        filler.tell(harness.publish(1, bytes(5000), b"keys.many", properties=with_key(n)))
    for tag in filler.out():
        filler.tell(harness.ack(2, tag))
    filler.machine.sync()


def fill_stream(filler):
    """A stream of several segments, and two named readers: retention takes what the slow one has not read."""
    shape = talk.shape(queue_type="stream", stream_max_segment_size_bytes=4096, max_length=25)
    filler.tell(methods.QueueDeclare(queue="stream", **shape).frame(1))
    for channel, (name, prefetch) in enumerate((("quick", 100), ("slow", 2)), start=5):
        filler.tell(methods.ChannelOpen().frame(channel) + methods.BasicQos(prefetch_count=prefetch).frame(channel)
                    + methods.BasicConsume(queue="stream", arguments={
                        "x-stream-reader": name, "x-stream-filter": "eu",
                        "x-stream-match-unfiltered": True}).frame(channel))
    for n in range(40):
        value = (*VALUES, None, None)[n // 5 % 4]
        properties = harness.PERSISTENT if value is None else encode_header(
            0, Properties(delivery_mode=2, headers={"x-stream-filter-value": value}))[12:]
        filler.tell(harness.publish(1, bytes(300), b"stream", properties=properties))
        if n % 10 == 9:
            filler.out()
            filler.tell(harness.ack(5, 0, multiple=True))
    filler.machine.sync()


def with_key(number):
    """Properties with a deduplication key."""
    return WITH_KEY.replace(b"\1k", b"\1" + bytes([65 + number]))


class Filler:
    """A client that opens a channel again when it was closed.  Its deliveries come on channel 2."""

    def __init__(self, machine, client):
        self.machine, self.client = machine, client
        self.tags = []

    def tell(self, octets):
        self.client.tell(octets)
        for kind, channel, payload in self.client.frames():
            if kind == 1 and payload[:4] == b"\0\x3c\0\x3c":
                self.tags.append(harness.Deliver(channel, payload).tag)
            elif kind == 1 and payload[:4] == b"\0\x14\0\x28":
                mode = methods.TxSelect().frame(3) if channel == 3 else b""
                self.client.tell(methods.ChannelCloseOk().frame(channel) + methods.ChannelOpen().frame(channel) + mode)

    def out(self):
        """Tags of deliveries that came since the last time."""
        self.machine.sync()
        self.machine.node.core.turn()
        self.tell(b"")
        tags, self.tags = self.tags, []
        return tags


class Input:
    """One data directory with changed files.  ``names``: the changed files' names."""

    def __init__(self, directory, templates, seed, number):
        self.rng = rng = random.Random(seed << 40 | number)
        template, self.boot = templates[rng.randrange(len(templates))]
        self.directory = Path(directory) / "data"
        shutil.copytree(template, self.directory)
        files = [path for path in sorted(self.directory.rglob("*"))
                 if path.is_file() and damage.kind_of(path.name) and "transient" not in path.parts]
        kinds = sorted({damage.kind_of(path.name) for path in files})
        self.changes = []
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            kind = rng.choice(kinds)
            path = rng.choice([path for path in files if damage.kind_of(path.name) == kind])
            before = path.read_bytes()
            after = damage.changed(rng, path.name, before)
            path.write_bytes(after)
            self.changes.append((str(path.relative_to(self.directory)), kind))
        self.names = {Path(path).name for path, _ in self.changes}

    def __str__(self):
        return ", ".join(f"{path} ({kind})" for path, kind in self.changes)


# --- what must hold


class Log(logging.Handler):
    """The broker's log lines of one start; a traceback is a fault."""

    def __init__(self):
        super().__init__()
        self.lines, self.tracebacks = [], []

    def emit(self, record):
        self.lines.append(record.getMessage())
        if record.exc_info:
            self.tracebacks.append("".join(traceback.format_exception(*record.exc_info)))


def start(made, counts):
    """Start the node in this process, and drain what it finds."""
    log, logger = Log(), logging.getLogger("brokerd")
    level = logger.level
    logger.addHandler(log)
    logger.setLevel(logging.WARNING)
    try:
        machine = Machine(str(made.directory), made.boot, Disk())
        try:
            # An entry that settles no record's begin makes the counts of ready messages wrong: known, and not mended.
            drain(machine, counts, counts_hold=not any(kind == "acks" for _, kind in made.changes),
              rises=not any(kind == "msgs" for _, kind in made.changes))
            counts["came up"] += 1
        finally:
            machine.vanish()
            machine.bury()
    except (StoreError, OSError) as error:
        text = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
        check_refusal(text, made)
        counts["refused"] += 1
    finally:
        logger.removeHandler(log)
        logger.setLevel(level)
    if log.tracebacks:
        raise Fault("\n".join(log.tracebacks))
    if any("\n" in line for line in log.lines):
        raise Fault(f"no single lines: {log.lines}")


def check_refusal(text, made):
    if "\n" in text or not any(name in text for name in made.names):
        raise Fault(f"the refusal is not one line with the name of a changed file: {text!r}")


def drain(machine, counts, counts_hold, rises):
    """Take all messages out of all queues, as far as the default user may log in.  ``counts_hold``: compare counts.
    ``rises``: offsets of streams rise."""
    for vhost in machine.node.vhosts.values():
        for queue in vhost.queues.values():
            list(queue.browse(0, 1000))
    vhost = machine.node.vhosts.get("/")
    try:
        client = machine.client()
    except AssertionError:      # The user may be another one now.
        return
    client.tell(methods.ChannelOpen().frame(1))
    for name, queue in vhost.queues.items():
        if getattr(queue, "stream", None) is not None:
            counts["read of streams"] += read_stream(machine, name, rises)
    for name in [name for name, queue in vhost.queues.items() if getattr(queue, "stream", None) is None]:
        client.tell(methods.BasicConsume(queue=name, no_ack=True).frame(1))
        if any(kind == 1 and payload[:4] == b"\0\x14\0\x28" for kind, _, payload in client.frames()):
            client.tell(methods.ChannelCloseOk().frame(1) + methods.ChannelOpen().frame(1))
    for _ in range(50):
        machine.node.core.turn()
        machine.sync()
        if not client.frames():
            break
    machine.node.tick()
    machine.sync()
    for queue in list(vhost.queues.values()):
        check = getattr(queue, "check", None)
        if check is not None and counts_hold:
            check()
        stream = getattr(queue, "stream", None)
        if stream is None:
            queue.purge()
        else:
            stream.purge(queue.next_seq, 0xFFFFFFFF)


def read_stream(machine, name, rises):
    """Read a stream in all ways that use its index and its kept offsets.  A filter lets through what it should,
    whatever the files say.  ``rises``: offsets rise, as no number in a record was changed.  Returns how many came."""
    came = 0
    for arguments in ({"x-stream-offset": "first"}, {"x-stream-offset": 30, "x-stream-filter": "us"},
                      {"x-stream-offset": "1h", "x-stream-filter": "eu"}, {"x-stream-offset": "last"},
                      {"x-stream-reader": "slow"}, {"x-stream-reader": "quick", "x-stream-filter": "eu"}):
        client = machine.client()
        client.tell(methods.ChannelOpen().frame(1) + methods.BasicQos(prefetch_count=1000).frame(1)
                    + methods.BasicConsume(queue=name, arguments=arguments).frame(1))
        last, wanted = 0, arguments.get("x-stream-filter", "").encode()
        for _ in range(50):
            machine.node.core.turn()
            machine.sync()
            frames = client.frames()
            for _, _, payload in [frame for frame in frames if frame[0] == 2]:
                at = payload.find(OFFSET)
                if at < 0 or (wanted and b"S\0\0\0\2" + wanted not in payload):
                    raise Fault(f"a reader with {arguments} got {payload[:200]!r}")
                offset = int.from_bytes(payload[at + len(OFFSET):][:8])
                if rises and offset <= last:
                    raise Fault(f"a reader with {arguments} got {offset} after {last}")
                last = offset
                came += 1
            if not frames:
                break
        client.tell(harness.ack(1, 0, multiple=True))
        machine.node.core.turn()
    return came


def read(made, counts, *, audits):
    """What the tools outside of the broker say of the files."""
    try:
        table = ctl_inspect.read(str(made.directory), "", lambda text: None)
        ctl_inspect.text(table)
        json.dumps(table)
        if audits:
            json.dumps([judged.audits for judged in audit(open_source(str(made.directory)))])
    except AuditError as error:
        counts["not read"] += 1
        if "\n" in str(error):
            raise Fault(f"not one line: {error}") from error
    counts["read"] += 1


def start_for_real(made, counts):
    """The same with a process, up to where it listens or ends."""
    broker = Broker(made.directory, env=REAL_OPTIONS)
    try:
        broker.start()
    except AssertionError:
        broker.check_log()
        ending = broker.lines[-1]
        if not ending.startswith("brokerd: "):
            raise Fault(f"it ended with {ending!r}") from None
        check_refusal(ending, made)
        counts["real refused"] += 1
    else:
        broker.stop()
        counts["real came up"] += 1
    finally:
        broker.kill()
    broker.check_log()


def attempt(made, number, counts):
    """One input, judged."""
    copy = None
    if number % AUDIT_EVERY == 0:
        read(made, counts, audits=True)
    if number % REAL_EVERY == REAL_EVERY - 1:
        copy = made.directory.with_name("copy")
        shutil.copytree(made.directory, copy)
    start(made, counts)
    read(made, counts, audits=number % AUDIT_EVERY == 1)
    if copy is not None:
        shutil.rmtree(made.directory)
        copy.rename(made.directory)
        start_for_real(made, counts)


def out_of_time(*_):
    raise Fault(f"no end after {SECONDS_MAX} s of CPU time")


def limit_time():
    """Count the CPU time of an input from now on.  A loop in the plane runs no handler of Python's: it is killed."""
    signal.setitimer(signal.ITIMER_PROF, SECONDS_MAX)
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + 2 * SECONDS_MAX, resource.RLIM_INFINITY))


def run_block(directory, templates, seed, numbers, at):
    """All inputs of one block, in a process of its own; ``at`` holds which one it is.  Returns what was counted."""
    counts = Counter()
    if "libasan" not in os.environ.get("LD_PRELOAD", ""):       # The sanitizer reserves more than any memory has.
        size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 + 8 * MEMORY_OCTETS_MAX
        resource.setrlimit(resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 + MEMORY_OCTETS_MAX
    signal.signal(signal.SIGPROF, out_of_time)
    for number in numbers:
        at[:8] = number.to_bytes(8)
        limit_time()
        made = Input(directory, templates, seed, number)
        at[8:] = str(made).encode()[:len(at) - 8].ljust(len(at) - 8)
        try:
            attempt(made, number, counts)
            if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 > most:
                raise Fault("memory out of proportion")
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            shutil.rmtree(directory / "data", ignore_errors=True)
        counts["inputs"] += 1
    return counts


def in_a_child(work, log):
    """What ``work()`` returns in a forked process; AssertionError with what it said if it fails or crashes."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if not pid:
        status = 1
        try:
            with open(log, "w") as file:
                faulthandler.enable(file)
                try:
                    os.write(write_end, json.dumps(work()).encode())
                    status = 0
                except BaseException:
                    traceback.print_exc(file=file)
        finally:
            os._exit(status)
    os.close(write_end)
    with open(read_end, "rb") as pipe:
        said = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status:
        raise Fault(f"{'status' if status > 0 else 'signal'} {abs(status)}\n{Path(log).read_text()}")
    return Counter(json.loads(said))


def fuzz(*, seed=0, first=0, inputs=None, seconds=None, tell=lambda line: None):
    """Inputs first, first + 1, ...; what was counted."""
    stop = time.monotonic() + seconds if seconds is not None else None
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    work = Path(tempfile.mkdtemp(prefix="brokerd-fuzz-", dir=memory))
    counts, at = Counter(), mmap.mmap(-1, 1024)
    try:
        templates = []
        for number in range(TEMPLATES):
            directory = work / f"template{number}"
            directory.mkdir()
            templates.append((directory, make_template(directory, number)))
        while (inputs is None or counts["inputs"] < inputs) and (stop is None or time.monotonic() < stop):
            begin = first + counts["inputs"]
            numbers = range(begin, begin + min(BLOCK, inputs - counts["inputs"] if inputs is not None else BLOCK))
            block = partial(run_block, work, templates, seed, numbers, at)
            try:
                counts += in_a_child(block, work / "log")
            except Fault as error:
                number = int.from_bytes(at[:8])
                error.add_note(f"input {number} of seed {seed}: {at[8:].decode().strip()}; "
                               f"repeat with --seed {seed} --first {number} --inputs 1")
                raise
            if counts["inputs"] % (10 * BLOCK) == 0:
                tell(f"{counts['inputs']} inputs of seed {seed}: {in_words(counts)}")
    finally:
        shutil.rmtree(work)
    return counts


def in_words(counts):
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()) if name != "inputs")


def main():
    options = options_of(parser_of(__doc__, "inputs"), "inputs")
    counts = fuzz(**options)
    tell(f"{counts['inputs']} inputs of seed {options['seed']} from {options['first']}, no fault: {in_words(counts)}")


if __name__ == "__main__":
    main()
