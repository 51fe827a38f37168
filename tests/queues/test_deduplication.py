"""What is a duplicate: rules, keys and times; which keys a queue's folder knows after a start."""

import hashlib
import os
import struct
from decimal import Decimal
from pathlib import Path

import pytest

from brokerd.queues.deduplication import KEYS_MAX, Deduplication, Rule, key_of, own_ttl_of, rule_of, ttl_of
from brokerd.store.disk import Disk
from brokerd.store.format import FOR_EVER, KEY_ROW, crc32c
from brokerd.store.key_files import KeyFiles, read, write
from brokerd.wire.values import Int8, Int64, Timestamp

NOW = 1_700_000_000_000


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


def test_numbers_with_a_fraction_are_keys():
    assert key_of(Rule(), {"x-deduplication-header": 1.5}) == b"d1.5"
    assert key_of(Rule(), {"x-deduplication-header": 1.25}) == b"d1.25"


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
    assert own_ttl_of({"x-cache-ttl": own}) == (-1 if expected == 9 else expected)
    assert own_ttl_of(None) == -1


# --- what a queue's folder knows

@pytest.fixture
def files(tmp_path):
    return KeyFiles(str(tmp_path), Disk(), print, lambda: NOW * 1_000_000)


def rows(*triples):
    return b"".join(KEY_ROW.pack(*triple) for triple in triples)


def test_a_key_is_known_once_it_was_entered(files):
    dedup = Deduplication(Rule("id"), files)
    assert not dedup.is_duplicate({"id": "a"})
    assert not dedup.is_duplicate({"id": "a"})      # to ask is not to enter
    dedup.window.enter(dedup.hash_of({"id": "a"}), NOW + 1, NOW)
    assert dedup.is_duplicate({"id": "a"})
    assert not dedup.is_duplicate({"id": "b"})


def test_what_has_no_key_is_never_a_duplicate_and_asks_for_no_hash_key(files, tmp_path):
    dedup = Deduplication(Rule(), files)
    for headers in (None, {}, {"other": 1}):
        assert dedup.hash_of(headers) == 0
        assert not dedup.is_duplicate(headers)
    assert os.listdir(tmp_path) == []


def test_a_disk_that_fails_lets_duplicates_pass_and_is_told_once(tmp_path):
    told = []
    (tmp_path / "keys.secret").mkdir()
    dedup = Deduplication(Rule(), KeyFiles(str(tmp_path), Disk(), told.append, lambda: 0))
    for _ in range(2):
        assert not dedup.is_duplicate({"x-deduplication-header": 1})
    assert len(told) == 1
    assert told[0].endswith("duplicates may pass")


def test_key_files_of_all_levels_are_entered_in_the_order_of_the_messages(files, tmp_path):
    (tmp_path / "q" / "prio.002").mkdir(parents=True)
    write(f"{tmp_path}/q/keys.0000000003", 3, files.hash_key, rows((1, 10, FOR_EVER), (4, 40, FOR_EVER)), Disk())
    write(f"{tmp_path}/q/prio.002/keys.0000000001", 1, files.hash_key, rows((2, 20, FOR_EVER), (3, 30, NOW)), Disk())
    dedup = Deduplication(Rule(size=3), files)
    assert list(dedup.load(f"{tmp_path}/q", range(3), suspect=False))[-1] == [(0, 3), (2, 1)]
    assert [dedup.window.knows(hash_, NOW) for hash_ in (10, 20, 30, 40)] == [False, True, False, True]


def test_key_files_go_when_their_keys_are_over_or_fell_out(files, tmp_path):
    (tmp_path / "q").mkdir()
    dedup = Deduplication(Rule(size=2), files)
    for number, expires in ((1, FOR_EVER), (2, NOW + 5)):
        dedup.write(f"{tmp_path}/q/keys.{number:010d}", number, rows((number, number, expires)))
        dedup.watch_file(f"{tmp_path}/q/keys.{number:010d}", rows((number, number, expires)))
    files.sweep()
    assert len(os.listdir(tmp_path / "q")) == 2
    for hash_ in (7, 8):
        dedup.window.enter(hash_, FOR_EVER, NOW)
    files.sweep()
    assert os.listdir(tmp_path / "q") == []


