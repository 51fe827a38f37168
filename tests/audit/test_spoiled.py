"""A trace says what is spoiled in the files of the message, and of a segment that may have held it."""

import os

import pytest
import writer

from brokerd.audit.files import Damage, open_source
from brokerd.audit.spoiled import concerns, spoiled
from brokerd.audit.trace import trace


@pytest.fixture
def root(tmp_path):
    return writer.write_queue(tmp_path / "data", writer.simple_level(30), writer.Options(segment_messages=10))


def change(root, name, at, octets):
    with open(f"{root}/vhost/queue/{name}", "r+b") as file:
        file.seek(at)
        file.write(octets)


def told(root, seq):
    source = open_source(root)
    (queue,) = source.queues()
    found = trace(source, queue, seq)
    return found, [(row["file"].rpartition("/")[2], row["offset"], row["missing"]) for row in found["spoiled"]]


def test_whole_files_have_nothing_spoiled(root):
    assert told(root, 15)[1] == []


@pytest.mark.parametrize(("name", "at", "row"), [
    ("acks.0000000002", 56, ("acks.0000000002", 56, ["what became of messages"])),
    ("journal.0000000002", 28, ("journal.0000000002", 28, ["events"])),
    ("msgs.0000000002", 72, ("msgs.0000000002", 64, ["messages"]))])
def test_what_is_spoiled_in_the_segment_of_a_message_is_told_with_its_place(root, name, at, row):
    change(root, name, at, b"\1")
    found, rows = told(root, 15)
    assert (found["segment"], rows) == (2, [row])
    assert told(root, 25)[1] == []              # Another segment holds it.


def test_a_message_that_spoiled_files_may_have_held_is_not_said_to_be_gone(root):
    change(root, "msgs.0000000002", 68, b"\xff" * 4)
    found, rows = told(root, 11)
    assert ("msgs.0000000002", 64, ["messages"]) in rows
    os.remove(f"{root}/vhost/queue/msgs.0000000002")
    found, rows = told(root, 15)
    assert (found["known"], found["why"]) == ("nothing", "a file that may have held it is spoiled")
    assert rows == [("journal.0000000002", -1, ["messages", "events", "what became of messages"])]


def test_what_a_broker_is_just_writing_is_not_spoiled(root):
    change(root, "acks.0000000002", 24, b"\7" * 8)
    assert [row[1] for row in told(root, 15)[1]] == [24]
    open(f"{root}/running", "w").close()
    assert told(root, 15)[1] == []


def test_damage_concerns_a_message_if_it_took_something_from_its_queue():
    one = Damage("v/q/acks.1", -1, 0, 0, "is missing", ("acks",))
    assert [concerns(one, folder) for folder in ("v/q", "", "v/p", "v/q2")] == [True, True, False, False]
    assert not concerns(one._replace(matters=()), "v/q")
    assert spoiled([one]) == [{"file": "v/q/acks.1", "offset": -1, "detail": "is missing",
                               "missing": ["what became of messages"]}]
