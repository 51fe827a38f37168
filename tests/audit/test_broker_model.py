"""Whatever clients do, and however often the broker is killed, the audit finds exactly what the broker counted, and
nothing else wrong."""

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.plane.harness import Bench, ack, consume, nack, publish, reject

from brokerd import plane
from brokerd.audit import deliveries
from brokerd.audit.files import open_source
from brokerd.audit.scan import Options, scan
from brokerd.audit.verdicts import judge
from brokerd.store.compaction import compact
from brokerd.store.disk import Disk
from brokerd.store.format import ORDER_COUNTERS
from brokerd.store.recovery import recover

LEVELS = 2
SEGMENT_OCTETS = 4096           # some 40 messages: most courses cross several
# What is never wrong with this broker.  Overtakings happen; nobody waits for half an hour here.
PROMISES = {"publish_order", "fifo", "returned_first", "priority", "ack_without_delivery", "double_settle",
            "delivery_after_settle", "agreement", "holes", "damage", "delivery_limit", "limit_kept", *deliveries.AUDITS}
LIMITS = {"delivery_limit", "limit_kept"}

which = st.integers(0, 40)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 30), st.integers(0, LEVELS)),
        st.tuples(st.just("ack"), st.integers(0, 1), which, st.booleans()),
        st.tuples(st.just("nack"), st.integers(0, 1), which, st.booleans(), st.booleans()),
        st.tuples(st.just("reject"), st.integers(0, 1), which, st.booleans()),
        st.tuples(st.just("consume"), st.integers(0, 1), st.integers(0, 5), st.booleans()),
        st.tuples(st.just("cancel"), st.integers(0, 1)),
        st.tuples(st.just("recover"), st.integers(0, 1)),
        st.tuples(st.just("get"), st.integers(0, 1), st.booleans()),
        st.tuples(st.sampled_from(["close", "drop"]), st.integers(0, 1)),
        st.tuples(st.just("later"), st.integers(1, 40)),
        st.tuples(st.just("remove"), st.integers(1, 60)),
        st.tuples(st.sampled_from(["kill", "rest", "purge", "compact"])),
    ),
    min_size=1, max_size=60)


replays = st.tuples(st.just("replay"), st.integers(1, 60), st.integers(0, 30))
acks = st.tuples(st.just("ack"), st.integers(0, 1), which, st.just(True))


