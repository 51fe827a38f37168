"""What does it cost to prove that ten million messages kept their order, and does the audit find each planted fault?

    PYTHONPATH=src python benchmarks/audit.py --messages 10000000

Publishers fill queues with order journals while consumers drain them.  One queue has priorities; the consumer of
another rejects messages, some until they are over their limit.  The audits must come to the numbers that the broker
counted.
Then the broker stops, and the benchmark audits its data directory: first by one pass over the segments in this process,
then by Spark (``local[2]``), with the CPU seconds of its whole process tree.  At last it plants faults of every kind
(``tests/audit/plant.py``), also where two segments meet, and compares what both engines find.  The data lie in
--data-root; the benchmark removes them at its end.
"""

import argparse
import contextlib
import ctypes
import json
import os
import resource
import shutil
import socket
import struct
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # The tests' own module plants the faults.

from brokers import ENVIRONMENT, Broker  # noqa: E402
from tests.audit import plant  # noqa: E402

from brokerd.audit.files import open_source  # noqa: E402
from brokerd.audit.inspect import counters  # noqa: E402
from brokerd.audit.scan import Options, scan  # noqa: E402
from brokerd.audit.verdicts import judge  # noqa: E402
from brokerd.wire import methods  # noqa: E402
from brokerd.wire.frames import PROTOCOL_HEADER  # noqa: E402

LIMIT = 3
ARGUMENTS = {"x-order-journal": True, "x-order-journal-retention-bytes": 1 << 50, "x-delivery-limit": LIMIT}
LEVELS, BURST = 4, 1000         # priorities; messages in a burst
SHARE, GROUPED_SHARE = 20, 100  # one message in 20 goes to "levels", one in 20 to "rejected", one in 100 to "grouped"
REJECTED, CURSED = 50, 9973     # one message in so many is rejected once; one in so many each time
PLANTED, AT_BOUNDARIES, PLANTED_SEGMENTS = 7, 2, 6
PR_SET_CHILD_SUBREAPER = 36
# The planted faults: each kind in a queue of its own.
PLACES = {"levels": "priority", "rejected": "duplicates", "grouped": "group_fifo"}
PLAIN = tuple(name for name in plant.PLANTS if name not in PLACES.values())


# --- messages


