"""Keys that the data plane finds in a message's headers: the control plane's, octet for octet."""

import hashlib
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plane.harness import ack, publish

from brokerd import plane
from brokerd.queues.dead_letter import read_properties
from brokerd.queues.deduplication import Deduplication, Rule, Seen, group_of, key_of, own_ttl_of
from brokerd.store import format as layout
from brokerd.store.disk import Disk
from brokerd.store.key_files import KeyFiles
from brokerd.wire.properties import Properties, encode_header
from brokerd.wire.values import Int8, Int64, Timestamp, UInt8, UInt16, UInt32

MASK = (1 << 64) - 1
NAMES = ["x-deduplication-header", "MessageDeduplicationId", "x-cache-ttl", "id", "other", ""]


def octets_of(**headers):
    return encode_header(0, Properties(headers=headers))[12:]


def longstr(octets):
    return b"S" + struct.pack(">I", len(octets)) + octets


def raw(*entries):
    """Properties with these headers, which may have one name twice: (name, kind and value)."""
    table = b"".join(bytes([len(name)]) + name + value for name, value in entries)
    return b"\x20\0" + struct.pack(">I", len(table)) + table


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return KeyFiles(str(tmp_path_factory.mktemp("keys")), Disk(), print, lambda: 0)


def window_of(files, header="x-deduplication-header"):
    window = plane.Window(10, -1, header.encode())
    window.hash_key = files.plane_key
    return window


def expected(files, header, octets):
    """What the control plane makes of these properties; None: no plain key."""
    headers = read_properties(octets).headers
    key = key_of(Rule(header), headers)
    if key is None:
        return 0
    return files.hash_of(key) if key[:1] in b"SI" else None


values = st.one_of(
    st.text(max_size=300).map(lambda text: longstr(text.encode("utf-8", "surrogatepass"))),
    st.binary(max_size=40).map(longstr),
    st.integers(-(1 << 63), (1 << 63) - 1).map(lambda n: b"l" + struct.pack(">q", n)),
    st.integers(-(1 << 63), (1 << 63) - 1).map(lambda n: b"L" + struct.pack(">q", n)),
    st.integers(0, (1 << 64) - 1).map(lambda n: b"T" + struct.pack(">Q", n)),
    st.integers(-(1 << 31), (1 << 31) - 1).map(lambda n: b"I" + struct.pack(">i", n)),
    st.integers(0, (1 << 32) - 1).map(lambda n: b"i" + struct.pack(">I", n)),
    st.integers(-(1 << 15), (1 << 15) - 1).map(lambda n: b"s" + struct.pack(">h", n)),
    st.integers(-(1 << 15), (1 << 15) - 1).map(lambda n: b"U" + struct.pack(">h", n)),
    st.integers(0, (1 << 16) - 1).map(lambda n: b"u" + struct.pack(">H", n)),
    st.integers(-128, 127).map(lambda n: b"b" + struct.pack(">b", n)),
    st.integers(0, 255).map(lambda n: b"B" + bytes([n])),
    st.booleans().map(lambda yes: b"t" + bytes([yes])),
    st.floats().map(lambda x: b"d" + struct.pack(">d", x)),
    st.floats(width=32).map(lambda x: b"f" + struct.pack(">f", x)),
    st.just(b"V"),
    st.binary(max_size=9).map(lambda octets: b"x" + struct.pack(">I", len(octets)) + octets),
    st.just(b"D\2\0\0\0\7"),
    st.just(b"F\0\0\0\0"),
    st.just(b"A" + struct.pack(">I", 2) + b"B\1"),
)


@settings(max_examples=400)
@given(entries=st.lists(st.tuples(st.sampled_from(NAMES).map(str.encode), values), max_size=6),
       header=st.sampled_from(["x-deduplication-header", "id", "MessageDeduplicationId", "x-cache-ttl", ""]))
def test_the_plane_finds_the_keys_of_the_control_plane_where_they_are_plain(files, entries, header):
    octets = raw(*entries)
    assert plane.find_key_hash(window_of(files, header), octets) == expected(files, header, octets)


