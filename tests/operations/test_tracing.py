"""Traces of messages in files: which messages, how they are written, and what bounds them."""

import base64
import json
import os

import pytest
from tests.operations.stand_in import Place, work

from brokerd.operations import OperationError, table, tracing
from brokerd.operations.rows import LOCAL
from brokerd.operations.tracer import TraceRow

HEADERS = {"node": "n", "connection": "c", "vhost": "/", "user": "ann", "channel": 1, "exchange_name": "x",
           "routing_keys": ["k\n", "\udcff"], "properties": {"headers": {"b": b"1"}}, "routed_queues": ["q"]}


@pytest.fixture
def place(tmp_path):
    place = Place(tmp_path / "data")
    node, place.timers = place.node, []
    node.submit_slow, node.traces = place.thread.submit, None
    node.call_at = lambda when, callback: place.timers.append(callback)
    return place


def perform(place, operation, /, **fields):
    row, answer = table.perform(place.node, LOCAL, operation, fields)
    return work(answer, between=lambda _: place.thread.run()) if row.job else answer


def write(place):
    while place.timers:
        place.timers.pop()()
        place.thread.run()


def text(place, name="t"):
    return (place.path / "traces" / f"{name}.log").read_text()


def test_a_trace_in_json_has_publishes_and_deliveries_until_it_is_stopped(place):
    place.queue()
    assert perform(place, "tracer start", name="t", format="json") == {"created": True}
    assert place.vhost.firehose.on
    place.publish(1, octets=3)
    place.consume()
    write(place)
    place.publish(1, octets=1)
    assert perform(place, "tracer stop", name="t") == {"messages": 4, "missed": 0}
    assert not place.vhost.firehose.on
    place.publish(1)
    found = [json.loads(line) for line in text(place).splitlines()]
    assert [(row["type"], row["queue"], row["routed_queues"]) for row in found] == [
        ("published", "none", ["q"]), ("received", "q", "none")] * 2
    assert base64.b64decode(found[0]["payload"]) == bytes(3)
    assert (found[0]["user"], found[0]["vhost"], found[0]["routing_keys"]) == ("guest", "/", ["q"])


def test_a_trace_as_text_has_a_block_for_each_message_of_its_pattern(place):
    place.queue()
    perform(place, "tracer start", name="t", pattern="deliver.#", max_payload_bytes=2)
    place.publish(1, octets=5)
    place.consume()
    write(place)
    found = text(place)
    assert "Message received\n\nNode:" in found
    assert "Queue:        q\n" in found
    assert found.endswith("Payload: \n\0\0\n")
    assert "published" not in found
    row = perform(place, "tracer show", name="t")
    assert (row["messages"], row["state"], row["octets"]) == (1, "running", len(found))
    assert table.adapter(TraceRow).validate_python(row, strict=True) == row
    assert perform(place, "tracer list", vhost="/")["items"] == [row]


def test_what_a_peer_chose_stays_in_its_line_and_need_not_be_utf8():
    record = tracing.as_text(0, "publish.x", HEADERS, b"\xff").decode("latin-1")
    assert 'Routing keys: ["k\\n", "\\udcff"]\n' in record
    assert json.loads(tracing.as_json(0, "publish.x", HEADERS, b"\xff"))["routing_keys"] == ["k\n", "\udcff"]


@pytest.mark.parametrize(("pattern", "key", "does"), [
    ("#", "publish.a.b", True), ("#", "", True), ("publish.#", "publish.", True), ("publish.#", "publish", True),
    ("publish.*", "publish.a.b", False), ("publish.*", "publish.a", True), ("deliver.q", "deliver.q", True),
    ("deliver.q", "deliver.qq", False), ("#.b", "publish.a.b", True), ("#.a.#.c", "x.a.b.c", True), ("*", "", False),
    (".".join(["#"] * 127), ".".join(["a"] * 127), True), ("", "publish", False),
])
def test_a_pattern_is_one_of_a_topic_exchange(pattern, key, does):
    assert tracing.matches(tracing._words(pattern), tracing._words(key)) is does


