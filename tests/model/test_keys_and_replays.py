"""A queue that leaves out duplicates, retains what is settled and replays it, against a model.

The broker is a whole vhost in this process, with a client, a clock and a group commit worked by hand.  kill -9 may come
at any step.

Held against the words of ``docs/queues.md``:

- a publish is stored, and answered, as scope and action say: a key that counts is never accepted twice, and a message
  is never left out for a key that does not count;
- what a duplicate replaces goes when the newer message is on disk, wherever it waits; what is out stays;
- a message that is dead-lettered is in the dead-letter queue once for each of its deaths, with its reason;
- what was settled stays as long as the retention says, and comes again at its own place, marked, when it is replayed;
- with message groups, a message goes out after all earlier ones of its group.

After a start a key may count for longer than the size of the window says (its entry may have moved up); never for less.
``BROKERD_MODEL_KEY_STEPS`` makes the long course longer; it is repeated by its seed.
"""

import logging
import os
import random
import shutil
import tempfile
from array import array
from collections import Counter
from pathlib import Path

import pytest
from tests.session.harness import Client, Node
from tests.vhost.stand_in import Clock, Commit

from brokerd import plane
from brokerd.operations.replay import _groups_of
from brokerd.queues.deduplication import KEYS_MAX
from brokerd.store import reading
from brokerd.store.disk import Disk
from brokerd.store.format import priority_folder, segment_name
from brokerd.store.recovery import recover
from brokerd.upkeep.keys import KeyKeeper
from brokerd.vhost.features import DeadLettersOnDemand, DuplicatesOnDemand, Services
from brokerd.wire import methods
from brokerd.wire.frames import body_frames, header_frame
from brokerd.wire.properties import Properties, decode_header, encode_header

STEPS = int(os.environ.get("BROKERD_MODEL_KEY_STEPS", "12000"))
FIRST = int(os.environ.get("BROKERD_MODEL_FIRST_COURSE", "0"))
COURSES = 3
COURSE = 300                    # steps of one queue
SEGMENT = 4096
FOR_EVER = 1 << 62
KEYS = ("a", "b", "c", "d", "e", 1, 2, 1.5, None)
GROUPS = ("g", "h", 7, None)
READY, OUT, DYING, SETTLED, GONE = "ready", "out", "dying", "settled", "gone"

EVENTS = {                      # how often, and what with
    "publish": (24, lambda r: (r.choice(KEYS), r.choice(GROUPS), r.choice((None, None, None, 5, 200)), r.randrange(3),
                               r.randrange(6))),
    "get": (12, lambda r: ()),
    "ack": (8, lambda r: (r.randrange(20), r.random() < 0.2)),
    "reject": (3, lambda r: (r.randrange(20),)),
    "requeue": (4, lambda r: (r.randrange(20),)),
    "remove": (1, lambda r: (r.randrange(40),)),
    "purge": (0.2, lambda r: ()),
    "replay": (3, lambda r: (r.randrange(1, 60), r.randrange(40), r.randint(1, 30))),
    "replay_group": (1, lambda r: (r.choice(GROUPS[:3]),)),
    "replay_chosen": (1, lambda r: ([r.randrange(1, 80) for _ in range(6)],)),
    "replay_since": (1, lambda r: (r.randrange(60),)),
    "tick": (4, lambda r: (r.choice((1, 4, 30, 100)),)),
    "commit": (6, lambda r: ()),
    "upkeep": (3, lambda r: ()),
    "kill": (1, lambda r: ()),
}
CHOICES = {
    "where": ("queue", "queue", "queue", "exchange"), "scope": ("queue", "group", "waiting"),
    "action": ("ack", "nack", "dead-letter", "replace"), "content": (False, False, True), "size": (3, 8, None),
    "ttl": (None, None, 50), "grouped": (False, True), "levels": (0, 0, 2),
    "retains": (None, "all", "all", "some", "age"), "safe_letters": (False, True), "lives": (None, None, 80),
    "length": (None, None, None, 12), "retries": (False, False, True),
}
RETRY_MS = 20
RETENTION = {None: {}, "all": {"x-retention-bytes": 1 << 24}, "some": {"x-retention-bytes": 2 * SEGMENT},
             "age": {"x-retention-age": 200}}


class Message:
    def __init__(self, number, seq, key, group, level, came_ms, expires_ms):
        self.number, self.seq, self.key, self.group, self.level = number, seq, key, group, level
        self.came_ms, self.expires_ms = came_ms, expires_ms
        self.state, self.was_out, self.replayed = READY, False, False
        self.until = 0              # ms: it returned, and does not go out before

    def __repr__(self):
        return f"<{self.number} seq {self.seq} {self.key} {self.group} {self.state}>"


