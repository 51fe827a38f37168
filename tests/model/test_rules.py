"""The model's machine with queues that have rules: levels, time that passes, limits, deaths, a single active consumer.

Queue a has priorities, b a single active consumer; what else is asked of them, and of t, changes at any time.
"""

import random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test
from tests.model import model
from tests.model.test_model import EXAMPLES, FAN, PICK, QUEUES, STEPS, PlaneMachine

from brokerd.store import compaction

MS = 1_000_000
BEGINNING = 1_700_000_000_000 * MS
CONSTANT = {b"b": {"single_active": True}}          # not to be changed once there are consumers
COUNTERS = ("expired", "discarded", "dead_lettered", "refused", "limited", "timed_out")
CHOICES = {"ttl_ms": [-1, -1, -1, 0, 5, 20, 100], "max_length": [-1, -1, -1, 0, 1, 3, 10],
           "max_octets": [-1, -1, -1, 1, 2000, 8000], "overflow": [0, 0, 1, 2], "dead_letters": [True, True, False],
           "delivery_limit": [-1, -1, 0, 1, 2, 5], "limit_drops": [False, False, True],
           "delivery_counts": [False, True], "consumer_timeout_ms": [-1, -1, 10, 50],
           "timeout_closes": [False, False, False, True]}
RULES = st.fixed_dictionaries({}, optional={name: st.sampled_from(values) for name, values in CHOICES.items()})
PASSING = [0, 1, 5, 20, 60]


def short(octets):
    return bytes([len(octets)]) + octets


