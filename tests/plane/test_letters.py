"""Dead letters that the plane makes itself: the same octets as queues/dead_letter makes, or none; and where they go."""

import os
import signal
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plane.harness import PERSISTENT, Bench, consume, nack, publish, reject

from brokerd import plane
from brokerd.queues.dead_letter import DeadLetterRule, is_cycle, make_dead_letter, read_properties, write_properties
from brokerd.wire.properties import Properties
from brokerd.wire.values import Float32, Int8, Int16, Int64, Timestamp, UInt8, UInt16, UInt32

NAMES = ("q", "r", "retry queue", "é" * 127)
REASONS = ("rejected", "expired", "maxlen", "delivery_limit")
CORE = plane.Core(schedule=lambda: None, request_sync=lambda: None, storage_failed=print, damaged=print)
ROUTES = plane.Routes(CORE, lambda exchange, key, header, channel: plane.Answer(()))


def by_python(properties, queue, reason, exchange="x", key="key", time_s=1, rule=None, per_message=False):
    return make_dead_letter(properties, rule or DeadLetterRule("dlx"), queue=queue, reason=reason, exchange=exchange,
                            routing_key=key, time_s=time_s, per_message=per_message)


def by_plane(properties, queue, reason, exchange="x", key="key", time_s=1, rule=None, per_message=False):
    fixed = None if rule is None or rule.routing_key is None else rule.routing_key.encode()
    letters = plane.Letters(ROUTES, queue.encode(), b"dlx", fixed, per_message=per_message)
    return letters.make(reason, exchange.encode(), key.encode(), properties, time_s)


@pytest.mark.parametrize("before", [{}, {"x-group-id": "other", "x-group-seq": Int64(3)}])
@pytest.mark.parametrize("dead", [False, True])
def test_where_a_message_stood_in_its_group_is_told_by_its_first_queue(before, dead):
    message = write_properties(Properties(headers={"a": "1", "z": "2", **before}))
    if dead:
        message = both(message, "r", "expired")
    own = {"x-group-id": "mine", "x-group-seq": Int64(7)}
    octets = b"\x0ax-group-idS\0\0\0\4mine\x0bx-group-seql" + (7).to_bytes(8)
    letters = plane.Letters(ROUTES, b"q", b"dlx")
    made = letters.make("rejected", b"x", b"key", message, 1, octets)
    python = make_dead_letter(message, DeadLetterRule("dlx"), queue="q", reason="rejected", exchange="x",
                              routing_key="key", time_s=1, own=own)
    assert made == python.properties
    kept = before if dead and before else own
    assert {name: python.headers[name] for name in own} == kept


def both(properties, queue="q", reason="rejected", **more):
    """The letter's octets, which both make alike."""
    made = by_plane(properties, queue, reason, **more)
    assert made == by_python(properties, queue, reason, **more).properties
    return made


TEXTS = st.text(max_size=12)
PLAIN_VALUES = st.one_of(
    TEXTS, st.binary(max_size=12), st.booleans(), st.none(), st.lists(TEXTS, max_size=3),
    st.integers(-128, 127).map(Int8), st.integers(0, 255).map(UInt8), st.integers(-0x8000, 0x7FFF).map(Int16),
    st.integers(0, 0xFFFF).map(UInt16), st.integers(-(1 << 31), (1 << 31) - 1), st.integers(0, 0xFFFFFFFF).map(UInt32),
    st.integers(-(1 << 63), (1 << 63) - 1).map(Int64), st.integers(0, (1 << 64) - 1).map(Timestamp),
)
OTHER_VALUES = st.one_of(
    st.floats(), st.floats(width=32).map(Float32),
    st.decimals(allow_nan=False, allow_infinity=False, places=2).filter(lambda d: abs(d) < 10_000_000),
    st.dictionaries(TEXTS, TEXTS, max_size=2), st.lists(st.integers(0, 9), max_size=2),
)
PLAIN_NAMES = st.text(st.characters(min_codepoint=0, max_codepoint=127), max_size=12).filter(
    lambda name: name not in ("CC", "BCC", "x-death"))
ODD_NAMES = st.sampled_from(["CC", "BCC", "x-death", "x-first-death-queue", "x-first-death-", "x-last-death-queue",
                             "x-last-death-reason", "x-last-death-exchange", "x-last-death-", "x-dead-letter-exchange",
                             "x-dead-letter-routing-key", "é", "count"])
KEYS = st.sampled_from(["", "key", "k" * 255])