class Hand:
    """Publishes bursts to one queue and drains it; brokerperf has neither priorities nor rejects.

    ``reject``: messages are rejected, some of them (``CURSED``) until they are gone.
    """

    def __init__(self, port: int, queue: str, *, levels: int = 0, prefetch: int = BURST // 8, acks: int = 100,
                 reject: bool = False) -> None:
        self.queue, self.levels, self.acks, self.reject = queue, levels, acks, reject
        self.random, self.sent, self.left = Random(1), 0, 0
        self.tries: dict[int, int] = {}
        self.sock = socket.create_connection(("127.0.0.1", port), 60)
        self.file = self.sock.makefile("rb", 1 << 20)
        self.sock.sendall(PROTOCOL_HEADER)
        self.wait()
        self.say(methods.ConnectionStartOk(client_properties={}, mechanism="PLAIN", locale="en_US",
                                           response="\0guest\0guest"), 0)
        tune: Any = methods.decode(self.wait()[1])
        self.say(methods.ConnectionTuneOk(channel_max=tune.channel_max, frame_max=tune.frame_max, heartbeat=0), 0)
        self.say(methods.ConnectionOpen(virtual_host="/"), 0)
        for method in (methods.ChannelOpen(), methods.QueueDeclare(
                queue=queue, durable=True, arguments=ARGUMENTS | ({"x-max-priority": levels} if levels else {})),
                methods.BasicQos(prefetch_count=prefetch), methods.BasicConsume(queue=queue)):
            self.wait()
            self.say(method, 1)
        self.wait()

    def say(self, method: Any, channel: int) -> None:
        self.sock.sendall(method.frame(channel))

    def wait(self) -> tuple[int, bytes]:
        """The next frame."""
        kind, _, size = struct.unpack(">BHI", self.file.read(7))
        return kind, self.file.read(size + 1)[:-1]

    def message(self) -> bytes:
        self.sent += 1
        self.left += 1
        key, identity = self.queue.encode(), b"%016d" % self.sent
        method = struct.pack(">HHHBB", 60, 40, 0, 0, len(key)) + key + b"\0"
        values = bytes((2, self.random.randrange(self.levels + 1), len(identity))) + identity
        header = struct.pack(">HHQH", 60, 0, 16, 0x1880) + values      # delivery-mode, priority, message-id
        return b"".join(struct.pack(">BHI", kind, 1, len(payload)) + payload + b"\xce"
                        for kind, payload in ((1, method), (2, header), (3, identity)))

    def refuses(self, number: int) -> bool:
        """Whether this delivery is one to reject; a message goes at its limit."""
        if not self.reject or (number % REJECTED and number % CURSED):
            return False
        tries = self.tries[number] = self.tries.get(number, 0) + 1
        if number % CURSED:
            return tries == 1
        self.left -= tries > LIMIT
        return True

    def run(self, count: int) -> None:
        """So many messages out and in."""
        while self.sent < count:
            self.sock.sendall(b"".join([self.message() for _ in range(min(BURST, count - self.sent))]))
            tag = last = kept = 0
            while self.left:
                kind, payload = self.wait()
                if kind == 1 and payload[:4] == b"\0\x3c\0\x3c":
                    tag = int.from_bytes(payload[5 + payload[4]:13 + payload[4]])
                elif kind == 3 and self.refuses(int(payload)):
                    self.say(methods.BasicReject(delivery_tag=tag, requeue=True), 1)
                elif kind == 3:
                    kept, last = kept + 1, tag
                if kept and (kept == self.acks or kept == self.left):
                    self.say(methods.BasicAck(delivery_tag=last, multiple=True), 1)
                    self.left -= kept
                    kept = 0
        self.say(methods.QueueDeclare(queue=self.queue, passive=True), 1)
        while self.wait()[1][:4] != methods.QueueDeclareOk.INDEX.to_bytes(4):
            pass
        self.sock.close()


def fill(broker: Broker, messages: int, queues: int, size: int) -> None:
    """Send messages through all queues.  Raises RuntimeError."""
    few, grouped = messages // SHARE, messages // GROUPED_SHARE
    port = broker.target.port
    Hand(port, "levels", levels=LEVELS).run(few)
    Hand(port, "rejected", reject=True).run(few)
    Hand(port, "grouped", prefetch=1, acks=1).run(grouped)
    done = broker.target.perf(
        f"throughput -x {queues} -y {queues} --queues {queues} --queue plain --durable --keep -p -s {size} "
        f"--ack multi:100 -P 1000 -n {(messages - 2 * few - grouped) // queues} --stall 300 "
        f"--queue-args '{json.dumps(ARGUMENTS)}'")
    if "error" in done:
        raise RuntimeError(done["error"])


# --- measures


