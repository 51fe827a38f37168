"""Hash chains beside journals: what a link covers, when there is one, and what is never touched."""

import hashlib
import os
import struct

import pytest
from tests.store.segments import Files

from brokerd.store import chain, reading
from brokerd.store import format as layout
from brokerd.store.disk import Disk

BEGUN = 5
BLOCK = 2048            # events, in 64 KiB
ENTRIES = 8192          # entries, in 64 KiB


@pytest.fixture
def files(tmp_path):
    return Files(str(tmp_path / "q" / "kept"))


def clock():
    return 77


def write(files, events, *, counted=None, entries=0, number=7, begun=BEGUN, folder=None):
    octets = b"".join(layout.event(number, 1 + at // 2, 1000 + at, layout.ACKED) for at in range(events))
    head = layout.journal_header(number, begun=begun, events=events if counted is None else counted)
    files.write(files.path(layout.journal_name(number)), head + octets + bytes(4096))
    octets = b"".join(layout.entry(number, 64 + 8 * at, layout.ACKED) for at in range(entries))
    files.write(files.acks(number), layout.acks_header(number, entries=entries, settled=entries) + octets + bytes(512))


def chain_path(files, number=7):
    return files.path(layout.chain_name(number))


def links(files, number=7):
    """(of, last, octets, at, digest) of all links, with every digest counted by hand."""
    octets = files.read(chain_path(files, number))
    assert octets[:28] == struct.pack("<IIQqI", 0x4E484342, 1, number, BEGUN, 65536)
    digest, found = hashlib.sha256(octets[:32]).digest(), []
    for at in range(64, len(octets), 64):
        link = octets[at:at + 64]
        of, last, zero, count, place, ts = struct.unpack_from("<BBHIQq", link)
        name = layout.journal_name(number) if of == 1 else layout.acks_name(number)
        block = files.read(files.path(name))[place:place + count]
        digest = hashlib.sha256(digest + link[:24] + block).digest()
        assert (link[24:56], link[56:60], zero, ts) == (digest, bytes(4), 0, 77)
        assert link[60:] == layout.crc32c(link[:60], layout.crc32c(number.to_bytes(8, "little"))).to_bytes(4, "little")
        found.append((of, last, count, place))
    return found


def grow(files, blocks, *, disk=None, most=1 << 30, number=7):
    return chain.grow(files.directory, number, blocks, disk or Disk(), clock, most)


def finish(files, **how):
    return chain.finish(files.directory, 7, Disk(), clock, **how)


def test_a_link_covers_a_full_block_and_the_link_before_it(files):
    write(files, 2 * BLOCK + 5)
    grown = grow(files, 2)
    assert links(files) == [(1, 0, 65536, 64), (1, 0, 65536, 64 + 65536)]
    assert grown == chain.Grown(7, BEGUN, 2, files.read(chain_path(files))[-40:-8].hex(), 131072, False)
    assert grow(files, 2) is None


def test_made_block_by_block_it_is_the_same_chain(files):
    write(files, 3 * BLOCK)
    assert grow(files, 3).blocks == 3
    whole = files.read(chain_path(files))
    os.unlink(chain_path(files))
    for blocks in (1, 2, 3):
        assert grow(files, blocks).blocks == blocks
    assert files.read(chain_path(files)) == whole


def test_what_is_not_known_to_be_on_disk_gets_no_link(files):
    write(files, 3 * BLOCK)
    with open(files.path(layout.journal_name(7)), "rb") as file:
        assert chain.full_blocks(file.fileno(), Disk()) == 3
    assert chain.is_shorter(files.directory, 7, 1, Disk())
    grow(files, 1)                                  # The sync before it covered no more.
    assert links(files) == [(1, 0, 65536, 64)]
    assert not chain.is_shorter(files.directory, 7, 1, Disk())
    assert chain.is_shorter(files.directory, 7, 2, Disk())


def test_blocks_that_the_file_does_not_have_get_no_link(files):
    write(files, BLOCK + 1)
    assert grow(files, 2).blocks == 1
    assert grow(files, 2) is None


def test_a_long_journal_is_done_in_several_steps(files):
    write(files, 3 * BLOCK)
    assert [grow(files, 3, most=65536)[2::3] for _ in range(3)] == [(1, True), (2, True), (3, False)]


def test_a_settled_segment_has_links_for_all_events_and_then_for_all_entries(files):
    write(files, BLOCK + 5, entries=ENTRIES + 3)
    grow(files, 1)
    assert finish(files).blocks == 4
    assert links(files) == [(1, 0, 65536, 64), (1, 1, 5 * 32, 64 + 65536), (2, 0, 65536, 64), (2, 1, 3 * 8, 64 + 65536)]
    assert finish(files) is None
    assert grow(files, 2) is None                   # Nothing comes behind the last link.


@pytest.mark.parametrize(("events", "expected"), [(0, (1, 1, 0, 64)), (BLOCK, (1, 1, 65536, 64))])
def test_the_last_link_may_be_empty_or_full(files, events, expected):
    write(files, events)
    finish(files)
    assert links(files) == [expected, (2, 1, 0, 64)]


def test_an_event_that_was_written_and_not_yet_counted_is_covered_too(files):
    write(files, 9, counted=8)
    finish(files)
    assert links(files)[0] == (1, 1, 9 * 32, 64)


def test_without_an_acks_file_there_are_links_of_events_alone(files):
    write(files, 9)
    os.unlink(files.acks(7))
    finish(files)
    assert links(files) == [(1, 1, 9 * 32, 64)]


def test_a_segment_of_an_older_broker_gets_no_chain(files):
    write(files, 9)
    assert finish(files, begin=False) is None
    assert not os.path.exists(chain_path(files))
    assert finish(files).blocks == 2
    assert finish(files, begin=False) is None


def test_without_a_journal_nothing_happens(files):
    assert grow(files, 1) is None
    assert finish(files) is None
    files.write(files.path(layout.journal_name(7)), bytes(4096))    # A new one, just made.
    assert finish(files) is None
    assert os.listdir(files.directory) == [layout.journal_name(7)]


@pytest.mark.parametrize(("spoil", "text"), [
    (lambda octets: reading.chain_start(7, 6) + octets[64:], "it is not the chain of the journal beside it"),
    (lambda octets: octets[:8] + b"\1" + octets[9:], "its header is damaged"),
    (lambda octets: _with_version(octets, 2), "has version 2: written by a later brokerd; this one knows up to 1"),
])
def test_a_chain_of_something_else_is_left_as_it_is(files, spoil, text):
    write(files, 2 * BLOCK)
    grow(files, 1)
    files.write(chain_path(files), spoil(files.read(chain_path(files))))
    before = files.read(chain_path(files))
    with pytest.raises(chain.Foreign, match=text):
        grow(files, 2)
    with pytest.raises(chain.Foreign, match=f"^{chain_path(files)}: "):
        finish(files)
    assert files.read(chain_path(files)) == before


def _with_version(octets, version):
    fixed = octets[:4] + version.to_bytes(4, "little") + octets[8:28]
    return fixed + layout.crc32c(fixed).to_bytes(4, "little") + octets[32:]


@pytest.mark.parametrize("rest", [b"", b"\0" * 64, b"\0" * 100, b"x" * 30])
@pytest.mark.parametrize("whole", [0, 1, 2])
def test_it_goes_on_behind_what_a_loss_of_power_has_left_of_it(files, whole, rest):
    write(files, 3 * BLOCK)
    grow(files, 3)
    complete = files.read(chain_path(files))
    files.write(chain_path(files), complete[:64 + 64 * whole] + rest)
    assert grow(files, 3).blocks == 3
    assert files.read(chain_path(files)) == complete


def test_a_file_that_was_made_and_lost_its_octets_is_begun_again(files):
    write(files, BLOCK)
    files.write(chain_path(files), bytes(4096))
    grow(files, 1)
    assert links(files) == [(1, 0, 65536, 64)]


def test_it_is_on_disk_with_its_name_when_its_head_is_told(files):
    synced = []

    class Watching(Disk):
        def fdatasync(self, fd, path):
            synced.append(path)

        def sync_directory(self, path):
            synced.append(path)

    write(files, 2 * BLOCK)
    for blocks in (1, 2):
        grow(files, blocks, disk=Watching())
    assert synced == [chain_path(files), files.directory, chain_path(files)]


def test_a_chain_follows_its_journal_that_is_moved_while_it_is_made(tmp_path):
    files = Files(str(tmp_path / "q"))
    kept = str(tmp_path / "q" / "kept")
    os.mkdir(kept)
    write(files, BLOCK + 1)

    class Moving(Disk):
        def pwrite(self, fd, octets, position):
            if os.path.exists(files.acks(7)):       # What the data plane does with a settled segment.
                for name in (layout.journal_name(7), layout.acks_name(7)):
                    os.rename(files.path(name), f"{kept}/{name}")
            super().pwrite(fd, octets, position)

    assert grow(files, 1, disk=Moving()).blocks == 1
    assert sorted(os.listdir(kept)) == sorted([layout.journal_name(7), layout.acks_name(7), layout.chain_name(7)])
    assert os.listdir(files.directory) == ["kept"]


def test_a_chain_that_stayed_behind_is_taken_along_when_its_segment_is_finished(tmp_path):
    above, files = Files(str(tmp_path / "q")), Files(str(tmp_path / "q" / "kept"))
    write(above, BLOCK + 1)
    grow(above, 1)
    for name in (layout.journal_name(7), layout.acks_name(7)):
        os.rename(above.path(name), files.path(name))
    assert finish(files, begin=False).blocks == 3
    assert not os.path.exists(chain_path(above))
    assert links(files)[0] == (1, 0, 65536, 64)
