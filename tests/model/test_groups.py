"""Message groups against a model: random publishers, consumers, prefetches, returns, closed channels and kill -9.

The model knows the unsettled messages of each group, and who has which.  After each step the plane has been run until
nothing is left to do, and each delivery is held against the rules of ``docs/groups.md``:

- a message goes out after all earlier ones of its group: settled, or (where several may be out) with the same consumer;
- never two owners of a group, nor more of it out than the rule says;
- a repeat is marked as redelivered;
- while a consumer has credit, every group of which nothing is out and nothing keeps it has a message out;
- nothing is lost, and nothing comes again once it is settled.
"""

import shutil
import tempfile

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.plane.harness import Bench, ack, nack, reject
from tests.plane.test_groups import grouped, headers
from tests.plane.test_groups import publish as publish_octets

GROUPS = 5
CHANNELS = (2, 3, 4)
OPERATIONS = st.lists(st.one_of(
    st.tuples(st.just("publish"), st.integers(0, GROUPS), st.integers(1, 6)),       # group 0: none
    st.tuples(st.just("consume"), st.sampled_from(CHANNELS), st.integers(0, 4)),
    st.tuples(st.just("get"), st.sampled_from(CHANNELS)),
    st.tuples(st.just("ack"), st.integers(0, 30), st.booleans()),
    st.tuples(st.just("nack"), st.integers(0, 30), st.booleans()),
    st.tuples(st.just("reject"), st.integers(0, 30)),
    st.tuples(st.just("cancel"), st.integers(0, 5)),
    st.tuples(st.just("close"), st.sampled_from(CHANNELS)),
    st.tuples(st.just("pause"), st.integers(1, GROUPS)),
    st.tuples(st.just("resume"), st.integers(1, GROUPS)),
    st.tuples(st.just("park"), st.integers(1, GROUPS)),
    st.tuples(st.just("release"), st.integers(1, GROUPS)),
    st.tuples(st.just("skip"), st.integers(1, GROUPS)),
    st.tuples(st.just("rule")),
    st.tuples(st.just("crash")),
), max_size=60)


