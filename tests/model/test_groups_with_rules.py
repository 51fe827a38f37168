"""Message groups that retry, park, let messages die and get them back, against a model: ``test_groups`` with a clock.

Besides what that file says, each delivery is held against these:

- nothing of a group goes out before the time of its next try has come, also after kill -9;
- a message that has failed as often as its limit allows is a dead letter, or parks its group, also after kill -9;
- while the dead letter of a message is not stored, a later one of its group goes at most to the same consumer;
- a letter that is redriven stands where it stood: it goes before the later ones of its group that have not gone out
  yet, though kill -9 comes at any step of the redrive;
- a settlement that comes too late changes nothing, and is no error.

``BROKERD_MODEL_GROUP_STEPS`` makes the long course longer; it is repeated by its seed.
"""

import os
import random
import shutil
import tempfile
from bisect import insort

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.model.test_groups import CHANNELS, GROUPS, Run
from tests.plane.harness import ack, nack, reject
from tests.plane.test_groups import properties
from tests.plane.test_retry import ALL, START

from brokerd import plane

STEPS = int(os.environ.get("BROKERD_MODEL_GROUP_STEPS", "25000"))
FIRST = int(os.environ.get("BROKERD_MODEL_FIRST_COURSE", "0"))
COURSES = 4
COURSE = 500                # steps of one queue
LEAST, MOST = 10, 40        # ms of a delay
TIMEOUT = 25
REDRIVE_STEPS = ("whole", "put", "noted", "placed one")
EVENTS = {                  # how often, and what with
    "publish": (9, lambda r: (r.randrange(GROUPS + 1), r.randint(1, 4))),
    "consume": (6, lambda r: (r.choice(CHANNELS), r.randrange(5))),
    "get": (4, lambda r: (r.choice(CHANNELS),)),
    "ack": (12, lambda r: (r.randrange(30), r.random() < 0.2)),
    "nack": (7, lambda r: (r.randrange(30), r.random() < 0.3)),
    "reject": (5, lambda r: (r.randrange(30),)),
    "cancel": (2, lambda r: (r.randrange(6),)),
    "close": (1, lambda r: (r.choice(CHANNELS),)),
    "settle_late": (2, lambda r: (r.randrange(30),)),
    "tick": (6, lambda r: (r.choice((1, 5, 10, 30, 100)),)),
    "overdue": (1, lambda r: ()),
    "store": (5, lambda r: (r.randrange(30),)),
    "redrive": (3, lambda r: (r.randrange(30), r.randint(1, 4), r.choice(REDRIVE_STEPS))),
    **{verb: (1, lambda r: (r.randint(1, GROUPS),)) for verb in ("pause", "resume", "park", "release", "skip")},
    "rule": (0.3, lambda r: ()),
    "crash": (1, lambda r: ()),
}
OPERATIONS = st.lists(st.builds(
    lambda seed: (lambda r: (lambda name: (name, *EVENTS[name][1](r)))(
        r.choices(list(EVENTS), [weight for weight, _ in EVENTS.values()])[0]))(random.Random(seed)),
    st.integers(0, 1 << 32)), max_size=60)
CHOICES = {"sticky": (False, False, True), "most": (1, 1, 2, 3), "retries": (False, True), "limit": (None, 1, 2, 3),
           "parks": (False, True), "keeps": (False, True)}


