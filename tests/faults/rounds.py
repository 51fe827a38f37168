"""Rounds of load, death and inspection of a real broker; ``test_kill`` runs some, ``long_run`` as many as wanted.

    rounds = Rounds(broker, seed)
    rounds.run()        load, kill -9, files read, restart, everything compared
    rounds.finish()     all queues looked at and drained

Below them is what all such rounds share: a broker that dies in the midst of its clients' work, or while it starts, and
that starts again unharmed.
"""

import os
import signal
import subprocess
import sys
import threading
from random import Random

from tests.broker import ROOT, environment
from tests.faults import actors
from tests.faults.audit import Audit
from tests.faults.client import Client, Gone, drive
from tests.faults.ledger import Account, read_body
from tests.plane import harness

from brokerd.wire import methods

FANOUT, DIRECT, SINK = "all", "keys", "sink"
LOG_OF_DAMAGE = ("damaged", "not readable", "cut off", "orphan", ": cut at")


class Rounds:
    """``kill_seconds``: the longest that load runs before the broker is killed."""

    def __init__(self, broker, seed, *, kill_seconds=0.25):
        self.broker, self.seed, self.kill_seconds = broker, seed, kill_seconds
        self.random = Random(seed)
        self.streams = self.count = 0
        self.known = {}
        self.accounts = [Account("worked"), Account("returned"), Account("got"), Account("stored"), Account("purged"),
                         Account("loose", at_most_once=True)]
        self.audit = Audit(broker.directory)
        self.looks = 0
        self.messages = 0
        if broker.process is None:
            broker.start()
        self.declare()

    def declare(self):
        with Client(self.broker.port) as client:
            client.ask(methods.ExchangeDeclare(exchange=FANOUT, type="fanout", durable=True), methods.ExchangeDeclareOk)
            client.ask(methods.ExchangeDeclare(exchange=DIRECT, type="direct", durable=True), methods.ExchangeDeclareOk)
            client.ask(methods.QueueDeclare(queue=SINK, durable=True), methods.QueueDeclareOk)
            for account in self.accounts:
                client.ask(methods.QueueDeclare(queue=account.name, durable=True), methods.QueueDeclareOk)
            for account in self.accounts[1:4]:
                client.ask(methods.QueueBind(queue=account.name, exchange=FANOUT), methods.QueueBindOk)

    # --- one round

    def run(self):
        self.count += 1
        crew = self.crew()
        number = signal.SIGTERM if self.random.random() < 0.1 else signal.SIGKILL
        timer = threading.Timer(self.random.uniform(0.01, self.kill_seconds), os.kill, (self.broker.pid, number))
        timer.start()
        try:
            work_until_its_end(self.broker, crew, number)
        finally:
            timer.cancel()
            timer.join()
        self.messages += sum(actor.sent for actor in crew if isinstance(actor, actors.Publisher))
        self.audit.read()
        if self.random.random() < 0.2:
            kill_while_it_starts(self.broker, self.random.uniform(0.05, 0.25))
        start_unharmed(self.broker)
        self.check_definitions()
        for account in self.accounts:
            self.look(account)

    def crew(self):
        port, random = self.broker.port, self.random
        worked, returned, got, stored, purged, loose = self.accounts
        crew = []
        for _ in range(random.randrange(1, 4)):
            self.streams += 1
            crew.append(actors.Publisher(port, Random(random.random()), self.streams, self.accounts,
                                         [returned, got, stored], FANOUT.encode()))
        crew += [actors.Consumer(port, Random(random.random()), account)
                 for account in (worked, returned, loose) for _ in range(random.randrange(3))]
        crew += [actors.Getter(port, Random(random.random()), account)
                 for account in (got, returned, loose) if random.random() < 0.6]
        crew.append(actors.AccountedPurger(port, Random(random.random()), purged, 0.02))
        crew.append(actors.Declarer(port, Random(random.random()), self.known, DIRECT, SINK))
        return crew

    # --- after the restart

    def check_definitions(self):
        with Client(self.broker.port) as client:
            for (kind, name), there in sorted(self.known.items()):
                now = self.is_there(client, kind, name)
                assert there is None or now is there, f"{kind} {name}: {'is missing' if there else 'is there again'}"
                self.known[kind, name] = now

    @staticmethod
    def is_there(client, kind, name):
        if kind == "binding":
            client.sock.sendall(harness.publish(1, b"x", name.encode(), exchange=DIRECT.encode(), mandatory=True))
            client.ask(methods.BasicQos(), methods.BasicQosOk)
            returned, client.contents = client.contents, []
            return not returned
        try:
            if kind == "queue":
                client.ask(methods.QueueDeclare(queue=name, passive=True), methods.QueueDeclareOk)
            else:
                client.ask(methods.ExchangeDeclare(exchange=name, passive=True), methods.ExchangeDeclareOk)
        except Gone as gone:
            if gone.code != 404:
                raise
            return False
        return True

    def look(self, account, *, drain=False):
        """Compare the whole queue, and drain it, leave it as it was seen, or look another time."""
        choice = "drain" if drain else self.random.choice(("drain", "peek", "leave"))
        if choice == "leave":
            return
        self.looks += 1
        with Client(self.broker.port) as client:
            passive = methods.QueueDeclare(queue=account.name, passive=True)
            count = client.ask(passive, methods.QueueDeclareOk).message_count
            client.ask(methods.BasicConsume(queue=account.name), methods.BasicConsumeOk)
            contents = client.wait_for_contents(count)
            client.ask(methods.BasicQos(), methods.BasicQosOk)
            contents += client.contents
            assert len(contents) == count, f"{account.name}: {count} messages were told, {len(contents)} came"
            client.contents = []
            account.looked([(read_body(content.body), content.redelivered) for content in contents])
            account.consumed = False
            if choice == "drain":
                if contents:
                    client.sock.sendall(harness.ack(1, 0, True))
                assert client.ask(passive, methods.QueueDeclareOk).message_count == 0
                account.settled(list(account.copies))
            else:
                client.ask(methods.ChannelClose(), methods.ChannelCloseOk)
            account.forget_settled()

    def finish(self):
        for account in self.accounts:
            self.look(account, drain=True)
        self.broker.stop()


