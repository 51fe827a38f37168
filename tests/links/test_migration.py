"""docs/migrate.md, followed against Debian's RabbitMQ: there and back, with clients at work all the while."""

import threading

import pika
import pytest
from tests.broker import SECONDS, Broker
from tests.conversations.peer import eventually
from tests.management.http import Http, reserve_http
from tests.rabbitmq import RabbitMQ, installed

pytestmark = pytest.mark.skipif(not installed(), reason="RabbitMQ is not there: apt-get install rabbitmq-server")
PLUGINS = ("rabbitmq_management", "rabbitmq_federation", "rabbitmq_federation_management")
KEPT = pika.BasicProperties(delivery_mode=2)
MOVED_AT = 300  # messages that each step of the way waits for
DEFINITIONS = {
    "users": [{"name": "shop", "password": "till", "tags": "management"}],
    "vhosts": [{"name": "shop"}],
    "permissions": [{"user": name, "vhost": "shop", "configure": ".*", "write": ".*", "read": ".*"}
                    for name in ("shop", "guest")],
    "exchanges": [{"name": "events", "vhost": "shop", "type": "topic", "durable": True, "auto_delete": False,
                   "internal": False, "arguments": {}}],
    "queues": [{"name": name, "vhost": "shop", "durable": True, "auto_delete": False,
                "arguments": {"x-max-length": 1_000_000}} for name in ("orders", "quiet")],
    "bindings": [{"source": "events", "vhost": "shop", "destination": "orders", "destination_type": "queue",
                  "routing_key": "order.#", "arguments": {}}],
    "policies": [{"name": "short", "vhost": "shop", "pattern": "^quiet$", "apply-to": "queues", "priority": 0,
                  "definition": {"message-ttl": 60000}}],
}  # fmt: skip


class Side:
    """One of the two brokers: its clients, and its HTTP API."""

    def __init__(self, amqp_port, http_port):
        self.amqp_port, self.http = amqp_port, Http(http_port)

    def load(self, definitions):
        """Import definitions."""
        answer = self.http.ask("POST", "/api/definitions", definitions, content_type="application/json")
        assert answer.status in (200, 204), answer

    @property
    def uri(self):
        return f"amqp://shop:till@127.0.0.1:{self.amqp_port}/shop"

    def connect(self):
        return pika.BlockingConnection(pika.ConnectionParameters(
            "127.0.0.1", self.amqp_port, "shop", pika.PlainCredentials("shop", "till")))

    def messages(self):
        """How many wait in the queue."""
        connection = self.connect()
        ready = connection.channel().queue_declare("orders", passive=True).method.message_count
        connection.close()
        return ready

    def federate(self, other, pattern=".*", apply_to="queues"):
        """Give it the other's queues or exchanges of these names as upstream."""
        for path, body in (
            ("parameters/federation-upstream/shop/other", {"value": {"uri": other.uri, "reconnect-delay": 1}}),
            ("policies/shop/migrate", {"pattern": pattern, "apply-to": apply_to, "priority": 100,
                                       "definition": {"federation-upstream": "other"}})):
            assert self.http.ask("PUT", f"/api/{path}", body, content_type="application/json").status == 201
        rows = eventually(lambda: self.http.get("/api/federation-links/shop"),
                          lambda rows: rows and {row["status"] for row in rows} == {"running"})
        assert {(row["upstream"], row["uri"]) for row in rows} == {
            ("other", f"amqp://127.0.0.1:{other.amqp_port}/shop")}

    def shovel(self, other):
        """Bring what waits in the other's queue, and what comes there, into its own."""
        body = {"value": {"src-uri": other.uri, "src-queue": "orders", "src-predeclared": True, "reconnect-delay": 1,
                          "dest-uri": "amqp://", "dest-queue": "orders", "dest-predeclared": True}}
        assert self.http.ask("PUT", "/api/parameters/shovel/shop/migrate", body).status == 201
        row = eventually(lambda: self.http.get("/api/shovels/shop/migrate"), lambda row: row["state"] == "running")
        assert row["src_uri"] == f"amqp://127.0.0.1:{other.amqp_port}/shop"

    def end_shovel(self):
        """Take it away again."""
        assert self.http.ask("DELETE", "/api/parameters/shovel/shop/migrate").status == 204

    def end_federation(self):
        """Take it away again."""
        for path in ("policies/shop/migrate", "parameters/federation-upstream/shop/other"):
            assert self.http.ask("DELETE", f"/api/{path}").status == 204


class Client(threading.Thread):
    """Works at one side until it is stopped; what went wrong is raised then."""

    def __init__(self, side):
        super().__init__(daemon=True)
        self._side, self._stopping, self._error = side, threading.Event(), None
        self.start()

    def run(self):
        try:
            connection = self._side.connect()
            self.work(connection, connection.channel())
            connection.close()
        except Exception as error:
            self._error = error

    def stop(self):
        """Return when it has ended."""
        self._stopping.set()
        self.join(SECONDS)
        assert not self.is_alive()
        if self._error is not None:
            raise self._error


class Publisher(Client):
    """Publishes numbers with confirms."""

    def __init__(self, side, numbers):
        self._numbers = numbers
        super().__init__(side)

    def work(self, connection, channel):
        channel.confirm_delivery()
        while not self._stopping.is_set():
            channel.basic_publish("events", "order.new", b"%d" % next(self._numbers), KEPT, mandatory=True)


