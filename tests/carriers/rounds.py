"""Rounds of kill -9 under load: of the source's broker, the destination's, or the process of links.

    python -m tests.carriers.rounds 100
    python -m tests.carriers.rounds 100 dedup
    python -m tests.carriers.rounds 100 stream
    python -m tests.carriers.rounds 100 federation
    python -m tests.carriers.rounds 100 exchange

A producer publishes numbers with confirms; a shovel carries them on-confirm; something is killed at a random moment.
At the destination each confirmed number must be there, and numbers must grow but for those that are marked as perhaps
delivered before.  With dedup none comes twice; with stream neither, where the shovel's source is a stream.
With federation the queue at the destination has the source's as its upstream, and a consumer all the time; with
exchange it is an exchange that has an upstream.  A third argument is the seconds of rest between rounds.

100 rounds of each kind passed, on a busy machine, after links began to ask for their lag.
"""

import contextlib
import os
import random
import signal
import sys
import tempfile
import threading
from pathlib import Path

import pika
from tests.broker import SECONDS, Broker
from tests.carriers.ends import QUICK, ask, await_true, fill, shovel, uri
from tests.server import clients

from brokerd.carriers.rewriting import REDELIVERED

PLAIN, DEDUP, STREAM, FEDERATION, EXCHANGE = "plain", "dedup", "stream", "federation", "exchange"
NUMBERS = "numbers"  # the federated exchange


class Producer(threading.Thread):
    """Publishes numbers until told to stop, reconnecting; knows which were confirmed."""

    def __init__(self, broker, first, kind):
        super().__init__(daemon=True)
        self.broker, self.stopping = broker, False
        self.exchange = NUMBERS if kind == EXCHANGE else ""
        self.confirmed, self.number = set(), first
        self.enough = threading.Event()

    def run(self):
        while not self.stopping:
            with contextlib.suppress(pika.exceptions.AMQPError, OSError):
                self.publish()

    def publish(self):
        connection = pika.BlockingConnection(clients.parameters(self.broker))
        channel = connection.channel()
        channel.confirm_delivery()
        try:
            while not self.stopping:
                self.number += 1
                channel.basic_publish(self.exchange, "from", b"%d" % self.number, clients.PERSISTENT, mandatory=True)
                self.confirmed.add(self.number)
                if len(self.confirmed) % 50 == 0:
                    self.enough.set()
        finally:
            with contextlib.suppress(pika.exceptions.AMQPError, OSError):
                connection.close()


class Consumer(threading.Thread):
    """Takes numbers from the destination until it has had the last one, reconnecting."""

    def __init__(self, broker):
        super().__init__(daemon=True)
        self.broker, self.last = broker, 0
        self.found, self.marked = [], []    # numbers, and whether each may have come before

    def run(self):
        while not self.has_all():
            with contextlib.suppress(pika.exceptions.AMQPError, OSError):
                self.consume()

    def has_all(self):
        return self.last and self.last in self.found[-2000:]

    def consume(self):
        with contextlib.closing(pika.BlockingConnection(clients.parameters(self.broker))) as connection:
            channel = connection.channel()
            for method, properties, body in channel.consume("to", inactivity_timeout=0.1):
                if method is not None:
                    passed, *_ = properties.headers["x-received-from"]
                    self.found.append(int(body))
                    self.marked.append(method.redelivered or passed["redelivered"])
                    channel.basic_ack(method.delivery_tag)
                if self.has_all():
                    return


def process_of_links(broker):
    """Its pid; 0 if it does not run just now."""
    for task in os.listdir(f"/proc/{broker.pid}/task"):
        with open(f"/proc/{broker.pid}/task/{task}/children") as file:
            for pid in file.read().split():
                with contextlib.suppress(OSError):
                    # The latter is how a fork of the nursery's is called.
                    if any("links" in Path(f"/proc/{pid}/{name}").read_text() for name in ("cmdline", "comm")):
                        return int(pid)
    return 0


def one_round(victim, source, destination, choose, first, kind):
    """Kill once, then see that all comes; numbers begin behind ``first``.  The last number."""
    producer, consumer = Producer(source, first, kind), Consumer(destination)
    if kind == FEDERATION:
        consumer.start()
    producer.start()
    producer.enough.wait(SECONDS)
    threading.Event().wait(choose.random() / 5)
    if victim == "links":
        pid = process_of_links(destination if kind in (FEDERATION, EXCHANGE) else source)
        if pid:
            os.kill(pid, signal.SIGKILL)
    else:
        (source if victim == "source" else destination).restart(kill=True)
    producer.enough.clear()
    producer.enough.wait(SECONDS)
    producer.stopping = True
    producer.join()
    with contextlib.closing(pika.BlockingConnection(clients.parameters(source))) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        producer.number += 1
        channel.basic_publish(producer.exchange, "from", b"%d" % producer.number, clients.PERSISTENT, mandatory=True)
    if kind == FEDERATION:
        consumer.last = producer.number
        consumer.join(SECONDS)
        found, marked = consumer.found, consumer.marked
    else:
        found, marked = received(destination, producer.number)
    if kind in (DEDUP, STREAM):
        marked = [False] * len(found)
    check(producer.confirmed, found, marked, first)
    return producer.number