def properties_of(headers):
    return st.builds(
        lambda headers, **more: write_properties(Properties(headers=headers, **more)), headers,
        content_type=st.none() | st.just("text/plain"), content_encoding=st.none() | st.just("gzip"),
        delivery_mode=st.none() | st.integers(0, 3), priority=st.none() | st.integers(0, 255),
        correlation_id=st.none() | TEXTS, reply_to=st.none() | TEXTS, message_id=st.none() | TEXTS,
        expiration=st.none() | st.sampled_from(["", "20"]),
        timestamp=st.none() | st.integers(0, 1 << 40).map(Timestamp), type=st.none() | TEXTS, user_id=st.none() | TEXTS,
        app_id=st.none() | TEXTS, cluster_id=st.none() | TEXTS)


PLAIN = properties_of(st.none() | st.dictionaries(PLAIN_NAMES, PLAIN_VALUES, max_size=8))
ANY = properties_of(st.none() | st.dictionaries(PLAIN_NAMES | ODD_NAMES, PLAIN_VALUES | OTHER_VALUES, max_size=8))
DEATHS = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(REASONS), KEYS, st.integers(0, 1 << 33)), max_size=9)


@given(PLAIN, st.sampled_from(NAMES), st.sampled_from(REASONS), KEYS, KEYS, st.integers(0, 1 << 40), st.booleans())
@settings(deadline=None)
def test_a_first_death_is_written_as_python_writes_it(properties, queue, reason, exchange, key, time_s, fixed):
    rule = DeadLetterRule("dlx", "to" if fixed else None)
    both(properties, queue, reason, exchange=exchange, key=key, time_s=time_s, rule=rule)


@given(ANY, DEATHS, st.booleans())
@settings(deadline=None, max_examples=300)
def test_what_the_plane_writes_is_what_python_writes_and_no_cycle_is_overlooked(properties, deaths, per_message):
    for queue, reason, key, time_s in deaths:
        made = by_plane(properties, queue, reason, key=key, time_s=time_s, per_message=per_message)
        letter = by_python(properties, queue, reason, key=key, time_s=time_s, per_message=per_message)
        if made is not None:
            assert made == letter.properties
            assert letter.exchange == "dlx"
            assert letter.routing_keys == (key,)
            if reason != "rejected":
                assert not any(is_cycle(letter.headers, name) for name in NAMES if name != queue)
        properties = letter.properties


@given(PLAIN, st.lists(st.tuples(st.sampled_from([("work", "rejected"), ("retry", "expired")]), KEYS), max_size=12))
@settings(deadline=None)
def test_the_plane_writes_every_death_of_a_message_that_is_rejected_and_retried(properties, deaths):
    """A queue whose rejected messages wait in another until they expire, and come back."""
    for round_, ((queue, reason), key) in enumerate(deaths):
        seen = [death["queue"] for death in (read_properties(properties).headers or {}).get("x-death", ())]
        if reason == "expired" and seen[:1] not in ([], ["work"]) and seen != ["retry"]:
            continue
        properties = both(properties, queue, reason, key=key, time_s=round_)


def test_a_count_goes_up_to_what_its_type_can_hold_and_no_further():
    def died(count):
        return write_properties(Properties(headers={"x-death": [{"count": count, "queue": "q", "reason": "rejected"}]}))

    assert read_properties(both(died(Int64(41)))).headers["x-death"][0]["count"] == 42
    both(died(Int64((1 << 63) - 2)))
    for count in (Int64((1 << 63) - 1), Int64(-1), 7, "7", True, None):
        assert by_plane(died(count), "q", "rejected") is None


@pytest.mark.parametrize("headers", [
    {"CC": ["a"]}, {"BCC": ["a"]}, {"x-death": "none"}, {"x-death": ["none"]}, {"x-death": [{"queue": "q"}]},
    {"x-death": [{"queue": "q", "reason": 1}]}, {"x-first-death-queue": "q"}, {"é": 1}, {"t": {"a": 1}}, {"d": 1.5},
    {"a": [1]}, {"x-death": [{"queue": "q", "reason": "rejected", "count": Int64(1), "t": {}}]},
    {"x-death": [{"queue": "q", "reason": "rejected", "count": Int64(1)}] * 2},
    {"x-death": [{"queue": "other", "reason": "rejected"}]},
    {"x-death": [{"queue": "other", "reason": "rejected", "count": Int64(1)}] * 2},
    {str(number): number for number in range(65)},
    {"x-death": [{"queue": str(number), "reason": "rejected", "count": Int64(1)} for number in range(33)]},
    {"x-death": [{"queue": "q", "reason": "rejected", **{str(number): number for number in range(15)}}]},
])
def test_headers_beyond_what_the_plane_reads_go_up(headers):
    assert by_plane(write_properties(Properties(headers=headers)), "q", "rejected") is None


