"""What ordinary clients do to the order of a queue is told alike by the running broker and by its files' audit."""

import contextlib
import json
import socket
from random import Random

import pika
import pytest
from tests.broker import SECONDS, Broker
from tests.conversations.peer import eventually

from brokerd.audit.files import open_source
from brokerd.audit.scan import Options
from brokerd.audit.verdicts import audit, exit_status

ENVIRONMENT = {"BROKERD_SEGMENT_OCTETS": str(1 << 20), "BROKERD_FREE_DISK_MIN_OCTETS": "0"}
JOURNAL = {"x-order-journal": True}
DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
QUEUES = {
    "dead": {},
    "plain": {},
    "levels": {"x-max-priority": 3},
    "limited": {**DEAD, "x-delivery-limit": 2},
    "aged": {**DEAD, "x-message-ttl": 1},
    "purged": {"x-max-priority": 1},
}
BATCH = 150


class Clients:
    """Connections of pika to one broker, each with a channel."""

    def __init__(self, broker, random):
        self.broker, self.random = broker, random
        self.open = []

    def channel(self):
        connection = pika.BlockingConnection(pika.ConnectionParameters(port=self.broker.port, heartbeat=0))
        self.open.append(connection)
        return connection.channel()

    def declare(self):
        channel = self.channel()
        for name, arguments in QUEUES.items():
            channel.queue_declare(name, durable=True, arguments=JOURNAL | arguments)

    def publish(self, names, count=BATCH):
        channel = self.channel()
        for _ in range(count):
            properties = pika.BasicProperties(delivery_mode=2, priority=self.random.randrange(5))
            channel.basic_publish("", self.random.choice(names), self.random.randbytes(self.random.choice((10, 4000))),
                                  properties)
        channel.queue_declare(names[0], passive=True)       # All are stored when this is answered.

    def work(self, name, channels, steps):
        """Two consumers that have a few each, settle any of them, and now and then leave with what they have."""
        out = [[], []]
        for which, channel in enumerate(channels):
            self.consume(channel, name, out[which])
        for _ in range(steps):
            which = self.random.randrange(2)
            if not out[which]:      # What the broker has for it comes before the answer.
                channels[which].queue_declare(name, passive=True)
            channels[which].connection.process_data_events(0)
            if out[which] and not self.settle(channels[which], out[which]):
                out[which].clear()
                channels[which] = self.channel()
                self.consume(channels[which], name, out[which])

    def consume(self, channel, name, tags):
        channel.basic_qos(prefetch_count=self.random.choice((1, 3, 10)))
        channel.basic_consume(name, lambda _, method, *__: tags.append(method.delivery_tag))

    def settle(self, channel, tags):
        """One step; False: the channel is closed."""
        dice, tag = self.random.random(), tags.pop(self.random.randrange(len(tags)))
        if dice < 0.5:
            channel.basic_ack(tag)
        elif dice < 0.65:
            channel.basic_nack(tag)
        elif dice < 0.8:
            channel.basic_reject(tag)
        elif dice < 0.9:
            channel.basic_reject(tag, requeue=False)
        elif dice < 0.93:
            tags.append(tag)
            tags.sort()
            channel.basic_nack(tags[-1], multiple=True)
            tags.clear()
        elif dice < 0.96:
            channel.close()
            return False
        elif dice < 0.98:
            drop(channel.connection)
            return False
        else:
            tags.append(tag)
        return True

    def get(self, name, count):
        channel = self.channel()
        for _ in range(count):
            loose, dice = self.random.random() < 0.2, self.random.random()
            method, _, _ = channel.basic_get(name, auto_ack=loose)
            if method is not None and not loose and dice < 0.4:
                channel.basic_ack(method.delivery_tag)
            elif method is not None and not loose and dice < 0.8:
                channel.basic_nack(method.delivery_tag, requeue=dice < 0.7)

    def restart(self, *, kill):
        """Of the broker.  Only a killed one does not wait for its clients to answer its farewell."""
        if not kill:
            self.close()
        self.broker.restart(kill=kill)
        self.close()

    def close(self, but=None):
        """Of all connections, or of all but that of one channel."""
        kept = [connection for connection in self.open if but is not None and connection is but.connection]
        for connection in self.open:
            if connection not in kept:
                with contextlib.suppress(pika.exceptions.AMQPError):
                    connection.close()
        self.open = kept


def drop(connection):
    """The connection's socket is closed under it."""
    connection._impl._transport._sock.shutdown(socket.SHUT_RDWR)
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        while True:
            connection.process_data_events(0)


