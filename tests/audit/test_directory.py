"""The data directory around a source: its version, and which vhosts a clean stop has left."""

import json
import os

import pytest
import writer

from brokerd.audit import AuditError
from brokerd.audit.directory import check_schema, stopped_vhosts, takes_in
from brokerd.audit.files import Source, open_source
from brokerd.store import format as layout


@pytest.fixture
def root(tmp_path):
    root = writer.write_queue(tmp_path / "data", writer.simple_level(3))
    list_vhosts(root, [{"name": "/"}, {"name": "other", "tracing": True}])
    return root


def list_vhosts(root, content):
    with open(f"{root}/vhosts.json", "w") as file:
        json.dump(content, file)


def test_a_directory_without_the_marker_was_stopped_and_names_its_vhosts(root):
    for path in (root, f"{root}/vhost", f"{root}/vhost/queue"):
        assert stopped_vhosts(Source(path)) == {"/", "other"}
    with open(f"{root}/{layout.RUNNING_FILE}", "w") as file:
        file.write("boot whole\n")
    for path in (root, f"{root}/vhost", f"{root}/vhost/queue"):
        assert stopped_vhosts(Source(path)) == set()


@pytest.mark.parametrize("content", [None, {}, [1], [{}], ["name"]])
def test_a_list_of_vhosts_that_no_broker_wrote_names_none(root, content):
    list_vhosts(root, content)
    assert stopped_vhosts(Source(root)) == set()
    os.unlink(f"{root}/vhosts.json")
    assert stopped_vhosts(Source(root)) == set()


def test_no_copy_of_a_vhost_or_a_queue_and_no_missing_folder_was_stopped(root):
    os.unlink(f"{root}/{layout.SCHEMA_FILE}")
    for path in (root, f"{root}/vhost", f"{root}/vhost/queue", f"{root}/nothing"):
        assert stopped_vhosts(Source(path)) == set()


@pytest.mark.parametrize("at", ["", "/vhost", "/vhost/queue"])
def test_another_version_is_refused_from_each_folder(root, at):
    check_schema(Source(root + at), Source(root + at).names(""))
    with open(f"{root}/{layout.SCHEMA_FILE}", "w") as file:
        file.write("2\n")
    with pytest.raises(AuditError, match="a data directory of version '2'"):
        check_schema(Source(root + at), Source(root + at).names(""))


def test_a_start_takes_a_queue_in_from_the_folder_of_its_name_alone():
    folder = layout.folder_name("q")
    assert takes_in(f"vhost/{folder}", "q")
    assert takes_in(folder, "q")
    for other in (f"vhost/{folder}.orphan", f"vhost/{folder}.orphan.2", f"vhost/{folder}.1", "vhost/queue"):
        assert not takes_in(other, "q")


def test_the_segments_of_a_stopped_directory_say_so_from_wherever_it_is_read(tmp_path):
    folder = layout.folder_name("q")
    root = writer.write_queue(tmp_path / "data", writer.simple_level(3), folder=folder)
    list_vhosts(root, [{"name": "/"}])
    for at in ("", "/vhost", f"/vhost/{folder}"):
        assert [triple.stopped for queue in open_source(root + at).queues() for triple in queue.triples] == [True]
    list_vhosts(root, [{"name": "other"}])
    assert not any(triple.stopped for queue in open_source(root).queues() for triple in queue.triples)
