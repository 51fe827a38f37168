"""Files of keys: what is written is read, damage is told, and rows of a folder come from records and files alike."""

import hashlib
import os
import struct

import pytest
from tests.plane.harness import PERSISTENT, Bench

from brokerd import plane
from brokerd.errors import StoreError
from brokerd.store import key_files
from brokerd.store.disk import Disk
from brokerd.store.format import FOR_EVER, KEY_ROW, crc32c
from brokerd.store.key_files import KeyFiles, rows_of_queue
from brokerd.testing.disk import FillableDisk

NOW_MS = 1_700_000_000_000
SECRET = b"s" * 16


def rows(*triples):
    return b"".join(KEY_ROW.pack(*triple) for triple in triples)


@pytest.fixture
def told():
    return []


@pytest.fixture
def files(tmp_path, told):
    return KeyFiles(str(tmp_path), Disk(), told.append, lambda: NOW_MS * 1_000_000)


# --- one file

def test_what_is_written_is_read(tmp_path):
    path = f"{tmp_path}/keys.0000000007"
    key_files.write(path, 7, SECRET, rows((1, 2, 3), (4, 5, FOR_EVER)), Disk())
    found = key_files.read(path, Disk())
    assert found[:3] == (7, SECRET, rows((1, 2, 3), (4, 5, FOR_EVER)))
    assert (found.synced, found.whole, found.open, found.until_ms) == (2, 2, 0, FOR_EVER)
    assert os.listdir(tmp_path) == ["keys.0000000007"]


def test_the_layout_is_what_the_format_draws(tmp_path):
    path = tmp_path / "keys.0000000007"
    key_files.write(str(path), 7, SECRET, rows((1, 2, 3)), Disk())
    octets = path.read_bytes()
    assert struct.unpack_from("<4sIQ16s", octets) == (b"BKEY", 1, 7, SECRET)
    assert struct.unpack_from("<IIQQQ", octets, 32) == (crc32c(octets[:32]), crc32c(octets[64:]), 1, 1, 0)
    assert struct.unpack_from("<QQq", octets, 64) == (1, 2, 3)
    assert len(octets) == 64 + 24


@pytest.mark.parametrize("damage", [
    lambda octets: b"",
    lambda octets: octets[:60],
    lambda octets: octets[:-8],
    lambda octets: octets[:-1] + b"?",
    lambda octets: b"?" + octets[1:],
    lambda octets: octets[:20] + b"?" + octets[21:],
    lambda octets: bytes(len(octets)),
])
def test_a_damaged_file_is_put_aside_and_told(files, told, tmp_path, damage):
    path = tmp_path / "keys.0000000001"
    key_files.write(str(path), 1, SECRET, rows((1, 2, 3), (4, 5, 6)), Disk())
    path.write_bytes(damage(path.read_bytes()))
    assert files.read(str(path)) is None
    assert os.listdir(tmp_path) == ["keys.0000000001.damaged"]
    assert told == [f"{path}: damaged; put aside as {path}.damaged; duplicates of what came before may pass"]


def test_a_file_of_a_later_version_is_refused_by_name(tmp_path):
    path = tmp_path / "keys.0000000001"
    key_files.write(str(path), 1, SECRET, b"", Disk())
    octets = bytearray(path.read_bytes())
    octets[4:8] = (2).to_bytes(4, "little")
    octets[32:36] = crc32c(bytes(octets[:32])).to_bytes(4, "little")
    path.write_bytes(octets)
    with pytest.raises(StoreError, match=r"keys.0000000001 has version 2"):
        key_files.read(str(path), Disk())


# --- hashes

def test_the_hash_key_is_made_once_and_is_the_vhosts(files, tmp_path, told):
    hashed = files.hash_of(b"Sa")
    assert os.listdir(tmp_path) == []
    files.keep_hash_key()
    assert os.listdir(tmp_path) == ["keys.secret"]
    again = KeyFiles(str(tmp_path), Disk(), told.append, lambda: 0)
    assert again.hash_of(b"Sa") == hashed
    assert again.hash_of(b"Sa", SECRET) != hashed
    assert again.hash_of(b"Sb") != hashed
    assert again.hash_of(b"Sa") == hashed
    assert told == []


def test_the_plane_hashes_with_no_key_that_a_full_disk_has_not_taken(tmp_path, told):
    disk = FillableDisk()
    disk.full = True
    files = KeyFiles(str(tmp_path), disk, told.append, lambda: 0)
    hashed = files.hash_of(b"Sa")
    for want in (files.keep_hash_key, lambda: files.plane_key):
        with pytest.raises(OSError, match="No space"):
            want()
    disk.full = False
    assert files.plane_key
    assert KeyFiles(str(tmp_path), Disk(), told.append, lambda: 0).hash_of(b"Sa") == hashed


@pytest.mark.parametrize("octets", [b"", b"BSEC", b"BSEC" + bytes(24)])
def test_a_damaged_hash_key_is_told_and_another_made(files, tmp_path, told, octets):
    (tmp_path / "keys.secret").write_bytes(octets)
    assert files.hash_of(b"Sa")
    files.keep_hash_key()
    assert told == [f"{tmp_path}/keys.secret: damaged; duplicates of what came before may pass"]
    assert KeyFiles(str(tmp_path), Disk(), told.append, lambda: 0).hash_of(b"Sa") == files.hash_of(b"Sa")