def federate(source, destination):
    """The queue "to" gets what is in the queue "from" of the source."""
    for broker, queue in ((source, "from"), (destination, "to")):
        fill(broker, queue, []).connection.close()
    ask(destination, "parameter set", component="federation-upstream", name="up",
        value={"uri": uri(source), "queue": "from", "reconnect-delay": QUICK})
    ask(destination, "policy set", name="fed", pattern="^to$", definition={"federation-upstream": "up"})


def federate_exchange(source, destination):
    """The exchange of the destination, to which its queue "to" is bound, gets what is published to the source's."""
    fill(destination, "to", []).connection.close()
    for broker in (source, destination):
        ask(broker, "exchange declare", exchange=NUMBERS, type="fanout")
    ask(destination, "binding add", source=NUMBERS, destination="to")
    ask(destination, "parameter set", component="federation-upstream", name="up",
        value={"uri": uri(source), "reconnect-delay": QUICK})
    ask(destination, "policy set", name="fed", pattern=f"^{NUMBERS}$", definition={"federation-upstream": "up"})


def names_of_queues(broker):
    """Of the vhost /."""
    return {row["name"] for row in ask(broker, "queue list")["items"]}


def received(destination, last):
    """Numbers that arrived, in order, and those of them that were marked."""
    found, marked = [], []
    with contextlib.closing(pika.BlockingConnection(clients.parameters(destination))) as connection:
        channel = connection.channel()
        for method, properties, body in channel.consume("to", inactivity_timeout=SECONDS):
            assert method is not None, f"{len(found)} came, and not the last"
            channel.basic_ack(method.delivery_tag)
            found.append(int(body))
            headers = properties.headers or {}
            passed = headers.get("x-received-from")
            marked.append(bool(passed[0]["redelivered"] if passed else headers.get(REDELIVERED)))
            if found[-1] == last:
                break
    return found, marked


def check(confirmed, found, marked, top):
    """Nothing is lost, and the order holds but for what is marked."""
    assert confirmed <= set(found), sorted(confirmed - set(found))[:10]
    first = [number for number, again in zip(found, marked, strict=True) if not again]
    assert first == sorted(set(first)), "the order of messages that are not marked"
    seen = set()
    for number, again in zip(found, marked, strict=True):
        assert again or number > top, f"{number} came behind {top}"
        assert number not in seen or again, f"{number} came twice without a mark"
        seen.add(number)
        top = max(top, number)


def link(source, destination, kind):
    """Make the link, and return when messages can come."""
    if kind == FEDERATION:
        federate(source, destination)
    elif kind == EXCHANGE:
        federate_exchange(source, destination)
        await_true(lambda: names_of_queues(source))
        await_true(lambda: ask(destination, "federation_link list")["items"][0]["state"] == "running")
        return
    else:
        if kind == STREAM:
            fill(source, "from", [], {"x-queue-type": "stream"}).connection.close()
        shovel(source, src_queue="from", dest_uri=uri(destination), dest_queue="to", dedup=kind in (DEDUP, STREAM))
    for broker, queue in ((source, "from"), (destination, "to")):
        await_true(lambda broker=broker, queue=queue: queue in names_of_queues(broker))
    if kind == STREAM:  # It has no place there before it has begun.
        await_true(lambda: ask(source, "shovel show", name="s")["state"] == "running")


def run(rounds, directory, seed=None, *, kind=PLAIN, rest=0.0):
    """So many rounds."""
    choose = random.Random(seed)
    with Broker(f"{directory}/source") as source, Broker(f"{directory}/destination") as destination:
        link(source, destination, kind)
        last = 0
        for number in range(rounds):
            victim = ("source", "destination", "links")[number % 3]
            last = one_round(victim, source, destination, choose, last, kind)
            if rounds > 3:
                sys.stdout.write(f"{number + 1} {victim}\n")
                sys.stdout.flush()
            threading.Event().wait(rest)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        run(int(sys.argv[1]), made, kind=sys.argv[2] if len(sys.argv) > 2 else PLAIN,
            rest=float(sys.argv[3]) if len(sys.argv) > 3 else 0.0)
