"""Power is cut at any moment: between any two verbs of the disk, with every page that was not synced old or new.

The broker is the real one but for its sockets: node, sessions, data plane, group commit and recovery.
"""

import os
import struct
from random import Random

import pytest
from tests.faults.ledger import OPEN, Copy, body_of, read_body
from tests.faults.power import Machine, PowerCut, PowerlessDisk
from tests.in_memory import in_memory  # noqa: F401 - its folders
from tests.plane import harness
from tests.plane.harness import Deliver

from brokerd.store.data_dir import POWER_LOST
from brokerd.wire import methods

QUEUES = ("a", "b", "c")
DELIVER, GET_OK, CONFIRM = 60, 71, 80


class Story:
    """One data directory over several starts, and what its clients know."""

    arguments = {}      # of the queues

    def __init__(self, directory, seed):
        self.random = Random(seed)
        self.base = str(directory)
        self.generation = 0
        self.directory = os.path.join(self.base, "0")
        os.mkdir(self.directory)
        self.boot = 0
        self.disk = None
        self.copies = {name: {} for name in QUEUES}     # (stream, n): Copy
        self.definitions = {}                           # queue name: True, False, None (not answered)
        self.vhosts, self.users = {}, {}
        self.streams = 0
        self.numbers = 0                                # highest connection number in use
        self.live_power_cut = False                     # since the last start that came to its end
        self.after_power_cut = False
        self.machine = None
        self.dead = []

    @classmethod
    def told(cls, directory, seed):
        """The story of this seed, in a new folder, from its begin to its end."""
        (directory / str(seed)).mkdir()
        story = cls(directory / str(seed), seed)
        try:
            story.tell()
            story.end()
        except BaseException as error:
            error.add_note(f"seed {seed}, data in {story.directory}")
            raise
        return story

    # --- life and death

    def start(self):
        """Start; a cut may come in recovery too, again and again."""
        cuts = self.random.choice((0, 0, 0, 1, 2))
        while True:
            if self.disk is None:
                self.disk = PowerlessDisk(self.directory)
            self.disk.verbs_left = self.random.randrange(20) if cuts else None
            machine = None
            try:
                self.machine = Machine(self.directory, f"boot-{self.boot}", self.disk)
                self.disk.verbs_left = None
                left = self.machine.data.left
                # Power that goes before a start has changed anything leaves a clean end clean.
                assert left == POWER_LOST or not self.live_power_cut, left
                self.after_power_cut, self.live_power_cut = left == POWER_LOST, False
                return
            except PowerCut as cut:
                cuts -= 1
                self.unlock(cut)
                self.lose_power()
            finally:
                del machine

    @staticmethod
    def unlock(cut):
        """Close the lock of a start that was cut off; nobody holds its DataDir but the traceback."""
        trace = cut.__traceback__
        while trace is not None:
            data = getattr(trace.tb_frame.f_locals.get("self"), "data", None)
            if data is not None:
                data.abandon()
            trace = trace.tb_next

    def lose_power(self):
        if self.machine is not None:
            self.live_power_cut = True
            self.crash()
        self.generation += 1
        target = os.path.join(self.base, str(self.generation))
        self.disk.lose_power(target, self.random)
        self.end()
        self.disk, self.directory = None, target
        self.boot += 1

    def end(self):
        self.disk.release()
        for machine in self.dead:
            machine.bury()
        self.dead.clear()

    def crash(self):
        self.machine.vanish()
        self.dead.append(self.machine)
        self.machine = None

    def stop(self):
        self.machine.stop()
        self.machine = None

    def tell(self):
        """Several lives, and a last one without anything new, which ends cleanly."""
        for _ in range(4):
            self.start()
            self.check()
            self.live()
        self.start()
        self.check()
        self.stop()

    # --- load

    def live(self):
        """Clients at work, until the power goes, the broker crashes, or it is stopped."""
        random = self.random
        end = random.choice(("power", "power", "power", "crash", "stop"))
        if end == "power":
            self.disk.verbs_left = random.choice((random.randrange(60), None))
        try:
            self.work()
        except PowerCut:
            self.lose_power()
            return
        self.disk.verbs_left = None
        {"power": self.lose_power, "crash": self.crash, "stop": self.stop}[end]()

    def work(self):
        random, machine = self.random, self.machine
        self.client = machine.client()
        number = self.client.connection.number
        assert number > self.numbers, "a connection number was used twice"
        self.numbers = number
        self.streams += 1
        self.sent = self.confirmed = 0
        self.unacked, self.waiting = {}, []
        self.client.tell(methods.ChannelOpen().frame(1))
        for name in QUEUES:
            self.client.tell(methods.QueueDeclare(queue=name, durable=True, arguments=self.arguments).frame(1))
        machine.sync()
        self.client.tell(methods.ConfirmSelect().frame(1))
        self.client.frames()
        verbs = [self.publish] * 6 + [self.sync] * 3 + [self.get] * 2 + [self.settle, self.declare, self.glimpse,
                                                                       self.administer, self.tick, self.purge]
        for _ in range(random.randrange(4, 40)):
            random.choice(verbs)()
            self.listen()

    def publish(self):
        octets = b""
        for _ in range(self.random.randrange(1, 30)):
            self.sent += 1
            name = self.random.choice(QUEUES)
            persistent = self.random.random() < 0.8
            size = self.random.choice((20, 200, 3000, 3000, 9000, 40_000 if self.random.random() < 0.1 else 50))
            self.copies[name][self.streams, self.sent] = Copy(persistent)
            octets += harness.publish(1, body_of(self.streams, self.sent, size), name.encode(), persistent=persistent)
        self.client.tell(octets)

    def sync(self):
        self.machine.sync()

    def glimpse(self):
        self.disk.glimpse()

    def tick(self):
        self.machine.node.upkeep.take_garbage()

    def get(self):
        for _ in range(self.random.randrange(1, 20)):
            name = self.random.choice(QUEUES)
            self.client.tell(methods.BasicGet(queue=name).frame(1))

    def settle(self):
        for tag in list(self.unacked):
            if self.random.random() < 0.7:
                name, message = self.unacked.pop(tag)
                if self.random.random() < 0.8:
                    self.client.tell(harness.ack(1, tag))
                    self.copies[name][message].settled = 1
                else:
                    self.client.tell(harness.nack(1, tag))

    def purge(self):
        if self.random.random() < 0.3:
            name = self.random.choice(QUEUES)
            for copy in self.copies[name].values():
                copy.settled = 1
            self.client.tell(methods.QueuePurge(queue=name).frame(1))

    def declare(self):
        name = f"d{self.random.randrange(30)}"
        there = not self.definitions.get(name, False)
        self.definitions[name] = None
        self.waiting.append((name, there))
        self.client.tell((methods.QueueDeclare(queue=name, durable=True) if there else
                          methods.QueueDelete(queue=name)).frame(1))

    def administer(self):
        name = f"v{self.random.randrange(20)}"
        node = self.machine.node
        if self.random.random() < 0.5:
            if name not in node.vhosts:
                self.vhosts[name] = None
                node.make_vhost(name)
                node.listing.put(name)
                self.vhosts[name] = True
        elif name not in node.users:
            self.users[name] = None
            node.users.add(name, "secret")
            self.users[name] = True
            node.permissions.set(name, "/", ".*", "", "^a")

    def listen(self):
        """Take what the broker has sent: its confirms and answers are promises from here on."""
        delivery, size = None, 0
        for kind, _, payload in self.client.frames():
            if kind == 1:
                class_id, method_id = struct.unpack_from(">HH", payload)
                if (class_id, method_id) == (60, CONFIRM):
                    self.confirm(*struct.unpack_from(">QB", payload, 4))
                elif (class_id, method_id) == (60, GET_OK):
                    delivery = Deliver(1, payload)
                elif (class_id, method_id) in ((50, 11), (50, 41)) and self.waiting:
                    name, there = self.waiting.pop(0)
                    self.definitions[name] = there
            elif kind == 2:
                size = int.from_bytes(payload[4:12])
            elif kind == 3:
                delivery.body += payload
                if len(delivery.body) == size:
                    self.receive(delivery)

    def confirm(self, tag, multiple):
        for number in range(self.confirmed + 1 if multiple else tag, tag + 1):
            for copies in self.copies.values():
                if (self.streams, number) in copies:
                    copies[self.streams, number].confirmed = True
        self.confirmed = max(self.confirmed, tag)

    def receive(self, delivery):
        message, name = read_body(delivery.body), delivery.key.decode()
        copy = self.copies[name][message]
        assert delivery.redelivered or not copy.received, f"{name}: {message} came again without redelivered"
        copy.received = True
        copy.settled = OPEN
        self.unacked[delivery.tag] = name, message

    # --- what is found

    def check(self):
        self.check_definitions()
        client = self.machine.client()
        self.numbers = max(self.numbers, client.connection.number)
        client.tell(methods.ChannelOpen().frame(1))
        for name in QUEUES:
            if name in self.machine.node.vhosts["/"].queues:
                self.check_queue(client, name)
        client.tell(methods.ChannelClose().frame(1))
        self.machine.sync()

    def check_queue(self, client, name):
        count = self.machine.node.vhosts["/"].queues[name].ready
        client.frames()
        client.tell(b"".join(methods.BasicGet(queue=name).frame(1) for _ in range(count + 3)))
        came = []
        size, delivery = 0, None
        for kind, _, payload in client.frames():
            if kind == 1 and payload[:4] == struct.pack(">HH", 60, GET_OK):
                delivery = Deliver(1, payload)
            elif kind == 2:
                size = int.from_bytes(payload[4:12])
            elif kind == 3:
                delivery.body += payload
                if len(delivery.body) == size:
                    came.append(delivery)
        self.compare(name, came)
        if self.random.random() < 0.3:      # Else they return, seen.
            for delivery in came:
                client.tell(harness.ack(1, delivery.tag))
                self.copies[name][read_body(delivery.body)].settled = 1

    def compare(self, name, came):
        copies, last, seen = self.copies[name], {}, set()
        for delivery in came:
            stream, n = message = read_body(delivery.body)
            assert message in copies, f"{name}: {message} was never sent here"
            assert last.get(stream, 0) < n, f"{name}: {message} after {last[stream]}"
            last[stream] = n
            seen.add(message)
            if self.after_power_cut:
                assert delivery.redelivered, f"{name}: {message} is not marked redelivered after a power cut"
            assert delivery.redelivered or not copies[message].received, f"{name}: {message} not marked redelivered"
        for message, copy in copies.items():
            needed = copy.confirmed and copy.settled == OPEN and (copy.persistent or not self.after_power_cut)
            assert message in seen or not needed, f"{name}: {message} was confirmed and is missing"
            if message in seen:
                copy.received, copy.settled = True, OPEN
                # It is there; only a power cut may take it, unless it was synced for a confirm.
                copy.persistent = copy.persistent and copy.confirmed
                copy.confirmed = True
        self.copies[name] = {message: copy for message, copy in copies.items()
                             if message in seen or self.after_power_cut or copy.settled}
        for message, copy in self.copies[name].items():
            if message not in seen:
                copy.settled = 1        # May come again where an ack was lost, need not.

    def check_definitions(self):
        node = self.machine.node
        queues = node.vhosts["/"].queues
        for name, there in self.definitions.items():
            assert there is None or (name in queues) is there, f"queue {name} is {'not ' if there else ''}there"
            self.definitions[name] = name in queues
        for names, found in ((self.vhosts, node.vhosts), (self.users, node.users)):
            for name, there in names.items():
                assert name in found or not there, f"{name} was made and is missing"
                names[name] = name in found


