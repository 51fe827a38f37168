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


def test_what_a_crash_left_is_removed_by_the_next(tmp_path):
    first = Garbage(str(tmp_path), Thread().submit)
    (tmp_path / "file").write_text("x")
    first.discard(str(tmp_path / "file"))
    thread = Thread()
    second = Garbage(str(tmp_path), thread.submit)
    second.close()
    thread.run()
    assert list(tmp_path.iterdir()) == []