class RulesMachine(PlaneMachine):
    levels = {b"a": 3}

    @initialize(segment=st.sampled_from([4096, 8192]), seed=PICK, asked=st.lists(RULES, min_size=3, max_size=3))
    def begin(self, segment, seed, asked):
        self.random = random.Random(seed)
        self.clock.now = BEGINNING
        self.asked = {}
        super().begin(segment)
        for which, rules in enumerate(asked):
            self.set_rules(which, rules)

    def set_clock(self):
        self.bench.core.clock = lambda: self.clock.now
        self.bench.core.expire()

    def declare(self, name):
        super().declare(name)
        self.declared_at = len(self.bench.resolved)
        self.asked[name] = None
        if name in CONSTANT:
            self.ask(name, {})

    def ask(self, name, rules):
        rules = {**rules, **CONSTANT.get(name, {})}
        if rules.get("overflow") and rules.get("max_length") == 0:
            rules["max_length"] = 1         # Whether somebody could take it at once is only sure where something waits.
        if self.queues[name].octets_estimated:
            rules.pop("max_octets", None)
        self.asked[name] = rules
        self.queues[name].rules = model.Rules(**rules)
        self.bench.queues[name].set_rules(**rules)

    def open_bench(self):
        super().open_bench()
        self.declared_at = 0
        if self.clock.now:
            self.clock.now += MS
            self.set_clock()

    def recovered(self, name):
        self.bench.queues[name].keeps = self.queues[name].keeps
        if self.asked[name] is not None:
            self.ask(name, self.asked[name])

    # ---- what is compared

    def rules_kept(self):
        for name, queue in self.queues.items():
            if queue.next_consumer(leave=True):     # It looked, though all that waited was to die.
                queue.look()
            queue.expire()
            queue.keep_limits()
            queue.expire()          # What is at the head then.
            queue.tell()
            real = self.bench.queues[name]
            died = getattr(real, "dead", [])
            if queue.max_priority:      # Of several levels it depends on who is asked first.
                died.sort(key=self.level_of)
                queue.died.sort(key=self.level_of)
            assert died == queue.died, name
            real.dead, queue.died = [], []
            assert {one: getattr(real, one) for one in COUNTERS} == {one: getattr(queue, one) for one in COUNTERS}
            assert real.aside == len(queue.kept)
            assert (real.active and real.active.tag) == (
                queue.active.tag if queue.rules.single_active and queue.active and not queue.active.closed else None)
        for _, real, channel in self.channels():
            assert real.late == channel.came_late

    def level_of(self, obituary):
        properties = obituary[4]
        return min(properties[3 if properties[0] & 0x10 else 2], self.levels[b"a"]) if properties[0] & 0x08 else 0

    def properties_of(self, queue, message):
        properties = message.properties
        if not queue.rules.delivery_counts or not message.count:
            return properties
        counts = b"".join(short(name) + b"l" + message.count.to_bytes(8)
                          for name in (b"x-delivery-count", b"x-acquired-count"))
        return bytes([properties[0] | 0x20, properties[1]]) + len(counts).to_bytes(4) + counts + properties[2:]

    # ---- what goes in

    def message(self, key, body, persistent, exchange):
        """With a priority and an expiration now and then."""
        priority = self.random.choice([None, None, 0, 1, 2, 3, 9])
        lifetime = self.random.choice([None, None, None, None, 0, 3, 10, 50])
        flags, values = (0x10, bytes([2])) if persistent else (0, b"")
        if priority is not None:
            flags |= 0x08
            values += bytes([priority])
        properties = bytes([flags | (lifetime is not None), 0]) + values
        if lifetime is not None:
            properties += short(b"%d" % lifetime)
        return model.Message(key, body, persistent, properties, exchange=exchange, priority=priority or 0,
                             lifetime=None if lifetime is None else lifetime * MS)

    def send(self, link, commands):
        """Each in a chunk of its own where a queue has limits, if it may look who can take what within a chunk: when
        it might refuse, and when it is not known yet where a publish leads."""
        limited = [queue for queue in self.queues.values() if queue.rules.limited]
        learnt = {(exchange, key) for exchange, key, _ in self.bench.resolved[self.declared_at:]}
        names = {command.args[1] for command in commands if command.func == self.publish}
        if limited and (any(queue.rules.overflow for queue in limited) or not learnt.issuperset(
                (FAN, b"all") if name == FAN else (b"", name) for name in names)):
            for command in commands:
                super().send(link, [command])
        else:
            super().send(link, commands)

    @rule(which=PICK, rules=RULES)
    def set_rules(self, which, rules):
        _, queue = self.queue(which)
        self.ask(queue.name, rules)
        self.check()

    @rule(ms=st.sampled_from(PASSING))
    def time_passes(self, ms):
        self.clock.now += ms * MS
        self.expire()

    @rule(ms=st.sampled_from(PASSING))
    def look_for_overdue(self, ms):
        self.clock.now += ms * MS
        channels = sorted(self.channels(), key=lambda one: -one[2].made)
        closing = [(consumer, link, real) for link, real, channel in channels
                   if (consumer := channel.return_overdue(self.clock.now)) is not None]
        assert [one.tag for one in self.bench.core.return_overdue()] == [one.tag for one, _, _ in closing]
        for consumer, link, real in closing:
            if not link.model.paused:       # Else what it was sent is still on its way.
                real.close()
                consumer.channel.close()
                self.open_channel(link, consumer.channel.number)
        self.expire()

    def expire(self):
        for queue in self.queues.values():
            queue.expire()
        self.bench.core.expire()
        self.check()

    @rule(which=PICK, keeps=st.booleans())
    def keep_dead(self, which, keeps):
        real, queue = self.queue(which)
        real.keeps = queue.keeps = keeps

    @precondition(lambda self: any(queue.kept for queue in self.queues.values()))
    @rule(which=PICK, pick=PICK)
    def be_done_with_dead(self, which, pick):
        for at in range(len(QUEUES)):
            real, queue = self.queue(which + at)
            if queue.kept:
                seq = list(queue.kept)[pick % 3 % len(queue.kept)]
                real.settle_aside(seq)
                queue.settle_aside(seq)
                self.check()
                return

    @rule(which=PICK, start=PICK, count=st.sampled_from([0, 1, 5, 1000]))
    def browse(self, which, start, count):
        real, queue = self.queue(which)
        start %= queue.next_seq + 1
        expected = [self.row(message) for message in queue.ready if message.seq >= start][:count]
        assert real.browse(start, count) == expected
        self.check()

    @rule(which=PICK, pick=PICK)
    def remove(self, which, pick):
        """A message that waits; or one that does not, if none does."""
        real, queue = self.queue(which)
        if not queue.ready:
            assert real.remove(pick % (queue.next_seq + 1)) is None
            return
        message = queue.ready[pick % len(queue.ready)]
        assert real.remove(message.seq) == self.row(message)
        queue.remove(message)
        assert real.remove(message.seq) is None
        self.check()

    @staticmethod
    def row(message):
        return (message.seq, message.ts, message.redelivered, message.exchange, message.key, message.properties,
                message.body)


def test_the_plane_keeps_rules_as_the_model_says(monkeypatch):
    monkeypatch.setattr(compaction, "LIVE_PERCENT_MAX", 100)
    run_state_machine_as_test(RulesMachine, settings=settings(
        max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None, print_blob=True,
        suppress_health_check=list(HealthCheck)))
