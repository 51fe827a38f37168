import os
import random
import resource

import pytest
from tests.store.forgetful_disk import ForgetfulDisk

from brokerd.store.disk import SYNCFS_FROM_FILES, Disk, Room


class Counting(Disk):
    __slots__ = ("calls",)

    def __init__(self):
        self.calls = []

    def fsync(self, fd, path):
        self.calls.append("fsync")

    def fdatasync(self, fd, path):
        self.calls.append("fdatasync")

    def syncfs(self, fd, path):
        self.calls.append("syncfs")


def opened(directory, count):
    return [(os.open(directory / f"{i}", os.O_RDWR | os.O_CREAT), f"{directory}/{i}") for i in range(count)]


@pytest.mark.parametrize(("count", "calls"), [
    (1, ["fdatasync"]), (SYNCFS_FROM_FILES - 1, ["fdatasync"] * (SYNCFS_FROM_FILES - 1)),
    (SYNCFS_FROM_FILES, ["syncfs"])])
def test_many_files_of_one_filesystem_are_synced_as_one(tmp_path, count, calls):
    disk, files = Counting(), opened(tmp_path, count)
    disk.sync_all(files)
    assert disk.calls == calls
    for fd, _ in files:
        os.close(fd)


def test_a_path_that_ends_in_a_slash_is_synced_as_a_directory(tmp_path):
    disk, fd = Counting(), os.open(tmp_path, os.O_RDONLY)
    disk.sync_all([(fd, f"{tmp_path}/")])
    os.close(fd)
    assert disk.calls == ["fsync"]


@pytest.mark.parametrize("lent", [0, 1])
def test_a_file_without_a_descriptor_is_synced_with_its_filesystem_whatever_it_is_called_now(tmp_path, lent):
    disk, before = Counting(), len(os.listdir("/proc/self/fd"))
    files = opened(tmp_path, lent)
    disk.sync_all([*files, (-1, f"{tmp_path}/was renamed"), (-1, f"{tmp_path}/gone/deleted"), (-1, f"{tmp_path}/")])
    assert disk.calls == ["syncfs"]
    for fd, _ in files:
        os.close(fd)
    assert len(os.listdir("/proc/self/fd")) == before


def test_files_of_a_directory_that_was_deleted_have_nothing_to_sync(tmp_path):
    disk = Counting()
    disk.sync_all([(-1, f"{tmp_path}/gone/deleted"), (-1, f"{tmp_path}/gone/")])
    assert disk.calls == []


def test_a_directory_that_goes_while_its_filesystem_is_looked_for_is_passed_over(tmp_path):
    class Racing(Counting):
        def open(self, path, flags=os.O_RDONLY, mode=0o640):
            if path.endswith("gone"):
                os.rmdir(path)
            return super().open(path, flags, mode)

    (tmp_path / "gone").mkdir()
    disk = Racing()
    disk.sync_all([(-1, f"{tmp_path}/gone/file"), (-1, f"{tmp_path}/file")])
    assert disk.calls == ["syncfs"]
    (tmp_path / "gone").mkdir()
    disk.sync_all([(-1, f"{tmp_path}/gone/file")])
    assert disk.calls == ["syncfs"]


def test_what_is_synced_without_a_descriptor_survives_a_power_cut(tmp_path):
    (tmp_path / "before").mkdir()
    disk = ForgetfulDisk(str(tmp_path / "before"))
    fd = disk.open(f"{tmp_path}/before/file", os.O_RDWR | os.O_CREAT)
    disk.pwrite(fd, b"content", 0)
    disk.close(fd)
    disk.sync_all([(-1, f"{tmp_path}/before/file")])
    disk.lose_power(str(tmp_path / "after"), random.Random(1))
    disk.release()
    assert (tmp_path / "after" / "file").read_bytes() == b"content"


