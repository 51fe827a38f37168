"""Keys of messages over power cuts, crashes and stops at any moment: no key of a confirmed message is forgotten, none
is known if its message is lost.

A key is asked for by publishing it again.  What is confirmed and not stored must be there, or have been received.
"""

import os
import struct

import pytest
from tests.faults import test_power
from tests.faults.power import PowerlessDisk
from tests.faults.test_power import CONFIRM, GET_OK, Story
from tests.in_memory import in_memory  # noqa: F401 - its folders
from tests.plane import harness
from tests.plane.harness import Deliver

from brokerd.store.disk import Disk
from brokerd.upkeep import upkeep
from brokerd.wire import methods
from brokerd.wire.properties import Properties, encode_header

RULE = {"x-message-deduplication": True, "x-cache-size": 100_000}
# Where a key is published, and the queue that then has its message.
PLACES = {"q": ("", "q"), "levels": ("", "levels"), "x": ("x", "other"), "both": ("y", "both")}


def properties(key, persistent=True, priority=0):
    headers = {"x-deduplication-header": key}
    return encode_header(0, Properties(headers=headers, delivery_mode=2 if persistent else 1, priority=priority))[12:]


class UpcallDisk(PowerlessDisk):
    """Rows of key logs are written in an upcall of the data plane, where nothing may rise: the power goes later."""

    def pwrite(self, fd, octets, position):
        if "/keys." in os.readlink(f"/proc/self/fd/{fd}") and self.verbs_left is not None:
            self.verbs_left += 1
        super().pwrite(fd, octets, position)


@pytest.fixture(autouse=True)
def upcalls(monkeypatch):
    """All of this happens on such a disk, and segments are compacted soon."""
    monkeypatch.setattr(test_power, "PowerlessDisk", UpcallDisk)
    monkeypatch.setattr(upkeep, "COMPACT_EVERY_TICKS", 3)


