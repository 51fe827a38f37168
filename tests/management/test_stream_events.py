"""Streams are read by GET, and followed by server-sent events that lose nothing when a client comes again."""

import json
from http.client import HTTPConnection

import pika
import pytest
from tests.broker import SECONDS
from tests.management.http import basic

from brokerd.management.answers import BadRequest
from brokerd.management.stream_events import fields_of_query


@pytest.fixture(scope="module")
def channel(shared):
    """A channel of AMQP."""
    channel = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", shared.port, heartbeat=0)).channel()
    channel.confirm_delivery()
    yield channel
    channel.connection.close()


@pytest.fixture
def stream(channel):
    """A stream with the messages 1 to 9; every third one has the filter value "c"."""
    channel.queue_declare("events", durable=True, arguments={"x-queue-type": "stream"})
    for number in range(1, 10):
        publish(channel, number, "abc"[number % 3 - 1])
    yield "events"
    channel.queue_delete("events")


def publish(channel, number, value="a"):
    channel.basic_publish("", "events", b"%d" % number, pika.BasicProperties(
        delivery_mode=2, headers={"x-stream-filter-value": value}))


class Events:
    """A client that follows a stream."""

    def __init__(self, http, query, last=None, user="guest"):
        self._client = HTTPConnection("127.0.0.1", http.port, timeout=SECONDS)
        headers = {"authorization": basic(user, user), "accept": "text/event-stream"}
        if last is not None:
            headers["last-event-id"] = str(last)
        self._client.request("GET", f"/api/v2/stream/read?{query}", headers=headers)
        self.answer = self._client.getresponse()
        self.last = ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.answer.close()
        self._client.close()

    def next(self):
        """The next event with data: its name and what it says."""
        found = {}
        while True:
            line = self.answer.readline().decode().rstrip("\n")
            name, _, value = line.partition(": ")
            if line:
                found[name] = value
                continue
            self.last = found.get("id", self.last)
            if "data" in found:
                return found["event"], json.loads(found["data"])
            found = {}

    def payloads(self, count):
        """Of the next messages."""
        got = [self.next() for _ in range(count)]
        assert all(name == "message" for name, _ in got)
        return [message["payload"] for _, message in got]


@pytest.mark.parametrize(("query", "payloads"), [
    ("", "123456789"), ("offset=7", "789"), ("offset=-2", "89"), ("offset=1h&count=2", "12"), ("offset=next", ""),
    ("filter=c", "369"), ("filter=b&filter=c", "235689"), ("filter=c&count=2", "36"), ("contains=4", "4"),
    ("offset=last&filter=a", "147"), ("properties=%7B%22headers%22%3A%7B%22x-stream-filter-value%22%3A%22b%22%7D%7D",
                                      "258"),
])
def test_a_stream_is_read_from_any_offset_with_filters(http, stream, query, payloads):
    answer = http.get(f"/api/v2/stream/read?queue=events&{query}")
    assert "".join(item["payload"] for item in answer["items"]) == payloads
    assert [item["offset"] for item in answer["items"]] == [int(number) for number in payloads]


def test_a_stream_is_read_at_the_path_of_its_queue(http, stream):
    answer = http.get("/api/queues/%2F/events/stream?offset=7&filter=b&filter=c&queue=other")
    assert [item["payload"] for item in answer["items"]] == ["8", "9"]
    assert http.ask("GET", "/api/queues/%2F/none/stream").status == 404


@pytest.mark.parametrize(("body", "payloads"), [
    ({}, "1"), ({"count": 3}, "123"), ({"count": 20, "offset": "7"}, "789"), ({"count": 20, "offset": 8}, "89"),
    ({"count": "2", "offset": -2, "truncate": 1}, "89"), ({"offset": "next"}, ""),
])
def test_a_stream_is_read_as_lavinmq_has_it(http, stream, body, payloads):
    answer = http.ask("POST", "/api/queues/%2F/events/stream", body)
    assert (answer.status, "".join(row["payload"] for row in answer.body)) == (200, payloads)
    assert [row["offset"] for row in answer.body] == [int(number) for number in payloads]
    assert all((row["message_count"], row["redelivered"], row["routing_key"]) == (9, False, "events")
               for row in answer.body)


@pytest.mark.parametrize("body", [{"offset": "soon"}, {"offset": True}, {"offset": None}, {"count": 0}, {"count": "x"},
                                  {"encoding": "none"}, {"truncate": -1}])
def test_a_post_that_reads_no_stream_is_a_400(http, stream, body):
    answer = http.ask("POST", "/api/queues/%2F/events/stream", body)
    assert (answer.status, bool(answer.body["reason"])) == (400, True), answer