def tree_seconds(command: list[str], environment: dict[str, str]) -> tuple[int, str, float, float]:
    """(exit status, stderr, CPU seconds, seconds) of a command and all processes that it started."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)     # Spark's Java outlives its parent.
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    seconds = time.monotonic() - began
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.returncode, done.stderr, cpu, seconds


def spark(data: str, out: str, *options: str, memory: str = "1g") -> dict[str, Any]:
    """One audit by Spark: its summary, "cpu", "wall", "status", and what was shuffled.  Raises RuntimeError."""
    shutil.rmtree(out, ignore_errors=True)
    log = f"{out}/log"
    os.makedirs(log)
    conf = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": f"file://{log}", "spark.eventLog.compress": "false",
            "spark.eventLog.rolling.enabled": "false"}
    submit = f"--driver-memory {memory} " + " ".join(f"--conf {key}={value}" for key, value in conf.items())
    command = [sys.executable, str(ROOT / "spark_jobs/ordering_audit.py"), data, "--report", out,
               "--master", "local[2]", *options]
    status, errors, cpu, wall = tree_seconds(command, ENVIRONMENT | {
        "PYSPARK_SUBMIT_ARGS": f"{submit} pyspark-shell"})
    if not os.path.exists(f"{out}/summary.json"):
        raise RuntimeError(errors.strip()[-2000:])
    summary: dict[str, Any] = json.loads(Path(f"{out}/summary.json").read_text())
    return summary | shuffled(log) | {"status": status, "cpu": cpu, "wall": wall}


def shuffled(log: str) -> dict[str, int]:
    """Octets and rows written into shuffles, by Spark's own account."""
    octets = rows = 0
    for path in Path(log).rglob("*"):
        for line in path.read_text().splitlines() if path.is_file() and not path.name.startswith(".") else ():
            if '"SparkListenerTaskEnd"' in line:
                written = (json.loads(line).get("Task Metrics") or {}).get("Shuffle Write Metrics") or {}
                octets += written.get("Shuffle Bytes Written", 0)
                rows += written.get("Shuffle Records Written", 0)
    return {"shuffle_octets": octets, "shuffle_rows": rows}


def one_pass(data: str, *, crc: bool) -> dict[str, float]:
    """CPU seconds of the pass over all segments and of judging, and octets read, in this process."""
    source, options = open_source(data), Options(crc=crc)
    octets = scanning = judging = 0.0
    for queue in source.queues():
        began = time.process_time()
        summaries = [scan(source, triple, options) for triple in queue.triples]
        scanned = time.process_time()
        judge(source, queue, summaries, options)
        octets += sum(triple.octets for triple in queue.triples)
        scanning += scanned - began
        judging += time.process_time() - scanned
    return {"octets": octets, "scan": scanning, "judge": judging}


# --- faults


def plant_kind(folder: str, audit: str) -> tuple[plant.Planted, int]:
    """Faults of one kind in the first segments of a queue, and how many of them lie where two segments meet.

    Not every kind finds a place there: two levels seldom take turns at the end of a segment.
    """
    seqs: list[int] = []
    for boundary in (True, False):
        story = plant.Story(folder, most=PLANTED_SEGMENTS)
        which = plant.PLANTS[audit]
        if audit == "unacked":
            which = partial(plant.unacked, older_than=int(story.times[-1]))
        done = which(story, AT_BOUNDARIES if boundary else PLANTED, boundary)
        story.save()
        seqs += done.seqs
    if not done.seqs:
        raise RuntimeError(f"no place for {audit} in {folder}")
    return plant.Planted(audit, seqs, done.touches), len(seqs) - len(done.seqs)


def plant_all(data: str) -> tuple[dict[str, plant.Planted], int]:
    """Plant one kind of faults in each queue: the faults by queue, and how many of all lie where two segments meet."""
    folders = {queue.queue: f"{data}/{queue.folder}" for queue in open_source(data).queues()}
    plain = sorted(folders.keys() - PLACES.keys())
    places = PLACES | dict(zip(plain, PLAIN, strict=False))
    planted = {queue: plant_kind(folders[queue], audit) for queue, audit in places.items()}
    return {queue: faults for queue, (faults, _) in planted.items()}, sum(count for _, count in planted.values())


def compare(planted: dict[str, plant.Planted], counted: dict[str, dict[str, int]],
            document: dict[str, Any]) -> list[str]:
    """The differences between the findings and the planted faults; ``counted``: the broker's counts, per queue."""
    wrong = list(document.get("disagreements", ()))
    for row in document["audits"]:
        queue, audit = row["queue"], row["audit"]
        there = planted.get(queue, plant.Planted("", []))
        wanted = len(there.seqs) if audit == there.audit else 0
        wanted += counted[queue].get("out_of_sequence", 0) if audit == "overtaking" else 0
        if row["found"] != wanted and audit not in there.touches:
            wrong.append(f"{queue} {audit}: {row['found']} found, {wanted} planted or counted")
    return wrong