GROUP_NAMES = ["JMSXGroupID", "x-message-group-id", "MessageGroupId", "group-id", "g", "x-deduplication-header"]


@settings(max_examples=300)
@given(entries=st.lists(st.tuples(st.sampled_from(GROUP_NAMES).map(str.encode), values), max_size=6),
       group=st.sampled_from(["", "g", "group-id", "routing-key", "correlation-id", "type", "user-id", "app-id"]),
       content=st.booleans(), short=st.sampled_from([None, "", "a", "\u00e9" * 100]))
def test_a_key_within_a_group_is_the_control_planes(files, entries, group, content, short):
    table = raw(*entries)[2:]
    flags, more = 0x2000, b""
    for name, bit in (("correlation-id", 10), ("type", 5), ("user-id", 4), ("app-id", 3)):
        if name == group and short is not None:
            flags |= 1 << bit
            more = bytes([len(short.encode())]) + short.encode()
    octets = struct.pack(">H", flags) + table + more
    known = Deduplication(Rule(scope="group", group=group, content=content), files)
    properties = read_properties(octets)
    known.window.hash_key = files.plane_key
    seen = Seen(properties, "key", b"body")
    key = key_of(known.rule, properties.headers)
    named = group_of(known.rule, properties.headers, seen)
    plain = (key is None or key[:1] in b"SI") and ((key is None and not content) or named is None
                                                   or named[:1] in b"GH")
    found = plane.find_key_hash(known.window, octets, b"key", b"body")
    assert found == (known.hash_of(properties.headers, seen) if plain else None)
    assert known.is_for_plane(octets) is plain


def test_a_group_parts_keys_and_a_message_without_a_group_has_its_own(files):
    known = Deduplication(Rule(scope="group"), files)
    headers = [{"x-deduplication-header": key} | ({"group-id": group} if group is not None else {})
               for key in ("a", "b") for group in ("a", "b", 1, "1", None)]
    assert len({known.hash_of(each) for each in headers}) == len(headers)


@pytest.mark.parametrize("length", [0, 1, 126, 127, 128, 129, 254, 255, 256, 257, 5000])
def test_a_key_of_any_length_has_its_hash(files, length):
    octets = octets_of(**{"x-deduplication-header": "k" * length})
    assert plane.find_key_hash(window_of(files), octets) == files.hash_of(b"S" + b"k" * length)


@pytest.mark.parametrize("number", [0, 1, -1, 127, 255, 65535, -32768, (1 << 32) - 1, (1 << 63) - 1, -(1 << 63)])
def test_a_whole_number_is_one_key_whatever_its_width(files, number):
    found = set()
    for kind, bounds in ((Int8, (-128, 127)), (UInt8, (0, 255)), (UInt16, (0, 65535)), (UInt32, (0, (1 << 32) - 1)),
                         (Int64, (-(1 << 63), (1 << 63) - 1))):
        if bounds[0] <= number <= bounds[1]:
            found.add(plane.find_key_hash(window_of(files), octets_of(**{"x-deduplication-header": kind(number)})))
    assert found == {files.hash_of(b"I%d" % number)}


def test_of_two_headers_with_one_name_the_first_counts(files):
    octets = raw((b"id", longstr(b"first")), (b"id", longstr(b"second")))
    assert plane.find_key_hash(window_of(files, "id"), octets) == files.hash_of(b"Sfirst")
    assert expected(files, "id", octets) == files.hash_of(b"Sfirst")


def test_without_a_hash_key_only_messages_without_a_key_are_for_the_plane(files):
    window = plane.Window(10, -1, b"id")
    assert plane.find_key_hash(window, b"\0\0") == 0
    assert plane.find_key_hash(window, octets_of(other="a")) == 0
    assert plane.find_key_hash(window, octets_of(id="a")) is None
    window.hash_key = files.plane_key
    assert plane.find_key_hash(window, octets_of(id="a")) == files.hash_of(b"Sa")
    window.change(10, -1, b"other")
    assert plane.find_key_hash(window, octets_of(id="a")) == 0
    window.hash_key = None
    assert window.hash_key is None
    assert plane.find_key_hash(window, octets_of(other="a")) is None


