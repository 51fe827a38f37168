"""The file that says that a queue is paused."""

import json
import logging

import pytest

from brokerd.queues.pause import read_pause, remove_pause, write_pause
from brokerd.store.disk import Disk
from brokerd.store.format import PAUSED_FILE


def test_what_was_written_is_read_and_goes(tmp_path):
    write_pause(str(tmp_path), 1_769_860_800_000, Disk())
    assert json.loads((tmp_path / PAUSED_FILE).read_text()) == {"version": 1, "since": 1_769_860_800_000}
    assert read_pause(str(tmp_path)) == 1_769_860_800_000
    remove_pause(str(tmp_path), Disk())
    assert not (tmp_path / PAUSED_FILE).exists()
    with pytest.raises(FileNotFoundError):
        remove_pause(str(tmp_path), Disk())


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 2, "since": 5}', '{"version": 1, "since": -1}'])
def test_a_file_that_cannot_be_used_is_a_pause_too_and_the_log_names_it(tmp_path, caplog, text):
    (tmp_path / PAUSED_FILE).write_text(text)
    with caplog.at_level(logging.WARNING, "brokerd"):
        assert read_pause(str(tmp_path)) == 0
    assert f"{tmp_path}/paused" in caplog.text
    assert "the queue stays paused" in caplog.text
