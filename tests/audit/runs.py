"""Two queues as a broker's plane leaves them, with order journals, over several thousand messages and two crashes.

``plain``: one consumer that takes its time and now and then gives back what it was handed last; ``levels``: the same
with three priorities, handed out in bursts.  Nothing in them is out of order: whatever an audit finds was put there.
The clock is one second a turn, so that there is room between events.  Small segments, so that boundaries are many.
"""

import json
import os
import shutil
from random import Random

from tests.plane.harness import Bench, ack, consume, nack, publish

from brokerd.store.disk import Disk
from brokerd.store.recovery import recover

BEGIN = 1_780_000_000_000_000_000       # ns
SECOND = 1_000_000_000
LONG_SECONDS = 2000                     # Longer than the audit lets a message be unacked.
VHOST = "vhost"                         # the folder
SETTINGS = {"vhost": "/", "journal": True, "delivery_limit": None, "dead_letter_exchange": None,
            "overflow": "drop-head", "message_ttl_ms": None, "single_active_consumer": False, "arguments": {},
            "policy": None, "retention_octets": 0, "retention_ms": 0}


class Run:
    """One queue over several lives of its broker; ``step`` is a second."""

    def __init__(self, scratch, name="plain", *, max_priority=0, seed=1, prefetch=24, journal=True, rules=None):
        self.scratch, self.root = str(scratch), f"{scratch}/0"
        self.name, self.max_priority, self.prefetch = name, max_priority, prefetch
        self.random, self.journal, self.rules = Random(seed), journal, rules or {}
        self.now = BEGIN
        self.count = self.consumers = 0
        self.out = []                   # delivery tags, oldest first
        self.benches = []
        os.makedirs(self.folder)
        self._write(f"{self.root}/{VHOST}/.vhost", "/")
        self._write(f"{self.folder}/.queue", name)
        if journal:
            self.say({"at": BEGIN - SECOND, "what": "settings", "queue": name, "max_priority": max_priority, **SETTINGS,
                      # The plane counts the fatal failure too.
                      "delivery_limit": self.rules["delivery_limit"] - 1 if "delivery_limit" in self.rules else None})
        self.start(suspect=None)

    @property
    def folder(self):
        return f"{self.root}/{VHOST}/{self.name}"

    @staticmethod
    def _write(path, text):
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def say(self, line):
        """A line of the side file."""
        with open(f"{self.folder}/order.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def start(self, *, suspect=False):
        """A new broker's life; the one before was killed.  ``suspect`` None: the first."""
        self.bench = Bench(f"{self.root}/{VHOST}")
        self.benches.append(self.bench)
        self.bench.core.clock = lambda: self.now
        self.queue = self.bench.queue(self.name.encode(), max_priority=self.max_priority, **self.rules)
        self.queue.set_journal(self.journal)
        if suspect is not None:
            recover(self.queue, Disk(), suspect, lambda finding: None)
        self.publishers = [self.bench.connection(1, 2) for _ in range(2)]
        for at, connection in enumerate(self.publishers):
            connection.number = 100 * len(self.benches) + at
        self.consume()

    def consume(self):
        self.consumer = self.bench.connection(1)
        self.consumer.channels[1].prefetch = self.prefetch
        self.consumers += 1
        consume(self.consumer.channels[1], self.queue, consumer_number=self.consumers)
        if self.journal:
            self.say({"at": self.now, "what": "consumer", "number": self.consumers, "prefetch": self.prefetch,
                      "no_ack": False, "priority": 0})
        self.out = []

    def turn(self):
        self.now += SECOND
        self.bench.turns()
        self.out += [one.tag for one in self.consumer.delivered()]

    def publish(self, count, size=200):
        for _ in range(count):
            self.count += 1
            level = self.random.randrange(self.max_priority + 1)
            identity = b"m-%08d" % self.count
            # Flags: delivery-mode, priority, message-id.
            properties = b"\x18\x80\x02" + bytes([level, len(identity)]) + identity
            octets = publish(self.random.choice((1, 2)), bytes(self.random.randrange(size)), self.name.encode(),
                             properties=properties)
            self.random.choice(self.publishers).feed(octets)

    def ack(self, keep):
        """Ack the oldest, up to ``keep`` that stay out: one by one or all at once."""
        if len(self.out) <= keep:
            return
        done, self.out = self.out[:len(self.out) - keep], self.out[len(self.out) - keep:]
        if self.random.random() < 0.5:
            self.consumer.feed(ack(1, done[-1], multiple=True))
        else:
            self.consumer.feed(b"".join(ack(1, tag) for tag in done))

    def steps(self, count, *, most=3, keep=8, returns=0.1):
        """So many seconds of traffic in order: what returns is what went out last."""
        for _ in range(count):
            self.publish(self.random.randrange(1, most + 1))
            self.turn()
            if self.out and self.random.random() < returns:
                self.consumer.feed(nack(1, self.out.pop()))
                self.turn()
            self.ack(self.random.randrange(2, keep))
            self.turn()

    def rest(self, seconds):
        """All that is out is settled, and then nothing happens for so long."""
        while self.out:
            self.ack(0)
            self.turn()
        self.now += seconds * SECOND

    def crash(self, *, suspect=False):
        """As after kill -9: the next life finds the files as they are; those of this one are nobody's from now on."""
        before, self.root = self.root, f"{self.scratch}/{len(self.benches)}"
        shutil.copytree(before, self.root)
        self.now += SECOND
        self.start(suspect=suspect)
        self.turn()

    def finish(self, root):
        """Copy the files as they are to ``root``, then let go of them; the queue's folder there."""
        shutil.copytree(self.root, root, dirs_exist_ok=True)
        for bench in self.benches:
            bench.close()
        shutil.rmtree(self.scratch)
        return f"{root}/{VHOST}/{self.name}"


def in_groups(root, name="plain"):
    """A queue under ``root`` of which each message is acked before the next goes out: any groups are in order."""
    run = Run(f"{root}.groups", name, prefetch=1)
    for _ in range(800):
        run.publish(1)
        run.turn()
        run.ack(0)
        run.turn()
    return run.finish(root)


def whole(root, *, share=1):
    """Both queues under ``root``; all in order.

    ``share``: how much of the traffic.  Some of it is always over half an hour old: that is when the audit calls a
    message unacked.
    """
    plain = Run(f"{root}.plain")
    levels = Run(f"{root}.levels", "levels", max_priority=2, prefetch=6, seed=2)
    levels.publish(8)
    for run, returns, lives in ((plain, 0.1, (300, 300, 950)), (levels, 0, (300, 300, 500))):
        for life, steps in enumerate(lives):
            if life:
                run.crash()
            run.steps(int(steps * share), returns=returns, keep=5)
        if share < 1:
            run.rest(LONG_SECONDS)
            run.steps(30, returns=returns, keep=5)
        run.finish(root)
