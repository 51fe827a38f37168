import errno
import os
import pathlib
import random
import resource
import threading

import pytest

from brokerd.store.disk import SYNCFS_FROM_FILES, Disk, Room
from brokerd.testing.disk import ForgetfulDisk


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


@pytest.mark.parametrize("what", ["link", "pipe", "device"])
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDWR | os.O_CREAT | os.O_TRUNC])
def test_what_is_no_regular_file_is_refused_by_name_and_left_alone(tmp_path, what, flags):
    path, elsewhere = tmp_path / "file", tmp_path / "elsewhere"
    elsewhere.write_bytes(b"precious")
    if what == "link":
        path.symlink_to(elsewhere)
    elif what == "pipe":
        os.mkfifo(path)
    else:
        path = pathlib.Path("/dev/null")
    before = open_files()
    with pytest.raises(OSError, match="not a regular file") as caught:
        Disk().open(str(path), flags)
    assert caught.value.filename == str(path)
    assert elsewhere.read_bytes() == b"precious"
    assert open_files() == before


def open_files():
    return len(os.listdir("/proc/self/fd"))


def test_a_folder_behind_a_link_is_opened_as_a_folder(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    Disk().sync_directory(str(tmp_path / "link"))


def test_a_link_in_the_place_of_a_temporary_file_is_not_written_through(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"precious")
    (tmp_path / "users.json.tmp").symlink_to(elsewhere)
    with pytest.raises(OSError, match="not a regular file"):
        Disk().replace(str(tmp_path / "users.json"), b"[]")
    assert elsewhere.read_bytes() == b"precious"


def test_a_file_larger_than_asked_for_is_not_read(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(11))
    assert Disk().read(str(path), 11) == bytes(11)
    with pytest.raises(OSError, match="has 11 octets, more than the 10 that are read") as caught:
        Disk().read(str(path), 10)
    assert caught.value.filename == str(path)


def test_a_file_that_is_mostly_a_hole_is_not_read(tmp_path):
    path = tmp_path / "file"
    with open(path, "wb") as file:
        file.truncate(1 << 31)
    with pytest.raises(OSError, match="most of its 2147483648 octets were never written"):
        Disk().read(str(path))


def test_several_files_are_synced_at_once(tmp_path):
    """Here the sync of a file is over when the other has begun."""
    both = threading.Barrier(2)

    class Paired(Disk):
        def fdatasync(self, fd, path):
            both.wait(60)

    files = opened(tmp_path, 2)
    Paired().sync_all(files)
    for fd, _ in files:
        os.close(fd)


def test_the_error_of_one_of_several_syncs_is_raised_when_all_are_over(tmp_path):
    ended = []

    class Failing(Disk):
        def fdatasync(self, fd, path):
            if path.endswith("/0"):
                raise OSError(errno.EIO, "gone", path)
            ended.append(path)

    files = opened(tmp_path, 4)
    with pytest.raises(OSError, match="gone"):
        Failing().sync_all(files)
    assert sorted(ended) == [f"{tmp_path}/{n}" for n in (1, 2, 3)]
    for fd, _ in files:
        os.close(fd)


def test_whether_a_disk_takes_a_file_is_tried_and_leaves_nothing(tmp_path):
    assert Disk().takes_a_file(str(tmp_path))
    assert os.listdir(tmp_path) == []
    assert not Disk().takes_a_file(f"{tmp_path}/nothing")

    class Full(Disk):
        def pwrite(self, fd, octets, position):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    assert not Full().takes_a_file(str(tmp_path))
    assert os.listdir(tmp_path) == []


def test_an_error_of_a_replacement_names_the_file_and_leaves_its_content(tmp_path):
    path = f"{tmp_path}/file"
    Disk().replace(path, b"old")

    class Full(Disk):
        def pwrite(self, fd, octets, position):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space left") as failed:
        Full().replace(path, b"new")
    assert failed.value.filename == path
    assert Disk().read(path) == b"old"


def test_a_replacement_takes_the_room_of_a_temporary_file_that_is_there(tmp_path):
    """A longer one leaves nothing of itself behind."""
    (tmp_path / "file.tmp").write_bytes(b"room" * 100)
    inode = os.stat(f"{tmp_path}/file.tmp").st_ino
    Disk().replace(f"{tmp_path}/file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert os.stat(f"{tmp_path}/file").st_ino == inode


def test_syncs_need_no_thread_that_cannot_be_made(tmp_path, monkeypatch):
    def start(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    disk, files = Counting(), opened(tmp_path, 3)
    disk.sync_all(files)
    assert disk.calls == ["fdatasync"] * 3
    for fd, _ in files:
        os.close(fd)


def test_only_what_cannot_be_written_over_is_refused_as_a_temporary_file(tmp_path):
    (tmp_path / "left.tmp").write_bytes(b"half")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    Disk().check_temporaries(str(tmp_path))
    for name, make in (("a.tmp", os.mkdir), ("b.tmp", os.mkfifo), ("c.tmp", lambda path: os.symlink("nowhere", path))):
        path = f"{tmp_path}/{name}"
        make(path)
        with pytest.raises(OSError, match="a folder is|not a regular file") as refused:
            Disk().check_temporaries(str(tmp_path))
        assert refused.value.filename == path
        os.rmdir(path) if name == "a.tmp" else os.unlink(path)