@pytest.mark.parametrize("octets", [b"", b"\0", b"\x20\0", b"\x20\0\0\0\0\5", b"\0\0\0"])
def test_malformed_properties_are_refused(files, octets):
    with pytest.raises(ValueError, match="malformed properties"):
        plane.find_key_hash(window_of(files), octets)


@pytest.mark.parametrize("length", [1, 2, 126, 127, 128, 129, 255, 256, 257, 5000])
def test_the_former_hash_is_blake2b(length):
    octets = bytes(n % 251 for n in range(length))
    expected = int.from_bytes(hashlib.blake2b(octets, digest_size=8, key=b"k" * 16).digest(), "little")
    assert plane.HashKey(b"k" * 16, is_blake2b=True).hash(octets) == expected


def siphash(key, octets):
    """SipHash-2-4 as its paper has it."""
    low, high = struct.unpack("<QQ", key)
    v = [low ^ 0x736F6D6570736575, high ^ 0x646F72616E646F6D, low ^ 0x6C7967656E657261, high ^ 0x7465646279746573]

    def turn(x, n):
        return (x << n | x >> 64 - n) & MASK

    def rounds(count):
        for _ in range(count):
            v[0] = v[0] + v[1] & MASK
            v[1] = turn(v[1], 13) ^ v[0]
            v[0] = turn(v[0], 32)
            v[2] = v[2] + v[3] & MASK
            v[3] = turn(v[3], 16) ^ v[2]
            v[0] = v[0] + v[3] & MASK
            v[3] = turn(v[3], 21) ^ v[0]
            v[2] = v[2] + v[1] & MASK
            v[1] = turn(v[1], 17) ^ v[2]
            v[2] = turn(v[2], 32)

    padded = octets + bytes(7 - len(octets) % 8) + bytes([len(octets) % 256])
    for (word,) in struct.iter_unpack("<Q", padded):
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xFF
    rounds(4)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def test_the_hash_is_siphash():
    key = bytes(range(16))
    assert siphash(key, bytes(range(15))) == 0xA129CA6149BE45E5     # the paper's example
    for length in (*range(1, 70), 255, 256, 1000):
        octets = bytes((n * 7 + length) % 256 for n in range(length))
        assert plane.HashKey(key).hash(octets) == siphash(key, octets)
    with pytest.raises(ValueError, match="a key has one octet at least"):
        plane.HashKey(key).hash(b"")


def test_a_hash_key_has_16_octets():
    for octets in (b"", b"k" * 15, b"k" * 17):
        with pytest.raises(ValueError, match="a hash key has 16 octets"):
            plane.HashKey(octets)


def test_keys_that_an_earlier_release_hashed_are_for_the_control_plane(files):
    known = Deduplication(Rule(), files)
    octets = octets_of(**{"x-deduplication-header": "a"})
    assert known.is_for_plane(octets)
    assert not known.is_for_plane(octets_of(**{"x-deduplication-header": 1.5}))
    known._former = b"f" * 16
    assert not known.is_for_plane(octets)


def test_a_hash_key_that_cannot_be_read_leaves_messages_to_the_control_plane(tmp_path):
    class Failing(Disk):
        def read(self, path):
            raise OSError(5, "Input/output error", path)

    said = []
    known = Deduplication(Rule(), KeyFiles(str(tmp_path), Failing(), said.append, lambda: 0))
    assert known.is_for_plane(octets_of(other="a"))
    for _ in range(2):
        assert not known.is_for_plane(octets_of(**{"x-deduplication-header": "a"}))
        assert known.hash_of({"x-deduplication-header": "a"}) == 0  # The control plane tells of it.
    assert said == [f"[Errno 5] Input/output error: '{tmp_path}/keys.secret'; duplicates may pass"]


