import errno
import os

import pytest

from brokerd.store.garbage import Garbage


class Thread:
    """Does what was submitted when told."""

    def __init__(self):
        self.jobs = []

    def submit(self, work, done):
        self.jobs.append(work)

    def run(self):
        while self.jobs:
            self.jobs.pop(0)()


def test_a_name_is_free_at_once_and_a_late_removal_does_not_hit_its_next_bearer(tmp_path):
    thread = Thread()
    garbage = Garbage(str(tmp_path), thread.submit)
    path = tmp_path / "queue"
    for content in ("old", "new"):
        path.mkdir()
        (path / "file").write_text(content)
        if content == "old":
            garbage.discard(str(path))
            garbage.flush()
    thread.run()
    assert (path / "file").read_text() == "new"
    assert list((tmp_path / "garbage").iterdir()) == []


def test_what_is_not_there_is_no_fault(tmp_path):
    garbage = Garbage(str(tmp_path), Thread().submit)
    garbage.discard(str(tmp_path / "nothing"))


@pytest.mark.parametrize("folder", ["garbage", "garbage.old"])
def test_what_a_crash_left_is_removed_by_the_next(tmp_path, folder):
    first = Garbage(str(tmp_path), Thread().submit)
    for name in ("file", "other"):
        (tmp_path / name).write_text("x")
        first.discard(str(tmp_path / name))
    (tmp_path / "garbage").rename(tmp_path / folder)
    thread = Thread()
    second = Garbage(str(tmp_path), thread.submit)
    (tmp_path / "file").write_text("later")
    second.discard(str(tmp_path / "file"))
    second.flush()
    thread.run()
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["garbage"]


def test_the_folder_is_there_before_the_disk_has_no_room_for_one(tmp_path, monkeypatch):
    Garbage(str(tmp_path), Thread().submit).prepare()
    monkeypatch.setattr("os.mkdir", full)
    garbage = Garbage(str(tmp_path), Thread().submit)
    garbage.prepare()
    (tmp_path / "file").write_text("x")
    garbage.discard(str(tmp_path / "file"))
    assert not (tmp_path / "file").exists()


def test_a_folder_that_cannot_be_made_is_no_fault_until_something_is_discarded(tmp_path, monkeypatch):
    monkeypatch.setattr("os.mkdir", full)
    garbage = Garbage(str(tmp_path), Thread().submit)
    garbage.prepare()
    garbage.discard(str(tmp_path / "nothing"))
    (tmp_path / "file").write_text("x")
    with pytest.raises(OSError, match="No space left"):
        garbage.discard(str(tmp_path / "file"))
    assert (tmp_path / "file").exists()


def full(path):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def test_a_folder_that_somebody_has_removed_is_made_again(tmp_path):
    """Else what was deleted would be there again after a restart."""
    garbage = Garbage(str(tmp_path), Thread().submit)
    garbage.prepare()
    (tmp_path / "garbage").rmdir()
    (tmp_path / "queue").mkdir()
    garbage.discard(str(tmp_path / "queue"))
    assert not (tmp_path / "queue").exists()
    garbage.discard(str(tmp_path / "nothing"))