class Course:
    """One queue over several lives of its broker."""

    def __init__(self, root, rules):
        self.root, self.rules, self.now = Path(root), rules, 1_000_000_000
        (self.root / "v").mkdir()
        (self.root / "v" / ".vhost").write_text("/")
        (self.root / "v" / "q").mkdir()
        (self.root / "v" / "q" / ".queue").write_text("q")
        limit = rules.get("delivery_limit", 0) - 1      # The plane's is the failed delivery that a message dies of.
        (self.root / "v" / "q" / "order.jsonl").write_text(json.dumps({
            "at": 1, "what": "settings", "journal": True, "max_priority": LEVELS,
            "delivery_limit": limit if limit >= 0 else None, "message_ttl_ms": rules.get("ttl_ms"),
            "dead_letter_exchange": "dead" if rules.get("dead_letters") else None,
            "single_active_consumer": rules.get("single_active", False)}) + "\n")
        self.connections = 0
        self.benches = []
        self.start()

    def start(self):
        self.bench = Bench(self.root / "v", segment_octets=SEGMENT_OCTETS)
        self.benches.append(self.bench)
        self.bench.core.clock = lambda: self.now
        self.queue = self.bench.queue(max_priority=LEVELS, **self.rules)
        self.queue.set_journal(True)
        recover(self.queue, Disk(), False, lambda finding: None)
        self.publisher = self.connect()
        self.clients = [self.connect(), self.connect()]

    def connect(self):
        connection = self.bench.connection(1)
        self.connections += 1
        connection.number = self.connections
        return connection

    def client(self, who):
        """The channel, opened again where a fault or a close ended it."""
        connection = self.clients[who]
        if connection.discard or not connection.channels or connection.channels[1].closing:
            connection.detach()
            self.clients[who] = connection = self.connect()
        return connection, connection.channels[1]

    def settle(self, who, which, method, *bits):
        """One of the deliveries that this client holds."""
        connection, channel = self.client(who)
        held = channel.deliveries(0, True)
        if held:
            connection.feed(method(1, held[which % len(held)][0], *bits))
        self.bench.turns()

    def publish(self, count, priority):
        octets = b"".join(publish(1, b"x", properties=b"\x08\x00" + bytes([priority])) for _ in range(count))
        self.publisher.feed(octets)
        self.bench.turns()

    def ack(self, who, which, multiple):
        self.settle(who, which, ack, multiple)

    def nack(self, who, which, multiple, requeue):
        self.settle(who, which, nack, multiple, requeue)

    def reject(self, who, which, requeue):
        self.settle(who, which, reject, requeue)

    def consume(self, who, prefetch, no_ack):
        _, channel = self.client(who)
        channel.prefetch = prefetch
        if not channel.consumers:
            consume(channel, self.queue, no_ack=no_ack, consumer_number=7 + who)
        self.bench.turns()

    def cancel(self, who):
        _, channel = self.client(who)
        for consumer in list((channel.consumers or {}).values()):
            channel.cancel(consumer)

    def recover(self, who):
        self.client(who)[1].recover()
        self.bench.turns()

    def get(self, who, no_ack):
        self.client(who)[1].get(self.queue, no_ack)
        self.bench.turns()

    def close(self, who):
        self.client(who)[1].close()
        plane.Channel(self.clients[who], 1)
        self.bench.turns()

    def drop(self, who):
        self.clients[who].detach()
        self.bench.turns()

    def later(self, ms):
        self.now += ms * 1_000_000
        self.bench.core.expire()
        self.bench.core.return_overdue()
        self.bench.turns()

    def remove(self, seq):
        self.queue.remove(seq)

    def purge(self):
        self.queue.purge()

    def replay(self, first, more):
        plane.replay(self.queue, first, first + more, level=first % (LEVELS + 1))

    def rest(self):
        self.queue.rest()

    def compact(self):
        compact(self.queue, Disk())

    def kill(self):
        self.start()        # What the one before holds is nobody's: its files are as it left them.

    def audited(self):
        options = Options(unacked_after_s=10**6)
        source = open_source(str(self.root))
        found, = source.queues()
        return judge(source, found, [scan(source, triple, options) for triple in found.triples], options)


def check(rules, course):
    with tempfile.TemporaryDirectory() as root:
        run = Course(root, rules)
        for name, *arguments in course:
            getattr(run, name)(*arguments)
            run.now += 1000
        counted = dict(zip(ORDER_COUNTERS, run.queue.order_counts()[0], strict=True))
        judged = run.audited()
        assert {name: judged.queue["counters"][name] for name in ORDER_COUNTERS} == counted
        verdicts = {row["audit"]: (row["verdict"], row["found"], row["reason"]) for row in judged.audits}
        for audit in verdicts.keys() & PROMISES:
            assert verdicts[audit][0] == "held", (audit, verdicts[audit], judged.findings)
        assert PROMISES - verdicts.keys() <= {"priority"} | (set() if "delivery_limit" in rules else LIMITS)
        overtaking = next(row for row in judged.audits if row["audit"] == "overtaking")
        assert (overtaking["found"], overtaking["overtakings"]) == (counted["out_of_sequence"], counted["overtakings"])
        for bench in run.benches:
            bench.close()


@pytest.mark.parametrize("rules", [
    {}, {"ttl_ms": 20}, {"max_length": 25}, {"delivery_limit": 2, "dead_letters": True}, {"delivery_limit": 3},
    {"dead_letters": True, "max_length": 15, "ttl_ms": 30}, {"single_active": True},
], ids=["plain", "ttl", "max-length", "delivery-limit", "limit-drops", "dead-letters", "single-active"])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(course=steps)
def test_the_audit_of_any_course_finds_what_the_broker_counted(rules, course):
    check(rules, course)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(course=st.lists(st.one_of(steps.map(lambda some: some[0]), replays, acks), min_size=1, max_size=60))
def test_replays_disturb_no_audit_and_are_counted_as_the_broker_counts(course):
    check({"retain_octets": 1 << 20}, course)
