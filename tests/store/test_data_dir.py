import errno
import os
import random
import re
import socket

import pytest

from brokerd.errors import StoreError
from brokerd.store import data_dir
from brokerd.store.data_dir import CLEAN, CONNECTION_BLOCK, CRASHED, NEW, POWER_LOST, DataDir
from brokerd.store.disk import Disk
from brokerd.testing.disk import ForgetfulDisk


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "data")


def start(path, boot="boot-1"):
    return DataDir(path, Disk(), boot=boot)


def test_a_first_start_makes_the_directory(path):
    assert start(path).left == NEW
    assert sorted(os.listdir(path)) == [".lock", "identity", "running", "running.tmp", "schema_version"]


def test_a_parent_that_is_missing_is_named_and_not_made(tmp_path):
    with pytest.raises(StoreError, match=f"{tmp_path}/none does not exist: make it first, or mount the disk"):
        start(str(tmp_path / "none" / "deep" / "data"))
    assert os.listdir(tmp_path) == []


def test_a_file_is_no_data_directory(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="file is a file: name a folder"):
        start(str(tmp_path / "file"))
    with pytest.raises(StoreError, match="a part of its path is no folder"):
        start(str(tmp_path / "file" / "data"))


def test_a_clean_stop_a_crash_and_a_power_cut_are_told_apart(path):
    start(path).close()
    first = start(path)
    assert (first.left, first.suspect) == (CLEAN, False)
    first.abandon()
    second = start(path)
    assert (second.left, second.suspect) == (CRASHED, False)
    second.abandon()
    third = start(path, boot="boot-2")
    assert (third.left, third.suspect) == (POWER_LOST, True)
    third.end_recovery()
    third.close()
    assert start(path, boot="boot-2").left == CLEAN


def test_a_crash_before_recovery_had_ended_is_still_a_power_cut(path):
    start(path).abandon()
    start(path, boot="boot-2").abandon()
    third = start(path, boot="boot-2")
    assert third.left == POWER_LOST
    third.end_recovery()
    third.abandon()
    assert start(path, boot="boot-2").left == CRASHED


def test_a_first_start_that_failed_leaves_what_it_found_and_the_next_one_is_the_first(path):
    os.makedirs(os.path.join(path, "lost+found"))
    for _ in range(2):
        failed = start(path)
        assert failed.left == NEW
        os.makedirs(os.path.join(path, "vhost", "queue"))
        with open(os.path.join(path, "users.json"), "w") as file:
            file.write("[]")
        failed.give_up()
        assert sorted(os.listdir(path)) == [".lock", "lost+found"]


def test_a_first_start_that_had_a_client_keeps_what_it_has_made_though_it_failed(path):
    failed = start(path)
    failed.next_connection_number()
    failed.give_up()
    assert start(path).left == CLEAN


def test_a_first_start_that_cannot_take_back_what_it_has_made_leaves_a_data_directory(path, monkeypatch):
    failed = start(path)
    monkeypatch.setattr("brokerd.store.data_dir.remove_all", lambda paths: None)
    failed.give_up()
    assert "schema_version" in os.listdir(path)
    start(path).abandon()


def test_a_start_that_failed_changes_nothing_for_the_next(path):
    start(path).close()
    clean = start(path)
    assert clean.left == CLEAN
    clean.give_up()
    crashed = start(path)
    assert crashed.left == CLEAN
    crashed.abandon()
    for left, boot in ((CRASHED, "boot-1"), (CRASHED, "boot-1"), (POWER_LOST, "boot-2"), (POWER_LOST, "boot-2")):
        failed = start(path, boot)
        assert failed.left == left
        failed.give_up()


class Full(Disk):
    """A disk with as many files, of a page each, as it can have: where one goes, there is room for another."""

    __slots__ = ("room",)

    def __init__(self):
        self.room = 0

    def open(self, path, flags=os.O_RDONLY, mode=0o640):
        if flags & os.O_CREAT and not os.path.exists(path):
            if not self.room:
                raise OSError(errno.ENOSPC, "No space left on device", path)
            self.room -= 1
        return super().open(path, flags, mode)

    def rename(self, old, new):
        self.room += os.path.exists(new)
        super().rename(old, new)

    def unlink(self, path):
        super().unlink(path)
        self.room += 1