def test_a_hash_key_of_a_later_version_is_refused_by_name(files, tmp_path):
    octets = struct.pack("<II16s", 0x43455342, 3, SECRET)
    (tmp_path / "keys.secret").write_bytes(octets + crc32c(octets).to_bytes(4, "little"))
    with pytest.raises(StoreError, match=r"keys.secret has version 3"):
        files.hash_of(b"Sa")


def test_a_vhost_with_a_secret_of_version_1_goes_on_with_blake2b(files, tmp_path):
    octets = struct.pack("<II16s", 0x43455342, 1, SECRET)
    (tmp_path / "keys.secret").write_bytes(octets + crc32c(octets).to_bytes(4, "little"))
    expected = int.from_bytes(hashlib.blake2b(b"Sa", digest_size=8, key=SECRET).digest(), "little")
    assert files.hash_of(b"Sa") == files.plane_key.hash(b"Sa") == expected
    assert files.hash_of(b"Sa", SECRET) == expected
    assert (tmp_path / "keys.secret").read_bytes()[4] == 1


# --- a queue's folder

def of_folder(files, folder, size=100, ttl_ms=-1, own_ttl=lambda properties: None):
    return [(number, [row[:2] for row in KEY_ROW.iter_unpack(found)],
             [row[:2] for row in KEY_ROW.iter_unpack(file.rows)] if file is not None else None)
            for number, _, found, file in rows_of_queue(files, str(folder), size, ttl_ms, own_ttl)]


@pytest.fixture
def queue(tmp_path):
    """Seven messages with keys 1 to 7 in three segments."""
    bench = Bench(tmp_path, segment_octets=4096)
    queue = bench.queue()
    queue.window = plane.Window(100)
    for hash_ in range(1, 8):
        keys = plane.Keys({queue: hash_}, ttl_ms=50 if hash_ == 2 else -1)
        bench.core.put((queue,), b"", b"q", PERSISTENT, b"b" * 1200, keys=keys)
    yield queue
    bench.close()


def test_rows_are_those_of_the_records_and_of_the_files_beside_them(files, queue):
    key_files.write(f"{queue.directory}/keys.0000000001", 1, SECRET, rows((1, 1, 9), (2, 2, 9)), Disk())
    os.unlink(f"{queue.directory}/msgs.0000000001")
    key_files.write(f"{queue.directory}/keys.0000000002", 2, SECRET, rows((4, 4, 9), (5, 5, 9)), Disk())
    assert of_folder(files, queue.directory) == [
        (3, [(7, 7)], None), (2, [(4, 4), (5, 5), (6, 6)], [(4, 4), (5, 5)]), (1, [], [(1, 1), (2, 2)])]


def test_what_is_older_than_the_window_is_not_read_and_its_files_go(files, queue):
    for number in (0, 1, 2):
        key_files.write(f"{queue.directory}/keys.{number:010d}", number, SECRET, rows((1, 1, 9)), Disk())
    assert [number for number, *_ in of_folder(files, queue.directory, size=4)] == [3, 2]
    assert sorted(name for name in os.listdir(queue.directory) if name.startswith("keys.")) == ["keys.0000000002"]


def test_a_message_may_say_how_long_its_key_lasts(files, queue):
    asked = []

    def own_ttl(properties):
        asked.append(properties)
        return 50

    found = {row[1]: row[2] for _, _, octets, _ in rows_of_queue(files, queue.directory, 100, 1000, own_ttl)
             for row in KEY_ROW.iter_unpack(octets)}
    assert asked == [PERSISTENT]
    assert found[1] - found[2] in (949, 950)        # they may have come in different milliseconds


def test_what_a_broker_that_died_was_writing_goes(files, queue):
    with open(f"{queue.directory}/keys.0000000001.tmp", "wb") as file:
        file.write(b"half")
    assert len(of_folder(files, queue.directory)) == 3
    assert not any(name.endswith(".tmp") for name in os.listdir(queue.directory))


def test_a_folder_that_is_not_there_has_no_keys(files, tmp_path):
    assert of_folder(files, tmp_path / "none") == []


def test_files_of_queues_that_are_gone_are_forgotten(files, tmp_path):
    window = plane.Window(10)
    path = f"{tmp_path}/keys.0000000001"
    key_files.write(path, 1, SECRET, rows((1, 1, FOR_EVER)), Disk())
    files.watch(path, window, FOR_EVER)
    files.sweep()
    assert files.watched_in(str(tmp_path)) == [path]
    os.unlink(path)
    files.sweep()
    assert files.watched_in(str(tmp_path)) == []


def test_a_folder_in_place_of_a_temporary_file_costs_no_key(files, queue):
    directory = queue.directory if isinstance(queue.directory, str) else str(queue.directory)
    os.mkdir(f"{directory}/keys.0000000001.tmp")
    assert sum(len(found) for _, found, _ in of_folder(files, directory)) == 7
