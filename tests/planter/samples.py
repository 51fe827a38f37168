"""Real brokers with real clients (pika), whose files the planter plants faults in.

    sample(directory) -> Sample(dump, stopped)

One broker with segments of 1 MiB lives three times: it is stopped once with messages out, killed once with messages
out, then a dump is made while messages are out, and it is stopped.  Messages have 16 KiB, so that 63 or so fill a
segment.  Who does what is decided by the numbers of the messages, never by chance or time.

    plain       two consumers; nack, reject, recover, closed channels, closed and lost connections
    levels      three priorities; higher ones come while lower ones wait
    limited     delivery limit 2, dead letters go to ``dead``
    single      single active consumer: three take turns
    aged        time to live; some messages with a time of their own expire, and go to ``dead``
    short       length limit 10, the others go to ``dead``
    purged      purged once
    got         basic.get, with and without acks
    bare        without a journal
    sure        dead letters at least once, to ``dead``; these are the last ones that come there
    dead        dead letters of the others

``samples_groups`` and ``samples_streams`` have more of them.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import pika
from tests.broker import ROOT, Broker, environment
from tests.planter import samples_groups, samples_streams

OCTETS = 16 << 10
SECONDS = 60                        # limit of every wait
JOURNAL = {"x-order-journal": True}
TO_DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
QUEUES = {
    "plain": JOURNAL,
    "levels": JOURNAL | {"x-max-priority": 2},
    "limited": JOURNAL | TO_DEAD | {"x-delivery-limit": 2},
    "single": JOURNAL | {"x-single-active-consumer": True},
    "aged": JOURNAL | TO_DEAD | {"x-message-ttl": 3_600_000},
    "short": JOURNAL | TO_DEAD | {"x-max-length": 10},
    "purged": JOURNAL,
    "got": JOURNAL,
    "bare": {},
    "sure": JOURNAL | TO_DEAD | {"x-queue-type": "quorum", "x-dead-letter-strategy": "at-least-once",
                                 "x-overflow": "reject-publish"},
    "dead": JOURNAL,
    **samples_groups.QUEUES,
    **samples_streams.QUEUES,
}

FLAGS = ("--segment-octets", str(1 << 20), "--no-sync", "--stop-timeout-seconds", "1")


def with_others(name, queues=QUEUES):
    """A queue, and those into which its audit also looks."""
    return {name, queues[name].get("x-dead-letter-routing-key", name)}


@dataclass(frozen=True)
class Sample:
    dump: Path
    stopped: Path                   # the data directory after a clean stop


def until(connection, is_so):
    """Let a connection work until something is so."""
    limit = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < limit, "what was waited for does not happen"
        connection.process_data_events(0.02)


def drain(connection):
    """Let a connection that has lost its broker find that out, and close what it has open."""
    while connection.is_open:
        try:
            connection.process_data_events(0.02)
        except pika.exceptions.AMQPError:
            return


def body_of(queue, number, octets=OCTETS):
    """A body that no other message has."""
    return f"{queue} {number} ".encode().ljust(octets, b".")


def number_of(body):
    return int(body.split()[1])


class Publisher:
    """Confirmed publishes on two channels by turns."""

    def __init__(self, port):
        self.connection = pika.BlockingConnection(pika.ConnectionParameters(port=port, heartbeat=0))
        self.channels = [self.connection.channel() for _ in range(2)]
        for channel in self.channels:
            channel.confirm_delivery()

    def publish(self, queue, numbers, *, octets=OCTETS, **properties):
        for number in numbers:
            more = {name: value(number) if callable(value) else value for name, value in properties.items()}
            self.channels[number % 2].basic_publish(
                "", queue, body_of(queue, number, octets),
                pika.BasicProperties(delivery_mode=2, message_id=f"{queue}-{number}", **more))

    def ready(self, queue):
        return self.channels[0].queue_declare(queue, passive=True).method.message_count

    def close(self):
        self.connection.close()


class Worker:
    """One consumer, and what it holds."""

    def __init__(self, port, queue, prefetch, tag, arguments=None):
        self.port, self.queue, self.prefetch, self.tag, self.arguments = port, queue, prefetch, tag, arguments
        self.connection = pika.BlockingConnection(pika.ConnectionParameters(port=port, heartbeat=0))
        self.open_channel()

    def open_channel(self):
        self.held = deque()         # (tag, number, redelivered)
        self.channel = self.connection.channel()
        self.channel.basic_qos(prefetch_count=self.prefetch)
        self.channel.basic_consume(self.queue, self._on_message, consumer_tag=self.tag,
                                   arguments=self.arguments)

    def _on_message(self, channel, method, properties, body):
        self.held.append((method.delivery_tag, number_of(body), method.redelivered))

    def take(self, count=1):
        """Wait until it holds so many."""
        until(self.connection, lambda: len(self.held) >= count)
        return self

    def flush(self):
        """All that was sent has been done."""
        self.channel.queue_declare(self.queue, passive=True)

    def work(self, count, decide=lambda number, redelivered: "ack"):
        """Settle so many deliveries, the oldest first, as ``decide`` says.

        Each is done before the next: else the machine decides how many of them the broker reads at once, and what it
        delivers in between.
        """
        for _ in range(count):
            self.take()
            tag, number, redelivered = self.held.popleft()
            how = decide(number, redelivered)
            if how == "ack":
                self.channel.basic_ack(tag)
            elif how == "nack":
                self.channel.basic_nack(tag, requeue=True)
            elif how == "requeue":
                self.channel.basic_reject(tag, requeue=True)
            else:
                self.channel.basic_reject(tag, requeue=False)
            self.flush()
        return self

    def recover(self):
        self.held.clear()
        self.channel.basic_recover(requeue=True)
        return self

    def reopen(self):
        """Close the channel with what it holds, and consume on another one."""
        self.channel.close()
        self.open_channel()
        return self

    def close(self):
        self.connection.close()

    def vanish(self):
        """The connection is lost: the broker sees the end of the socket, and no close."""
        self.connection._impl._transport._sock.shutdown(socket.SHUT_RDWR)
        drain(self.connection)


def _decide_plain(number, redelivered):
    if redelivered:
        return "ack"
    return {3: "nack", 7: "requeue", 11: "reject"}.get(number % 17, "ack")


def _decide_limited(number, redelivered):
    if number % 9 == 4:
        return "nack"
    if number % 13 == 6:
        return "reject"
    return "requeue" if number % 11 == 5 and not redelivered else "ack"


class Story:
    """What the clients of one broker do."""

    def __init__(self, directory):
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.broker = Broker(self.directory / "data", *FLAGS)
        self.open = []

    @property
    def port(self):
        return self.broker.port

    def worker(self, queue, prefetch, tag, arguments=None):
        self.open.append(Worker(self.port, queue, prefetch, tag, arguments))
        return self.open[-1]

    def control(self, *words):
        """What an operator does."""
        return control(self.broker.directory, *words)

    def tell(self):
        with self.broker:
            self.publisher = Publisher(self.port)
            for name, arguments in QUEUES.items():
                self.publisher.channels[0].queue_declare(name, durable=True, arguments=arguments)
            self._first_life()
            samples_groups.first_life(self, self.control)
            samples_streams.first_life(self)
            self._again(kill=False)
            self._second_life()
            samples_groups.second_life(self, self.control)
            samples_streams.second_life(self)
            self._again(kill=True)
            self._third_life()
            samples_groups.third_life(self, self.control)
            samples_streams.third_life(self)
            self._wait_for_kept()
            dump = self.directory / "dump"
            self.control("queue", "dump", dump)
            for worker in self.open:
                worker.close()
            self.publisher.close()
        return Sample(dump, self.broker.directory)

    def _again(self, *, kill):
        """The end of the broker while clients hold messages, and its next start."""
        self.broker.restart(kill=kill)
        for each in (self.publisher, *self.open):
            drain(each.connection)
        self.open.clear()
        self.publisher = Publisher(self.port)

    def _first_life(self):
        publish = self.publisher.publish
        publish("plain", range(300))
        one, two = self.worker("plain", 4, "one"), self.worker("plain", 6, "two")
        for _ in range(8):
            one.work(8, _decide_plain)
            two.work(8, _decide_plain)
        one.take(4).recover().work(6, _decide_plain)
        two.take(6).reopen().work(6, _decide_plain)
        one.take(4).vanish()
        two.take(6).work(12, _decide_plain).take(6).close()
        self.worker("plain", 4, "three").work(6, _decide_plain).take(4)

        publish("levels", range(210), priority=lambda number: number % 3)
        worker = self.worker("levels", 3, "urgent")
        worker.work(90, _decide_plain)
        publish("levels", range(210, 420), priority=lambda number: number * 7 % 3)
        worker.work(150, _decide_plain).take(3)

        publish("limited", range(200))
        self.worker("limited", 2, "first").work(90, _decide_limited).take(2)
        self._single_first()
        publish("aged", range(140), expiration=lambda number: "1" if number % 10 == 9 else "3000000")
        self.worker("aged", 5, "quick").work(60).take(5)
        publish("short", range(140))
        self.worker("short", 2, "late").work(4).take(2)
        publish("purged", range(70))
        self.worker("purged", 1, "before").work(10).close()
        self.publisher.channels[0].queue_purge("purged")
        publish("purged", range(70, 140))
        publish("got", range(140))
        self._get(30)
        publish("bare", range(140))
        self.worker("bare", 4, "blind").work(30, _decide_plain).take(4)

    def _single_first(self):
        self.publisher.publish("single", range(200))
        one, two = self.worker("single", 3, "active"), self.worker("single", 3, "waiting")
        one.work(40, _decide_plain).take(3).close()
        three = self.worker("single", 2, "third")
        two.work(40, _decide_plain).take(3).vanish()
        three.work(20, _decide_plain).take(2)

    def _get(self, count):
        """Every tenth message is taken without an ack, every fourth goes back once, the others are acked."""
        with pika.BlockingConnection(pika.ConnectionParameters(port=self.port, heartbeat=0)) as connection:
            channel = connection.channel()
            for turn in range(count):
                method, _, _ = channel.basic_get("got", auto_ack=turn % 10 == 0)
                if turn % 10 == 0:
                    continue
                if turn % 4 == 1 and not method.redelivered:
                    channel.basic_nack(method.delivery_tag)
                else:
                    channel.basic_ack(method.delivery_tag)
            channel.queue_declare("got", passive=True)

    def _second_life(self):
        self.worker("plain", 5, "four").work(60, _decide_plain).take(5)
        self.worker("levels", 3, "urgent").work(60, _decide_plain).take(3)
        self.worker("limited", 2, "second").work(60, _decide_limited).take(2)
        self.worker("single", 3, "active").work(30, _decide_plain).take(3)
        self.worker("aged", 5, "quick").work(40).take(5)
        self.worker("dead", 3, "undertaker").work(70, _decide_plain).take(3)
        self.worker("purged", 2, "after").work(20, _decide_plain).take(2)
        self._get(40)

    def _third_life(self):
        publish = self.publisher.publish
        publish("plain", range(300, 330))
        self.worker("plain", 2, "five").work(20, _decide_plain).take(2)
        self.worker("plain", 3, "six").take(3)
        publish("levels", range(420, 440), priority=lambda number: number % 3)
        self.worker("levels", 1, "urgent").work(30, _decide_plain).take(1)
        self.worker("limited", 3, "third").work(20, _decide_limited).take(3)
        self.worker("single", 2, "active").work(20, _decide_plain).take(2)
        self.worker("single", 2, "idle")
        self.worker("aged", 2, "quick").work(10).take(2)
        self.worker("dead", 2, "undertaker").work(30, _decide_plain).take(2)
        publish("short", range(140, 150))
        self.worker("short", 2, "later").work(3).take(2)
        self.worker("purged", 2, "after").work(10, _decide_plain).take(2)
        self._get(30)
        before = self.publisher.ready("dead")
        publish("sure", range(30))
        self.worker("sure", 3, "picky").work(20, lambda number, redelivered: "reject" if number % 4 == 1 else "ack")
        until(self.publisher.connection, lambda: self.publisher.ready("dead") >= before + 5)

    def _wait_for_kept(self):
        """The settled segments are in the folder ``kept``: of each journaled queue all but those that are in use.  The
        stream has its indexes."""
        wanted = {"plain": 3, "levels": 3, "limited": 2, "single": 2, "got": 1, "dead": 1, "keyed": 1}

        def count(name, files):
            return sum(1 for _ in self.broker.directory.glob(f"*/{sha1(name)}/{files}"))

        until(self.publisher.connection, lambda: count("events", "index.*") >= samples_streams.INDEXES and all(
            count(name, "**/kept/msgs.*") >= least for name, least in wanted.items()))


def sha1(text):
    import hashlib

    return hashlib.sha1(text.encode()).hexdigest()


def control(directory, *words, env=None):
    """Run brokerctl.  Returns its output."""
    done = subprocess.run([sys.executable, "-m", "brokerd.cli.brokerctl", "-D", directory, *map(str, words)],
                          env=environment(env), cwd=ROOT, capture_output=True, text=True, timeout=SECONDS * 4)
    assert done.returncode == 0, done.stderr
    return done.stdout


def sample(directory):
    """Make a sample.  A sample of some other process is left as it is."""
    return Story(directory).tell()


def main():
    directory = Path(sys.argv[1])
    made = sample(directory)
    sys.stdout.write(json.dumps({"dump": os.fspath(made.dump), "stopped": os.fspath(made.stopped)}) + "\n")


if __name__ == "__main__":
    main()