# --- what all rounds share

def work_until_its_end(broker, crew, number, each_round=lambda: None):
    """Let the crew work until signal ``number`` has ended the broker; ``each_round`` may send it."""
    try:
        drive(crew, each_round)
    finally:
        for actor in crew:
            actor.close()
    if number == signal.SIGKILL:
        broker.kill()
    else:
        assert broker.wait() == 0, broker.log_text()


def kill_in_the_midst(broker, crew, frames, number=signal.SIGKILL):
    """End the broker once the crew has heard so many frames: the moment is one of the work, however fast that goes."""
    sent = False

    def kill_at_its_time():
        nonlocal sent
        if not sent and sum(actor.heard for actor in crew) >= frames:
            os.kill(broker.pid, number)
            sent = True

    work_until_its_end(broker, crew, number, kill_at_its_time)


def kill_while_it_starts(broker, seconds):
    """A start that is killed after this time, in recovery if it can be hit."""
    process = subprocess.Popen([sys.executable, "-m", "brokerd", "-D", str(broker.directory), "-p", str(broker.port),
                                *map(str, broker.flags)], env=environment(broker.env), cwd=ROOT,
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        _, log = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        _, log = process.communicate()
    broker.lines += log.decode().splitlines()


def start_unharmed(broker, *forbidden):
    """Start again.  A kill tears nothing but one record not yet counted: a line about damage is a fault, and so is one
    with these words."""
    begin = len(broker.lines)
    broker.start()
    check_unharmed(broker, begin, *forbidden)


def check_unharmed(broker, begin, *forbidden):
    """No line of the log from ``begin`` on says that something was damaged."""
    broker.check_log()
    for line in broker.lines[begin:]:
        assert not any(word in line for word in (*LOG_OF_DAMAGE, *forbidden)), line
