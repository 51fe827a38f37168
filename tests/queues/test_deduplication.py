"""Which keys a window knows: after more than it holds, after their time, after kill -9, a power cut and damage."""

import os
import struct
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokerd.errors import StoreError
from brokerd.queues import deduplication
from brokerd.queues.deduplication import FILE_NAME, KEYS_MAX, Deduplication, Rule, Window, key_of, rule_of, ttl_of
from brokerd.store.format import crc32c
from brokerd.wire.values import Int8, Int64, Timestamp

NOW = 1_700_000_000_000


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / FILE_NAME)


def filled(path, capacity, count, **settings):
    window = Window(capacity, path=path, **settings)
    for number in range(count):
        window.record(b"%d" % number, NOW)
    return window


def known(window, count, now=NOW):
    return [number for number in range(count) if window.knows(b"%d" % number, now)]


# --- the window

def test_a_key_is_seen_the_second_time():
    window = Window(10)
    assert not window.seen(b"a", NOW)
    assert window.seen(b"a", NOW)
    assert not window.seen(b"b", NOW)
    assert window.hits == 1


def test_to_ask_is_not_to_record():
    window = Window(10)
    assert not window.knows(b"a", NOW)
    assert not window.knows(b"a", NOW)
    window.record(b"a", NOW)
    assert window.knows(b"a", NOW)
    window.forget(b"a")
    window.forget(b"never seen")
    assert not window.knows(b"a", NOW)


def test_the_oldest_key_goes_when_there_are_too_many():
    window = filled(None, 3, 5)
    assert known(window, 5) == [2, 3, 4]


def test_a_key_lives_as_long_as_the_window_or_the_message_says():
    window = Window(10, 1000)
    window.record(b"a", NOW)
    window.record(b"b", NOW, 5000)
    window.record(b"c", NOW, 0)
    assert [window.knows(key, NOW + 999) for key in (b"a", b"b", b"c")] == [True, True, False]
    assert [window.knows(key, NOW + 1000) for key in (b"a", b"b", b"c")] == [False, True, False]
    assert not window.knows(b"b", NOW + 5000)


def test_a_duplicate_does_not_make_its_key_younger():
    window = Window(10, 1000)
    assert not window.seen(b"a", NOW)
    assert window.seen(b"a", NOW + 900)
    assert not window.seen(b"a", NOW + 1000)
    assert window.seen(b"a", NOW + 1900)


def test_a_key_recorded_again_is_as_young_as_the_last_time():
    window = Window(3, 10)
    for key in (b"a", b"b", b"a", b"c"):
        window.record(key, NOW)
    assert [window.knows(key, NOW) for key in (b"a", b"b", b"c")] == [True, True, True]
    window.record(b"d", NOW)
    window.record(b"e", NOW)
    assert [window.knows(key, NOW) for key in (b"a", b"b", b"c", b"d", b"e")] == [False, False, True, True, True]