def ask(broker, **request):
    """What the control socket answers."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(SECONDS)
        sock.connect(str(broker.directory / "control.sock"))
        sock.sendall(json.dumps(request).encode() + b"\n")
        with sock.makefile("rb") as answers:
            answer = json.loads(answers.readline())
    assert "result" in answer, answer
    return answer["result"]


def flat(counters):
    """The counters of an answer by the names that audits use; only what is not 0."""
    named = {}
    for group, value in counters.items():
        for name, count in value.items() if isinstance(value, dict) else ((None, value),):
            plain = name is None or (group == "dropped" and name in ("rejected", "expired", "removed", "purged"))
            named[(name or group) if plain else f"{group}_{name}"] = count
    return {name: count for name, count in named.items() if count}


def compare(broker):
    """The broker's counters are the audit's, and all else holds; overtakings by queue."""
    eventually(lambda: knows_consumers(broker))
    source = open_source(str(broker.directory))
    overtakings = {}
    judged = audit(source, Options())
    for one in judged:
        name = one.queue["queue"]
        told = flat(ask(broker, verb="ordering", queue=name)["counters"]["since_declare"])
        assert {key: count for key, count in one.queue["counters"].items() if count} == told, name
        overtakings[name] = told.get("overtakings", 0)
        row = next(row for row in one.audits if row["audit"] == "overtaking")
        assert (row["found"], row["overtakings"]) == (told.get("out_of_sequence", 0), overtakings[name])
    rows = [row for one in judged for row in one.audits]
    assert [row for row in rows if row["verdict"] != "held" and row["audit"] != "overtaking"
            and (row["audit"], row["verdict"]) != ("chain", "covers nothing")] == []
    assert exit_status(rows) == 0, "overtaking is no broken promise"
    assert exit_status(rows, "overtaking") == (1 if any(overtakings.values()) else 0)
    assert set(overtakings) == set(QUEUES)
    return overtakings


def knows_consumers(broker):
    """Whether the lines of all consumers are written.  This happens beside the messages: they may come later than what
    is counted, and a kill may lose some."""
    rows = [row for one in audit(open_source(str(broker.directory)), Options()) for row in one.audits]
    return all(row["verdict"] == "held" for row in rows if row["audit"] == "consumers")


def round_of(clients):
    clients.publish(list(QUEUES))
    for name in ("plain", "levels", "limited", "dead"):
        clients.work(name, [clients.channel(), clients.channel()], 150)
    for name in ("plain", "levels", "aged"):
        clients.get(name, 20)
    channel = clients.channel()
    channel.queue_purge("purged")
    clients.close(but=channel)
    eventually(lambda: channel.queue_declare("aged", passive=True).method.message_count == 0)
    clients.close()


@pytest.mark.parametrize("seed", [1, 2])
def test_counters_of_the_running_broker_and_the_audit_of_its_files_are_the_same(tmp_path, seed):
    with Broker(tmp_path / "data", env=ENVIRONMENT) as broker:
        clients = Clients(broker, Random(seed))
        clients.declare()
        for kill in (True, False, True):
            round_of(clients)
            compare(broker)
            clients.publish(["plain", "levels"])
            for name in ("plain", "levels"):                # Some are out when the broker goes.
                clients.work(name, [clients.channel(), clients.channel()], 20)
            eventually(lambda: knows_consumers(broker))
            clients.restart(kill=kill)
        round_of(clients)
        overtakings = compare(broker)
        assert overtakings["plain"] > 0
        assert overtakings["levels"] > 0


def test_one_consumer_with_prefetch_1_disturbs_nothing_whatever_it_returns(tmp_path):
    with Broker(tmp_path / "data", env=ENVIRONMENT) as broker:
        clients = Clients(broker, Random(3))
        clients.declare()
        clients.publish(["plain"], 200)
        for kill in (True, False, True):
            channel = clients.channel()
            channel.basic_qos(prefetch_count=1)
            for count, (method, _, _) in enumerate(channel.consume("plain", inactivity_timeout=SECONDS)):
                if count == 120:
                    break
                if count % 3:
                    channel.basic_nack(method.delivery_tag)
                else:
                    channel.basic_ack(method.delivery_tag)
            eventually(lambda: knows_consumers(broker))
            clients.restart(kill=kill)
        assert set(compare(broker).values()) == {0}
        counters = flat(ask(broker, verb="ordering", queue="plain")["counters"]["since_declare"])
        assert counters["redelivered"] > counters["redelivered_after_restart"] > 0