def test_another_rule_keeps_the_newest_keys(files):
    dedup = Deduplication(Rule(size=3), files)
    for hash_ in (1, 2, 3):
        dedup.window.enter(hash_, FOR_EVER, NOW)
    dedup.change(Rule(size=2, ttl_ms=9))
    assert [dedup.window.knows(hash_, NOW) for hash_ in (1, 2, 3)] == [False, True, True]
    assert (dedup.rule.ttl_ms, dedup.window.ttl_ms) == (9, 9)


# --- what an earlier release knew

def former(path, *, capacity=4, hash_key=b"k" * 16, keys=(), written=None, safe=0):
    """The mapped window of such a release: keys are (text, expires), the oldest first."""
    written = len(keys) if written is None else written
    fixed = struct.pack("<IIQ16s", 0x50554442, 1, capacity, hash_key)
    entries = bytearray(16 * capacity)
    for number, (key, expires) in enumerate(keys, written - len(keys)):
        lap, entry = divmod(number, capacity)
        hash_ = hashlib.blake2b(key, digest_size=8, key=hash_key).digest()
        entries[16 * entry:16 * entry + 16] = hash_ + (lap % 65535 + 1).to_bytes(2, "little") + expires.to_bytes(
            6, "little")
    Path(path).write_bytes(fixed + struct.pack("<IIQQQ", crc32c(fixed), 0, written, safe, 0) + entries
                           + bytes(4 * 2 * capacity))


def loaded(files, directory, *, suspect=False):
    dedup = Deduplication(Rule("id", 10), files)
    list(dedup.load(str(directory), range(1), suspect=suspect))
    return dedup


def known(dedup, *keys):
    return [key for key in keys if dedup.is_duplicate({"id": key})]


def test_the_keys_of_an_earlier_release_are_taken_over_once(files, tmp_path):
    (tmp_path / "q").mkdir()
    keys = [(b"Sa", NOW + 5), (b"Sb", (1 << 48) - 1), (b"Sc", NOW), (b"Sd", NOW + 1)]
    former(tmp_path / "q" / "dedup", keys=keys, written=70_000 * 4 + 2)
    for _ in range(2):
        assert known(loaded(files, tmp_path / "q"), "a", "b", "c", "d", "e") == ["a", "b", "d"]
        assert os.listdir(tmp_path / "q") == ["keys.0000000000"]
    found = read(f"{tmp_path}/q/keys.0000000000", Disk())
    assert found.hash_key == b"k" * 16
    assert [expires for _, _, expires in KEY_ROW.iter_unpack(found.rows)] == [NOW + 5, FOR_EVER, NOW, NOW + 1]


def test_of_an_earlier_release_only_safe_keys_are_believed_after_a_power_cut(files, tmp_path):
    (tmp_path / "q").mkdir()
    former(tmp_path / "q" / "dedup", keys=[(b"Sa", NOW + 5), (b"Sb", NOW + 5), (b"Sc", NOW + 5)], written=7, safe=6)
    assert known(loaded(files, tmp_path / "q", suspect=True), "a", "b", "c") == ["a", "b"]


@pytest.mark.parametrize("damage", [lambda octets: b"", lambda octets: octets[:70], lambda octets: b"?" + octets[1:],
                                    lambda octets: octets[:9] + b"\1" + octets[10:], lambda octets: bytes(len(octets))])
def test_a_damaged_window_of_an_earlier_release_is_told_and_goes(tmp_path, damage):
    told = []
    files = KeyFiles(str(tmp_path), Disk(), told.append, lambda: NOW * 1_000_000)
    (tmp_path / "q").mkdir()
    former(tmp_path / "q" / "dedup", keys=[(b"Sa", NOW + 5)])
    octets = (tmp_path / "q" / "dedup").read_bytes()
    (tmp_path / "q" / "dedup").write_bytes(damage(octets))
    assert known(loaded(files, tmp_path / "q"), "a") == []
    assert told == [f"{tmp_path}/q/dedup: damaged; duplicates of what came before may pass"]
    assert os.listdir(tmp_path / "q") == []