@given(value=values)
@settings(max_examples=100)
def test_the_time_that_a_message_sets_is_read_as_the_control_plane_reads_it(value):
    octets = raw((b"x-cache-ttl", value))
    assert plane.find_own_ttl(octets) == own_ttl_of(read_properties(octets).headers)


def test_a_time_is_not_an_own_one_if_it_is_a_timestamp():
    assert plane.find_own_ttl(octets_of(**{"x-cache-ttl": Timestamp(5)})) == -1


def test_of_two_times_that_a_message_sets_the_first_counts():
    twice = raw((b"x-cache-ttl", b"l" + struct.pack(">q", 5)), (b"x-cache-ttl", b"l" + struct.pack(">q", 9)))
    assert plane.find_own_ttl(twice) == own_ttl_of(read_properties(twice).headers) == 5


@pytest.mark.parametrize("by_content", [False, True])
def test_in_a_large_window_the_next_key_is_that_of_its_whole_rule(bench, files, by_content):
    """The plane looks ahead for the key of the next publish, which may lack the group or the body."""
    queue = bench.queue()
    bench.resolve = lambda *_: plane.Answer((queue,), cacheable=True, checks_keys=True)
    bench.routes = plane.Routes(bench.core, bench.resolve)
    queue.window = window = plane.Window(1 << 17, -1, b"x-deduplication-header")
    window.hash_key = files.plane_key
    window.set_rule(by_content=by_content, waiting=False, action=0, group_from=0 if by_content else 2, group=b"group")
    window.load(b"".join(struct.pack("<QQQ", number, number << 32, 1 << 60) for number in range(1, 35_000)), 0)
    bodies = (b"one", b"two", b"two", b"one") if by_content else (b"same",) * 4
    headers = [{} if by_content else {"x-deduplication-header": "k", "group": group} for group in "abca"]
    bench.connection(1).feed(b"".join(publish(1, body, properties=octets_of(**each))
                                      for body, each in zip(bodies, headers, strict=True)))
    assert (queue.ready, window.duplicates) == ((2, 2) if by_content else (3, 1))


@pytest.mark.parametrize("differ", ["header", "content", "group"])
def test_two_queues_whose_rules_differ_each_find_their_own_key(bench, files, differ):
    queues = [bench.queue(name) for name in (b"one", b"two")]
    bench.resolve = lambda *_: plane.Answer(tuple(queues), cacheable=True, checks_keys=True)
    bench.routes = plane.Routes(bench.core, bench.resolve)
    for number, queue in enumerate(queues):
        other = number == 1
        queue.window = plane.Window(10, -1, b"bb" if other and differ == "header" else b"aa")
        queue.window.hash_key = files.plane_key
        queue.window.set_rule(by_content=other and differ == "content", waiting=False, action=0,
                              group_from=2 if other and differ == "group" else 0, group=b"group")
    first, second = {"header": ({"aa": "k", "bb": "k"}, {"aa": "k", "bb": "l"}), "content": ({}, {}),
                     "group": ({"aa": "k", "group": "g"}, {"aa": "k", "group": "h"})}[differ]
    bench.connection(1).feed(b"".join(publish(1, b"same", properties=octets_of(**each)) for each in (first, second)))
    assert [queue.ready for queue in queues] == ([2, 1] if differ == "content" else [1, 2])


def test_a_message_that_a_full_queue_refuses_replaces_none(bench, files):
    queue = bench.queue(max_length=1, overflow=1)
    bench.resolve = lambda *_: plane.Answer((queue,), cacheable=True, checks_keys=True)
    bench.routes = plane.Routes(bench.core, bench.resolve)
    queue.window = plane.Window(10, -1, b"aa")
    queue.window.hash_key = files.plane_key
    queue.window.set_rule(by_content=False, waiting=True, action=3, group_from=0)
    told = []
    queue.on_replaced = told.append
    connection = bench.connection(1)
    for limit, expected_ in ((1, []), (9, [1])):
        queue.set_rules(max_length=limit, overflow=1)
        connection.feed(publish(1, b"body", properties=octets_of(aa="k")) * (2 if limit == 1 else 1))
        assert told == expected_


