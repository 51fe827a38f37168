"""The life of a message in lines; what a real one looks like is told in test_brokerctl."""

import pytest

from brokerd.cli import ctl_text, ctl_trace
from brokerd.errors import BrokerError

START = 1_700_000_000_000_000_000
RECORD = {"ts": START, "connection": 3, "channel": 1, "publish_seq": 17, "exchange": "x", "routing_key": "k\n",
          "message_id": "m", "body_octets": 1200, "persistent": True}
TABLE = {"vhost": "/", "queue": "q", "seq": 42, "priority": 2, "segment": 5, "position": 64, "record": RECORD,
         "events": [], "known": "all", "state": "ready", "reason": None, "deliveries": 0, "returns": 0}
CONSUMER = {"number": 9, "tag": "t", "peer": "127.0.0.1:1", "user": "guest"}


def lines(*events, **more):
    return ctl_trace.text(TABLE | {"events": list(events)} | more).splitlines()


def event(what, after=0, consumer=None, **more):
    return {"ts": START + after, "what": what, "consumer": consumer, "count": 0, **more}


def test_who_published_it_is_told_with_what_it_is():
    assert lines(event("enqueued")) == [
        "message 42 of queue 'q' in vhost '/': ready", "",
        r"  published by connection 3, channel 1, as its publish 17, to exchange 'x' with routing key 'k\n'",
        "  1.2 kB, persistent, priority 2, message-id 'm'; segment 5 at 64", "",
        f"  {ctl_text.moment(START)}    enqueued",
    ]


def test_what_the_broker_put_there_itself_has_no_publisher():
    assert lines(record=RECORD | {"connection": 0, "message_id": None, "persistent": False})[2:4] == [
        r"  put there by the broker, from exchange 'x' with routing key 'k\n'",
        "  1.2 kB, not persistent, priority 2; segment 5 at 64",
    ]


@pytest.mark.parametrize(("one", "told"), [
    (event("delivered", 1500, CONSUMER, delivery_tag=4), "+1.5 µs  delivered  to 't' (127.0.0.1:1), tag 4"),
    (event("delivered", 1500, {"connection": 3}, delivery_tag=4, redelivered=True, by_get=True, count=2),
     "+1.5 µs  delivered  to connection 3, tag 4, redelivered, by basic.get, failed deliveries: 2"),
    (event("delivered", 1500, {"number": 9}, delivery_tag=4, no_ack=True, before_start=True),
     "+1.5 µs  delivered  to consumer 9, tag 4, without ack, delivered before the broker's last start"),
    (event("returned", 1500, CONSUMER, cause="nack", count=1),
     "+1.5 µs  returned  by 't' (127.0.0.1:1), nack, failed deliveries: 1"),
    (event("returned", 1500, cause="broker started"), "+1.5 µs  returned  broker started"),
    (event("acked", 1500, count=3), "+1.5 µs  acked"),
])
def test_events_are_told_in_a_line_each(one, told):
    assert lines(one)[-1] == f"  {ctl_text.moment(START + 1500)}  {told}"


def test_how_it_ended_is_told_with_the_reason():
    assert lines(state="dead-lettered", reason="delivery_limit")[0].endswith(": dead-lettered (delivery_limit)")


def test_what_acks_files_say_has_no_time():
    told = lines(event("enqueued"), event("delivered again", count=2) | {"ts": None}, event("acked") | {"ts": None},
                 known="acks only")
    assert [line.split() for line in told[6:8]] == [
        ["-", "delivered", "again", "failed", "deliveries:", "2"], ["-", "acked"]]
    assert told[-1] == (
        "  The queue had no order journal: neither its first delivery nor the times of events are known."
    )


@pytest.mark.parametrize(("more", "told"), [
    ({"known": "part"}, "The order journal does not cover the message's whole life: events may be missing."),
    ({"record": None}, "its record is gone with a compaction"),
])
def test_what_is_missing_is_said(more, told):
    assert f"  {told}" in lines(event("acked", 5), **more)


def test_of_a_message_that_is_not_here_it_is_said_why():
    assert lines(known="nothing", state="unknown", record=None, why="its segment was removed") == [
        "message 42 of queue 'q' in vhost '/': unknown", "", "  Nothing is known of it: its segment was removed."]


def test_a_queue_that_is_not_in_the_folder_is_named(tmp_path):
    (tmp_path / "schema_version").write_text("1\n")
    with pytest.raises(BrokerError, match=r"^no queue 'q\[\*\]' in vhost '/' in "):
        ctl_trace.read(str(tmp_path), "/", "q[*]", 1)


def test_what_is_spoiled_stands_below_the_life_and_ends_with_1():
    row = {"file": "v/q/acks.1", "offset": 56, "detail": "is no\x07t zero", "missing": ["events"]}
    told = lines(spoiled=[row, row | {"offset": -1}])
    assert told[-3:] == ["  Spoiled, so that the message's life may have been another one:",
                         "    v/q/acks.1 at 56: is no\\x07t zero", "    v/q/acks.1: is no\\x07t zero"]
    assert ctl_trace.exit_status(TABLE | {"spoiled": [row]}) == 1
    assert ctl_trace.exit_status(TABLE | {"spoiled": []}) == 0
    many = lines(spoiled=[row] * 25)
    assert many[-1] == "    ... and 5 more"
    nothing = lines(known="nothing", why="it is gone", spoiled=[row])
    assert "Nothing is known of it: it is gone." in nothing[2]
    assert nothing[-1] == "    v/q/acks.1 at 56: is no\\x07t zero"
