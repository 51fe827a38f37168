"""The life of one message in words."""

import os

import writer

from brokerd.audit.files import open_source
from brokerd.audit.trace import trace
from brokerd.cli import ctl_trace
from brokerd.store import format as layout

T = 1_700_000_000_000_000_000
ROWS = [(T + 10, 12, 8, 0, 7), (T + 11, 12, 3, 1, 7, 1), (T + 12, 12, 8, 1, 7, 1), (T + 20, T, 9, 1),
        (T + 21, 12, 8, 5, 8, 1), (T + 22, 12, 1, 0, 8), (T + 30, 13, 8, 2, 44), (T + 31, 13, 4, 1, 44)]


def traced(root, seq):
    source = open_source(root)
    (queue,) = source.queues()
    return trace(source, queue, seq)


def prepared(tmp_path, **options):
    level = writer.Level(writer.messages(range(1, 31), range(T - 40, T - 10), connection=3), writer.events(ROWS), 33)
    return writer.write_queue(tmp_path / "data", level, writer.Options(segment_messages=10, log=[
        {"at": 1, "what": "consumer", "number": 7, "tag": "ct", "peer": "127.0.0.1:5"}], **options))


def test_a_life_is_told_in_order_with_names(tmp_path):
    told = traced(prepared(tmp_path), 12)
    assert [e["what"] for e in told["events"]] == [
        "enqueued", "delivered", "returned", "delivered", "returned", "delivered", "acked"]
    assert told["events"][1]["consumer"] == {"number": 7, "tag": "ct", "peer": "127.0.0.1:5"}
    assert (told["events"][2]["cause"], told["events"][4]["cause"]) == ("nack", "broker started")
    assert told["events"][5]["before_start"]
    assert (told["segment"], told["priority"], told["known"], told["state"]) == (2, 0, "all", "acked")
    assert told["record"] == {
        "ts": T - 29, "connection": 3, "channel": 1, "publish_seq": 12, "exchange": "", "routing_key": "q",
        "message_id": None, "body_octets": 33, "persistent": True}


def test_who_took_it_by_get_is_a_connection(tmp_path):
    told = traced(prepared(tmp_path), 13)
    assert [e["consumer"] for e in told["events"]] == [None, {"connection": 44}, {"connection": 44}]
    assert (told["state"], told["reason"]) == ("dead-lettered", "rejected")


def test_without_a_journal_the_acks_tell_what_they_know(tmp_path):
    told = traced(prepared(tmp_path, journal=False), 12)
    assert told["known"] == "acks only"
    assert [(e["what"], e["ts"] is None) for e in told["events"]] == [
        ("enqueued", False), ("returned", True), ("delivered again", True), ("delivered again", True), ("acked", True)]


def test_a_life_that_began_before_the_journal_is_known_in_part(tmp_path):
    assert traced(prepared(tmp_path, begun=T - 5), 12)["known"] == "part"


def test_what_is_not_there_has_a_reason(tmp_path):
    root = prepared(tmp_path)
    assert traced(root, 99)["known"] == "nothing"
    with open(root + "/vhost/queue/order.jsonl", "a") as file:
        file.write('{"at": 1, "what": "removed", "level": 0, "first_seq": 11, "last_seq": 20, "why": "age"}\n')
    os.unlink(root + "/vhost/queue/msgs.0000000002")
    assert traced(root, 12)["why"] == "its segment was removed by retention (age)"


def test_a_segment_with_a_damaged_header_is_looked_into(tmp_path):
    root = prepared(tmp_path)
    with open(root + "/vhost/queue/msgs.0000000002", "r+b") as file:
        file.seek(20)
        file.write(b"\xff")
    assert traced(root, 12)["state"] == "acked"


def test_every_state_and_cause_has_a_word(tmp_path):
    rows = []
    for seq, type_ in enumerate((1, 2, 4, 5, 6, 7), 1):
        rows += [(T + seq * 10, seq, 8), (T + seq * 10 + 1, seq, 3, seq), (T + seq * 10 + 2, seq, 8, 1),
                 (T + seq * 10 + 3, seq, type_, 4 if type_ in (4, 6) else 0)]
    level = writer.Level(writer.messages(range(1, 7), range(T - 6, T)), writer.events(rows))
    root = writer.write_queue(tmp_path / "data", level)
    told = [traced(root, seq) for seq in range(1, 7)]
    assert [t["state"] for t in told] == ["acked", "rejected", "dead-lettered", "expired", "dropped", "purged"]
    assert [t["events"][2]["cause"] for t in told] == [
        "nack", "reject", "recover", "channel closed", "connection closed", "consumer timeout"]
    assert [t["reason"] for t in told] == [None, None, "delivery_limit", None, "delivery_limit", None]
    assert layout.REASON_LIMIT == 4


def test_waiting_and_replay_are_told_in_words(tmp_path):
    rows = [(T + 10, 12, 8, 0, 7), (T + 11, 12, 3, 1, 7, 1), (T + 12, 12, layout.RETRY_SCHEDULED, 0, 7, 1),
            (T + 13, 12, layout.RELEASED_EVENT), (T + 14, 12, 8, 1, 7, 1), (T + 15, 12, 3, 2, 7, 2),
            (T + 16, 12, layout.PARKED_EVENT, layout.REASON_LIMIT, 7, 2), (T + 17, 12, layout.RELEASED_EVENT),
            (T + 18, 12, 8, 1, 7, 2), (T + 19, 12, 1, 0, 7), (T + 20, 12, layout.EVENT_REPLAYED),
            (T + 21, 12, 8, 1, 7), (T + 22, 12, layout.GROUP_PARKED_EVENT, layout.REASON_REMOVED),
            (T + 23, 12, layout.GROUP_RELEASED_EVENT)]
    happened = writer.events(rows)
    happened["aux"][happened["type"] == layout.RETRY_SCHEDULED] = 1500
    level = writer.Level(writer.messages(range(1, 31), range(T - 40, T - 10)), happened, 33)
    told = traced(writer.write_queue(tmp_path / "data", level, writer.Options(segment_messages=10)), 12)
    assert [e["what"] for e in told["events"]] == [
        "enqueued", "delivered", "returned", "retry scheduled", "released", "delivered", "returned", "parked",
        "released", "delivered", "acked", "replayed", "delivered", "group parked", "group released"]
    assert told["events"][3]["delay_ms"] == 1500
    assert [e["cause"] for e in told["events"] if e["what"].endswith("parked")] == ["delivery_limit", "by an operator"]
    assert "in 1500 ms" in ctl_trace.text(told)
