"""Records and entries found with numpy are those that stand in the file, whatever is damaged or pretends to be one."""

import subprocess
import sys
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.store.segments import record

from brokerd import plane
from brokerd.store import format as layout
from brokerd.store import reading

np = pytest.importorskip("numpy")


def segment(bodies, number=5, base_seq=1):
    return layout.segment_header(number, base_seq=base_seq, created=1) + b"".join(
        record(number, seq, body) for seq, body in enumerate(bodies, base_seq))


def test_importing_the_readers_does_not_import_numpy():
    code = "import sys, brokerd.store.reading; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@given(st.lists(st.binary(max_size=200), max_size=40))
def test_scanning_finds_every_record(bodies):
    octets = segment(bodies)
    found = reading.scan_records(octets, len(octets))
    assert found.headers["seq"].tolist() == list(range(1, len(bodies) + 1))
    assert found.gaps == []
    assert reading.body_octets(octets, found).tolist() == [len(body) for body in bodies]
    assert reading.record_checks(octets, found, 5).all()
    end, records, *_ = plane.scan_segment(octets, 5, 64)
    assert (end, records) == (len(octets), len(bodies))


def test_scanning_is_not_deceived_by_bodies_that_hold_records():
    fake = record(5, 3, b"fake")
    bodies = [b"a", b"\0" + fake + fake, b"b" * 7, fake * 3, b"c"]
    octets = segment(bodies)
    found = reading.scan_records(octets, len(octets))
    assert found.headers["seq"].tolist() == [1, 2, 3, 4, 5]
    assert found.gaps == []


@given(st.data())
def test_a_damaged_header_costs_its_own_record_only(data):
    bodies = data.draw(st.lists(st.binary(max_size=60), min_size=3, max_size=20))
    octets = bytearray(segment(bodies))
    whole = reading.scan_records(bytes(octets), len(octets))
    victim = data.draw(st.integers(0, len(bodies) - 1))
    position = int(whole.positions[victim])
    octets[position:position + 8] = data.draw(st.binary(min_size=8, max_size=8).filter(
        lambda o: o[:4] != layout.RECORD_MAGIC.to_bytes(4, "little")))
    found = reading.scan_records(bytes(octets), len(octets))
    expected = [seq for seq in range(1, len(bodies) + 1) if seq != victim + 1]
    assert found.headers["seq"].tolist() == expected
    until = int(whole.positions[victim + 1]) if victim + 1 < len(bodies) else len(octets)
    assert found.gaps == [(position, until)]


@given(st.lists(st.binary(max_size=100), min_size=1, max_size=60), st.data())
def test_a_flipped_bit_fails_the_check_of_its_record_alone(bodies, data):
    octets = bytearray(segment(bodies))
    found = reading.scan_records(bytes(octets), len(octets))
    victim = data.draw(st.integers(0, len(bodies) - 1))
    length = int(found.headers["length"][victim])
    octets[int(found.positions[victim]) + data.draw(st.integers(12, length - 1))] ^= 1 << data.draw(st.integers(0, 7))
    right = reading.record_checks(bytes(octets), found, 5)
    assert np.flatnonzero(~right).tolist() == [victim]


def test_records_of_a_segment_used_before_fail():
    octets = segment([b"a"] * 20, number=4)
    found = reading.scan_records(octets, len(octets))
    assert not reading.record_checks(octets, found, 5).any()


def test_meta_of_more_than_a_u2_is_kept():
    table = b"\x01hS" + (70_000).to_bytes(4) + b"h" * 70_000
    meta = b"\0\0" + b"\x20\x00" + len(table).to_bytes(4) + table
    octets = layout.segment_header(5, base_seq=1, created=1) + record(5, 1, b"body", meta) + record(5, 2, b"next")
    found = reading.scan_records(octets, len(octets))
    assert reading.body_octets(octets, found).tolist() == [4, 4]
    assert reading.record_checks(octets, found, 5).all()
    assert plane.scan_segment(octets, 5, 64)[5] == 8


def test_unwritten_and_damaged_entries_are_left_out():
    entries = [layout.entry(9, 64, layout.ACKED), bytes(8), layout.entry(9, 128, layout.RETURNED, 2),
               layout.entry(9, 192, layout.PURGED), layout.entry(9, 64, layout.ACKED)]
    entries[3] = entries[3][:4] + bytes((entries[3][4] ^ 1,)) + entries[3][5:]
    found = reading.read_entries(layout.acks_header(9) + b"".join(entries) + bytes(80), 9)
    assert found.entries["position"].tolist() == [64, 128, 64]
    assert (found.written, found.damaged) == (5, 1)
    assert reading.settled_positions(found.entries).tolist() == [64]


def test_the_types_that_settle_and_those_that_do_not_are_told_apart():
    every = [layout.entry(9, 64 * k, k) for k in range(1, 16)]
    entries = reading.read_entries(layout.acks_header(9) + b"".join(every), 9).entries
    assert reading.settled_positions(entries).tolist() == [64 * k for k in (1, 2, 4, 5, 6, 7)]
    assert reading.last_states(entries)["position"].tolist() == [64 * k for k in (3, 8, 10, 11, 13)]