# --- the whole benchmark


def table(rows: list[tuple[str, str]]) -> None:
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}", flush=True)


def measure(arguments: argparse.Namespace, data: str, out: str) -> bool:
    """Print the measurements, and return whether all faults and only these were found."""
    for crc in (True, False):
        cost = one_pass(data, crc=crc)
        table([(f"one pass, {'with' if crc else 'without'} CRC",
                f"{cost['octets'] / 1e6 / cost['scan']:,.0f} MB/s per core, {cost['scan']:.1f} CPU s; "
                f"judging {cost['judge']:.1f} CPU s")])
    source = open_source(data)
    counted = {queue.queue: counters(source, queue.folder) or {} for queue in source.queues()}
    clean = spark(data, out)
    inputs = clean["inputs"]
    wrong = compare({}, counted, clean)
    for queue in clean["queues"]:
        told, seen = counted[queue["queue"]], queue["counters"]
        wrong += [f"{queue['queue']}: {name} {seen[name]}, the broker counted {count}"
                  for name, count in told.items() if seen[name] != count]
    table([("messages, events", f"{inputs['messages']:,}, {inputs['events']:,}"),
           ("queues, segments", f"{inputs['queues']}, {inputs['segments']}, {inputs['octets'] / 1e9:.2f} GB"),
           ("Spark local[2]", f"{clean['cpu']:.0f} CPU s, {clean['wall']:.0f} s; exit {clean['status']}, "
                              f"{clean['verdict']}"),
           ("shuffled", f"{clean['shuffle_octets']:,} octets, {clean['shuffle_rows']:,} rows"),
           ("out of sequence", f"{counted['rejected']['out_of_sequence']:,} by the broker's count; "
                               f"{'; '.join(wrong) or 'all found, nothing else; all counters are the same'}")])
    planted, at_boundaries = plant_all(data)
    ok = not wrong
    for engine in arguments.engines.split(","):
        options = ("--engine", engine, "--unacked-after", "0")
        memory = "1g" if engine == "a" else arguments.memory
        found = spark(data, out, *options, memory=memory)
        groups = spark(data, out, *options, "--queues", "grouped", "--group-by", "routing-key", memory=memory)
        wrong = compare(planted, counted, found) + compare(planted, counted, groups)
        ok &= not wrong
        table([(f"planted, engine {engine}",
                f"{sum(len(each.seqs) for each in planted.values())} of {len(planted)} kinds, "
                f"{at_boundaries} of them between two segments; "
                f"{'all found, nothing else' if not wrong else '; '.join(wrong)}; {found['cpu']:.0f} CPU s, "
                f"{found['wall']:.0f} s, shuffled {found['shuffle_octets'] / 1e6:,.1f} MB")])
    return ok


def main() -> None:
    """Fill, measure, remove; exit 1 if the audit missed a fault or found one that was not planted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--queues", type=int, default=len(PLAIN), help="that brokerperf fills")
    parser.add_argument("--size", type=int, default=100, help="octets of a body")
    parser.add_argument("--engines", default="a,b", help="asked for what was planted: a, b, both")
    parser.add_argument("--memory", default="6g", help="of Spark's Java for engine b, which keeps tables")
    parser.add_argument("--data-root", default="/var/tmp")
    arguments = parser.parse_args()
    with Broker(data_root=arguments.data_root) as broker:
        began = time.monotonic()
        fill(broker, arguments.messages, arguments.queues, arguments.size)
        table([("filled and drained in", f"{time.monotonic() - began:.1f} s")])
        broker.stop()
        ok = measure(arguments, str(broker.directory / "data"), str(broker.directory / "out"))
    sys.exit(not ok)


if __name__ == "__main__":
    main()