def test_headers_at_the_bounds_of_what_the_plane_reads_stay():
    for headers in (
        {str(number): number for number in range(64)},
        {"x-death": [{"queue": str(number), "reason": "rejected", "count": Int64(1)} for number in range(32)]},
        {"x-death": [{"queue": "q", "reason": "rejected", "count": Int64(1),
                      **{str(number): number for number in range(13)}}]},
    ):
        both(write_properties(Properties(headers=headers)))


def test_the_message_s_own_rule_counts_only_where_it_may():
    properties = write_properties(Properties(headers={"x-dead-letter-exchange": "mine"}))
    both(properties)
    assert by_plane(properties, "q", "rejected", per_message=True) is None


def test_by_itself_a_message_goes_on_only_behind_a_rejection():
    death = {"queue": "r", "reason": "expired", "count": Int64(1)}
    history = write_properties(Properties(headers={"x-death": [death]}))
    assert by_plane(history, "q", "expired") is None
    both(history, "q", "rejected")
    both(history, "r", "expired")
    death = {"queue": "r", "reason": "rejected", "count": Int64(1)}
    rejected = write_properties(Properties(headers={"x-death": [death]}))
    both(rejected, "q", "maxlen")


TABLE = b"\x20\x00"


@pytest.mark.parametrize("table", [
    b"\x01at\x02",                              # a bool that is neither
    b"\x01aL" + bytes(8),                       # written as l
    b"\x01aI\x00\x00\x00\x01\x01aI\x00\x00\x00\x02",     # one name twice
    b"\x01a", b"\x01", b"\x05ab", b"\x01aS\x00\x00\x00\x09x", b"\x01aA\x00\x00\x00\x02S\x00", b"\x01aI\x00", b"\x01a?",
    b"\x01aA\x00\x00\x00\x06S\x00\x00\x00\x02x", b"\x01aA\xff\xff\xff\xff", b"\x01aS\xff\xff\xff\xff",
    b"\x07x-deathA\x00\x00\x00\x09F\x00\x00", b"\x07x-deathA\x00\x00\x00\x05F\x00\x00\x00\x01",
    b"\x07x-deathA\x00\x00\x00\x00\x07x-deathA\x00\x00\x00\x00",
])
def test_tables_that_are_cut_off_or_would_be_written_otherwise_go_up(table):
    properties = TABLE + len(table).to_bytes(4) + table
    by_python(properties, "q", "rejected")
    assert by_plane(properties, "q", "rejected") is None


@given(st.binary(max_size=60), st.sampled_from(REASONS))
@settings(deadline=None, max_examples=500)
def test_any_octets_for_a_table_are_written_as_python_writes_them_or_not_at_all(table, reason):
    properties = TABLE + len(table).to_bytes(4) + table
    made = by_plane(properties, "q", reason)
    assert made is None or made == by_python(properties, "q", reason).properties


def test_the_two_lowest_flags_go():
    assert both(b"\x10\x03\x02") == both(b"\x10\x00\x02")


def test_a_name_has_at_most_255_octets():
    for names in ((b"q" * 256, b"x"), (b"q", b"x" * 256), (b"q", b"x", b"k" * 256)):
        with pytest.raises(ValueError, match="255 octets"):
            plane.Letters(ROUTES, *names)


# --- where they go


class Dying:
    """A queue with dead letters, on a bench, and what the control plane was asked."""

    def __init__(self, bench, exchange=b"dlx", key=None, **rules):
        self.bench = bench
        self.queue = bench.queue(dead_letters=True, **rules)
        self.target = bench.queue(b"dead")
        self.asked, self.failing = [], False
        self.answer = plane.Answer((self.target,), cacheable=True)
        self.routes = plane.Routes(bench.core, self.resolve)
        self.queue.letters = plane.Letters(self.routes, b"q", exchange, key)
        self.connection = bench.connection(1, 2)

    def resolve(self, exchange, key, header, channel):
        self.asked.append((exchange, key, header, channel))
        if self.failing:
            raise RuntimeError("no")
        return self.answer

    def reject(self, *bodies, **more):
        """Publish these, and reject them all in one chunk."""
        for body in bodies:
            self.connection.feed(publish(1, body, **more))
        if not self.queue.consumer_count:
            consume(self.connection.channels[2], self.queue)
        self.bench.turns()
        self.connection.feed(nack(2, 0, multiple=True, requeue=False))

    def stored(self):
        """(exchange, key, body) in the target."""
        return [(row[3], row[4], row[6]) for row in self.target.browse(1, 1000)]