@pytest.mark.parametrize("seeds", [range(start, start + 15) for start in range(0, 60, 15)])
def test_what_was_promised_survives_every_power_cut(tmp_path, seeds):
    for seed in seeds:
        Story.told(tmp_path, seed)


def test_what_another_client_declared_is_answered_only_once_it_is_on_disk(tmp_path):
    machine = Machine(str(tmp_path / "data"), "boot-1", PowerlessDisk(str(tmp_path)))
    first, second = machine.client(), machine.client()
    for client in (first, second):
        client.tell(methods.ChannelOpen().frame(1))
        client.frames()
        client.tell(methods.QueueDeclare(queue="q", durable=True).frame(1))
    assert first.frames() == second.frames() == []
    machine.sync()
    assert len(first.frames()) == len(second.frames()) == 1
    machine.stop()


@pytest.mark.parametrize("again", [
    methods.QueueDeclare(queue="transient"), methods.QueueDeclare(queue="old", durable=True),
    methods.QueueDeclare(queue="old", passive=True),
    methods.ExchangeDeclare(exchange="old", type="fanout", durable=True),
    methods.ExchangeDeclare(exchange="transient", type="fanout")], ids=repr)
def test_what_is_there_is_answered_at_once_while_another_clients_definition_waits_for_the_disk(tmp_path, again):
    machine = Machine(str(tmp_path / "data"), "boot-1", PowerlessDisk(str(tmp_path)))
    first, second = machine.client(), machine.client()
    for client in (first, second):
        client.tell(methods.ChannelOpen().frame(1))
    for made in (methods.QueueDeclare(queue="old", durable=True), methods.QueueDeclare(queue="transient"),
                 methods.ExchangeDeclare(exchange="old", type="fanout", durable=True),
                 methods.ExchangeDeclare(exchange="transient", type="fanout")):
        second.tell(made.frame(1))
    machine.sync()
    second.frames()
    first.frames()
    first.tell(methods.QueueDeclare(queue="new", durable=True).frame(1))
    second.tell(again.frame(1))
    assert (len(first.frames()), len(second.frames())) == (0, 1)
    machine.sync()
    assert len(first.frames()) == 1
    machine.stop()
