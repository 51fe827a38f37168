"""What an audit was asked for: the queues that a path means, and one line for what is not there."""

import pytest
from tests.audit import writer

from brokerd.audit import AuditError
from brokerd.auditor import request
from brokerd.auditor.request import (
    Progress,
    Request,
    find,
    how_to_install,
    is_installed,
    make_folder,
    must_be_installed,
)


def test_the_queues_of_a_path_are_found_and_a_dump_that_was_not_finished_is_named(tmp_path):
    root = writer.write_queue(tmp_path / "data", writer.simple_level(3), queue="orders")
    writer.write_queue(tmp_path / "data", writer.simple_level(3), queue="other", folder="q2")
    assert [queue.queue for queue in find(Request(root, queues="or*"))] == ["orders"]
    (tmp_path / "dump.partial").mkdir()
    with pytest.raises(AuditError, match=r"dump\.partial: a dump that was not finished"):
        find(Request(str(tmp_path / "dump.partial")))
    with pytest.raises(AuditError, match=r"dump: its dump was not finished: there is only \S+dump\.partial"):
        find(Request(str(tmp_path / "dump")))
    with pytest.raises(AuditError, match="none: no such folder"):
        find(Request(str(tmp_path / "none")))


def test_a_folder_is_made_or_its_error_is_a_line(tmp_path):
    make_folder(None)
    make_folder(str(tmp_path / "a" / "b"))
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(AuditError, match="file: File exists"):
        make_folder(str(tmp_path / "file"))


def test_what_is_missing_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(request.PACKAGES, "report", ("click", "no_such_package"))
    assert not is_installed("report")
    with pytest.raises(AuditError, match=r"^an export needs no_such_package, which .* pip install -e '?\S+\[report\]"):
        must_be_installed("report", "an export")
    monkeypatch.setitem(request.PACKAGES, "report", ("click",))
    must_be_installed("report", "an export")
    assert how_to_install("spark").endswith("[spark]'")


def test_a_stage_is_told_with_its_speed(capsys):
    progress = Progress()
    assert progress.stage("reading", lambda: 7, 2_000_000) == 7
    assert progress.stages[0].items() >= {"name": "reading", "octets": 2_000_000}.items()
    assert " s  reading took 0.0 s: 2 MB, " in capsys.readouterr().err