class KnownKeys:
    """Which keys count: the last ``size`` that were entered, until they expire; ``waiting``: those of messages that are
    not settled."""

    def __init__(self, *, waiting, size):
        self.waiting, self.size = waiting, size or 128
        self.entries = []           # messages with a key, as they came
        self.restarted = False

    def newest(self, key):
        return next((message for message in reversed(self.entries) if message.key == key), None)

    def counts(self, key, now_ms):
        """True; False; None: it may."""
        if key is None:
            return False
        if self.waiting:
            of_key = [message for message in self.entries if message.key == key and message.expires_ms > now_ms
                      and message.state not in (SETTLED, GONE)]
            return False if not of_key else True if self.newest(key) in of_key else None
        found = self.newest(key)
        if found is None or found.expires_ms <= now_ms:
            # An expired one was entered again: nothing older counts.
            return False
        if self.entries.index(found) >= len(self.entries) - self.size:
            return True
        return None if self.restarted else False


class NotedLetters(DeadLettersOnDemand):
    """Notes in ``replaced`` which messages newer ones replace."""

    def __init__(self, replaced, *more):
        super().__init__(*more)
        self.replaced = replaced

    def remove_when_synced(self, queue, seq):
        self.replaced.append(seq)
        super().remove_when_synced(queue, seq)


class World:
    """The broker's half: a vhost over real files; ``kill`` leaves it as it is and makes another."""

    def __init__(self, directory, rule):
        self.directory, self.rule = directory, rule
        self.clock = Clock()
        self.start()
        arguments = self.arguments()
        self.vhost.add_queue("dead", durable=True, auto_delete=False, arguments={})
        self.queue = self.vhost.add_queue("q", durable=True, auto_delete=False, arguments=arguments)
        if rule["where"] == "exchange":
            exchange = self.vhost.add_exchange("x", "fanout", durable=True, auto_delete=False, internal=False,
                                               arguments=self.deduplication())
            exchange.bind(self.queue, "")

    def start(self):
        self.commit = Commit()
        self.node = Node(self.directory, segment_octets=SEGMENT)
        self.node.core.clock = self.clock
        self.vhost = self.node.vhost
        self.replaced = []
        self.vhost.dead_letters = NotedLetters(
            self.replaced, self.vhost, Services(self.clock, self.commit.wait, self.clock.call_at))
        self.vhost.duplicates = DuplicatesOnDemand(self.vhost.directory, self.clock, None, lambda log: None)
        self.keeper = KeyKeeper({"/": self.vhost}, self.node.core, at_once)
        self.client = Client(self.node).open()
        self.client.send((1, methods.ConfirmSelect()))

    def kill(self):
        before = self.vhost
        self.start()
        for name, queue in before.queues.items():
            again = self.vhost._make_queue(name, durable=True, auto_delete=False, arguments=queue.arguments)
            again.begin_recovery(None)
            recover(again, Disk(), False, lambda finding: None)
        for exchange in before.exchanges.values():
            if exchange.name == "x":
                again = self.vhost._make_exchange("x", exchange.type, durable=True, auto_delete=False, internal=False,
                                                  arguments=exchange.arguments)
                again.bind(self.vhost.queues["q"], "")
        self.vhost.apply_rules()
        self.vhost.take_up_features(suspect=False)
        self.queue = self.vhost.queues["q"]
        self.node.core.turn()
        before.close()
        for queue in before.queues.values():
            queue.close()

    def deduplication(self):
        rule, found = self.rule, {"x-message-deduplication": True}
        if rule["size"] is not None:
            found["x-cache-size"] = rule["size"]
        if rule["ttl"] is not None:
            found["x-cache-ttl"] = rule["ttl"]
        if rule["content"]:
            found["x-deduplication-content"] = True
        return found

    def arguments(self):
        rule = self.rule
        found = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", **RETENTION[rule["retains"]]}
        if rule["safe_letters"]:
            found |= {"x-queue-type": "quorum", "x-dead-letter-strategy": "at-least-once",
                      "x-overflow": "reject-publish"}
        if rule["grouped"]:
            found["x-message-group"] = "exclusive"
        if rule["lives"]:
            found["x-message-ttl"] = rule["lives"]
        if rule["length"]:
            found["x-max-length"] = rule["length"]
        if rule["retries"]:
            found |= {"x-delayed-retry-type": "all", "x-delayed-retry-min": RETRY_MS, "x-delayed-retry-max": RETRY_MS}
        if rule["levels"]:
            found["x-max-priority"] = rule["levels"]
        if rule["where"] == "queue":
            found |= self.deduplication()
            found |= {"x-deduplication-scope": rule["scope"], "x-deduplication-action": rule["action"]}
        return found

    def publish(self, headers, body, level):
        """The confirm: "ack", "nack"."""
        header = encode_header(len(body), Properties(headers=headers, delivery_mode=2, priority=level))
        to = methods.BasicPublish(exchange="x" if self.rule["where"] == "exchange" else "", routing_key="q")
        self.replaced.clear()
        said = self.client.raw(to.frame(1) + header_frame(1, header) + body_frames(1, body, 4096))
        for fd, _ in self.node.core.begin_sync(1 << 20):
            os.close(fd)
        self.node.core.end_sync()
        (confirm,) = said + self.client.read()
        return "nack" if isinstance(confirm[1], methods.BasicNack) else "ack"

    @property
    def duplicates(self):
        if self.rule["where"] == "exchange":
            return self.vhost.duplicates.get().exchanges["x"].duplicates
        return self.queue.duplicates

    def get(self):
        """(tag, number, redelivered, replayed); None: nothing can go out."""
        said = self.client.send((1, methods.BasicGet(queue="q")))
        if isinstance(said[0][1], methods.BasicGetEmpty):
            return None
        headers = decode_header(said[1].payload)[1].headers
        return said[0][1].delivery_tag, headers["n"], said[0][1].redelivered, headers.get("x-replayed") is True

    def letters(self):
        """(number, reason) of what the dead-letter queue has."""
        found = [decode_header(b"\0\x3c" + bytes(10) + row[5])[1].headers
                 for row in self.vhost.queues["dead"].browse(0, 1 << 20)]
        return Counter((headers["n"], headers["x-death"][0]["reason"]) for headers in found)

    def records(self):
        """The numbers in the queue of all records in its files."""
        found = set()
        for segment in self.queue.segments():
            level = priority_folder(segment["level"]) if segment["level"] else ""
            octets = Path(self.queue.directory, level, segment_name(segment["number"])).read_bytes()
            found.update(reading.scan_records(octets, segment["end"]).headers["seq"].tolist())
        return found