def test_a_full_file_ends_its_trace_between_two_records(place, monkeypatch):
    place.queue()
    perform(place, "tracer start", name="t", format="json")
    place.publish(1, octets=10)
    write(place)
    one = len(text(place))
    monkeypatch.setattr(tracing, "FILE_OCTETS_MAX", 3 * one)
    place.publish(5, octets=10)
    write(place)
    row = perform(place, "tracer show", name="t")
    assert (row["state"], row["messages"], row["missed"]) == ("full", 3, 3)
    assert len(text(place).splitlines()) == 3
    assert not place.vhost.firehose.on
    with pytest.raises(OperationError, match="the file of trace 't' is full: delete it first"):
        perform(place, "tracer start", name="t")
    perform(place, "trace_file delete", name="t.log")
    assert perform(place, "tracer start", name="t") == {"created": False}


def test_records_that_find_no_room_in_memory_are_counted(place, monkeypatch):
    place.queue()
    monkeypatch.setattr(tracing, "WAITING_OCTETS_MAX", 1)
    perform(place, "tracer start", name="t")
    place.publish(3)
    write(place)
    row = perform(place, "tracer show", name="t")
    assert (row["messages"], row["missed"]) == (1, 2)


def test_a_trace_whose_file_cannot_be_written_says_why(place):
    place.queue()
    perform(place, "tracer start", name="t")
    (place.path / "traces" / "t.log").unlink()
    (place.path / "traces" / "t.log").mkdir()
    place.publish(1)
    write(place)
    row = perform(place, "tracer show", name="t")
    assert (row["state"], "directory" in row["why"]) == ("failed", True)
    assert not place.vhost.firehose.on


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to(path.parent / "elsewhere")])
def test_neither_a_pipe_nor_a_link_in_the_place_of_a_file_is_written_to_or_read(place, make):
    folder = place.path / "traces"
    folder.mkdir()
    (folder / "elsewhere").write_text("of somebody")
    make(folder / "t.log")
    for operation in ("tracer start", "trace_file read"):
        with pytest.raises(OSError, match="regular"):
            perform(place, operation, name="t" if operation == "tracer start" else "t.log")
    assert (folder / "elsewhere").read_text() == "of somebody"
    assert perform(place, "trace_file list") == {"items": []}


def test_the_firehose_that_was_on_stays_on_without_traces(place):
    place.vhost.firehose.switch(True)
    perform(place, "tracer start", name="t")
    place.vhost.firehose.switch(False)
    assert place.vhost.firehose.on
    place.vhost.firehose.switch(True)
    perform(place, "tracer stop", name="t")
    assert place.vhost.firehose.on


def test_what_waits_is_written_when_the_broker_stops(place):
    place.queue()
    perform(place, "tracer start", name="t", format="json")
    place.publish(2)
    place.node.traces.close()
    assert len(text(place).splitlines()) == 2


@pytest.mark.parametrize("name", ["", ".x", "a/b", "../x", "a\0b", "x" * 101, "\udcff"])
def test_a_name_that_no_file_can_have_is_refused(place, name):
    with pytest.raises(OperationError, match="the name of a trace is that of its file"):
        perform(place, "tracer start", name=name)
    for verb in ("read", "delete"):
        with pytest.raises(OperationError, match="no trace file"):
            perform(place, f"trace_file {verb}", name=name + ".log")


def test_files_are_listed_read_in_parts_and_deleted(place):
    assert perform(place, "trace_file list") == {"items": []}
    perform(place, "tracer start", name="t")
    perform(place, "tracer stop", name="t")
    (place.path / "traces" / "t.log").write_bytes(b"0123456789\xff")
    assert perform(place, "trace_file list") == {"items": [{"name": "t.log", "size": 11}]}
    assert perform(place, "trace_file read", name="t.log", offset=8, octets=100) == {
        "text": "89\ufffd", "next_offset": 11}
    perform(place, "trace_file delete", name="t.log")
    with pytest.raises(OperationError, match=r"no trace file 't\.log'"):
        perform(place, "trace_file read", name="t.log")


def test_there_are_not_more_traces_than_may_be_and_a_deleted_vhost_has_none(place, monkeypatch):
    monkeypatch.setattr(tracing, "TRACES_MAX", 1)
    perform(place, "tracer start", name="t")
    with pytest.raises(OperationError, match="there are 1 traces already"):
        perform(place, "tracer start", name="u")
    place.node.vhosts["/"] = object()
    assert perform(place, "tracer list")["items"] == []