def test_reading_goes_on_where_the_answer_says(http, stream):
    found, offset = [], "first"
    while len(found) < 9:
        answer = http.get(f"/api/v2/stream/read?queue=events&count=2&examine=4&offset={offset}")
        found += [item["payload"] for item in answer["items"]]
        offset = answer["next_offset"]
    assert "".join(found) == "123456789"
    assert (offset, answer["end_offset"], answer["missed"]) == (10, 10, 0)


@pytest.mark.parametrize(("query", "status", "text"), [
    ("offset=soon", 400, "offset must be first, last, next, a number"),
    ("count=0", 400, "count must be a whole number from 1 to 10000"),
    ("count=many", 400, "count must be a whole number"),
    ("match_unfiltered=yes", 400, "match_unfiltered must be true or false"),
    ("properties=%7B", 400, "properties is not JSON"),
    ("wait=21", 400, "wait must be a whole number of seconds from 0 to 20"),
    ("colour=red", 400, "unknown field 'colour'"),
    ("filter=" + "a" * 256, 400, "filter: a value of 256 octets, at most 255"),
    ("vhost=none", 403, "no permissions in vhost 'none'"),
])
@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
def test_what_is_wrong_is_told_with_its_status_also_to_who_wants_events(http, stream, query, status, text, accept):
    if query.startswith("vhost"):
        http.do("user", "add", user="lone", password="lone", tags=["management"], replace=True)
        http = http.as_user("lone", "lone")
    answer = http.ask("GET", f"/api/v2/stream/read?queue=events&{query}", accept=accept)
    assert (answer.status, text in answer.body["detail"]) == (status, True), answer


def test_a_queue_that_is_no_stream_is_refused(http, channel):
    channel.queue_declare("plain", durable=True)
    answer = http.ask("GET", "/api/v2/stream/read?queue=plain")
    assert (answer.status, answer.body["detail"]) == (
        409, "queue 'plain' in vhost '/' is no stream: argument x-queue-type makes one")
    channel.queue_delete("plain")


def test_events_come_as_messages_come(http, stream, channel):
    with Events(http, "queue=events&offset=8") as events:
        assert events.answer.getheader("content-type").startswith("text/event-stream")
        assert events.payloads(2) == ["8", "9"]
        publish(channel, 10)
        assert events.payloads(1) == ["10"]
        assert events.last == "10"


def test_who_comes_again_with_the_last_id_gets_all_once(http, stream, channel):
    with Events(http, "queue=events&filter=c") as events:
        assert events.payloads(2) == ["3", "6"]
        last = events.last
    publish(channel, 10, "c")
    with Events(http, "queue=events&filter=c&offset=next", last) as events:
        assert events.payloads(2) == ["9", "10"]


def test_an_id_moves_past_what_a_filter_leaves_out(http, stream):
    with Events(http, "queue=events&filter=nothing") as events:
        assert events.answer.readline() == b"id: 9\n"
    with Events(http, "queue=events&offset=next") as events:
        assert events.answer.readline() == b"id: 9\n"


def test_a_follower_is_told_of_what_was_removed_and_of_the_end(http, stream, channel):
    channel.queue_purge("events")
    publish(channel, 10)
    with Events(http, "queue=events&offset=4") as events:
        assert events.next() == ("missed", {"missed": 6, "first_offset": 10})
        assert events.payloads(1) == ["10"]
        channel.queue_delete("events")
        name, told = events.next()
        assert (name, "events" in told["detail"]) == ("failed", True)
        assert events.answer.readline() == b""


def test_a_follower_that_does_not_read_holds_up_nobody(http, stream, channel):
    """It is asked for no more of the stream than fits into its socket."""
    for _ in range(200):
        channel.basic_publish("", "events", bytes(100_000), pika.BasicProperties(delivery_mode=2))
    with Events(http, "queue=events"), Events(http, "queue=events&offset=-1&truncate=1") as other:
        other.payloads(1)
        channel.basic_publish("", "events", b"the last one")
        assert other.payloads(1) == ["t"]
        assert len(http.get("/api/v2/stream/read?queue=events&offset=-1")["items"]) == 1


def test_a_query_becomes_the_fields_of_the_operation():
    assert fields_of_query("queue=a%2Fb&count=5&match_unfiltered=true&filter=x&filter=y&properties={}&offset=5") == {
        "queue": "a/b", "count": 5, "match_unfiltered": True, "filter": ["x", "y"], "properties": {}, "offset": "5"}
    with pytest.raises(BadRequest, match="more than 100 fields"):
        fields_of_query("a=1&" * 101)
