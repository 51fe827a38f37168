"""The change log has the last lines, each whole, over restarts, broken lines and full files."""

import pytest

from brokerd.store import change_log
from brokerd.store.change_log import ChangeLog
from brokerd.store.disk import Disk


@pytest.fixture
def log(tmp_path):
    return ChangeLog(str(tmp_path), Disk())


def test_the_last_line_is_read_first_also_by_another_broker(log, tmp_path):
    for number in range(5):
        log.append({"n": number})
    assert [line["n"] for line in ChangeLog(str(tmp_path), Disk()).newest_first()] == [4, 3, 2, 1, 0]


def test_half_a_line_spoils_no_other(log, tmp_path):
    log.append({"n": 1})
    with open(tmp_path / "changes.jsonl", "a") as file:
        file.write('{"n": 2, "x')
    log.append({"n": 3})
    assert [line["n"] for line in log.newest_first()] == [3, 1]


def test_old_lines_go_and_the_files_stay_few(log, tmp_path, monkeypatch):
    monkeypatch.setattr(change_log, "FILE_OCTETS", 100)
    for number in range(200):
        log.append({"n": number})
    found = [line["n"] for line in log.newest_first()]
    assert found == list(range(199, 199 - len(found), -1))
    assert len(list(tmp_path.iterdir())) == change_log.FILES
    assert len(found) >= 4 * (change_log.FILES - 1)


def test_a_log_that_is_not_there_is_empty(log):
    assert list(log.newest_first()) == []