@pytest.fixture
def dying(bench):
    return Dying(bench)


def test_dead_letters_go_to_their_queue_in_the_order_of_their_deaths_without_a_question_each(bench, dying):
    bench.core.clock = lambda: 7_900_000_000
    dying.reject(b"one", b"two", b"three", persistent=True)
    assert dying.stored() == [(b"dlx", b"q", b"one"), (b"dlx", b"q", b"two"), (b"dlx", b"q", b"three")]
    assert dying.target.browse(1, 1)[0][5] == by_python(PERSISTENT, "q", "rejected", "", "q", 7).properties
    assert dying.asked == [(b"dlx", b"q", b"", None)]
    assert dying.queue.died == []
    assert (dying.queue.dead_lettered, dying.queue.unacked, dying.queue.aside, dying.queue.ready) == (3, 0, 0, 0)


def test_a_routing_key_of_the_queue_takes_the_place_of_the_message_s(bench):
    dying = Dying(bench, key=b"other")
    dying.reject(b"one")
    assert dying.stored() == [(b"dlx", b"other", b"one")]
    assert dying.asked == [(b"dlx", b"other", b"", None)]


def test_what_is_remembered_holds_until_it_is_cleared(bench, dying):
    dying.reject(b"one")
    other = bench.queue(b"other")
    dying.answer = plane.Answer((other,), cacheable=True)
    dying.reject(b"two")
    assert (dying.target.ready, other.ready) == (2, 0)
    dying.routes.clear()
    dying.reject(b"three")
    assert (dying.target.ready, other.ready) == (2, 1)


def test_every_cause_of_death_is_told_in_the_letter(bench):
    dying = Dying(bench, max_length=2, ttl_ms=50, delivery_limit=1)
    bench.core.clock = lambda: 0
    for body in (b"too many", b"two", b"three"):
        dying.connection.feed(publish(1, body))
    consume(dying.connection.channels[2], dying.queue)
    bench.turns()
    dying.connection.feed(reject(2, 1, requeue=True))       # failed as often as it may
    dying.connection.channels[2].cancel(next(iter(dying.queue.consumers)))
    dying.connection.feed(reject(2, 2, requeue=False))
    dying.connection.feed(publish(1, b"late"))
    bench.at(100)
    assert dying.queue.died == []
    reasons = [read_properties(row[5]).headers["x-last-death-reason"] for row in dying.target.browse(1, 9)]
    assert reasons == ["maxlen", "delivery_limit", "rejected", "expired"]


def test_nowhere_to_go_is_an_answer(bench, dying):
    dying.answer = plane.Answer((), cacheable=True)
    dying.reject(b"one")
    assert (dying.queue.dead_lettered, dying.queue.died, dying.queue.aside) == (1, [], 0)


def test_two_targets_have_it_once_each(bench, dying):
    other = bench.queue(b"other")
    dying.answer = plane.Answer((dying.target, other), cacheable=True)
    dying.reject(b"one", b"two")
    assert [row[6] for row in other.browse(1, 9)] == [row[6] for row in dying.target.browse(1, 9)] == [b"one", b"two"]


def test_answers_that_depend_on_the_message_go_up_and_are_not_asked_for_again(bench, dying):
    dying.answer = plane.Answer((dying.target,))
    dying.reject(b"one", b"two")
    assert [body for _, body in dying.queue.died] == [b"one", b"two"]
    assert len(dying.asked) == 1
    assert dying.target.ready == 0


class Nothing:
    counts_as_routed = False
    refuses = False

    def before_storing(self, queues):
        return queues

    def after_storing(self, message, channel, stored):
        pass