def test_of_a_process_without_descriptors_nothing_is_lent_and_other_faults_are_raised(tmp_path):
    disk = Disk()
    fd = disk.lend_directory(str(tmp_path))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        lent = disk.lend(fd), disk.lend_directory(str(tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    os.close(fd)
    assert lent == (-1, -1)
    with pytest.raises(OSError, match="Bad file descriptor"):
        disk.lend(fd)
    with pytest.raises(FileNotFoundError):
        disk.lend_directory(f"{tmp_path}/gone")


def test_a_filesystem_is_synced_by_a_file_that_has_a_descriptor(tmp_path):
    class Named(Counting):
        def syncfs(self, fd, path):
            self.calls.append((fd, path))

    disk, [(fd, path)] = Named(), opened(tmp_path, 1)
    others = [tmp_path / f"other {i}" for i in range(SYNCFS_FROM_FILES)]
    for other in others:
        other.touch()
    disk.sync_all([*((-1, str(other)) for other in others), (fd, path)])
    os.close(fd)
    assert disk.calls == [(fd, path)]


def test_the_real_syncs_succeed_on_real_files(tmp_path):
    disk, files = Disk(), opened(tmp_path, 2)
    disk.sync_all([*files, (os.open(tmp_path, os.O_RDONLY), f"{tmp_path}/")])
    disk.syncfs(*files[0])
    assert disk.free_octets(str(tmp_path)) > 0


class Filesystem(Disk):
    __slots__ = ("asked", "free")

    def __init__(self, free):
        self.free = free
        self.asked = 0

    def free_octets(self, path):
        assert path in ("here", "there")
        self.asked += 1
        return self.free


def test_half_of_the_room_is_granted_before_the_filesystem_is_asked_again():
    disk = Filesystem(1000)
    room = Room(disk)
    assert [room.has("here", 100) for _ in range(5)] == [True] * 5
    assert disk.asked == 1
    disk.free = 99
    assert room.has("here", 100) is False
    assert disk.asked == 2


def test_each_folder_has_room_of_its_own():
    disk = Filesystem(1000)
    room = Room(disk)
    assert room.has("here", 1)
    disk.free = 0
    assert room.has("there", 1) is False
    assert room.has("here", 1) is True


@pytest.mark.parametrize(("octets", "fits"), [(999, True), (1000, True), (1001, False)])
def test_what_is_more_than_half_of_the_room_is_measured_each_time(octets, fits):
    disk = Filesystem(1000)
    room = Room(disk)
    assert [room.has("here", octets), room.has("here", octets)] == [fits, fits]
    assert disk.asked == 2


def test_the_filesystem_is_asked_again_when_others_may_have_written():
    disk = Filesystem(1000)
    room = Room(disk)
    assert room.has("here", 1)
    disk.free = 0
    room.measure_again()
    assert room.has("here", 1) is False


def test_a_failed_sync_names_the_path():
    with pytest.raises(OSError, match="orders/msgs"):
        Disk().fdatasync(1 << 30, "orders/msgs")


def test_replace_leaves_the_new_content_and_nothing_else(tmp_path):
    disk, path = Disk(), str(tmp_path / "users.json")
    disk.replace(path, b"old")
    disk.replace(path, b"new")
    assert disk.read(path) == b"new"
    assert disk.names(str(tmp_path)) == ["users.json"]


@pytest.mark.parametrize("seed", range(20))
def test_replaced_content_survives_power_loss_old_or_new_but_whole(tmp_path, seed):
    root = tmp_path / "data"
    root.mkdir()
    disk, path = ForgetfulDisk(str(root)), str(root / "users.json")
    disk.replace(path, b"old" * 3000)
    disk.lose_power(str(tmp_path / "after"), random.Random(seed))
    assert (tmp_path / "after/users.json").read_bytes() == b"old" * 3000
    disk.rename = lambda old, new: (os.rename(old, new), disk.lose_power(str(tmp_path / "later"), random.Random(seed)))
    disk.replace(path, b"new" * 5000)
    assert (tmp_path / "later/users.json").read_bytes() in (b"old" * 3000, b"new" * 5000)
    disk.release()


def test_the_forgetful_disk_forgets_what_was_not_synced(tmp_path):
    root = tmp_path / "data"
    root.mkdir()
    disk = ForgetfulDisk(str(root))
    fd = disk.open(str(root / "a"), os.O_RDWR | os.O_CREAT)
    disk.sync_directory(str(root))
    disk.pwrite(fd, b"x" * 8192, 0)
    disk.fdatasync(fd, "a")
    disk.pwrite(fd, b"y" * 8192, 0)
    (root / "b").write_bytes(b"never synced")
    seen = set()
    for seed in range(64):
        after = tmp_path / f"after{seed}"
        disk.lose_power(str(after), random.Random(seed))
        content = (after / "a").read_bytes()
        seen.add((content[:1] + content[4096:4097], (after / "b").exists()))
    assert seen == {(a + b, there) for a in (b"x", b"y") for b in (b"x", b"y") for there in (True, False)}
    os.close(fd)
    disk.release()


def test_a_lock_is_held_against_another_descriptor(tmp_path):
    disk = Disk()
    first, second = (disk.open(str(tmp_path / "l"), os.O_RDWR | os.O_CREAT) for _ in range(2))
    assert disk.lock(first)
    assert not disk.lock(second)
    disk.close(first)
    assert disk.lock(second)
    disk.close(second)