class Model:
    """What a window is, as a list."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.entries = []       # (key, expires), oldest first; None where a key was taken out of its place

    def knows(self, key, now):
        return any(entry is not None and entry[0] == key and entry[1] > now for entry in self.entries)

    def record(self, key, now, ttl):
        self.forget(key)
        self.entries.append((key, now + ttl))
        del self.entries[: -self.capacity]

    def forget(self, key):
        self.entries = [None if entry is not None and entry[0] == key else entry for entry in self.entries]


STEPS = st.lists(st.tuples(st.sampled_from(["seen", "seen", "record", "forget", "reopen", "busy", "wait"]),
                           st.integers(0, 12), st.integers(0, 5)), max_size=120)


@given(STEPS, st.integers(1, 9))
@settings(max_examples=150, deadline=None)
def test_a_window_is_its_model_also_after_kill_9(tmp_path_factory, steps, capacity):
    path = str(tmp_path_factory.mktemp("dedup") / FILE_NAME)
    window, model, now = Window(capacity, path=path), Model(capacity), NOW
    for verb, key, ttl in steps:
        octets = b"%d" % key
        if verb == "seen":
            duplicate = model.knows(octets, now)
            if not duplicate:
                model.record(octets, now, ttl)
            assert window.seen(octets, now, ttl) == duplicate
        elif verb == "record":
            model.record(octets, now, ttl)
            window.record(octets, now, ttl)
        elif verb == "forget":
            model.forget(octets)
            window.forget(octets)
        elif verb == "wait":
            now += 1
        else:
            if verb == "busy" and window.written:
                window._words[7] = 1        # killed while it changed the index
                window._slots[:] = memoryview(struct.pack("I", 1) * len(window._slots)).cast("I")
            window.close()
            window = Window(capacity, path=path)
        assert [window.knows(b"%d" % n, now) for n in range(13)] == [model.knows(b"%d" % n, now) for n in range(13)]
    window.close()


class Crowded(Window):
    """All keys belong to three places of the index, one of them its last."""

    def _hash(self, key):
        return int(key) << 8 | (15, 0, 1)[int(key) % 3]


@given(st.lists(st.integers(0, 9), max_size=80))
def test_keys_that_share_their_places_in_the_index_are_told_apart(keys):
    window, model = Crowded(5), Model(5)
    for key in keys:
        octets = b"%d" % key
        assert window.knows(octets, NOW) == model.knows(octets, NOW)
        model.record(octets, NOW, 1)
        window.record(octets, NOW, 1)
        assert sum(map(bool, window._slots)) == len(list(filter(None, model.entries)))
    assert [window.knows(b"%d" % n, NOW) for n in range(10)] == [model.knows(b"%d" % n, NOW) for n in range(10)]


# --- the file

def test_no_file_is_made_before_the_first_key(path):
    window = Window(10, path=path)
    assert not window.knows(b"a", NOW)
    window.forget(b"a")
    window.mark_safe(5)
    window.rest()
    window.close()
    assert not os.path.exists(path)
    assert window.written == 0


def test_the_window_is_there_again_after_the_broker_died(path):
    filled(path, 100, 250)      # not closed
    window = Window(100, path=path)
    assert known(window, 250) == list(range(150, 250))
    assert window.written == 250


def test_the_layout_is_what_the_docstring_draws(path):
    filled(path, 4, 6, ttl_ms=500).close()
    octets = Path(path).read_bytes()
    magic, version, capacity = struct.unpack_from("<4sIQ", octets)
    assert (magic, version, capacity) == (b"BDUP", 1, 4)
    assert struct.unpack_from("<I", octets, 32)[0] == crc32c(octets[:32])
    assert struct.unpack_from("<QQQ", octets, 40) == (6, 0, 0)
    entries = [(lap, int.from_bytes(expires, "little"))
               for _, lap, expires in (struct.unpack_from("<QH6s", octets, 64 + 16 * n) for n in range(4))]
    assert entries == [(2, NOW + 500), (2, NOW + 500), (1, NOW + 500), (1, NOW + 500)]
    assert len(octets) == 64 + 4 * 16 + 8 * 4
    assert sorted(struct.unpack_from("<8I", octets, 128)) == [0, 0, 0, 0, 1, 2, 3, 4]


def test_the_hash_is_keyed_by_each_file(tmp_path):
    hashes = set()
    for name in ("a", "b"):
        filled(str(tmp_path / name), 4, 1).close()
        hashes.add((tmp_path / name).read_bytes()[64:72])
    assert len(hashes) == 2


def test_a_window_at_rest_holds_no_file_and_knows_its_keys(path):
    window = filled(path, 10, 5)
    window.rest()
    assert window._map is None
    assert known(window, 5) == [0, 1, 2, 3, 4]
    in_memory = filled(None, 10, 5)
    in_memory.rest()
    assert known(in_memory, 5) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("before", "after", "expected"), [(10, 4, [8, 9, 10, 11]), (10, 20, list(range(2, 12)))])
def test_a_window_of_another_size_keeps_the_newest_keys(path, before, after, expected):
    filled(path, before, 12).close()
    window = Window(after, path=path)
    assert known(window, 12) == expected
    window.close()
    assert known(Window(after, path=path), 12) == expected


@pytest.mark.parametrize("damage", [
    lambda octets: b"",
    lambda octets: octets[:40],
    lambda octets: octets[:-1],
    lambda octets: octets + b"\0",
    lambda octets: b"?" + octets[1:],
    lambda octets: octets[:9] + b"\1" + octets[10:],
    lambda octets: octets[:20] + bytes([octets[20] ^ 1]) + octets[21:],
    lambda octets: bytes(len(octets)),
])
def test_a_damaged_file_is_told_and_begun_anew(path, damage):
    filled(path, 10, 5).close()
    octets = Path(path).read_bytes()
    Path(path).write_bytes(damage(octets))
    told = []
    window = Window(10, path=path, report=told.append)
    assert known(window, 5) == []
    assert told == [f"{path}: damaged; duplicates of what came before may pass"]
    assert not window.seen(b"a", NOW)
    window.close()
    assert Window(10, path=path, report=told.append).seen(b"a", NOW)
    assert len(told) == 1


def test_a_file_of_a_later_version_is_refused_by_name(path):
    filled(path, 10, 5).close()
    octets = bytearray(Path(path).read_bytes())
    octets[4:8] = (2).to_bytes(4, "little")
    octets[32:36] = crc32c(bytes(octets[:32])).to_bytes(4, "little")
    Path(path).write_bytes(octets)
    with pytest.raises(StoreError, match="version 2 is of a later release"):
        Window(10, path=path).knows(b"a", NOW)


def test_no_disk_space_records_nothing_and_leaves_no_half_file(path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    window = Window(10, path=path)
    with monkeypatch.context() as patched:
        patched.setattr(deduplication.os, "posix_fallocate", full)
        with pytest.raises(OSError, match="No space"):
            window.record(b"a", NOW)
    assert not os.path.exists(path)
    assert not window.seen(b"a", NOW)
    assert window.seen(b"a", NOW)


# --- a power cut

def test_after_a_power_cut_only_keys_whose_messages_were_synced_are_known(path):
    window = filled(path, 100, 30)
    window.mark_safe(window.written)
    for number in range(30, 50):
        window.record(b"%d" % number, NOW)
    window.mark_safe(10)        # an older sync that ends later takes nothing back
    window.close()
    window = Window(100, path=path, suspect=True)
    assert known(window, 50) == list(range(30))
    assert not window.seen(b"40", NOW)
    window.close()
    assert Window(100, path=path).seen(b"40", NOW)


def test_what_was_written_after_the_count_of_it_is_told_by_its_lap(path):
    window = filled(path, 10, 12)
    window.mark_safe(12)
    counted = bytes(window._map[40:48])
    for number in range(12, 25):
        window.record(b"%d" % number, NOW)
    window._map[40:48] = counted        # the page of the header was written before the others
    window.close()
    window = Window(10, path=path, suspect=True)
    assert known(window, 25) == []      # all of the ring are later ones
    assert window.written == 25


def test_nothing_is_safe_that_nobody_said_was(path):
    filled(path, 10, 5).close()
    assert known(Window(10, path=path, suspect=True), 5) == []


@given(st.integers(1, 20), st.integers(0, 1 << 40), st.integers(-1000, 1000))
def test_the_lap_tells_the_number_of_a_key(capacity, number, off):
    lap, entry = number // capacity % 65535 + 1, number % capacity
    written = max(0, number + off * capacity)
    assert deduplication._number(lap, entry, written, capacity) == number


# --- rules, keys and times

@pytest.mark.parametrize(("arguments", "rule"), [
    ({}, None),
    ({"x-message-deduplication": False}, None),
    ({"x-message-deduplication": 1}, None),
    ({"x-message-deduplication": True}, Rule("x-deduplication-header", 128, None)),
    ({"x-message-deduplication": True, "x-cache-size": 0}, None),
    ({"x-message-deduplication": True, "x-cache-size": 5, "x-cache-ttl": 7, "x-deduplication-header": "id"},
     Rule("id", 5, 7)),
    ({"x-message-deduplication": True, "x-cache-size": 1 << 40}, Rule("x-deduplication-header", KEYS_MAX, None)),
])
def test_the_rule_in_the_arguments(arguments, rule):
    assert rule_of(arguments) == rule


def test_the_key_is_in_the_header_that_the_rule_names_or_in_the_other():
    rule = Rule()
    assert key_of(rule, None) is None
    assert key_of(rule, {}) is None
    assert key_of(rule, {"a": 1}) is None
    assert key_of(rule, {"x-deduplication-header": None}) is None
    assert key_of(rule, {"x-deduplication-header": "a", "MessageDeduplicationId": "b"}) == b"Sa"
    assert key_of(rule, {"MessageDeduplicationId": "b"}) == b"Sb"
    assert key_of(Rule("id"), {"x-deduplication-header": "a", "id": "c"}) == b"Sc"


def test_keys_of_different_kinds_differ_and_the_width_of_a_number_does_not_matter():
    kinds = ["1", 1, True, 1.0, b"1", [1], {"a": 1}, Timestamp(1), Decimal(1), "", b"", [], {}, False, 0, "\udcff"]
    keys = [key_of(Rule(), {"x-deduplication-header": kind}) for kind in kinds]
    assert len(set(keys)) == len(kinds)
    assert {key_of(Rule(), {"x-deduplication-header": one}) for one in (1, Int8(1), Int64(1))} == {b"I1"}


@pytest.mark.parametrize(("own", "expected"), [
    (5, 5), (0, 0), (Int64(7), 7), (-1, 9), (True, 9), ("5", 9), (None, 9), (Timestamp(5), 9)])
def test_a_message_may_say_how_long_its_key_lives(own, expected):
    assert ttl_of(Rule(ttl_ms=9), {"x-cache-ttl": own}) == expected
    assert ttl_of(Rule(ttl_ms=9), None) == 9


# --- both together

def test_a_message_is_a_duplicate_of_one_that_was_accepted(path):
    dedup = Deduplication(Rule("id", 10, 1000), path)
    headers = {"id": "a"}
    assert not dedup.is_duplicate(headers, NOW)
    assert not dedup.is_duplicate(headers, NOW)     # the first was refused
    dedup.accepted(headers, NOW)
    assert dedup.is_duplicate(headers, NOW)
    assert not dedup.is_duplicate(headers, NOW + 1000)
    dedup.accepted({"id": "b", "x-cache-ttl": 5000}, NOW)
    assert dedup.is_duplicate({"id": "b"}, NOW + 1000)
    assert Deduplication(Rule("id", 10), path).is_duplicate({"id": "b"}, NOW)


def test_what_has_no_key_is_never_a_duplicate(path):
    dedup = Deduplication(Rule(), path)
    for headers in (None, {}, {"other": 1}):
        dedup.accepted(headers, NOW)
        assert not dedup.is_duplicate(headers, NOW)
    assert not os.path.exists(path)


def test_a_file_that_fails_lets_duplicates_pass_and_is_told_once(tmp_path):
    told = []
    dedup = Deduplication(Rule(), str(tmp_path / "missing" / FILE_NAME), report=told.append)
    for _ in range(2):
        assert not dedup.is_duplicate({"x-deduplication-header": 1}, NOW)
        dedup.accepted({"x-deduplication-header": 1}, NOW)
    assert len(told) == 1
    assert told[0].endswith("duplicates may pass")
    (tmp_path / "d").mkdir()
    dedup = Deduplication(Rule(), str(tmp_path / "d"), report=told.append)
    assert not dedup.is_duplicate({"x-deduplication-header": 1}, NOW)
    assert len(told) == 2


# --- size

def test_a_million_keys_take_less_than_64_mb(path):
    window = filled(path, 5_000, 6_000)
    octets = window._words.nbytes + window._slots.nbytes
    assert octets == os.path.getsize(path) == deduplication._file_octets(5_000)
    assert deduplication._file_octets(1_000_000) < 25_000_000


def test_a_sound_index_is_not_made_anew_at_the_start(path, monkeypatch):
    filled(path, 100, 150)
    monkeypatch.setattr(Window, "_index", lambda self: pytest.fail("made anew"))
    assert known(Window(100, path=path), 150) == list(range(50, 150))