def test_a_publish_with_participants_goes_up(bench, dying):
    dying.answer = plane.Answer((dying.target,), cacheable=True, participants=(Nothing(),))
    dying.reject(b"one")
    assert [body for _, body in dying.queue.died] == [b"one"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_question_that_fails_goes_up_and_is_asked_again(bench, dying):
    dying.failing = True
    dying.reject(b"one")
    assert [body for _, body in dying.queue.died] == [b"one"]
    dying.failing = False
    dying.reject(b"two")
    assert [row[2] for row in dying.stored()] == [b"two"]


def test_a_queue_that_is_its_own_target_goes_up(bench, dying):
    dying.answer = plane.Answer((dying.target, dying.queue), cacheable=True)
    dying.reject(b"one")
    assert [body for _, body in dying.queue.died] == [b"one"]
    assert dying.target.ready == 0


def test_a_target_that_dead_letters_what_it_refuses_goes_up(bench, dying):
    dying.target.set_rules(dead_letters=True, overflow=2, max_length=1)
    dying.reject(b"one")
    assert [body for _, body in dying.queue.died] == [b"one"]


def test_a_target_that_refuses_costs_the_message(bench, dying):
    dying.target.set_rules(overflow=1, max_length=1)
    dying.reject(b"one", b"two")
    assert [row[2] for row in dying.stored()] == [b"one"]
    assert (dying.queue.dead_lettered, dying.target.refused, dying.queue.aside) == (2, 1, 0)


def test_a_limit_of_the_target_is_kept(bench, dying):
    dying.target.set_rules(max_length=2)
    dying.reject(b"one", b"two", b"three")
    bench.turns()
    assert [row[2] for row in dying.stored()] == [b"two", b"three"]


def test_the_known_and_the_others_keep_the_order_of_their_deaths(bench, dying):
    dying.queue.after_death = lambda exchange, key, properties, body: bench.core.put(
        (dying.target,), b"dlx", key, properties, body)
    odd = write_properties(Properties(headers={"CC": ["a"]}))
    for number in range(20):
        properties = {"properties": odd} if number % 3 == 1 else {}
        dying.connection.feed(publish(1, b"%d" % number, **properties))
    dying.reject()
    assert [row[2] for row in dying.stored()] == [b"%d" % number for number in range(20)]
    assert len(dying.queue.died) == 7


# --- at least once: a message stays until its letter is on disk


@pytest.fixture
def careful(bench, dying):
    """As `dying`, with letters that are sent at least once; ``told``: what on_letters_stored() was called with."""
    dying.queue.letters = plane.Letters(dying.routes, b"q", b"dlx", at_least_once=True)
    dying.told = []
    dying.queue.on_letters_stored = dying.told.append
    return dying


def test_a_message_is_settled_when_its_letter_is_on_disk_and_no_earlier(bench, careful):
    careful.reject(b"one", persistent=True)
    assert [row[2] for row in careful.stored()] == [b"one"]
    assert (careful.told, careful.queue.aside, careful.queue.dead_lettered) == ([1], 1, 0)
    careful.queue.settle_letters(1)
    assert (careful.queue.aside, careful.queue.dead_lettered) == (0, 1)


def test_a_sync_settles_the_letters_that_it_covers_and_no_later_ones(bench, careful):
    careful.reject(b"one", persistent=True)
    careful.reject(b"two", b"three", persistent=True)
    assert careful.told == [1, 3]
    careful.queue.settle_letters(1)
    assert [row[6] for row in careful.queue.browse_aside(1, 9)] == [b"two", b"three"]
    careful.queue.settle_letters(3)
    assert careful.queue.aside == 0
    careful.reject(b"four", persistent=True)
    assert careful.told == [1, 3, 4]


def test_a_letter_that_needs_no_sync_waits_behind_one_that_does(bench, careful):
    careful.reject(b"one", persistent=True)
    careful.reject(b"two")
    assert (careful.told, careful.queue.aside) == ([1, 2], 2)
    careful.queue.settle_letters(2)
    careful.reject(b"three")
    assert (careful.told, careful.queue.aside, careful.queue.dead_lettered) == ([1, 2], 0, 3)

def test_dead_letters_in_a_target_that_gathers_its_records_are_there_after_a_crash(make_bench):
    bench = make_bench(segment_octets=1 << 20)
    dying = Dying(bench)
    publisher = bench.connection(1)
    publisher.channels[1].select_confirm()
    for _ in range(2):                  # Its second segment is gathered: confirms have waited for its first.
        publisher.feed(publish(1, bytes(20_000), b"dead", persistent=True) * 30)
        bench.sync()
    dying.target.purge()
    dying.reject(b"one", b"two", persistent=True)
    after = make_bench(segment_octets=1 << 20)
    assert [row[6] for row in after.recovered(b"dead").browse(1, 9)] == [b"one", b"two"]
    assert after.recovered().ready == 0


KILLED = '''
import resource, signal, sys
from tests.plane.harness import Bench, consume, nack, publish
from brokerd import plane

bench = Bench(sys.argv[1], segment_octets=1 << 20)
bench.core.clock = lambda: 0
target = bench.queue(b"dead")
source = bench.queue(dead_letters=True, ttl_ms=50)
bench.bound[b"dlx", b"q"] = (b"dead",)
source.letters = plane.Letters(bench.routes, b"q", b"dlx")
connection = bench.connection(1, 2)
connection.channels[1].select_confirm()
for _ in range(2):                              # The target's second segment is gathered.
    connection.feed(publish(1, bytes(20_000), b"dead", persistent=True) * 30)
    bench.sync()
connection.feed(publish(1, b"one", persistent=True) + publish(1, b"two", persistent=True))
if sys.argv[2] == "rejected":
    consume(connection.channels[2], source)
bench.turns()
end = target.segments()[-1]["end"]
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_FSIZE, (end, end))   # The first octet of a dead letter kills.
if sys.argv[2] == "rejected":
    connection.feed(nack(2, 0, multiple=True, requeue=False))
else:
    bench.at(100)
print("survived")
'''


@pytest.mark.parametrize("reason", ["rejected", "expired"])
def test_a_kill_before_dead_letters_are_in_their_target_s_file_leaves_the_messages_in_their_queue(tmp_path, reason):
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), reason], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGXFSZ, ""), done.stderr
    bench = Bench(tmp_path, segment_octets=1 << 20)
    try:
        assert [row[6] for row in bench.recovered().browse(1, 9)] == [b"one", b"two"]
        assert bench.recovered(b"dead").ready == 60
    finally:
        bench.close()