@pytest.mark.parametrize("end", [DataDir.close, DataDir.abandon])
@pytest.mark.parametrize("boot", ["boot-1", "boot-2"])
def test_on_a_full_disk_a_broker_starts_numbers_connections_and_stops(path, end, boot):
    before = start(path)
    used = [before.next_connection_number() for _ in range(3)]
    end(before)
    full = Full()
    for _ in range(3):
        directory = DataDir(path, full, boot=boot)
        directory.end_recovery()
        used.append(directory.next_connection_number())
        end(directory)
    assert used == sorted(set(used))


def test_a_crash_on_this_boot_needs_no_write_at_the_next_start(path):
    start(path).abandon()

    class ReadOnly(Disk):
        def pwrite(self, fd, octets, position):
            raise OSError(errno.ENOSPC, "No space left on device")

    assert DataDir(path, ReadOnly(), boot="boot-1").left == CRASHED


class Unsynced(Disk):
    """A disk that cannot sync."""

    def syncfs(self, fd, path):
        raise OSError(errno.EIO, "Input/output error", path)


def test_a_failed_start_that_cannot_sync_counts_as_a_crash(path):
    start(path).close()
    failed = DataDir(path, Unsynced(), boot="boot-1")
    failed.give_up()
    assert start(path).left == CRASHED


def test_a_start_with_damaged_connection_numbers_does_not_look_like_a_crash(path):
    first = start(path)
    first.next_connection_number()
    first.close()
    name = os.path.join(path, "connection_numbers")
    with open(name, "rb") as file:
        content = file.read()
    with open(name, "wb") as file:
        file.write(b"damaged")
    with pytest.raises(StoreError):
        start(path)
    with open(name, "wb") as file:
        file.write(content)
    assert start(path).left == CLEAN


def test_where_the_boot_is_unknown_a_crash_counts_as_a_power_cut(path):
    start(path, boot="").abandon()
    assert start(path, boot="").left == POWER_LOST


def test_the_kernels_boot_id_is_found():
    assert len(data_dir.boot_id()) == 36


def test_a_second_broker_is_told_who_holds_the_directory(path):
    first = start(path)
    with pytest.raises(StoreError, match=rf"^data directory {path} is in use by pid {os.getpid()} on \S+$"):
        start(path)
    first.abandon()
    start(path).abandon()


def test_a_refused_second_broker_disturbs_nothing(path):
    first = start(path)
    before = {name: (first._disk.read(f"{path}/{name}")) for name in os.listdir(path)}
    with pytest.raises(StoreError):
        start(path)
    assert before == {name: (first._disk.read(f"{path}/{name}")) for name in os.listdir(path)}


def test_a_directory_of_something_else_is_refused(path):
    os.mkdir(path)
    os.mkdir(f"{path}/lost+found")
    start(path).close()
    os.unlink(f"{path}/schema_version")
    (open(f"{path}/mnesia", "w")).close()
    with pytest.raises(StoreError, match="has no schema_version but other files"):
        start(path)


@pytest.mark.parametrize(("text", "message"), [("2\n", "later brokerd"), ("one", "does not hold a number"),
                                               ("", "does not hold a number")])
def test_a_schema_that_is_not_ours_is_refused_and_the_lock_given_back(path, text, message):
    start(path).close()
    with open(f"{path}/schema_version", "w") as file:
        file.write(text)
    for _ in range(2):
        with pytest.raises(StoreError, match=message):
            start(path)


def test_connection_numbers_rise_and_never_repeat_over_restarts(path):
    seen = []
    for stop in (DataDir.close, DataDir.abandon, DataDir.abandon):
        directory = start(path)
        seen += [directory.next_connection_number() for _ in range(CONNECTION_BLOCK + 3)]
        stop(directory)
    assert seen[0] == 1
    assert len(set(seen)) == len(seen)
    assert seen == sorted(seen)


