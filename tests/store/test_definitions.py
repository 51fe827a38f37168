import errno
import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokerd.errors import StoreError
from brokerd.store.definitions import FILL_OCTETS, DefinitionsLog
from brokerd.store.disk import Disk
from brokerd.store.format import DEFINITIONS_HEADER
from brokerd.testing.disk import ForgetfulDisk

PAYLOADS = [b"\0\x32\0\x0a" + bytes([i]) * (20 + 7 * i) for i in range(6)]


def write(path, payloads, disk=None):
    log = DefinitionsLog(str(path), disk or Disk())
    log.load()
    ends = [log.octets]
    for payload in payloads:
        log.append(payload)
        ends.append(log.octets)
    log.close()
    return ends


def load(path, **options):
    """(payloads, reports)"""
    reports = []
    log = DefinitionsLog(str(path), Disk())
    payloads = log.load(report=reports.append, **options)
    log.close()
    return payloads, reports


@pytest.fixture
def path(tmp_path):
    return tmp_path / "definitions.amqp"


def test_what_was_appended_is_loaded_in_order(path):
    write(path, PAYLOADS)
    assert load(path) == (PAYLOADS, [])


def test_entries_are_amqp_frames_each_with_its_check(path):
    write(path, [b"abcd"])
    assert path.read_bytes()[DEFINITIONS_HEADER.size:DEFINITIONS_HEADER.size + 12] == b"\x01\0\0\0\0\0\x04abcd\xce"


def test_appending_goes_on_behind_what_was_loaded(path):
    write(path, PAYLOADS[:3])
    write(path, PAYLOADS[3:])
    assert load(path) == (PAYLOADS, [])


@given(st.lists(st.binary(max_size=3 * FILL_OCTETS), max_size=5))
@settings(max_examples=25, deadline=None)
def test_payloads_of_any_length_come_back_and_zeros_are_always_ahead(payloads):
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "definitions.amqp")
        ends = write(path, payloads)
        assert load(path) == (payloads, [])
        assert os.path.getsize(path) > ends[-1]
        assert os.path.getsize(path) % FILL_OCTETS == 0


def test_space_is_filled_in_steps_so_that_a_definition_changes_no_length(path):
    disk, sizes = Disk(), set()
    log = DefinitionsLog(str(path), disk)
    log.load()
    for _ in range(500):
        log.append(b"x" * 100)
        sizes.add(os.path.getsize(path))
    assert sizes == {FILL_OCTETS}


@pytest.mark.parametrize("suspect", [True, False])
def test_a_file_cut_short_anywhere_loses_only_the_frame_it_was_cut_in(path, suspect):
    ends = write(path, PAYLOADS)
    whole = path.read_bytes()
    for size in range(DEFINITIONS_HEADER.size, ends[-1]):
        path.write_bytes(whole[:size])
        payloads, reports = load(path, suspect=suspect)
        kept = sum(end <= size for end in ends) - 1
        assert payloads == PAYLOADS[:kept]
        # The first octets of a frame may be missing without a trace; else it is told.
        assert len(reports) == (size not in ends)
        assert load(path) == (payloads, [])


@pytest.mark.parametrize("suspect", [True, False])
def test_a_write_torn_anywhere_before_its_end_mark_is_cut_off_and_told(path, suspect):
    ends = write(path, PAYLOADS)
    whole = path.read_bytes()
    for size in range(ends[-2] + 1, ends[-1] - 4):
        path.write_bytes(whole[:size].ljust(len(whole), b"\0"))
        payloads, reports = load(path, suspect=suspect)
        assert payloads == PAYLOADS[:-1]
        assert len(reports) == 1
        assert f"cut off at {ends[-2]}" in reports[0]


def test_no_single_flipped_bit_loses_a_definition_silently(path):
    ends = write(path, PAYLOADS[:3])
    whole = path.read_bytes()
    for position in range(ends[-1]):
        for bit in range(8):
            octets = bytearray(whole)
            octets[position] ^= 1 << bit
            path.write_bytes(octets)
            with pytest.raises(StoreError, match="is damaged at offset"):
                load(path)
            assert path.read_bytes() == octets


def test_a_flipped_bit_in_the_space_ahead_costs_nothing(path):
    ends = write(path, PAYLOADS)
    for offset in (0, 1, 9, 600, 5000):
        octets = bytearray(path.read_bytes())
        octets[ends[-1] + offset] ^= 1
        path.write_bytes(octets)
        payloads, reports = load(path)
        assert (payloads, len(reports)) == (PAYLOADS, 1)
        assert load(path) == (PAYLOADS, [])


@pytest.mark.parametrize("suspect", [True, False])
def test_damage_in_the_middle_is_refused_naming_file_offset_and_remedy(path, suspect):
    ends = write(path, PAYLOADS)
    octets = bytearray(path.read_bytes())
    octets[ends[2] + 9:ends[2] + 12] = b"???"
    path.write_bytes(octets)
    with pytest.raises(StoreError, match=rf"{path} is damaged at offset {ends[2]}: whole definitions follow at "
                       rf"{ends[3]}.*backup.*truncate -s {ends[2]}"):
        load(path, suspect=suspect)


def test_the_remedy_in_the_error_works(path):
    ends = write(path, PAYLOADS)
    octets = bytearray(path.read_bytes())
    octets[ends[2] + 9] ^= 1
    path.write_bytes(octets)
    os.truncate(path, ends[2])
    assert load(path) == (PAYLOADS[:2], [])
    write(path, [b"more"])
    assert load(path)[0] == [*PAYLOADS[:2], b"more"]