class Run:
    """The plane and the model side by side."""

    def __init__(self, directory, *, sticky, most):
        self.directory, self.rule = directory, {"sticky": sticky, "most": most}
        self.unsettled = {group: [] for group in range(GROUPS + 1)}     # numbers of messages, rising
        self.seq_of = {}                # number of a message: that in its queue
        self.was_out, self.group_of = set(), {}
        self.paused, self.parked = set(), set()
        self.before_park = set()        # out at a crash: its group is parked behind it
        self.next = 0
        self.begin(recovered=False)

    def begin(self, *, recovered):
        self.bench = Bench(self.directory)
        self.queue = grouped(self.bench, recovered=recovered, **self.rule)
        self.connection = self.bench.connection(1, *CHANNELS)
        self.out = {}                   # (channel, tag): (number, consumer's tag)
        self.consumers = []             # (object, channel)
        self.tags = 0

    # --- what comes out

    def listen(self):
        self.bench.turns()
        for one in self.connection.delivered():
            number, by = int(one.body), one.consumer or b"get"
            self.hold_to_rules(number, (one.channel, by))
            assert one.redelivered == (number in self.was_out)
            self.was_out.add(number)
            self.out[one.channel, one.tag] = (number, (one.channel, by))
        self.check_progress()

    def hold_to_rules(self, number, holder):
        group = self.group_of[number]
        assert number in self.unsettled[group], "settled already, or never published"
        with_it = {n: by for n, by in self.out.values() if self.group_of[n] == group}
        assert number not in with_it, "out twice"
        if not group:
            return
        assert group not in self.paused
        assert group not in self.parked or number in self.before_park
        for earlier in self.unsettled[group]:
            if earlier < number:
                assert with_it.get(earlier) == holder, "an earlier one of its group waits, or is with somebody else"
        assert all(by == holder for by in with_it.values()), "two owners"
        if not self.rule["sticky"]:
            assert len(with_it) < self.rule["most"]
        if holder[1] == b"get":
            assert not with_it

    def check_progress(self):
        free = [consumer for consumer, _ in self.consumers
                if not consumer.prefetch or consumer.unacked < consumer.prefetch]
        if not free:
            return
        out = {self.group_of[number] for number, _ in self.out.values()}
        owners = {group: self.queue.gate.find(b"g%d" % group) for group in range(1, GROUPS + 1)}
        for group, numbers in self.unsettled.items():
            if not numbers or group in out | self.paused | self.parked:
                continue
            owner = owners[group]["owner"] if group and owners[group] is not None else None
            assert owner is not None, "a group does not move though a consumer has credit"
            assert owner not in free, "a group does not move though its owner has credit"

    # --- what goes in

    def publish(self, group, count):
        for _ in range(count):
            table = {b"group-id": b"g%d" % group} if group else {}
            items = headers(table)
            properties = (1 << 13 | 1 << 12).to_bytes(2, "big") + len(items).to_bytes(4, "big") + items + b"\2"
            self.unsettled[group].append(self.next)
            self.seq_of[self.next] = self.queue.next_seq
            self.group_of[self.next] = group
            self.connection.feed(publish_octets(1, b"%d" % self.next, properties=properties))
            self.next += 1

    def consume(self, channel, prefetch):
        if len(self.consumers) < 6:
            self.tags += 1
            there = self.connection.channels[channel]
            there.prefetch = prefetch
            self.consumers.append((there.consume(self.queue, b"c%d" % self.tags, no_ack=False), channel))

    def get(self, channel):
        self.connection.channels[channel].get(self.queue, False)

    def pick(self, which):
        return sorted(self.out)[which % len(self.out)] if self.out else None

    def settle(self, which, octets, multiple, *, settled):
        at = self.pick(which)
        if at is None:
            return
        channel, tag = at
        those = [one for one in sorted(self.out) if one == at or (multiple and one[0] == channel and one[1] <= tag)]
        numbers = [(one, *self.out.pop(one)) for one in those]
        if settled:
            for _, number, _ in numbers:
                self.unsettled[self.group_of[number]].remove(number)
        else:
            for _, number, holder in numbers:       # Later ones of the group return with it.
                if self.group_of[number]:
                    for other, (later, by) in list(self.out.items()):
                        if later > number and self.group_of[later] == self.group_of[number] and by[0] == holder[0]:
                            del self.out[other]
        self.connection.feed(octets(channel, tag))

    def ack(self, which, multiple):
        self.settle(which, lambda channel, tag: ack(channel, tag, multiple), multiple, settled=True)

    def nack(self, which, multiple):
        self.settle(which, lambda channel, tag: nack(channel, tag, multiple), multiple, settled=False)

    def reject(self, which):
        self.settle(which, lambda channel, tag: reject(channel, tag, requeue=False), False, settled=True)

    def cancel(self, which):
        if self.consumers:
            consumer, channel = self.consumers.pop(which % len(self.consumers))
            self.connection.channels[channel].cancel(consumer)

    def close(self, channel):
        from brokerd import plane

        self.consumers = [one for one in self.consumers if one[1] != channel]
        self.out = {at: one for at, one in self.out.items() if at[0] != channel}
        self.connection.channels[channel].close()
        plane.Channel(self.connection, channel)

    # --- operators

    def pause(self, group):
        self.queue.gate.pause(b"g%d" % group)
        self.paused.add(group)

    def resume(self, group):
        assert self.queue.gate.resume(b"g%d" % group) == (group in self.paused)
        self.paused.discard(group)

    def park(self, group):
        self.queue.gate.scan(1000)
        if self.queue.gate.park(b"g%d" % group):
            self.parked.add(group)

    def release(self, group):
        self.queue.gate.scan(1000)
        assert self.queue.gate.release(b"g%d" % group) == (group in self.paused | self.parked)
        self.paused.discard(group)
        self.parked.discard(group)

    def skip(self, group):
        self.queue.gate.scan(1000)
        numbers = self.unsettled[group]
        out = [number for number, _ in self.out.values() if self.group_of[number] == group]
        seq = self.queue.gate.skip(b"g%d" % group)
        assert seq == (self.seq_of[numbers[0]] if numbers and not out else 0)
        if seq:
            numbers.pop(0)

    def parked_in_memory(self):
        """Parked groups of which no message waits: files say nothing of them."""
        found = {group: self.queue.gate.find(b"g%d" % group) for group in self.parked}
        return {group for group, one in found.items() if (one and not one["waiting"]) or not self.unsettled[group]}

    def ask_of_parks(self, groups):
        if groups:
            self.queue.gate.scan(1000)
        for group in groups:
            found = self.queue.gate.find(b"g%d" % group)
            (self.parked.add if found and "parked" in found["states"] else self.parked.discard)(group)

    def rule_(self):
        """The rule goes and comes again, as when a policy changes."""
        unsure = self.parked_in_memory()
        gate = self.queue.gate
        self.queue.gate = None
        self.queue.check()
        for channel in CHANNELS:
            self.connection.channels[channel].flow = True
        self.queue.gate = gate
        self.paused.clear()
        self.put_back_all()
        self.ask_of_parks(unsure)

    def put_back_all(self):
        """What was redriven, in runs with dead letters."""

    def crash(self, unsure=None):
        """kill -9: the queue is found again from its files."""
        before, unsure = self.bench, self.parked_in_memory() if unsure is None else unsure
        self.before_park |= {number for number, _ in self.out.values() if self.group_of[number] in self.parked}
        self.begin(recovered=True)
        self.paused.clear()
        self.connection.delivered()
        self.retired = before
        self.ask_of_parks(unsure)

    def step(self, operation):
        name, *arguments = operation
        getattr(self, f"{name}_" if name == "rule" else name)(*arguments)
        self.listen()
        self.queue.check()

    def drain(self):
        """At the end every message is there, in the order of its group."""
        self.queue.gate.scan(1000)
        for group in range(1, GROUPS + 1):
            self.queue.gate.release(b"g%d" % group)
        self.paused.clear()
        self.parked.clear()
        for channel in CHANNELS:
            self.close(channel)
        self.consume(CHANNELS[0], 0)
        self.listen()
        while self.out:
            self.ack(0, False)
            self.listen()
        assert not any(self.unsettled.values())
        self.queue.check()
        assert (self.queue.ready, self.queue.unacked, self.queue.aside) == (0, 0, 0)


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(OPERATIONS, st.booleans(), st.integers(1, 3))
def test_the_plane_keeps_the_rules_of_groups(operations, sticky, most):
    directory = tempfile.mkdtemp()
    run = Run(directory, sticky=sticky, most=most)
    try:
        for operation in operations:
            run.step(operation)
        run.drain()
    finally:
        run.bench.close()
        shutil.rmtree(directory, ignore_errors=True)
