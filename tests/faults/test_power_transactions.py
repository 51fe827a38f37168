"""Transactions when the power goes, the broker dies, or both: whole, once and in order, or not at all.

Transactions publish into queues that nobody consumes, so after each start these tell which transactions happened.
Some acknowledge a message of a third queue.  It is there if the transaction did not happen; and if it did, it may come
again after a power cut, as any acknowledged message may.
"""

import os
from random import Random

import pytest
from tests.faults.power import Machine, PowerCut, PowerlessDisk
from tests.faults.test_power import Story
from tests.in_memory import in_memory  # noqa: F401 - its folders
from tests.plane.harness import publish

from brokerd.session import transactions
from brokerd.store import shared_commit_log
from brokerd.wire import methods

QUEUES = (b"a", b"b")
SOURCE = b"source"
SOURCE_MESSAGES = 60
GET_OK = methods.BasicGetOk.INDEX.to_bytes(4)
COMMIT_OK = methods.TxCommitOk.INDEX.to_bytes(4)


class Transactions(Story):
    """Lives of one broker in which a client commits."""

    def __init__(self, directory, seed):
        super().__init__(directory, seed)
        self.sent = {}              # transaction: {queue: bodies}
        self.took = {}              # transaction: the body that it acknowledged
        self.answered = set()
        self.had_power_cut = False

    def tell(self):
        """Several lives; each begins with a look at what is there."""
        self.fill()
        for _ in range(5):
            self.start()
            self.look()
            try:
                self.commit_some()
                end = self.random.choice((self.lose_power, self.crash, self.stop, self.stop_and_lose_power))
            except PowerCut:
                end = self.lose_power
            self.disk.verbs_left = None
            end()
        self.start()
        self.look()
        self.stop()

    def lose_power(self):
        super().lose_power()
        self.had_power_cut = True

    def fill(self):
        """A first life, which comes to a clean end."""
        self.machine = Machine(self.directory, "boot", PowerlessDisk(self.directory))
        client = self.machine.client()
        client.tell(methods.ChannelOpen().frame(1))
        for queue in (*QUEUES, SOURCE):
            client.tell(methods.QueueDeclare(queue=queue.decode(), durable=True).frame(1))
        for number in range(SOURCE_MESSAGES):
            client.tell(publish(1, b"%d" % number, SOURCE, persistent=True))
        disk = self.machine.disk
        self.stop()
        disk.release()

    def stop_and_lose_power(self):
        """Power goes after a stop, or while the broker stops."""
        self.disk.verbs_left = self.random.choice((None, self.random.randrange(12)))
        try:
            self.machine.stop()
            self.machine = None
        except PowerCut:
            pass
        self.disk.verbs_left = None
        self.lose_power()
        self.live_power_cut = False     # The stop may have come to its end.

    def commit_some(self):
        random, machine = self.random, self.machine
        client = machine.client()
        client.tell(methods.ChannelOpen().frame(1) + methods.TxSelect().frame(1))
        client.frames()
        self.disk.verbs_left = random.choice((None, random.randrange(40)))
        for _ in range(random.randrange(1, 8)):
            number = len(self.sent)
            self.sent[number] = {queue: [] for queue in QUEUES}
            for place in range(random.randrange(1, 13)):
                queue = random.choice(QUEUES)
                self.sent[number][queue].append(b"%d.%d" % (number, place))
                body = b"%d.%d" % (number, place) + bytes(random.choice((0, 100, 3000)))
                client.tell(publish(1, body, queue, persistent=True))
            if random.random() < 0.5:
                self.acknowledge_one(client, number)
            client.tell(methods.TxCommit().frame(1))
            if random.random() < 0.3:
                self.disk.glimpse()
            if random.random() < 0.8:
                machine.sync()
                if COMMIT_OK in [payload[:4] for _, _, payload in client.frames()]:
                    self.answered.add(number)
            else:
                return              # The client may not go on before its commit is answered.
            if random.random() < 0.4:
                machine.node.tick()
                if random.random() < 0.5:
                    machine.sync()

    def acknowledge_one(self, client, number):
        client.frames()
        client.tell(methods.BasicGet(queue=SOURCE.decode()).frame(1))
        (_, _, get_ok), _, (_, _, body) = client.frames()
        assert get_ok[:4] == GET_OK
        client.tell(methods.BasicAck(delivery_tag=int.from_bytes(get_ok[4:12])).frame(1))
        self.took[number] = body

    def look(self):
        """Each transaction is there as a whole, in its order, or not at all."""
        queues = self.machine.node.vhosts["/"].queues
        there = {name: [row[6].rstrip(b"\0") for row in queues[name.decode()].browse(1, 100_000)] for name in QUEUES}
        source = {row[6] for row in queues[SOURCE.decode()].browse(1, SOURCE_MESSAGES)}
        left = {b"%d" % number for number in range(SOURCE_MESSAGES)}
        for name, bodies in there.items():
            places = [tuple(map(int, body.split(b"."))) for body in bodies]
            assert places == sorted(places), (name, places)
        for number, sent in self.sent.items():
            prefix = b"%d." % number
            found = {queue: [body for body in bodies if body.startswith(prefix)] for queue, bodies in there.items()}
            nothing = not any(found.values())
            assert nothing or found == sent, (number, found, sent)
            assert not (nothing and number in self.answered), f"transaction {number} was answered and is not there"
            if not nothing:
                left.discard(self.took.get(number))
        assert source == left or (source > left and self.had_power_cut), source ^ left


@pytest.mark.parametrize("seeds", [range(start, start + 10) for start in range(0, 40, 10)])
def test_transactions_are_whole_once_and_there_if_they_were_answered_after_every_power_cut(
        tmp_path, monkeypatch, seeds):
    happened = 0
    for seed in seeds:
        # Some transactions have commit logs of their own, and the shared one changes its file.
        monkeypatch.setattr(transactions, "ENTRY_OCTETS_MAX", 1 << 19 if seed % 2 else 6000)
        monkeypatch.setattr(shared_commit_log, "FILE_OCTETS", 1 << 20 if seed % 3 else 8000)
        happened += len(Transactions.told(tmp_path, seed).answered)
    assert happened > 20


def test_a_clean_stop_leaves_no_commit_log_and_all_of_its_messages_on_disk(tmp_path):
    (tmp_path / "data").mkdir()
    disk = PowerlessDisk(str(tmp_path / "data"))
    machine = Machine(str(tmp_path / "data"), "boot-1", disk)
    client = machine.client()
    client.tell(methods.ChannelOpen().frame(1) + methods.QueueDeclare(queue="a", durable=True).frame(1))
    machine.sync()
    client.tell(methods.TxSelect().frame(1) + publish(1, b"1", b"a", persistent=True)
                + publish(1, b"2", b"a", persistent=True) + methods.TxCommit().frame(1))
    machine.sync()
    machine.stop()
    assert not [name for _, _, names in os.walk(tmp_path / "data") for name in names if name.startswith("tx.")]
    disk.lose_power(str(tmp_path / "after"), Random(1))
    disk.release()
    again = Machine(str(tmp_path / "after"), "boot-2")
    assert [row[6] for row in again.node.vhosts["/"].queues["a"].browse(1, 9)] == [b"1", b"2"]
    again.stop()
