"""RabbitMQ's publish and get, and its test of a vhost."""

import pytest


@pytest.fixture
def queue(http):
    assert http.ask("PUT", "/api/queues/%2F/m", {"durable": False}).status == 201
    yield http
    http.ask("DELETE", "/api/queues/%2F/m")


def publish(http, payload="hello", encoding="string", key="m", **properties):
    answer = http.ask("POST", "/api/exchanges/%2F/amq.default/publish", {
        "routing_key": key, "payload": payload, "payload_encoding": encoding, "properties": properties})
    assert answer.status == 200, answer
    return answer.body["routed"]


def get(http, **body):
    return http.ask("POST", "/api/queues/%2F/m/get", {"count": 10, "encoding": "auto",
                                                      "ackmode": "ack_requeue_false"} | body)


def test_a_message_goes_in_and_comes_out(queue):
    assert publish(queue, headers={"k": [1, "x"]}, delivery_mode=2, content_type="text/plain")
    (row,) = get(queue).body
    assert row == {"payload_bytes": 5, "redelivered": False, "exchange": "", "routing_key": "m", "message_count": 0,
                   "payload": "hello", "payload_encoding": "string",
                   "properties": {"headers": {"k": [1, "x"]}, "delivery_mode": 2, "content_type": "text/plain"}}
    assert get(queue).body == []


def test_a_message_without_a_queue_is_not_routed(http):
    assert publish(http, key="none") is False


def test_octets_come_as_base64(queue):
    publish(queue, "/w==", "base64")
    publish(queue, "text")
    first, second = get(queue, ackmode="ack_requeue_true").body
    assert (first["payload"], first["payload_encoding"]) == ("/w==", "base64")
    assert second["payload"] == "text"
    assert get(queue, encoding="base64", count="2").body[1]["payload"] == "dGV4dA=="


def test_messages_may_stay_in_their_queue(queue):
    publish(queue)
    assert len(get(queue, ackmode="reject_requeue_true").body) == 1
    assert len(get(queue, ackmode=None, requeue="true").body) == 1
    assert len(get(queue, ackmode="reject_requeue_false", truncate=2).body[0]["payload"]) == 2
    assert get(queue).body == []


@pytest.mark.parametrize("body", [{"count": "x"}, {"count": 0}, {"count": -1}, {"count": 10**9}, {"encoding": "none"},
                                  {"ackmode": "none"}, {"ackmode": None}, {"truncate": -1}, {"count": 1.5}])
def test_a_get_that_is_none_is_a_400(queue, body):
    assert get(queue, **body).status == 400


@pytest.mark.parametrize("body", [
    {}, {"payload": 1}, {"payload_encoding": "none"}, {"properties": "x"}, {"properties": {"none": 1}},
    {"properties": {"delivery_mode": "x"}}, {"payload": "!", "payload_encoding": "base64"}, {"routing_key": "k" * 300},
])
def test_a_publish_that_is_none_is_a_400(http, body):
    whole = {"routing_key": "m", "payload": "", "payload_encoding": "string", "properties": {}}
    sent = {**whole, **body} if body else {}
    assert http.ask("POST", "/api/exchanges/%2F/amq.default/publish", sent).status == 400


def test_a_large_message_is_published(queue):
    assert publish(queue, "x" * 1_000_000)
    assert get(queue).body[0]["payload_bytes"] == 1_000_000


def test_a_purge_may_take_the_first_messages_alone(queue):
    for number in range(5):
        publish(queue, str(number))
    contents = "/api/queues/%2F/m/contents"
    for count in ("0", "-1", "x", "1e3", ""):
        assert queue.ask("DELETE", f"{contents}?count={count}").status == 400
    assert queue.ask("DELETE", f"{contents}?count=3").status == 204
    assert [row["payload"] for row in get(queue, ackmode="ack_requeue_true", count="9").body] == ["3", "4"]
    assert queue.ask("DELETE", contents).status == 204
    assert get(queue).body == []


def test_a_vhost_that_works_is_alive(http):
    assert http.get("/api/aliveness-test/%2F") == {"status": "ok"}
    assert http.ask("GET", "/api/aliveness-test/none").status == 404
    http.ask("DELETE", "/api/queues/%2F/aliveness-test")


def test_where_nothing_is_there_is_a_404(http):
    assert http.ask("POST", "/api/queues/%2F/none/get",
                    {"count": 1, "encoding": "auto", "ackmode": "ack_requeue_true"}).status == 404
    assert http.ask("POST", "/api/exchanges/%2F/none/publish", {
        "routing_key": "m", "payload": "", "payload_encoding": "string", "properties": {}}).status == 404