def at_once(work, done):
    """As a thread that is done before anything else happens."""
    try:
        work()
    except Exception as error:
        done(error)
        raise
    done(None)


class Run:
    """The broker and the model side by side."""

    def __init__(self, directory, rule):
        self.rule = rule = consistent(rule)
        self.world = World(directory, rule)
        self.known = KnownKeys(waiting=rule["scope"] == "waiting",
                               size=rule["size"] or (KEYS_MAX if rule["scope"] == "waiting" else None))
        self.messages = {}          # by number in the queue
        self.out = {}               # delivery tag: message
        self.replaced = []          # messages that go with the next commit
        self.until = {}             # group: when it goes on at the latest
        self.letters = Counter()
        self.next = 0

    @property
    def now(self):
        return self.world.clock.ms

    def of(self, *states):
        return [message for _, message in sorted(self.messages.items()) if message.state in states]

    # --- publishes

    def publish(self, key, group, own_ttl, level, body):
        rule, queue = self.rule, self.world.queue
        headers = {"n": self.next, **{name: value for name, value in (
            ("x-deduplication-header", key), ("group-id", group), ("x-cache-ttl", own_ttl)) if value is not None}}
        octets = b"%d" % body * 100
        self.next += 1
        known_as = key if key is not None else (b"body", body) if rule["content"] else None
        if known_as is not None:
            known_as = (type(known_as), known_as, group if rule["scope"] == "group" else None)
        level = min(level, rule["levels"])
        before, counts, counted = queue.next_seq, self.known.counts(known_as, self.now), self.world.duplicates
        said = self.world.publish(headers, octets, level)
        stored = queue.next_seq > before
        assert queue.next_seq <= before + 1
        if counts is None:
            counts = self.world.duplicates > counted
        assert self.world.duplicates == counted + counts
        older = self.known.newest(known_as) if counts else None
        if older is not None and rule["scope"] == "waiting" and (
                older.state in (SETTLED, GONE, "replaced") or older.expires_ms <= self.now):
            # Several older ones wait, as some were out or replayed: the broker says which one goes.
            older = next((self.messages[seq] for seq in self.world.replaced), None)
            assert older is None or (older.key == known_as and older.state in (READY, OUT, DYING))
        if counts and rule["action"] != "replace":
            assert not stored, "a key that counts was accepted again"
            assert said == ("nack" if rule["action"] == "nack" else "ack")
            if rule["action"] == "dead-letter":
                self.letters[self.next - 1, "duplicate"] += 1
        else:
            assert stored, "it was left out for a key that does not count"
            assert said == "ack"
            ttl = own_ttl if own_ttl is not None else rule["ttl"] if rule["ttl"] is not None else self.usual_ttl()
            message = Message(self.next - 1, before, known_as, group, level, self.now,
                              FOR_EVER if ttl is None else self.now + ttl)
            self.messages[before] = message
            if known_as is not None:
                self.known.entries.append(message)
            if older is not None and older.state == READY:
                self.replaced.append(older)
                older.state = "replaced"

    def usual_ttl(self):
        rule = self.rule
        return 300_000 if rule["grouped"] and rule["scope"] != "waiting" and rule["where"] == "queue" else None

    # --- deliveries

    def get(self):
        held = {message.group for message in self.of(OUT, DYING)} if self.rule["grouped"] else set()
        found = self.world.get()
        while self.look_for_deaths() and found is None:     # The next of their groups had to wait for their letters.
            held = {message.group for message in self.of(OUT, DYING)} if self.rule["grouped"] else set()
            found = self.world.get()
        may = [message for message in self.of(READY) if message.group is None or message.group not in held]
        if found is None:
            assert all(self.waits(message) for message in may), "nothing came though messages may go out"
            return False
        tag, number, redelivered, replayed = found
        message = next(message for message in self.messages.values() if message.number == number)
        assert message.state == READY, "it is not ready"
        assert message in may, "its group has another one out"
        assert message.until <= self.now, "it goes out before its time"
        assert message.replayed or not self.is_over(message), "it has expired"
        if not self.rule["grouped"]:
            before = [one for one in may if (-one.level, one.seq) < (-message.level, message.seq)]
            assert all(self.waits(one) for one in before), "an earlier one is ready"
        elif message.group is not None:
            assert message is next(one for one in may if one.group == message.group)
        assert redelivered == message.was_out
        assert replayed == message.replayed
        message.state, message.was_out = OUT, True
        self.out[tag] = message
        return True

    def waits(self, message):
        """Whether it may wait for its retry: with groups, behind any message of its group."""
        until = self.until.get(message.group, 0) if self.rule["grouped"] else message.until
        return until + 1 >= self.now

    def is_over(self, message):
        return self.rule["lives"] is not None and message.came_ms + self.rule["lives"] < self.now

    def look_for_deaths(self):
        """Those that died of their time, or of the queue's length, are dead letters now."""
        died = self.world.letters() - self.letters
        for (number, reason), count in died.items():
            message = next(one for one in self.messages.values() if one.number == number)
            assert (count, message.state) == (1, READY)
            assert reason in ("expired", "maxlen")
            assert reason != "expired" or (not message.replayed and message.came_ms + self.rule["lives"] <= self.now)
            message.state = DYING if self.rule["safe_letters"] else SETTLED
            self.letters[number, reason] += 1
        return bool(died)

    def pick(self, which):
        return sorted(self.out)[which % len(self.out)] if self.out else None

    def ack(self, which, multiple):
        tag = self.pick(which)
        if tag is not None:
            for one in [one for one in self.out if one == tag or (multiple and one < tag)]:
                self.out.pop(one).state = SETTLED
            self.world.client.send((1, methods.BasicAck(delivery_tag=tag, multiple=multiple)))

    def reject(self, which):
        tag = self.pick(which)
        if tag is not None:
            message = self.out.pop(tag)
            message.state = DYING if self.rule["safe_letters"] else SETTLED
            self.letters[message.number, "rejected"] += 1
            self.world.client.send((1, methods.BasicReject(delivery_tag=tag, requeue=False)))

    def requeue(self, which):
        tag = self.pick(which)
        if tag is not None:
            message = self.out.pop(tag)
            message.state = READY
            if self.rule["retries"] and not (self.rule["grouped"] and message.group is None):
                message.until = self.until[message.group] = self.now + RETRY_MS
            self.world.client.send((1, methods.BasicNack(delivery_tag=tag, requeue=True)))

    # --- operators

    def remove(self, which):
        ready = self.of(READY)
        if ready and not self.rule["grouped"]:
            message = ready[which % len(ready)]
            if self.world.queue.remove(message.seq) is not None:
                message.state = GONE
            else:
                assert self.waits(message)

    def purge(self):
        for _ in self.world.queue.purge_in_pieces():
            pass
        for message in self.of(READY):
            message.state = GONE

    def replay(self, first, more, looks=4096, wanted=None, **how):
        """wanted: which of them are to come again."""
        queue, last = self.world.queue, first + more
        there = self.world.records()
        for level in range(self.rule["levels"] + 1):
            at = first
            while at and at <= last:
                _, at, _, _ = plane.replay(queue, at, last, level=level, looks=looks, **how)
        settled = [message for message in self.of(SETTLED) if first <= message.seq <= last]
        for message in settled:
            if wanted is None or wanted(message):
                if message.seq in there:
                    message.state, message.was_out, message.replayed, message.until = READY, True, True, 0
                else:
                    self.must_not_stay(message)

    def must_not_stay(self, message):
        assert self.rule["retains"] != "all"
        assert self.rule["retains"] != "age" or message.came_ms < self.now - 200

    def replay_group(self, group):
        self.replay(1, 1 << 40, groups=_groups_of(self.world.queue.arguments), group=str(group).encode(),
                    wanted=lambda message: message.group == group)

    def replay_chosen(self, seqs):
        self.replay(1, 1 << 40, chosen=array("Q", sorted(set(seqs))), wanted=lambda message: message.seq in seqs)

    def replay_since(self, ago_ms):
        since = self.now - ago_ms
        self.replay(1, 1 << 40, since_ns=since * 1_000_000, wanted=lambda message: message.came_ms >= since)

    # --- time, and what the broker does besides

    def tick(self, ms):
        self.world.clock.advance(ms)
        self.world.node.core.expire()

    def commit(self):
        self.world.commit.end()
        for message in self.replaced:
            if message.state == "replaced":
                message.state = GONE
        self.replaced = []
        for message in self.of(DYING):
            message.state = SETTLED

    def upkeep(self):
        core = self.world.node.core
        core.enforce_retention(99)
        self.world.keeper.tick()
        self.world.keeper.sweep()
        core.turn()
        for path in core.take_garbage():
            Path(path).unlink(missing_ok=True)
        if self.rule["retains"] == "some":
            assert plane.describe_retention(self.world.queue)[1] <= 2 * SEGMENT

    def kill(self):
        self.world.kill()
        for message in self.of(OUT, DYING, "replaced"):
            message.was_out |= message.state != "replaced"
            message.state = READY
        self.out, self.replaced = {}, []
        self.known.restarted = True

    # --- what must hold after each step

    def check(self):
        queue = self.world.queue
        queue.check()
        self.look_for_deaths()
        assert queue.ready + (queue.gate.waiting if queue.gate is not None else 0) == len(self.of(READY))
        assert queue.unacked == len(self.out)
        assert self.world.letters() == self.letters

    def step(self, operation):
        name, *arguments = operation
        self.world.clock.ns += 1000     # No two steps are at one time.
        getattr(self, name)(*arguments)
        self.world.node.core.turn()
        self.check()

    def drain(self):
        """Everything comes, and once more what is retained."""
        for _ in range(2):
            self.commit()
            for tag in list(self.out):
                self.ack(tag, False)
            self.tick(2 * RETRY_MS)
            self.world.node.core.expire()
            while self.get() or self.of(DYING):
                self.ack(0, False)
                self.commit()
            self.check()
            assert not self.of(READY, OUT, DYING)
            self.replay(1, 1 << 40)


def consistent(rule):
    """Without what cannot be: the rule of an exchange has no scope and no action, a quorum queue no priorities."""
    if rule["safe_letters"]:
        rule = rule | {"levels": 0, "length": None}
    if rule["where"] == "exchange":
        rule = rule | {"scope": "queue", "action": "ack"}
    if rule["scope"] == "waiting":
        rule = rule | {"size": None}
    return rule


def run(operations, rule):
    logging.disable(logging.WARNING)
    directory = tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
    run = Run(directory, rule)
    try:
        for operation in operations:
            run.step(operation)
        run.drain()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", range(FIRST, FIRST + COURSES))
def test_a_long_course_of_keys_and_replays_goes_as_the_model_says(seed):
    rng = random.Random(seed)
    weights = [weight for weight, _ in EVENTS.values()]
    for _ in range(STEPS // COURSE):
        names = rng.choices(list(EVENTS), weights, k=COURSE)
        run([(name, *EVENTS[name][1](rng)) for name in names],
            {name: rng.choice(values) for name, values in CHOICES.items()})