class Learning(plane.ExchangeWindow):
    """Notes what it is told that it has learnt."""

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.told = []

    def on_learnt(self, rows, lasting, until_ms):
        self.told.append((list(struct.iter_unpack("<QQq", rows)), until_ms))
        self.lasting = lasting


def learning(bench, cls=Learning):
    """A queue behind an exchange that learns keys: the queue, and the exchange's window."""
    window = cls(10, -1, b"id", has_log=True)
    window.hash_key = plane.HashKey(bytes(16))
    queue = bench.queue()
    answer = plane.Answer((queue,), cacheable=True, checks_keys=True, window=window)
    bench.routes = plane.Routes(bench.core, lambda *_: answer)
    return queue, window


def test_keys_of_one_chunk_are_told_in_their_order_with_the_latest_time(bench):
    bench.at(1000)
    _, window = learning(bench)
    connection = bench.connection(1)
    connection.feed(b"".join(publish(1, b"m", properties=octets_of(**{"id": key, "x-cache-ttl": ttl}))
                             for key, ttl in (("a", 5000), ("b", 9000), ("c", 7000))))
    bench.turns()
    ((rows, until),) = window.told
    orders = [order & (1 << 63) - 1 for order, _, _ in rows]
    assert ([expires for _, _, expires in rows], until) == ([6000, 10_000, 8000], 10_000)
    assert orders == sorted(set(orders))


def test_each_chunk_of_keys_is_told_without_what_was_told_before(bench):
    bench.at(1000)
    _, window = learning(bench)
    connection = bench.connection(1)
    for key, ttl, mode, lasting, until in (("a", 9000, 2, 1, 10_000), ("b", 5000, 1, 0, 6000)):
        properties = encode_header(0, Properties(delivery_mode=mode, headers={"id": key, "x-cache-ttl": ttl}))[12:]
        connection.feed(publish(1, b"m", properties=properties))
        bench.turns()
        assert ([len(rows) for rows, _ in window.told], window.lasting, window.told[-1][1]) == (
            [1] * len(window.told), lasting, until)


def test_a_publish_waits_for_room_for_its_key_whatever_the_error_is(bench):
    class Full(Learning):
        def on_full(self, rows):
            raise OSError("no room, and no number of an error")

    queue, window = learning(bench, Full)
    bench.connection(1).feed(publish(1, b"m", properties=octets_of(id="a")))
    assert (queue.ready, len(window)) == (0, 0)


# --- what the order journal says of a duplicate


def rule_of(window, **more):
    window.set_rule(**({"by_content": False, "waiting": False, "action": 0, "group_from": 0} | more))


def knowing(bench, files, *, action=0, journal=True, **options):
    """A queue that knows keys, with a journal."""
    queue = bench.queue(**options)
    queue.set_journal(journal)
    queue.on_replaced = lambda seq: None
    answer = plane.Answer((queue,), cacheable=True, checks_keys=True)
    bench.routes = plane.Routes(bench.core, lambda *_: answer)
    queue.window = window_of(files)
    rule_of(queue.window, action=action)
    return queue


def send_keys(bench, text, body=b"m" * 1200):
    bench.connection(1).feed(b"".join(
        publish(1, body, properties=encode_header(0, Properties(
            delivery_mode=2, headers={"x-deduplication-header": key}))[12:]) for key in text.split()))
    bench.turns()


def duplicates_told(queue):
    """Segment, seq and reason of each event of a duplicate."""
    told = []
    for path in sorted(Path(queue.directory).glob("journal.*")):
        octets = path.read_bytes()
        told += [(int(path.name[8:]), int.from_bytes(octets[at:at + 8], "little"), octets[at + 27])
                 for at in range(64, len(octets) - 31, 32) if octets[at + 26] == layout.DUPLICATE_EVENT]
    return told