class KeyStory(Story):
    """One data directory over several starts; ``known`` is what publishers were promised."""

    def __init__(self, directory, seed):
        super().__init__(directory, seed)
        self.known = {place: {} for place in PLACES}        # key: whether a persistent message with it was confirmed
        self.received = {place: set() for place in PLACES}
        self.keys = 0

    # --- load

    def work(self):
        random, machine = self.random, self.machine
        self.client = machine.client()
        self.sent, self.confirmed, self.waiting = 0, 0, {}
        self.tags, self.delivery = {}, None
        self.client.tell(methods.ChannelOpen().frame(1))
        self.declare_all()
        self.client.tell(methods.ConfirmSelect().frame(1))
        machine.sync()
        self.client.frames()
        verbs = [self.publish] * 6 + [self.sync] * 3 + [self.get, self.settle, self.settle, self.glimpse, self.tick,
                                                       self.tick, self.purge]
        for _ in range(random.randrange(4, 40)):
            random.choice(verbs)()
            self.listen()

    def declare_all(self):
        tell = self.client.tell
        for queue, arguments in (("q", RULE), ("levels", {**RULE, "x-max-priority": 2}), ("other", {}), ("both", RULE)):
            tell(methods.QueueDeclare(queue=queue, durable=True, arguments=arguments).frame(1))
        for exchange, queue in (("x", "other"), ("y", "both")):
            tell(methods.ExchangeDeclare(exchange=exchange, type="fanout", durable=True, arguments=RULE).frame(1))
            tell(methods.QueueBind(queue=queue, exchange=exchange).frame(1))

    def publish(self):
        octets = b""
        for _ in range(self.random.randrange(1, 20)):
            place = self.random.choice(list(PLACES))
            if self.known[place] and self.random.random() < 0.2:
                key = self.random.choice(list(self.known[place]))
            else:
                self.keys += 1
                key = self.keys
            octets += self.octets_of(place, key)
        self.client.tell(octets)

    def octets_of(self, place, key):
        exchange, queue = PLACES[place]
        persistent = key % 10 != 0
        self.known[place].setdefault(key, False)
        self.sent += 1
        self.waiting[self.sent] = place, key, persistent
        body = struct.pack("<Q", key) * self.random.choice((1, 20, 300, 800))
        return harness.publish(1, body, b"" if exchange else queue.encode(), exchange=exchange.encode(),
                               properties=properties(key, persistent, self.random.randrange(3)))

    def get(self):
        place = self.random.choice(list(PLACES))
        for _ in range(self.random.randrange(1, 60)):
            self.client.tell(methods.BasicGet(queue=PLACES[place][1]).frame(1))

    def settle(self):
        self.get()
        self.listen()
        for tag in list(self.tags):
            if self.random.random() < 0.95:
                self.client.tell(harness.ack(1, tag))
                del self.tags[tag]

    def purge(self):
        if self.random.random() < 0.3:
            place = self.random.choice(list(PLACES))
            self.received[place] |= self.present(place)
            self.client.tell(methods.QueuePurge(queue=PLACES[place][1]).frame(1))

    def tick(self):
        self.machine.node.upkeep.tick(0)

    def listen(self):
        for kind, _, payload in self.client.frames():
            if kind == 1 and payload[:4] == struct.pack(">HH", 60, CONFIRM):
                tag, multiple = struct.unpack_from(">QB", payload, 4)
                for number in [each for each in self.waiting if each <= tag and (multiple or each == tag)]:
                    place, key, persistent = self.waiting.pop(number)
                    self.known[place][key] = self.known[place][key] or persistent
            elif kind == 1 and payload[:4] == struct.pack(">HH", 60, GET_OK):
                self.delivery = Deliver(1, payload)
            elif kind == 3 and self.delivery is not None:
                key, = struct.unpack_from("<Q", payload)
                place = next(place for place, (exchange, queue) in PLACES.items()
                             if queue.encode() == (self.delivery.key or {b"x": b"other", b"y": b"both"}[
                                 self.delivery.exchange]))
                self.received[place].add(key)
                self.tags[self.delivery.tag] = place
                self.delivery = None

    def present(self, place):
        queue = self.machine.node.vhosts["/"].queues.get(PLACES[place][1])
        return {struct.unpack_from("<Q", row[6])[0] for row in queue.browse(0, 1 << 20)} if queue is not None else set()

    # --- what is found

    def check(self):
        self.client = self.machine.client()
        self.sent, self.waiting, self.tags, self.delivery = 0, {}, {}, None
        self.client.tell(methods.ChannelOpen().frame(1))
        self.declare_all()
        self.machine.sync()
        self.client.frames()
        self.client.tell(methods.ConfirmSelect().frame(1))
        for place, known in self.known.items():
            self.check_place(place, known)
        self.client.tell(methods.ChannelClose().frame(1))
        self.machine.sync()

    def check_place(self, place, known):
        there = self.present(place)
        queue = self.machine.node.vhosts["/"].queues[PLACES[place][1]]
        for key, confirmed in list(known.items()):
            before = queue.ready
            self.client.tell(self.octets_of(place, key))
            self.machine.pump()
            stored = queue.ready > before
            assert not (stored and confirmed), f"{place}: key {key} was confirmed and is forgotten"
            here = stored or key in there or key in self.received[place]
            assert here, f"{place}: key {key} is known, and lost"
        self.machine.sync()
        self.listen()
        assert all(confirmed or key % 10 == 0 for key, confirmed in known.items())


@pytest.mark.parametrize("seeds", [range(start, start + 8) for start in range(0, 64, 8)])
def test_keys_of_confirmed_messages_survive_every_power_cut_and_no_others_do(tmp_path, seeds):
    for seed in seeds:
        KeyStory.told(tmp_path, seed)


def test_the_story_meets_what_it_is_about(tmp_path, monkeypatch):
    met = set()
    replace = Disk.replace

    def noting(disk, path, content, mode=0o640):
        met.add(path.rpartition("/")[2].partition(".")[0] + (" of a level" if "/prio." in path else ""))
        replace(disk, path, content, mode)

    monkeypatch.setattr(Disk, "replace", noting)
    for seed in range(12):
        (tmp_path / str(seed)).mkdir()
        story = KeyStory(tmp_path / str(seed), seed)
        story.tell()
        story.end()
    assert {"keys", "keys of a level"} <= met