class RunWithRules(Run):
    """``limit``: a message may fail so often; then it dies, or it ``parks`` its group.  ``keeps``: a dead letter holds
    its group until it is stored."""

    def __init__(self, directory, *, retries, limit, parks, keeps, **rule):
        self.retries, self.limit, self.parks, self.keeps = retries, limit, parks, keeps
        self.now = START
        self.failed = {}                # number: failed deliveries
        self.until, self.own = {}, {}   # of a group, and of a message: it does not go out before
        self.maybe = {}                 # number: a time until which the message may still be kept
        self.on_disk = {}               # the same of what another rule let go on: a release does not note it any more
        self.doomed, self.dying = {}, {}    # number: why it is to die; who had it, while its letter is not stored
        self.skipped = set()            # of these, dropped by an operator
        self.letters, self.placed = [], []  # numbers of dead letters; numbers in the queue of what was redriven
        self.place_of = {}              # number of a letter: the number in the queue with which it was published
        self.late = []                  # (channel, tag) of what returned without its client
        self.since = {}                 # (channel, tag): when it went out
        super().__init__(directory, **rule)

    def begin(self, *, recovered):
        super().begin(recovered=recovered)
        self.bench.at(self.now)
        self.queue.keeps = self.keeps
        self.queue.set_rules(dead_letters=True, delivery_limit=-1 if self.limit is None else self.limit,
                             limit_stops=self.parks, consumer_timeout_ms=TIMEOUT)
        if self.retries:
            self.queue.gate.set_rule(causes=ALL, min_ms=LEAST, max_ms=MOST)
        self.late, self.since = [], {}
        self.put_back(self.placed)

    def put_back(self, seqs):
        """As Queue.put_redriven_back()."""
        parked = [seq for segment in self.queue.segments() if seqs
                  for seq in plane.parked_in_segment(self.queue, segment["number"])]
        for seq in [*parked, *seqs]:
            self.queue.gate.put_back(seq)

    # --- what comes out

    def listen(self):
        self.bench.turns()
        self.bury()
        super().listen()
        self.since = {at: self.since.get(at, self.now) for at in self.out}
        self.bury()

    def bury(self):
        """Those die that are to die, and no others."""
        dead, self.queue.dead = getattr(self.queue, "dead", []), []
        for reason, seq, _, _, _, body, _ in dead:
            number = int(body)
            assert self.doomed.pop(number) == reason
            assert seq == self.seq_of[number]
            self.dying.setdefault(number, None)
            if not self.keeps:
                self.is_stored(number)

    def is_stored(self, number):
        self.dying.pop(number, None)
        self.skipped.discard(number)
        self.unsettled[self.group_of[number]].remove(number)
        self.letters.append(number)

    def hold_to_rules(self, number, holder):
        group = self.group_of[number]
        assert number not in self.doomed
        assert number not in self.dying
        assert self.now >= self.own.pop(number, 0)
        self.maybe.pop(number, None)
        self.on_disk.pop(number, None)
        if group:
            assert self.now >= self.until.get(group, 0), "it goes out before the time of its group"
        # Where several may be out, a letter does not keep a message from the consumer that has others.
        several = self.rule["sticky"] or self.rule["most"] > 1
        held = {("dying", n): (n, by or (holder if several else None)) for n, by in self.dying.items() if n < number}
        self.out.update(held)
        super().hold_to_rules(number, holder)
        for at in held:
            del self.out[at]

    def check_progress(self):
        kept = {self.group_of[number] for number, when in self.maybe.items() if when > self.now}
        kept |= {group for group, when in self.until.items() if when > self.now}
        kept |= {self.group_of[number] for number in self.dying}
        hidden = {group: self.unsettled[group] for group in kept}
        self.unsettled.update((group, []) for group in kept)
        super().check_progress()
        self.unsettled.update(hidden)

    # --- what becomes of it

    def ack(self, which, multiple):
        at = self.pick(which)
        if at is not None:
            for one in self.up_to(at, multiple):
                number, _ = self.out.pop(one)
                self.unsettled[self.group_of[number]].remove(number)
            self.connection.feed(ack(*at, multiple))

    def reject(self, which):
        at = self.pick(which)
        if at is not None:
            self.dies(*self.out.pop(at), "rejected")
            self.connection.feed(reject(*at, requeue=False))

    def nack(self, which, multiple):
        at = self.pick(which)
        if at is not None:
            those = self.up_to(at, multiple)
            for one in those:
                if one in self.out:
                    self.returns(one, spared=those)
            self.connection.feed(nack(*at, multiple))

    def up_to(self, at, multiple):
        self.late = [late for late in self.late if not multiple or late[0] != at[0] or late[1] > at[1]]
        return [one for one in sorted(self.out) if one == at or (multiple and one[0] == at[0] and one[1] <= at[1])]

    def dies(self, number, holder, reason):
        self.doomed[number] = reason
        self.dying[number] = holder

    def returns(self, at, *, spared=(), fences=True, delays=True):
        """A delivery fails, and takes those of later messages of its group with it, but for those that are spared."""
        number, holder = self.out.pop(at)
        group = self.group_of[number]
        self.failed[number] = self.failed.get(number, 0) + 1
        if self.has_failed_too_often(number) and not self.parks:
            self.dies(number, holder, "delivery_limit")
            return
        if not group:
            return
        if self.has_failed_too_often(number):
            self.parked.add(group)
        elif delays and self.retries and group not in self.parked:
            when = self.now + min(LEAST * self.failed[number], MOST)
            self.own[number] = self.maybe[number] = when
            self.until[group] = max(self.until.get(group, 0), when)
        if fences:
            for other in sorted(self.out):
                if other in self.out and other[0] == at[0] and other not in spared \
                        and self.group_of[self.out[other][0]] == group and self.out[other][0] > number:
                    self.returns(other, fences=False, delays=False)
                    self.late.append(other)

    def has_failed_too_often(self, number):
        failed = self.failed.get(number, 0)
        if self.limit is None or not failed:
            return False
        return failed % self.limit == 0 if self.parks else failed >= self.limit

    def settle_late(self, which):
        """Too late: nothing comes of it."""
        if self.late:
            at = self.late.pop(which % len(self.late))
            self.connection.feed((ack, nack)[which % 2](*at))

    def close(self, channel):
        for at in sorted(self.out):
            if at[0] == channel:
                self.returns(at, fences=False)
        self.late = [at for at in self.late if at[0] != channel]
        super().close(channel)

    # --- time

    def tick(self, ms):
        self.now += ms
        self.bench.at(self.now)

    def overdue(self):
        """As once a second: what a consumer had for too long returns."""
        for channel in CHANNELS:
            for at in sorted(at for at in self.out if at[0] == channel):
                if at in self.out and self.out[at][1][1] != b"get" and self.now - self.since[at] >= TIMEOUT:
                    self.returns(at)
                    self.late.append(at)
        assert self.bench.core.return_overdue() == []

    # --- dead letters

    def store(self, which):
        """A dead letter is on disk."""
        if self.keeps and self.dying:
            number = sorted(self.dying)[which % len(self.dying)]
            self.queue.settle_aside(self.seq_of[number])
            self.is_stored(number)

    def redrive(self, which, count, until):
        """Letters go back to their places; the broker is killed behind one of the steps."""
        numbers = [self.letters.pop(which % len(self.letters)) for _ in range(min(count, len(self.letters)))]
        seqs = []
        for number in sorted(numbers) if which % 2 else numbers:
            group = self.group_of[number]
            place = self.place_of.setdefault(number, self.seq_of[number])
            table = {b"group-id": b"g%d" % group, b"x-group-seq": place} if group else {}
            self.bench.core.put((self.queue,), b"", b"q", properties(table, 0), b"%d" % number, redriven=bool(group))
            self.seq_of[number] = self.queue.next_seq - 1
            seqs.append(self.seq_of[number])
            assert self.queue.set_aside(seqs[-1])
            insort(self.unsettled[group], number)
            self.was_out.discard(number)
            for table in (self.failed, self.own, self.maybe, self.on_disk):
                table.pop(number, None)
        if until == "put":
            self.bench.turns()
        self.placed = sorted({*self.placed, *seqs})
        self.put_back(seqs[:{"whole": len(seqs), "placed one": 1}.get(until, 0)])
        if until != "whole":
            self.crash()
        for number in numbers:      # A start parks a group when it looks at the message whose last try the crash ended.
            found = self.queue.gate.find(b"g%d" % self.group_of[number])
            if not found or "parked" not in found["states"]:
                self.before_park.add(number)

    # --- operators

    def scan(self):
        self.queue.gate.scan(1000)
        self.listen()

    def park(self, group):
        self.scan()
        super().park(group)

    def release(self, group):
        self.scan()
        retried = self.until.get(group, 0) > self.now
        found = self.queue.gate.find(b"g%d" % group)
        assert self.queue.gate.release(b"g%d" % group) == (
            group in self.paused | self.parked or retried or bool(found and "retrying" in found["states"]))
        self.paused.discard(group)
        self.parked.discard(group)
        self.go_on(group)
        for number in self.unsettled[group]:
            self.maybe.pop(number, None)

    def go_on(self, group):
        self.until.pop(group, None)
        for number in self.unsettled[group]:
            self.own.pop(number, None)

    def skip(self, group):
        self.scan()
        numbers = self.unsettled[group]
        out = [number for number in (*(one for one, _ in self.out.values()), *self.dying)
               if self.group_of[number] == group]
        seq = self.queue.gate.skip(b"g%d" % group)
        assert seq == (self.seq_of[numbers[0]] if numbers and not out else 0)
        if seq:
            self.go_on(group)
            if self.parks and self.has_failed_too_often(numbers[0]):
                self.dies(numbers[0], None, "delivery_limit")
                self.skipped.add(numbers[0])
            else:
                numbers.pop(0)

    def rule_(self):
        out = {number for number, _ in self.out.values()}
        for group in self.parked:
            self.before_park |= {number for number in self.unsettled[group] if number in out}
        super().rule_()
        self.on_disk.update(self.maybe)
        for group in self.unsettled:
            self.go_on(group)

    def put_back_all(self):
        self.put_back(self.placed)

    def crash(self):
        """kill -9: what was out has failed; what was dying is there again."""
        unsure = self.parked_in_memory()
        self.connection.delivered()
        for number, _ in self.out.values():
            self.comes_again(number, 1, unsure)
        for number in self.dying:
            self.comes_again(number, int(number not in self.skipped and not self.at_limit(number)), unsure)
        unsure |= {self.group_of[number] for number in self.skipped}
        self.before_park |= {number for number in self.dying if self.group_of[number] in self.parked}
        self.dying, self.skipped = {}, set()
        self.until = {}
        self.maybe.update(self.on_disk)
        self.on_disk = {}
        super().crash(unsure)

    def at_limit(self, number):
        return not self.parks and self.has_failed_too_often(number)

    def comes_again(self, number, failures, unsure):
        self.doomed.pop(number, None)
        self.was_out.add(number)
        self.failed[number] = self.failed.get(number, 0) + failures
        group = self.group_of[number]
        if not self.has_failed_too_often(number):
            return
        if not self.parks:
            self.doomed[number] = "delivery_limit"
        elif group and number not in self.dying:
            unsure.discard(group)
            self.parked.add(group)
            self.before_park |= {one for one in self.unsettled[group] if one < number}

    def drain(self):
        self.tick(10 * MOST)
        self.listen()
        while self.dying:
            self.store(0)
            self.listen()
        self.limit, self.retries = None, False
        self.queue.set_rules(dead_letters=False, delivery_limit=-1)
        self.queue.gate.set_rule()
        self.doomed = {}
        super().drain()


def run(operations, rules):
    directory = tempfile.mkdtemp()
    run = RunWithRules(directory, **rules)
    try:
        for operation in operations:
            run.step(operation)
        run.drain()
    finally:
        run.bench.close()
        shutil.rmtree(directory, ignore_errors=True)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(OPERATIONS, st.fixed_dictionaries({name: st.sampled_from(values) for name, values in CHOICES.items()}))
def test_the_plane_keeps_the_rules_of_groups_that_retry_park_and_lose_messages(operations, rules):
    run(operations, rules)


@pytest.mark.parametrize("seed", range(FIRST, FIRST + COURSES))
def test_a_long_course_of_groups_goes_as_the_model_says(seed):
    rng = random.Random(seed)
    weights = [weight for weight, _ in EVENTS.values()]
    for _ in range(STEPS // COURSE):
        names = rng.choices(list(EVENTS), weights, k=COURSE)
        run([(name, *EVENTS[name][1](rng)) for name in names],
            {name: rng.choice(values) for name, values in CHOICES.items()})