@pytest.mark.parametrize("action", range(4))
def test_the_journal_tells_of_which_message_a_duplicate_came_and_what_became_of_it(make_bench, files, action):
    bench = make_bench(segment_octets=4096)
    queue = knowing(bench, files, action=action)
    send_keys(bench, "a b c d e f g")                       # Three to a segment.
    assert [segment["base_seq"] for segment in queue.segments()] == [1, 4, 7]
    send_keys(bench, "a c d g")
    assert duplicates_told(queue) == [(1, 1, action + 1), (1, 3, action + 1), (2, 4, action + 1), (3, 7, action + 1)]
    queue.check()


@pytest.mark.parametrize("priority", [0, 1])
def test_the_journal_tells_of_no_duplicate_in_a_queue_with_priorities(bench, files, priority):
    queue = knowing(bench, files, max_priority=priority)
    send_keys(bench, "a a")
    assert (queue.ready, queue.window.duplicates) == (1, 1)
    assert len(duplicates_told(queue)) == (priority == 0)


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("seq", [0, 99])
def test_the_journal_tells_of_no_duplicate_of_a_message_that_the_queue_does_not_have(bench, files, seq, stored):
    queue = knowing(bench, files)
    if stored:
        send_keys(bench, "b")
    queue.window.enter(files.hash_of(b"Sa"), 1 << 60, 0, seq)
    send_keys(bench, "a")
    assert (queue.ready, queue.window.duplicates, duplicates_told(queue)) == (stored, 1, [])


def test_the_journal_tells_of_no_duplicate_of_a_message_whose_segment_is_gone(make_bench, files):
    bench = make_bench(segment_octets=4096)
    queue = knowing(bench, files)
    send_keys(bench, "a b c d")
    take(bench, queue, 3).feed(ack(1, 0, multiple=True))
    bench.turns()
    assert [segment["base_seq"] for segment in queue.segments()] == [4]
    send_keys(bench, "a d")
    assert (queue.window.duplicates, [told[1:] for told in duplicates_told(queue)]) == (2, [(4, 1)])


# --- keys of messages that wait


def waiting_window(queue, ttl_ms=-1):
    queue.window = plane.Window(100, ttl_ms, b"x-deduplication-header")
    rule_of(queue.window, waiting=True)
    return queue.window


def enter_all(queue):
    """As a start does."""
    plane.enter_keys_that_wait(queue)
    for segment in queue.segments():
        plane.enter_keys_that_wait(queue, segment["number"], segment["level"])
    plane.enter_keys_that_wait(queue)


def put(bench, queue, hash_, *, of_exchange=0, ttl_ms=-1, priority=0):
    headers = {"x-cache-ttl": ttl_ms} if ttl_ms >= 0 else {}
    properties = encode_header(0, Properties(delivery_mode=2, priority=priority, headers=headers))[12:]
    keys = plane.Keys({queue: hash_} if hash_ else {}, of_exchange, ttl_ms)
    bench.core.put((queue,), b"x", b"q", properties, b"m" * 1200, keys=keys)


def take(bench, queue, count):
    """The connection that got so many messages, which it has not acknowledged."""
    connection = bench.connection(1)
    for _ in range(count):
        assert connection.channels[1].get(queue, False)
    bench.turns()
    return connection


def known(window, hashes):
    return {hash_: window.seq_of(hash_) for hash_ in hashes if window.seq_of(hash_)}


