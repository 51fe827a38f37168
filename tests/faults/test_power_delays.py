"""Delayed messages, and dead letters that go at least once, when the power goes, the broker dies, or both: each message
that was confirmed waits, or is in its queue."""

import pytest
from tests.faults.power import Machine, PowerCut, PowerlessDisk
from tests.faults.test_power import Story
from tests.in_memory import in_memory  # noqa: F401 - its folders

from brokerd.wire import methods
from brokerd.wire.frames import body_frames, header_frame
from brokerd.wire.properties import Properties, encode_header

MS = 1_000_000


class Delays(Story):
    """Lives of one broker with a delayed exchange x of type direct, whose queue q nobody consumes."""

    waits_in = "amq.delayed.x"

    def __init__(self, directory, seed):
        super().__init__(directory, seed)
        self.now = 1_700_000_000_000 * MS
        self.sent = 0
        self.confirmed = set()

    def tell(self):
        self.fill()
        for _ in range(5):
            self.start()
            self.look()
            try:
                self.publish_some()
                end = self.random.choice((self.lose_power, self.crash, self.stop))
            except PowerCut:
                end = self.lose_power
            self.disk.verbs_left = None
            end()
        self.start()
        self.look()
        self.pass_time(1000)
        assert self.confirmed <= self.bodies("q")
        assert self.bodies(self.waits_in) == set()
        self.stop()

    def start(self):
        super().start()
        node = self.machine.node
        node.core.clock = lambda: self.now
        self.set_clocks(node.vhosts["/"])
        node.core.expire()

    def set_clocks(self, vhost):
        vhost.delays.get()._epoch_ns = lambda: self.now

    def fill(self):
        self.machine = Machine(self.directory, "boot", PowerlessDisk(self.directory))
        client = self.machine.client()
        client.tell(methods.ChannelOpen().frame(1))
        for method in self.declares():
            client.tell(method.frame(1))
        disk = self.machine.disk
        self.stop()
        disk.release()

    def declares(self):
        return [methods.ExchangeDeclare(exchange="x", type="x-delayed-message", durable=True,
                                        arguments={"x-delayed-type": "direct"}),
                methods.QueueDeclare(queue="q", durable=True),
                methods.QueueBind(queue="q", exchange="x", routing_key="k")]

    def properties(self, wait_ms):
        """Of a message that waits so long.  Half of them go on by way of the control plane."""
        headers = {"x-delay": wait_ms if self.random.random() < 0.5 else str(wait_ms)}
        return Properties(headers=headers, delivery_mode=2)

    def pass_time(self, ms):
        """And all that is due goes on, and is synced."""
        self.now += ms * MS
        for _ in range(5):
            self.now += 1
            self.machine.node.core.expire()
            self.machine.sync()

    def publish_some(self):
        random, machine = self.random, self.machine
        client = machine.client()
        client.tell(methods.ChannelOpen().frame(1) + methods.ConfirmSelect().frame(1))
        client.frames()
        published = []
        self.disk.verbs_left = random.choice((None, random.randrange(40)))
        for _ in range(random.randrange(1, 30)):
            body = b"%d" % self.sent
            self.sent += 1
            published.append(body)
            octets = body + bytes(random.choice((0, 100, 3000)))
            header = encode_header(len(octets), self.properties(random.randrange(1, 40)))
            client.tell(methods.BasicPublish(exchange="x", routing_key="k").frame(1) + header_frame(1, header)
                        + body_frames(1, octets, 4096))
            if random.random() < 0.3:
                self.disk.glimpse()
            if random.random() < 0.3:
                machine.sync()
            if random.random() < 0.15:
                self.pass_time(random.randrange(1, 20))
            elif random.random() < 0.3:
                self.now += random.randrange(1, 20) * MS
                machine.node.core.expire()          # No sync follows yet.
                if random.random() < 0.5:
                    return
            for _, _, payload in client.frames():
                if payload[:4] == methods.BasicAck.INDEX.to_bytes(4):
                    tag, multiple = int.from_bytes(payload[4:12]), payload[12] & 1
                    self.confirmed |= set(published[:tag] if multiple else published[tag - 1:tag])

    def finish_deaths(self):
        """A turn makes as many dead letters as it has time for; those that are left are in no list of messages."""
        for queue in self.machine.node.vhosts["/"].queues.values():
            while not queue.finish_deaths(1000):
                pass

    def bodies(self, name):
        queue = self.machine.node.vhosts["/"].queues.get(name)
        if queue is None:
            return set()
        rows = queue.browse(1, 100_000) + queue.browse_aside(1, 100_000)
        return {row[6].rstrip(b"\0") for row in rows}

    def look(self):
        self.finish_deaths()
        there = self.bodies("q") | self.bodies(self.waits_in)
        assert self.confirmed <= there, sorted(map(int, self.confirmed - there))
        assert there <= {b"%d" % number for number in range(self.sent)}


@pytest.mark.parametrize("seeds", [range(start, start + 10) for start in range(0, 30, 10)])
def test_a_confirmed_delayed_message_is_lost_by_no_power_cut(tmp_path, seeds):
    assert sum(len(Delays.told(tmp_path, seed).confirmed) for seed in seeds) > 100


class Letters(Delays):
    """The same with a queue a, in which messages expire: each dead letter is in q before its message is settled."""

    waits_in = "a"

    def set_clocks(self, vhost):
        letters = vhost.dead_letters._dead_letters()
        letters._epoch_ns = lambda: self.now

    def declares(self):
        arguments = {"x-queue-type": "quorum", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q",
                     "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
        return [methods.ExchangeDeclare(exchange="x", type="direct", durable=True),
                methods.QueueDeclare(queue="q", durable=True),
                methods.QueueDeclare(queue="a", durable=True, arguments=arguments),
                methods.QueueBind(queue="a", exchange="x", routing_key="k")]

    def properties(self, wait_ms):
        headers = None if self.random.random() < 0.5 else {"CC": ["k"]}
        return Properties(headers=headers, delivery_mode=2, expiration=str(wait_ms))


@pytest.mark.parametrize("seeds", [range(start, start + 10) for start in range(0, 30, 10)])
def test_a_confirmed_message_that_dies_is_lost_by_no_power_cut_if_its_letter_goes_at_least_once(tmp_path, seeds):
    assert sum(len(Letters.told(tmp_path, seed).confirmed) for seed in seeds) > 100
