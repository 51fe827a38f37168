"""The plane against the model: every frame that comes out, over random courses of events, restarts included.

BROKERD_MODEL_EXAMPLES and BROKERD_MODEL_STEPS make the search longer than the suite's.
"""

import os
import shutil
import tempfile
from functools import partial

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from tests.model import model
from tests.plane import harness

from brokerd import plane
from brokerd.store import compaction
from brokerd.store.disk import Disk

EXAMPLES = int(os.environ.get("BROKERD_MODEL_EXAMPLES", "300"))
STEPS = int(os.environ.get("BROKERD_MODEL_STEPS", "40"))
QUEUES = {b"a": True, b"b": True, b"t": False}      # name: durable
FAN = b"fan"                                        # an exchange that leads to all of them
SIZES = st.sampled_from([0, 1, 10, 500, 1000, 1500, 1900, 4500])
PICK = st.integers(0, 1 << 16)


class Link:
    """A connection of the plane and the model's."""

    def __init__(self, bench):
        self.real = bench.connection()
        self.model = model.Connection()


class PlaneMachine(RuleBasedStateMachine):
    levels = {}                                     # name: the queue's max_priority

    def __init__(self):
        super().__init__()
        self.directory = tempfile.mkdtemp(prefix="brokerd-model-")
        self.bench = None
        self.bodies = 0
        self.tags = 0
        self.syncing = False
        self.compaction = None
        self.generation = 0
        self.clock = model.Clock()

    @initialize(segment=st.sampled_from([4096, 8192]))
    def begin(self, segment):
        self.segment = segment
        self.open_bench()
        self.queues = {}
        for name in QUEUES:
            self.declare(name)
        self.links = [Link(self.bench) for _ in range(3)]
        for link in self.links:
            self.open_busy_channel(link, 1)

    def open_bench(self):
        self.bench = harness.Bench(self.directory, segment_octets=self.segment)
        self.bench.bound = {(FAN, b"all"): tuple(QUEUES)}

    def declare(self, name):
        self.generation += 1
        levels = self.levels.get(name, 0)
        self.queues[name] = model.Queue(name, QUEUES[name], levels, self.clock)
        self.queues[name].folder = f"{name.decode()}{self.generation}"
        self.bench.queue(name, durable=QUEUES[name], folder=self.queues[name].folder, max_priority=levels)

    def open_channel(self, link, number):
        plane.Channel(link.real, number)
        model.Channel(link.model, number)

    def open_busy_channel(self, link, number):
        """One that confirms and consumes: what is new is not idle."""
        self.open_channel(link, number)
        real, channel = link.real.channels[number], link.model.channels[number]
        real.select_confirm()
        channel.confirm = True
        real.prefetch = channel.prefetch = (4, 0, 2)[self.tags % 3]
        self.add_consumer(real, channel, self.tags, self.tags % 4 == 3, 0)

    # ---- choosing

    def channels(self):
        return [(link, link.real.channels[number], channel) for link in self.links
                for number, channel in link.model.channels.items()]

    def channel(self, pick):
        channels = self.channels()
        return channels[pick % len(channels)]

    def queue(self, pick):
        name = list(QUEUES)[pick % len(QUEUES)]
        return self.bench.queues[name], self.queues[name]

    def add_consumer(self, real, channel, which, no_ack, priority):
        real_queue, queue = self.queue(which)
        self.tags += 1
        tag = b"ctag-%d" % self.tags
        harness.consume(real, real_queue, tag, no_ack=no_ack, priority=priority)
        model.Consumer(channel, queue, tag, no_ack, priority)

    # ---- what comes out

    def check(self, got=None):
        """Compare all that was written since the last time; `got`: (channel, message, tag, remaining) of a get."""
        self.bench.turns()
        streams = []
        for link in self.links:
            assert not link.real.errors, link.real.errors
            if link.model.paused:
                assert link.real.out.octets == b""
                continue
            deliveries = {}
            for one in link.real.said():
                if isinstance(one, harness.Deliver):
                    channel = link.model.channels[one.channel]
                    if one.method == 71:
                        expected, queue, message, tag, remaining = got
                        assert expected is channel
                        self.same(one, queue, message, tag)
                        assert one.remaining == remaining
                        got = None
                    else:
                        assert one.method == 60
                        deliveries.setdefault(channel, []).append(one)
                else:
                    self.confirmed(link.model.channels[one[1]], *one)
            streams += deliveries.items()
        assert got is None
        self.merge(dict(streams))
        self.rules_kept()
        self.at_rest()

    def rules_kept(self):
        """What a turn does beside delivering, in machines with rules."""

    def merge(self, streams):
        """Deliveries are in order for each channel and for each queue; in some order of both they follow the model."""
        while streams:
            for channel, deliveries in list(streams.items()):
                one = deliveries[0]
                consumer = channel.consumers.get(one.consumer)
                assert consumer is not None, one
                queue = consumer.queue
                if queue.may_be_next(consumer) and (coming := queue.coming()) and coming.body == one.body:
                    self.same(one, queue, *consumer.serve())
                    deliveries.pop(0)
                    if not deliveries:
                        del streams[channel]
                    break
            else:
                said = [deliveries[0] for deliveries in streams.values()]
                next_ones = [(queue.next_consumer() and queue.next_consumer().tag, queue.ready[:1])
                             for queue in self.queues.values()]
                pytest.fail(f"none of {said} may be next, but of {next_ones}")

    def same(self, one, queue, message, tag):
        assert (one.body, one.exchange, one.key, one.tag) == (message.body, message.exchange, message.key, tag)
        assert one.redelivered == message.redelivered, message
        assert one.properties == self.properties_of(queue, message), message

    def properties_of(self, queue, message):
        """As they are handed out."""
        return message.properties

    def confirmed(self, channel, verb, _, tag, multiple):
        assert channel.confirmed < tag <= channel.may_confirm()
        assert multiple == (tag > channel.confirmed + 1)
        settled = set(range(channel.confirmed + 1, tag + 1))
        assert settled & channel.refused == (settled if verb == "nack" else set())
        channel.confirmed = tag

    def at_rest(self):
        for name, queue in self.queues.items():
            assert queue.next_consumer(leave=True) is None, name
            real = self.bench.queues[name]
            assert (real.ready, real.unacked, real.consumer_count, real.next_seq) == (
                len(queue.ready), queue.unacked, len(queue.consumers), queue.next_seq)
            queue.octets_estimated &= bool(queue.ready)
            assert real.ready_octets < 1 << 40 if queue.octets_estimated else real.ready_octets == queue.octets
            real.check()
            segments = real.segments()
            assert sum(one["records"] - one["settled"] for one in segments) == (
                real.ready + real.unacked + real.aside)
            assert sum(one["waiting"] + one["returned"] for one in segments) == real.ready
            assert sum(one["unacked"] for one in segments) == real.unacked
        for link, real, channel in self.channels():
            assert real.unacked == len(channel.unacked)
            if channel.confirm and not channel.unsynced and not link.model.paused:
                assert channel.confirmed == channel.published
            assert {tag: one.unacked for tag, one in real.consumers.items()} == {
                tag: one.unacked for tag, one in channel.consumers.items()} if real.consumers else not channel.consumers
        assert not self.bench.damages
        assert not self.bench.storage_errors

    # ---- what goes in

    def publish(self, channel, name, size, persistent):
        self.bodies += 1
        body = b"%d:" % self.bodies + b"x" * size
        exchange, key = (FAN, b"all") if name == FAN else (b"", name)
        message = self.message(key, body, persistent, exchange)
        channel.publish(list(self.queues.values()) if name == FAN else [self.queues[name]], message)
        return harness.publish(channel.number, body, key, exchange=exchange, properties=message.properties,
                               piece=2000 if name == FAN else None)

    def message(self, key, body, persistent, exchange):
        return model.Message(key, body, persistent, harness.PERSISTENT if persistent else harness.TRANSIENT,
                             exchange=exchange)

    def send(self, link, commands):
        """One chunk, of what each of these says."""
        link.real.feed(b"".join(command() for command in commands))
        self.check()

    def settle(self, channel, pick, multiple, how):
        """An answer to a delivery that waits for one; octets, or none if there is nothing to be settled."""
        tags = sorted({*channel.unacked, *channel.late})
        if not tags:
            return b""
        tag = tags[pick % len(tags)]
        if how == "reject":
            multiple = False
        assert channel.settle(tag, multiple, how in ("reject", "requeue"), how == "nack")
        if how == "ack":
            return harness.ack(channel.number, tag, multiple)
        if how == "reject":
            return harness.reject(channel.number, tag)
        return harness.nack(channel.number, tag, multiple, how == "requeue")

    @rule(pick=PICK, cut=PICK, commands=st.lists(st.one_of(
        st.tuples(st.just("publish"), st.sampled_from([*QUEUES, FAN]), SIZES, st.booleans()),
        st.tuples(st.just("settle"), PICK, st.booleans(), st.sampled_from(["ack", "ack", "nack", "reject", "requeue"])),
    ), min_size=1, max_size=12))
    def chunk(self, pick, cut, commands):
        """Some commands of one channel in one chunk."""
        link, _, channel = self.channel(pick)
        self.send(link, [partial(getattr(self, name), channel, *arguments) for name, *arguments in commands])

    @rule(pick=PICK, cut=PICK, name=st.sampled_from([*QUEUES, FAN]), size=SIZES, persistent=st.booleans())
    def in_pieces(self, pick, cut, name, size, persistent):
        """One publish that comes in three chunks."""
        link, _, channel = self.channel(pick)
        octets = self.publish(channel, name, size, persistent)
        first, second = sorted((cut % len(octets), cut * 7919 % len(octets)))
        for piece in (octets[:first], octets[first:second], octets[second:]):
            link.real.feed(piece)
        self.check()

    @rule(pick=PICK, names=st.lists(st.sampled_from([*QUEUES, FAN]), min_size=3, max_size=25), size=SIZES,
          persistent=st.booleans())
    def publish_many(self, pick, names, size, persistent):
        link, _, channel = self.channel(pick)
        self.send(link, [partial(self.publish, channel, name, size, persistent) for name in names])

    @rule(answers=st.lists(st.tuples(PICK, PICK, st.booleans(), st.sampled_from(["ack", "ack", "nack", "reject",
                                                                                 "requeue"])), max_size=10))
    def settle_some(self, answers):
        """Each in a chunk of its own, on channels that have something to be settled."""
        for pick, which, multiple, how in answers:
            channels = [one for one in self.channels() if one[2].unacked]
            if not channels:
                return
            link, _, channel = channels[pick % len(channels)]
            link.real.feed(self.settle(channel, which, multiple, how))
            self.check()

    @rule(pick=PICK, tag=st.integers(0, 40), multiple=st.booleans())
    def settle_what_may_be_unknown(self, pick, tag, multiple):
        link, real, channel = self.channel(pick)
        if link.model.paused:
            return
        known = channel.settle(tag, multiple, True)
        link.real.feed(harness.nack(channel.number, tag, multiple))
        if not known:
            assert link.real.fault[:4] == (channel.number, 406, False, f"unknown delivery tag {tag}")
            link.real.errors.clear()
            real.close()
            channel.close()
            self.open_channel(link, channel.number)
        self.check()

    @rule(pick=PICK, which=PICK, no_ack=st.booleans())
    def get(self, pick, which, no_ack):
        link, real, channel = self.channel(pick)
        if link.model.paused:
            return
        real_queue, queue = self.queue(which)
        expected = channel.get(queue, no_ack)
        assert real.get(real_queue, no_ack) == (expected is not None)
        self.check(expected and (channel, queue, *expected, len(queue.ready)))

    # ---- consumers and channels

    @rule(pick=PICK, which=PICK, no_ack=st.booleans(), priority=st.sampled_from([0, 0, 0, 1, -3]))
    def consume(self, pick, which, no_ack, priority):
        _, real, channel = self.channel(pick)
        if len(channel.consumers) >= 4:
            return
        self.add_consumer(real, channel, which, no_ack, priority)
        self.check()

    @rule(pick=PICK, which=PICK)
    def cancel(self, pick, which):
        _, real, channel = self.channel(pick)
        if channel.consumers:
            tag = list(channel.consumers)[which % len(channel.consumers)]
            real.cancel(real.consumers[tag])
            channel.consumers[tag].cancel()
            self.check()

    @rule(pick=PICK, count=st.integers(0, 5))
    def prefetch(self, pick, count):
        _, real, channel = self.channel(pick)
        real.prefetch = channel.prefetch = count

    @rule(pick=PICK, count=st.sampled_from([0, 0, 1, 3, 6]))
    def global_prefetch(self, pick, count):
        _, real, channel = self.channel(pick)
        real.global_prefetch = channel.global_prefetch = count
        channel.credit()
        self.check()

    @rule(pick=PICK, flow=st.booleans())
    def flow(self, pick, flow):
        _, real, channel = self.channel(pick)
        real.flow = channel.flow = flow
        channel.credit()
        self.check()

    @rule(pick=PICK)
    def select_confirm(self, pick):
        _, real, channel = self.channel(pick)
        real.select_confirm()
        channel.confirm = True

    @rule(pick=PICK)
    def recover(self, pick):
        _, real, channel = self.channel(pick)
        real.recover()
        channel.recover()
        self.check()

    @rule(pick=PICK, number=st.integers(2, 4))
    def open_another_channel(self, pick, number):
        link = self.links[pick % len(self.links)]
        if number not in link.model.channels:
            self.open_busy_channel(link, number)
            self.check()

    @rule(pick=PICK)
    def close_channel(self, pick):
        link, real, channel = self.channel(pick)
        if link.model.paused:
            return          # What the channel said may still be on its way, and would be taken for its successor's.
        real.close()
        channel.close()
        self.open_busy_channel(link, channel.number)
        self.check()

    # ---- connections

    @rule(pick=PICK)
    def lose_connection(self, pick):
        at = pick % len(self.links)
        self.links[at].real.detach()
        self.links[at].model.close()
        self.links[at] = Link(self.bench)
        self.check()
        self.open_busy_channel(self.links[at], 1)
        self.check()

    @rule(pick=PICK)
    def pause_or_resume_writing(self, pick):
        link = self.links[pick % len(self.links)]
        if link.model.paused:
            link.model.resume()
            link.real.resume_writing()
        else:
            link.real.pause_writing()
            link.model.pause()
        self.check()

    # ---- queues

    @rule(which=PICK)
    def purge(self, which):
        real, queue = self.queue(which)
        assert real.purge() == queue.purge()
        self.check()

    @rule(which=PICK)
    def delete_queue(self, which):
        real, queue = self.queue(which)
        real.drop()
        queue.drop()
        self.declare(queue.name)
        self.check()

    @rule(which=PICK)
    def rest(self, which):
        self.queue(which)[0].rest()
        self.check()

    @rule()
    def collect_garbage(self):
        self.bench.collect_garbage()

    @precondition(lambda self: self.compaction is None)
    @rule(which=PICK, pick=PICK)
    def begin_compaction(self, which, pick):
        """As by a thread: its end comes after something else may have happened."""
        real, _ = self.queue(which)
        segments = [compaction.Sparse(one["number"], one["level"]) for one in real.segments()]
        segments = [one for one in segments if real.can_compact(*one)]
        if segments:
            prepared = compaction.prepare(real.directory, segments[pick % len(segments)], Disk())
            if prepared is not None:
                self.compaction = prepared, real

    @precondition(lambda self: self.compaction is not None)
    @rule()
    def finish_compaction(self):
        (prepared, real), self.compaction = self.compaction, None
        if real in self.bench.queues.values():
            prepared.finish(real)
        self.check()

    # ---- syncs and restarts

    @precondition(lambda self: not self.syncing)
    @rule()
    def begin_sync(self):
        self.bench.begin_sync()
        self.syncing = True
        for _, _, channel in self.channels():
            channel.snapshot = channel.published

    @precondition(lambda self: self.syncing)
    @rule()
    def end_sync(self):
        self.bench.core.end_sync()
        self.syncing = False
        for _, _, channel in self.channels():
            channel.unsynced = [number for number in channel.unsynced if number > channel.snapshot]
        self.check()

    @rule()
    def restart(self):
        """kill -9, and a new broker on the same files."""
        before, old = self.bench, self.directory
        self.directory = tempfile.mkdtemp(prefix="brokerd-model-")
        shutil.copytree(old, self.directory, dirs_exist_ok=True)
        before.close()
        shutil.rmtree(old)
        unacked = [one for link in self.links for channel in link.model.channels.values()
                   for one in channel.unacked.values()]
        self.open_bench()
        findings = []
        for name, queue in self.queues.items():
            self.bench.recovered(name, durable=queue.durable, folder=queue.folder, findings=findings,
                                 max_priority=queue.max_priority)
            queue.restart([message for of, message, _, _ in unacked if of is queue])
            self.recovered(name)
        assert all(finding.kind == "leftover" for finding in findings), findings
        self.links = []
        self.check()
        self.links = [Link(self.bench) for _ in range(3)]
        for link in self.links:
            self.open_busy_channel(link, 1)
        self.syncing = False
        self.compaction = None
        self.check()

    def recovered(self, name):
        """A machine with rules asks for them again."""

    def teardown(self):
        if self.bench is not None:
            self.bench.close()
        shutil.rmtree(self.directory, ignore_errors=True)


def test_the_plane_does_as_the_model_says(monkeypatch):
    monkeypatch.setattr(compaction, "LIVE_PERCENT_MAX", 100)    # few records to a segment: compact whatever can be
    run_state_machine_as_test(PlaneMachine, settings=settings(
        max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None, print_blob=True,
        suppress_health_check=list(HealthCheck)))