@pytest.mark.parametrize("max_priority", [0, 1])
def test_a_start_enters_the_keys_of_messages_that_wait_and_no_others(make_bench, max_priority):
    bench = make_bench(segment_octets=4096)
    queue = bench.queue(max_priority=max_priority)
    waiting_window(queue)
    for number in range(1, 9):
        put(bench, queue, number, priority=max_priority)
    put(bench, queue, 0)
    queue.window = None
    put(bench, queue, 0, of_exchange=10)
    take(bench, queue, 3).feed(ack(1, 2))
    again = make_bench(segment_octets=4096)
    found = again.recovered(max_priority=max_priority)
    enter_all(found)                            # Without a window nothing is entered.
    window = waiting_window(found)
    enter_all(found)
    expected = {number: number for number in range(1, 9) if number != 2}
    assert (known(window, range(1, 11)), len(window)) == (expected, len(expected))
    entered = window.entered
    enter_all(found)
    assert window.entered == entered            # No key is made newer.
    found.check()


def test_keys_of_messages_that_the_cursor_has_passed_count_while_they_are_not_settled(make_bench):
    bench = make_bench(segment_octets=4096)
    queue = bench.queue()
    waiting_window(queue)
    for number in range(1, 10):
        put(bench, queue, number)
    again = make_bench(segment_octets=4096)
    found = again.recovered()
    connection = take(again, found, 5)
    connection.feed(ack(1, 1) + ack(1, 3) + ack(1, 4))
    window = waiting_window(found)
    for segment in found.segments():
        plane.enter_keys_that_wait(found, segment["number"])
    assert known(window, range(1, 10)) == {number: number for number in range(6, 10)}
    plane.enter_keys_that_wait(found)
    assert known(window, range(1, 10)) == {number: number for number in (2, 5, 6, 7, 8, 9)}
    take(again, found, 4).feed(ack(1, 0, multiple=True))
    connection.feed(ack(1, 0, multiple=True))
    window = waiting_window(found)
    enter_all(found)
    plane.enter_keys_that_wait(found, 99)
    assert (found.ready, found.unacked, len(window)) == (0, 0, 0)
    found.check()


def test_of_two_messages_with_one_key_that_wait_the_newer_one_has_it(make_bench):
    bench = make_bench(segment_octets=4096)
    queue = bench.queue()
    waiting_window(queue)
    for number in (7, 1, 2, 7, 3):
        put(bench, queue, number)
    window = waiting_window(queue)
    for segment in reversed(queue.segments()):
        plane.enter_keys_that_wait(queue, segment["number"])
    assert known(window, range(1, 10)) == {7: 4, 1: 2, 2: 3, 3: 5}


def test_the_time_of_a_key_that_waits_begins_with_its_message(make_bench):
    bench = make_bench()
    bench.at(1000)
    queue = bench.queue()
    waiting_window(queue, ttl_ms=10_000)
    put(bench, queue, 1)
    put(bench, queue, 2, ttl_ms=5000)
    bench.at(4000)
    window = waiting_window(queue, ttl_ms=10_000)
    enter_all(queue)
    assert [[window.knows(key, at) for at in (5999, 6001, 10_999, 11_001)] for key in (1, 2)] == [
        [True, True, True, False], [True, False, False, False]]


def test_a_damaged_message_that_is_out_has_no_key_that_waits(bench):
    queue = bench.queue()
    waiting_window(queue)
    put(bench, queue, 1)
    put(bench, queue, 2)
    take(bench, queue, 2)
    with open(f"{queue.directory}/msgs.0000000001", "r+b") as file:
        file.seek(64)
        assert file.read(4) == layout.RECORD_MAGIC.to_bytes(4, "little")
        file.seek(64)
        file.write(bytes(4))
    window = waiting_window(queue)
    plane.enter_keys_that_wait(queue)
    assert known(window, (1, 2)) == {2: 2}


def test_a_start_enters_no_key_of_a_segment_that_is_retained(make_bench):
    rules = {"retain_octets": 1 << 20}
    bench = make_bench(segment_octets=4096)
    queue = bench.queue(**rules)
    waiting_window(queue)
    for number in range(1, 7):
        put(bench, queue, number)
    take(bench, queue, 6).feed(ack(1, 0, multiple=True))
    again = make_bench(segment_octets=4096)
    found = again.recovered(**rules)
    window = waiting_window(found)
    enter_all(found)
    assert (len(found.segments()), len(window)) == (2, 0)