def test_a_block_lost_with_the_power_is_cut_off_kept_and_told(path):
    ends = write(path, [b"a" * 100] * 40)
    octets = bytearray(path.read_bytes())
    octets[ends[10]:4096] = bytes(4096 - ends[10])
    path.write_bytes(octets)
    with pytest.raises(StoreError):
        load(path, suspect=False)
    payloads, reports = load(path, suspect=True)
    assert len(payloads) == 10
    assert "kept in" in reports[0]
    kept = path.with_name(f"definitions.amqp.cut-{ends[10]}")
    assert kept.read_bytes() == bytes(octets[ends[10]:ends[-1]]).rstrip(b"\0")
    assert load(path) == (payloads, [])


def test_a_payload_that_holds_a_whole_frame_is_not_taken_for_one_when_torn(tmp_path):
    donor, path = tmp_path / "donor", tmp_path / "definitions.amqp"
    ends = write(donor, [b"inner"])
    frame = donor.read_bytes()[ends[0]:ends[1]]
    ends = write(path, [b"first", frame * 40])
    octets = path.read_bytes()
    path.write_bytes(octets[:ends[-1] - 20].ljust(len(octets), b"\0"))
    assert load(path)[0] == [b"first"]


@pytest.mark.parametrize("content", [b"", b"BDEF", bytes(FILL_OCTETS), b"BDEF" + bytes(100)])
def test_a_header_that_is_none_is_refused(path, content):
    path.write_bytes(content)
    with pytest.raises(StoreError, match="is damaged at offset 0"):
        load(path)


def test_a_later_version_is_refused(path):
    import zlib

    write(path, PAYLOADS)
    octets = bytearray(path.read_bytes())
    octets[4] = 2
    octets[12:16] = zlib.crc32(octets[:12]).to_bytes(4, "little")
    path.write_bytes(octets)
    with pytest.raises(StoreError, match="later brokerd"):
        load(path)


def test_compaction_replaces_all_and_appending_goes_on(path):
    log = DefinitionsLog(str(path), Disk())
    log.load()
    for payload in PAYLOADS:
        log.append(payload)
    before = log.fileno()
    log.compact(PAYLOADS[:2])
    log.append(b"after")
    assert (log.frames, log.dirty) == (3, True)
    assert os.fstat(log.fileno()).st_ino == os.stat(path).st_ino
    assert before >= 0
    assert load(path) == ([*PAYLOADS[:2], b"after"], [])


def test_a_full_disk_leaves_the_log_as_it_was(path):
    class Full(Disk):
        __slots__ = ("full",)

        def pwrite(self, fd, octets, position):
            if self.full:
                super().pwrite(fd, bytes(octets)[:7], position)
                raise OSError(28, "No space left on device")
            super().pwrite(fd, octets, position)

    disk = Full()
    disk.full = False
    log = DefinitionsLog(str(path), disk)
    log.load()
    log.append(b"one")
    disk.full = True
    with pytest.raises(OSError, match="No space"):
        log.append(b"two")
    disk.full = False
    log.append(b"three")
    assert (log.frames, load(path)) == (2, ([b"one", b"three"], []))


@pytest.mark.parametrize("seed", range(60))
def test_synced_definitions_survive_power_loss_in_order_and_without_damage(tmp_path, seed):
    chance = random.Random(seed)
    root = tmp_path / "data"
    root.mkdir()
    disk = ForgetfulDisk(str(root))
    log = DefinitionsLog(str(root / "definitions.amqp"), disk)
    log.load()
    written, synced = [], 0
    for i in range(chance.randrange(1, 80)):
        written.append(b"%d" % i + bytes(chance.choice((3, 300, 5000))))
        log.append(written[-1])
        if chance.random() < 0.2:
            disk.fdatasync(log.fileno(), log.path)
            synced = len(written)
        if chance.random() < 0.05:
            written = written[::2]
            log.compact(written)
            synced = len(written)
    disk.lose_power(str(tmp_path / "after"), chance)
    payloads, _ = load(tmp_path / "after/definitions.amqp", suspect=True)
    assert payloads == written[:len(payloads)]
    assert len(payloads) >= synced
    disk.release()


def test_what_looks_like_a_frame_that_ends_behind_the_file_is_cut_off_with_the_rest(path):
    end, = write(path, PAYLOADS[:1])[1:]
    torn = b"\x01\0\0\0\0\xff\xff" + b"\x01\0\0\0\0\0\x0a" + b"y" * 9      # The second would end two octets behind.
    path.write_bytes(path.read_bytes()[:end] + torn)
    payloads, reports = load(path)
    assert payloads == PAYLOADS[:1]
    assert reports == [f"{path}: cut off at {end}: {len(torn)} octets of a definition that was not written to its end"]


def test_after_a_compaction_whose_directory_is_not_synced_entries_go_into_the_file_that_has_the_name(tmp_path):
    class Failing(Disk):
        def sync_directory(self, path):
            raise OSError(errno.EMFILE, "Too many open files", path)

    path = str(tmp_path / "definitions.amqp")
    log = DefinitionsLog(path, Disk())
    log.load()
    log.append(b"one")
    log._disk = Failing()
    with pytest.raises(OSError, match="Too many open files"):
        log.compact([b"one"])
    log.append(b"two")
    log.close()
    assert DefinitionsLog(path, Disk()).load() == [b"one", b"two"]