class Consumer(Client):
    """Appends the numbers that it gets to ``found``; ``read`` makes one of a body."""

    def __init__(self, side, found, read=int):
        self.found, self._read = found, read
        super().__init__(side)

    def work(self, connection, channel):
        channel.basic_qos(prefetch_count=20)
        for method, _, body in channel.consume("orders", inactivity_timeout=0.05):
            if method is not None:
                self.found.append(self._read(body))
                channel.basic_ack(method.delivery_tag)
            if self._stopping.is_set():
                break
        channel.cancel()


@pytest.fixture
def rabbit(tmp_path):
    with RabbitMQ(tmp_path / "rabbit", plugins=PLUGINS) as peer:
        side = Side(peer.port, peer.http_port)
        side.load(DEFINITIONS)
        yield side


@pytest.fixture
def brokerd(tmp_path):
    port = reserve_http()
    with Broker(tmp_path / "data", "--http-port", port) as broker:
        broker.wait_for_log(rf"listening on 127\.0\.0\.1:{port} \(HTTP\)")
        yield Side(broker.port, port)


def wait_for_more(found, count=MOVED_AT):
    """Wait until so many more have come."""
    wanted = len(found) + count
    eventually(lambda: len(found), lambda there: there >= wanted)


def move(old, new, consumer, publisher, numbers, begin=Side.federate, stop=Side.end_federation):
    """Steps 2 to 5 of the page; the clients work at ``old``.  Returns those that work at ``new``."""
    consumer.stop()
    begin(new, old)
    consumer = Consumer(new, consumer.found)
    wait_for_more(consumer.found)  # They come over the link while publishers are at the old broker.
    publisher.stop()
    eventually(old.messages, lambda ready: ready == 0)
    eventually(lambda: consumer.found[-1], lambda last: last == numbers.next - 1)
    publisher = Publisher(new, numbers)
    wait_for_more(consumer.found)
    stop(new)
    return consumer, publisher


def end(consumer, publisher, numbers):
    """Stop both, and see that every number came once and in order."""
    publisher.stop()
    eventually(lambda: len(consumer.found), lambda there: there >= numbers.next)
    consumer.stop()
    assert consumer.found == list(range(numbers.next))


class Numbers:
    """0, 1, 2, …; ``next`` of it was not taken yet."""

    def __init__(self):
        self.next = 0

    def __next__(self):
        number = self.next
        self.next += 1
        return number


def test_clients_move_from_brokerd_to_rabbitmq_and_every_message_comes_once_and_in_order(rabbit, brokerd):
    brokerd.load(rabbit.http.get("/api/definitions"))
    assert brokerd.http.get("/api/queues/shop/quiet")["policy"] == "short"
    rabbit.load(brokerd.http.get("/api/definitions"))
    numbers = Numbers()
    publisher, consumer = Publisher(brokerd, numbers), Consumer(brokerd, [])
    wait_for_more(consumer.found)
    end(*move(brokerd, rabbit, consumer, publisher, numbers), numbers)
    # What RabbitMQ's page says may be some seconds old.
    eventually(lambda: rabbit.http.get("/api/queues/shop/quiet")["policy"], lambda policy: policy == "short")


@pytest.mark.parametrize(("begin", "stop"), [
    (Side.shovel, Side.end_shovel), (Side.federate, Side.end_federation),
], ids=["by a shovel", "by federation"])
def test_clients_move_from_rabbitmq_to_brokerd_and_every_message_comes_once_and_in_order(rabbit, brokerd, begin, stop):
    numbers = Numbers()
    publisher, consumer = Publisher(rabbit, numbers), Consumer(rabbit, [])
    wait_for_more(consumer.found)
    brokerd.load(rabbit.http.get("/api/definitions"))
    moved = move(rabbit, brokerd, consumer, publisher, numbers, begin, stop)
    end(*moved, numbers)
    assert brokerd.http.get("/api/queues/shop/quiet")["policy"] == "short"


def test_rabbitmq_has_an_exchange_of_brokerd_as_upstream_and_leaves_nothing_there(rabbit, brokerd):
    brokerd.load(DEFINITIONS)
    rabbit.federate(brokerd, "^events$", "exchanges")
    bound = eventually(lambda: [row for row in brokerd.http.get("/api/bindings/shop")
                                if row["source"] == "events" and row["destination_type"] == "exchange"])
    assert [row["routing_key"] for row in bound] == ["order.#"]
    connection = brokerd.connect()
    channel = connection.channel()
    channel.basic_publish("events", "order.new", b"over the link")
    channel.basic_publish("events", "order.new", b"was there", pika.BasicProperties(
        headers={"x-received-from": [{"cluster-name": "anybody", "vhost": "shop"}]}))  # It has its one hop.
    channel.basic_publish("events", "other", b"not bound")
    channel.basic_publish("events", "order.new", b"the last")
    connection.close()
    consumer = Consumer(rabbit, [], bytes)
    eventually(lambda: len(consumer.found), lambda there: there >= 2)
    consumer.stop()
    assert consumer.found == [b"over the link", b"the last"]
    rabbit.end_federation()
    eventually(lambda: [row["name"] for row in brokerd.http.get("/api/queues/shop")],
               lambda names: sorted(names) == ["orders", "quiet"])
    assert not [row for row in brokerd.http.get("/api/exchanges/shop") if row["name"].startswith("federation")]
