"""Rounds of kill -9 under load: of the source's broker, the destination's, or the process of links.

    python -m tests.carriers.rounds 100
    python -m tests.carriers.rounds 100 dedup
    python -m tests.carriers.rounds 100 federation

A producer publishes numbers with confirms; a shovel carries them on-confirm; something is killed at a random moment.
At the destination each confirmed number must be there, and numbers must grow but for those that are marked as perhaps
delivered before.  With dedup none comes twice.
With federation the queue at the destination has the source's as its upstream, and a consumer all the time.
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

PLAIN, DEDUP, FEDERATION = "plain", "dedup", "federation"


class Producer(threading.Thread):
    """Publishes numbers until told to stop, reconnecting; knows which were confirmed."""

    def __init__(self, broker, first):
        super().__init__(daemon=True)
        self.broker, self.stopping = broker, False
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
                channel.basic_publish("", "from", b"%d" % self.number, clients.PERSISTENT)
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
    producer, consumer = Producer(source, first), Consumer(destination)
    if kind == FEDERATION:
        consumer.start()
    producer.start()
    producer.enough.wait(SECONDS)
    threading.Event().wait(choose.random() / 5)
    if victim == "links":
        pid = process_of_links(destination if kind == FEDERATION else source)
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
        producer.number += 1
        clients.publish_confirmed(channel, "from", [b"%d" % producer.number])
    if kind == FEDERATION:
        consumer.last = producer.number
        consumer.join(SECONDS)
        found, marked = consumer.found, consumer.marked
    else:
        found, marked = received(destination, producer.number)
    if kind == DEDUP:
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
            marked.append(bool((properties.headers or {}).get(REDELIVERED)))
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


def run(rounds, directory, seed=None, *, kind=PLAIN):
    """So many rounds."""
    choose = random.Random(seed)
    with Broker(f"{directory}/source") as source, Broker(f"{directory}/destination") as destination:
        if kind == FEDERATION:
            federate(source, destination)
        else:
            shovel(source, src_queue="from", dest_uri=uri(destination), dest_queue="to", dedup=kind == DEDUP)
        for broker, queue in ((source, "from"), (destination, "to")):
            await_true(lambda broker=broker, queue=queue: queue in names_of_queues(broker))
        last = 0
        for number in range(rounds):
            victim = ("source", "destination", "links")[number % 3]
            last = one_round(victim, source, destination, choose, last, kind)
            if rounds > 3:
                sys.stdout.write(f"{number + 1} {victim}\n")
                sys.stdout.flush()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        run(int(sys.argv[1]), made, kind=sys.argv[2] if len(sys.argv) > 2 else PLAIN)