def test_where_a_target_cannot_store_it_goes_up(bench, dying):
    dying.reject(b"one")
    dying.answer = plane.Answer((bench.queue(b"full", folder="a" * 300),), cacheable=True)     # no file system takes it
    dying.routes.clear()
    dying.queue.keeps = True
    dying.reject(b"two")
    assert [body for _, body in dying.queue.died] == [b"two"]
    assert dying.queue.aside == 1


def test_without_letters_each_goes_up_again(bench, dying):
    letters = dying.queue.letters
    dying.queue.letters = None
    dying.reject(b"one")
    assert [body for _, body in dying.queue.died] == [b"one"]
    dying.queue.letters = letters
    dying.reject(b"two")
    assert dying.target.ready == 1


def test_many_deaths_in_one_chunk_leave_nothing_behind(bench, dying):
    for number in range(6000):
        dying.connection.feed(publish(1, b"%d" % number))
    dying.reject()
    bench.turns()
    assert [int(row[2]) for row in dying.stored()] == list(range(1000))
    assert (dying.target.ready, dying.queue.aside, dying.queue.dead_lettered) == (6000, 0, 6000)


@pytest.mark.parametrize("targets", [1, 2, 3])
def test_large_bodies_count_for_more_dead_letters_in_each_target_so_that_others_have_their_turn(make_bench, targets):
    bench = make_bench(segment_octets=1 << 20)
    dying = Dying(bench)
    more = [bench.queue(b"%d" % number) for number in range(1, targets)]
    dying.answer = plane.Answer((dying.target, *more), cacheable=True)
    for _ in range(100):
        dying.connection.feed(publish(1, bytes(48 << 10)))
    dying.reject()
    at_once = 512 // (1 + 12 * targets)     # Twelve times 4 KiB are copied into each target.
    done = dying.queue.dead_lettered
    assert at_once - 2 <= done <= at_once + 1
    bench.core.turn()
    assert at_once <= dying.queue.dead_lettered - done <= at_once + 1
    bench.turns()
    assert [queue.ready for queue in (dying.target, *more)] == [100] * targets
    assert dying.queue.died == []


def test_a_body_beyond_a_maximum_that_became_smaller_goes_up(make_bench):
    before = make_bench()
    before.queue()
    publisher = before.connection(1)
    for octets in (1000, 1001):
        publisher.feed(publish(1, bytes(octets), persistent=True))
    before.close()
    bench = make_bench(message_octets_max=1000)
    queue, target = bench.recovered(dead_letters=True), bench.queue(b"dead")
    bench.bound[b"dlx", b"q"] = (b"dead",)
    queue.letters = plane.Letters(bench.routes, b"q", b"dlx")
    reader = bench.connection(1)
    consume(reader.channels[1], queue)
    bench.turns()
    reader.feed(nack(1, 0, multiple=True, requeue=False))
    assert [len(row[6]) for row in target.browse(1, 9)] == [1000]
    assert [len(body) for _, body in queue.died] == [1001]
