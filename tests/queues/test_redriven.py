"""The file that names redriven messages: written whole, read again, and a damaged one is told of and ignored."""

import json
import logging

import pytest

from brokerd.queues.redriven import read_redriven, write_redriven
from brokerd.store.disk import Disk


def test_what_was_written_is_read_again(tmp_path):
    assert read_redriven(str(tmp_path)) == []
    write_redriven(str(tmp_path), [3, 17], Disk())
    assert read_redriven(str(tmp_path)) == [3, 17]
    write_redriven(str(tmp_path), [4], Disk())
    assert read_redriven(str(tmp_path)) == [4]


@pytest.mark.parametrize("content", [
    "{", "[]", json.dumps({"version": 2, "seqs": [1]}), json.dumps({"version": 1, "seqs": ["1"]}),
    json.dumps({"version": 1, "seqs": [0]}),
])
def test_a_file_that_no_broker_wrote_is_told_of_and_ignored(tmp_path, caplog, content):
    (tmp_path / "redriven").write_text(content)
    with caplog.at_level(logging.WARNING, "brokerd"):
        assert read_redriven(str(tmp_path)) == []
    assert "redriven" in caplog.text