def test_the_last_entry_of_a_record_says_how_it_stands():
    told = [(128, layout.HANDED_OUT, 1), (64, layout.RETURNED, 1), (64, layout.HANDED_OUT, 1),
            (128, layout.RETURNED, 2), (64, layout.ACKED, 0), (192, layout.SET_ASIDE, 0)]
    octets = layout.acks_header(9) + b"".join(layout.entry(9, *one) for one in told)
    rows = reading.last_states(reading.read_entries(octets, 9).entries)
    assert [(int(e["position"]), int(e["kind"]), int(e["count"])) for e in rows] == [
        (64, layout.HANDED_OUT, 1), (128, layout.RETURNED, 2), (192, layout.SET_ASIDE, 0)]


def test_the_audit_shares_the_dtypes():
    from brokerd.audit import layout as audit

    assert reading.record_dtype() == audit.RECORD
    assert audit.RECORD.itemsize == audit.SEGMENT.itemsize == audit.ACKS.itemsize == 64
    assert audit.ENTRY.itemsize == 8


def test_a_record_that_ends_behind_the_end_is_none_though_it_is_whole():
    octets = bytearray(segment([b"a" * 50, b"b" * 50]))
    second = 64 + len(record(5, 1, b"a" * 50))
    octets[64:72] = bytes(8)                # The way to the second one leads over a gap.
    assert reading.scan_records(bytes(octets), len(octets)).positions.tolist() == [second]
    assert reading.scan_records(bytes(octets), len(octets) - 8).positions.tolist() == []


def test_what_pretends_to_be_a_record_behind_a_damaged_one_is_none():
    octets = bytearray(segment([b"\0" + record(6, 2, b"of another segment"), b"real"]))
    octets[64:72] = bytes(8)
    found = reading.scan_records(bytes(octets), len(octets))
    second = 64 + len(record(5, 1, b"\0" + record(6, 2, b"of another segment")))
    assert (found.positions.tolist(), found.gaps) == ([second], [(64, second)])


def test_gaps_that_touch_are_one():
    assert reading._joined([(8, 16), (16, 24), (32, 40), (32, 36)]) == [(8, 24), (32, 40)]


def test_a_length_of_nothing_costs_its_own_record_only():
    octets = bytearray(segment([b"a", b"b", b"c"]))
    second, third = (64 + n * len(record(5, 1, b"a")) for n in (1, 2))
    octets[second + 4:second + 8] = bytes(4)
    found = reading.scan_records(bytes(octets), len(octets))
    assert (found.positions.tolist(), found.gaps) == ([64, third], [(second, third)])


def test_a_replayed_record_is_settled_only_if_an_entry_behind_that_settles_it():
    told = [(64, layout.ACKED), (128, layout.ACKED), (192, layout.REJECTED), (64, layout.REPLAYED),
            (192, layout.REPLAYED), (192, layout.EXPIRED), (256, layout.REPLAYED)]
    octets = layout.acks_header(9) + b"".join(layout.entry(9, position, type_) for position, type_ in told)
    assert reading.settled_positions(reading.read_entries(octets, 9).entries).tolist() == [128, 192]


@pytest.mark.parametrize("text", ["9223372036854775808", "-9223372036854775809", "1e19", "NaN", "-Infinity",
                                  5000 * "9"])
def test_a_number_that_64_bits_cannot_hold_is_no_json_of_a_broker(text):
    with pytest.raises(ValueError):
        reading.read_json(b'{"a":[1,{"b":%s}]}' % text.encode())


def test_all_numbers_of_64_bits_are_read():
    assert reading.read_json(b"[9223372036854775807,-9223372036854775808,-1.5]") == [(1 << 63) - 1, -(1 << 63), -1.5]


@given(st.data(), st.integers(1, 400))
def test_what_can_be_reached_is_what_a_walk_comes_to(data, count):
    steps = data.draw(st.lists(st.integers(1, 9) | st.just(1000), min_size=count, max_size=count))
    successor = np.minimum(np.arange(count) + steps, count)
    walk = [data.draw(st.integers(0, count - 1))]
    while (following := int(successor[walk[-1]])) < count:
        walk.append(following)
    assert reading._reachable(np.append(successor, count), walk[0]).tolist() == walk


def test_a_short_run_costs_nothing_of_the_records_behind_it():
    successor = np.append(np.full(1 << 20, 1 << 20), 1 << 20)
    successor[5:8] = (6, 7, 900_000)
    tracemalloc.start()
    assert reading._reachable(successor, 5).tolist() == [5, 6, 7, 900_000]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 16


def test_lengths_that_lead_over_each_other_are_summed_up_only_so_often(monkeypatch):
    octets = bytearray(segment([bytes(200)] * 2000))
    found = reading.scan_records(bytes(octets), len(octets))
    for position in found.positions[1::2].tolist():
        octets[position + 4:position + 8] = ((len(octets) - position) // 16 * 8 + 8).to_bytes(4, "little")
    summed, real = [], layout.record_crc
    monkeypatch.setattr(layout, "record_crc", lambda record, number: (
        summed.append(len(record)), real(record, number))[1])
    damaged = reading.scan_records(bytes(octets), len(octets))
    assert sum(summed) < (reading.VAIN_TIMES + 2) * len(octets)
    assert damaged.positions.tolist() == found.positions[::2].tolist()