@pytest.mark.parametrize("seed", range(20))
def test_connection_numbers_do_not_repeat_after_a_power_cut(tmp_path, seed):
    root = tmp_path / "data"
    root.mkdir()
    disk = ForgetfulDisk(str(root))
    directory = DataDir(str(root), disk, boot="1")
    used = [directory.next_connection_number() for _ in range(3)]
    disk.lose_power(str(tmp_path / "after"), random.Random(seed))
    after = DataDir(str(tmp_path / "after"), Disk(), boot="2")
    assert after.left == POWER_LOST
    assert after.next_connection_number() > max(used)
    disk.release()


def test_connection_numbers_begin_anew_after_32_bits(path):
    start(path).close()
    with open(f"{path}/connection_numbers", "wb") as file:
        file.write(data_dir._checked(b"%d" % (2**32 - 2)))
    directory = start(path)
    assert [directory.next_connection_number() for _ in range(4)] == [2**32 - 2, 2**32 - 1, 1, 2]


@pytest.mark.parametrize("bit", range(8))
def test_a_damaged_connection_numbers_file_is_refused(path, bit):
    directory = start(path)
    directory.next_connection_number()
    directory.close()
    with open(f"{path}/connection_numbers", "r+b") as file:
        octet = file.read(1)[0]
        file.seek(0)
        file.write(bytes((octet ^ 1 << bit,)))
    with pytest.raises(StoreError, match="connection_numbers is damaged at offset 0"):
        start(path)


def test_each_directory_has_an_identity_of_its_own_that_stays(tmp_path):
    directories = [start(str(tmp_path / name)) for name in "ab"]
    names = [directory.identity for directory in directories]
    assert names[0] != names[1]
    assert all(re.fullmatch(rf"brokerd@{re.escape(socket.gethostname())}-[0-9a-f]{{16}}", name) for name in names)
    for directory in directories:
        directory.abandon()
    assert [start(str(tmp_path / name)).identity for name in "ab"] == names


def test_a_directory_without_an_identity_gets_one_that_stays(path):
    start(path).close()
    os.unlink(f"{path}/identity")
    directory = start(path)
    made = directory.identity
    directory.close()
    assert start(path).identity == made


@pytest.mark.parametrize("seed", range(5))
def test_an_identity_that_was_told_survives_a_power_cut(tmp_path, seed):
    root = tmp_path / "data"
    root.mkdir()
    disk = ForgetfulDisk(str(root))
    told = DataDir(str(root), disk, boot="1").identity
    disk.lose_power(str(tmp_path / "after"), random.Random(seed))
    assert DataDir(str(tmp_path / "after"), Disk(), boot="2").identity == told
    disk.release()


@pytest.mark.parametrize("content", [b"", b"\n", b"name", b"name 00000000\n", b"two words 7d54b0c8\n", b"\xff\0"])
def test_a_damaged_identity_is_refused_by_a_line_that_says_what_to_do(path, content):
    start(path).close()
    with open(f"{path}/identity", "wb") as file:
        file.write(content)
    with pytest.raises(StoreError, match="identity is damaged at offset 0: bring it back from a backup, or remove it"):
        start(path)


def test_a_clean_stop_syncs_everything_before_it_says_so(tmp_path):
    root = tmp_path / "data"
    root.mkdir()
    disk = ForgetfulDisk(str(root))
    directory = DataDir(str(root), disk, boot="1")
    disk.syncs.clear()
    directory.close()
    directory.close()
    assert disk.syncs == ["syncfs", str(root)]
    disk.release()


def test_distrust_before_the_end_of_the_recovery_lasts(path):
    start(path).abandon()
    directory = start(path, boot="boot-2")
    directory.distrust()
    directory.end_recovery()
    directory.close()
    assert start(path, boot="boot-2").left == POWER_LOST


@pytest.mark.parametrize("end", [DataDir.close, DataDir.abandon])
def test_distrust_has_the_next_start_check_everything_however_this_one_ends(path, end):
    directory = start(path)
    directory.distrust()
    end(directory)
    assert start(path).left == POWER_LOST
