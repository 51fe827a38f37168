"""The disks by themselves.  test_broker sees what they do to a broker, tests/store/test_disk.py has more power cuts."""

import errno
import json
import os
import random
import shutil

import pytest

from brokerd.testing.disk import FillableDisk, ForgetfulDisk, Nothing, TemporaryDisk


@pytest.mark.parametrize("make", [FillableDisk, TemporaryDisk])
def test_a_full_disk_takes_nothing_new_and_keeps_what_is_there(make, tmp_path):
    disk, path = make(), str(tmp_path / "file")
    disk.replace(path, b"12345")
    fd = disk.open(path, os.O_RDWR)
    disk.full = True
    disk.pwrite(fd, b"abc", 2)
    assert disk.read(path) == b"12abc"
    for attempt in (
        lambda: disk.pwrite(fd, b"abcd", 2), lambda: disk.truncate(fd, 6), lambda: disk.replace(path, b"new"),
        lambda: disk.open(path + "2", os.O_RDWR | os.O_CREAT), lambda: disk.make_directory(path + "3"),
    ):
        with pytest.raises(OSError, match="No space left") as caught:
            attempt()
        assert caught.value.errno == errno.ENOSPC
        assert str(tmp_path) in caught.value.filename
    assert disk.free_octets(path) == 0
    disk.truncate(fd, 2)
    assert disk.read(path) == b"12"
    disk.full = False
    disk.pwrite(fd, b"abcd", 2)
    assert disk.free_octets(path) > 0
    disk.close(fd)
    assert os.listdir(tmp_path) == ["file"]


def test_a_temporary_disk_replaces_files_and_makes_them(tmp_path):
    disk, path = TemporaryDisk(), str(tmp_path / "file")
    for content in (b"first", b"second, longer", b"", b"3"):
        disk.replace(path, content)
        assert disk.read(path) == content
    assert os.listdir(tmp_path) == ["file"]


def test_a_small_file_of_json_is_written_over_and_a_large_one_replaced(tmp_path):
    disk, path = TemporaryDisk(), tmp_path / "file.json"
    inodes = set()
    for value in ([1], list(range(100)), {"a": 1}, list(range(100))):
        disk.replace(str(path), json.dumps(value).encode())
        assert json.loads(disk.read(str(path))) == value
        inodes.add(path.stat().st_ino)
    assert len(inodes) == 1
    disk.replace(str(path), json.dumps(list(range(2000))).encode())
    assert path.stat().st_size > 4096
    disk.replace(str(path), b"[]")
    assert disk.read(str(path)) == b"[]"
    assert os.listdir(tmp_path) == ["file.json"]


def test_with_nothing_of_what_was_not_synced_the_cut_is_exact(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    disk = ForgetfulDisk(str(root))
    disk.replace(str(root / "kept"), b"old")
    fd = disk.open(str(root / "kept"), os.O_RDWR)
    disk.pwrite(fd, b"new and longer", 0)
    (root / "not synced").write_bytes(b"x")
    disk.lose_power(str(tmp_path / "found"), Nothing())
    assert {path.name: path.read_bytes() for path in (tmp_path / "found").iterdir()} == {"kept": b"old"}
    disk.fdatasync(fd, "kept")
    disk.lose_power(str(tmp_path / "later"), Nothing())
    assert (tmp_path / "later" / "kept").read_bytes() == b"new and longer"
    disk.close(fd)
    disk.release()


def test_by_chance_each_page_is_old_or_new(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    disk = ForgetfulDisk(str(root))
    disk.replace(str(root / "file"), b"o" * 4096 * 8)
    fd = disk.open(str(root / "file"), os.O_RDWR)
    disk.pwrite(fd, b"n" * 4096 * 8, 0)
    disk.lose_power(str(tmp_path / "found"), random.Random(1))
    found = (tmp_path / "found" / "file").read_bytes()
    pages = {found[at:at + 4096] for at in range(0, len(found), 4096)}
    assert pages == {b"o" * 4096, b"n" * 4096}
    disk.close(fd)
    disk.release()


class Racing(ForgetfulDisk):
    """Another thread removes the folder just before its second look at it."""

    looks = 0

    def _hold(self, path):
        self.looks += path.endswith("garbage")
        if self.looks == 2:
            shutil.rmtree(path, ignore_errors=True)
        return super()._hold(path)


def test_a_sync_does_not_mind_what_another_thread_removes_meanwhile(tmp_path):
    root = tmp_path / "root"
    (root / "kept").mkdir(parents=True)
    disk = Racing(str(root))
    (root / "garbage" / "inner").mkdir(parents=True)
    disk.syncfs(0, "")
    disk.lose_power(str(tmp_path / "found"), Nothing())
    assert "kept" in os.listdir(tmp_path / "found")
    disk.release()


def test_a_descriptor_is_held_for_the_file_that_was_opened(tmp_path, monkeypatch):
    root = tmp_path / "root"
    root.mkdir()
    disk = ForgetfulDisk(str(root))
    (root / "file").write_bytes(b"old")
    (root / "new").write_bytes(b"new")
    opened = os.open

    def open_late(path, *arguments):
        monkeypatch.undo()
        os.rename(root / "new", root / "file")
        return opened(path, *arguments)

    monkeypatch.setattr(os, "open", open_late)
    inode = disk._hold(str(root / "file"))
    assert os.fstat(disk._held[inode]).st_ino == inode == (root / "file").stat().st_ino
    disk.release()


def test_a_socket_in_the_folder_is_no_hindrance(tmp_path):
    import socket

    root = tmp_path / "root"
    root.mkdir()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(root / "s"))
        disk = ForgetfulDisk(str(root))
        disk.lose_power(str(tmp_path / "found"), Nothing())
    assert os.listdir(tmp_path / "found") == []
    disk.release()
