"""The offsets of a stream's named readers over power cuts at any moment: never ahead of an ack, and never behind what
was answered."""

from random import Random

import pytest
from tests.faults.power import PowerCut, PowerlessDisk
from tests.in_memory import in_memory  # noqa: F401 - its folders
from tests.plane.harness import Bench, ack, consume, nack
from tests.plane.test_stream import Stream

from brokerd import plane
from brokerd.queues import tracked
from brokerd.queues.tracked import Tracked
from brokerd.store.disk import Disk

NAMES = ("billing", "search", "mail")
MESSAGES = 400


class Story:
    """A stream with named readers.  ``lowest``: what each has not acknowledged; ``answered``: the disk has that, or
    more."""

    def __init__(self, directory, disk, random):
        self.random, self.disk = random, disk
        self.stream = Stream(Bench(directory))
        self.stream.publish(*[b"m"] * MESSAGES)
        self.lowest, self.answered, self.unsure = {}, {}, set()
        self.kept = Tracked(disk.root)
        self.held, self.read = {}, {}

    def join(self, name):
        self.unsure.add(name)
        before = self.kept.offset(name)
        begins = self.random.randrange(1, 50)
        self.lowest.setdefault(name, begins)
        slot = self.kept.claim(name, begins, self.random.randrange(1, 9))
        self.unsure.discard(name)
        self.answered.setdefault(name, begins)
        channel = self.leave(name)
        channel.prefetch = 10
        start = begins if before is None else before
        self.stream.gate.begin("offset", start, slot=slot.octets, turn=slot.turn)
        consume(channel, self.stream.queue, name.encode())
        self.lowest[name] = self.read[name] = start
        self.held[name] = {}
        self.take()

    def leave(self, name):
        """End a reader, with what it holds.  Returns its channel."""
        number = NAMES.index(name) + 2
        channels = self.stream.connection.channels
        channel = channels.get(number) or plane.Channel(self.stream.connection, number)
        for consumer in list((channel.consumers or {}).values()):
            channel.cancel(consumer)
        if self.held.pop(name, None):
            self.stream.connection.feed(nack(number, 0, multiple=True, requeue=False))
        self.stream.connection.delivered()
        return channel

    def take(self):
        self.stream.bench.turns()
        for one in self.stream.connection.delivered():
            name = NAMES[one.channel - 2]
            if name in self.held:
                self.held[name][one.tag] = self.read[name]
                self.read[name] += 1

    def settle(self, name):
        held = self.held.get(name)
        if not held:
            return
        tag = self.random.choice(list(held))
        del held[tag]
        self.lowest[name] = min(held.values(), default=self.read[name])
        self.stream.connection.feed(ack(NAMES.index(name) + 2, tag))
        self.take()

    def set(self, name):
        offset = self.random.randrange(1, MESSAGES)
        self.leave(name)                    # An operator may only while it does not read.
        self.unsure.add(name)
        before = self.lowest.get(name)
        self.lowest[name] = max(offset, before or 0)
        self.answered[name] = min(offset, self.answered.get(name, offset))
        self.kept.set(name, offset)
        self.unsure.discard(name)
        self.lowest[name] = self.answered[name] = offset

    def live(self):
        self.disk.verbs_left = self.random.choice((None, self.random.randrange(25)))
        try:
            for _ in range(self.random.randrange(60)):
                name = self.random.choice(NAMES)
                self.random.choice((self.join, self.settle, self.settle, self.settle, self.settle, self.set))(name)
                if self.random.random() < 0.3:
                    self.disk.glimpse()
        except PowerCut:
            pass
        self.disk.verbs_left = None


@pytest.mark.parametrize("seed", range(12))
def test_an_offset_is_never_ahead_of_an_ack_and_never_behind_what_was_answered(tmp_path, monkeypatch, seed):
    random = Random(seed)
    for life in range(4):
        folder = tmp_path / f"{life}"
        folder.mkdir()
        disk = PowerlessDisk(str(folder))
        monkeypatch.setattr(tracked, "Disk", lambda disk=disk: disk)
        story = Story(tmp_path / f"stream{life}", disk, random)
        story.live()
        target = tmp_path / f"{life}-after"
        disk.lose_power(str(target), random)
        monkeypatch.setattr(tracked, "Disk", Disk)
        found = {reader.name: reader.offset for reader in Tracked(str(target)).readers()}
        for name, least in story.answered.items():
            if name in story.unsure and name not in found:
                continue
            assert least <= found[name] <= story.lowest[name], f"seed {seed}, life {life}: {name}"
        disk.release()
