"""A call that fails: the disk is full, or broken, at the n-th write, sync or read of a broker at work.

After each failure nothing that was confirmed is lost, the broker goes on when there is room again, and a start finds
what it must.  The suite tries a few calls of each kind; ``BROKERD_TEST_EVERY_CALL=1`` tries all.
"""

import contextlib
import errno
import mmap
import os
import re
import struct
import subprocess

import pytest
from tests.broker import FAULTS, Broker
from tests.conversations.peer import Peer, eventually, publish

from brokerd.wire import methods

WRITES, SYNCS, READS = 1, 2, 3
FOR_EVER = 1 << 40
EVERY = bool(os.environ.get("BROKERD_TEST_EVERY_CALL"))
ENVIRONMENT = {"BROKERD_SEGMENT_OCTETS": str(1 << 20), "BROKERD_FREE_DISK_MIN_OCTETS": "0",
               "BROKERD_STOP_TIMEOUT_SECONDS": "1"}
BODY = bytes(30_000)


@pytest.fixture(scope="module")
def injector(tmp_path_factory):
    return build_injector(tmp_path_factory.mktemp("injector"))


def build_injector(folder):
    """The library, compiled into that folder."""
    library = str(folder / "injector.so")
    source = os.path.join(os.path.dirname(__file__), "injector.c")
    subprocess.run([os.environ.get("CC", "gcc"), "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library


class Machine:
    """A broker whose calls of the C library can be made to fail while it runs."""

    def __init__(self, directory, injector):
        self.path = directory / "state"
        self.path.write_bytes(bytes(40))
        with open(self.path, "r+b") as file:
            self.state = mmap.mmap(file.fileno(), 40)
        preloaded = [path for path in os.environ.get("LD_PRELOAD", "").split(":") if path]
        self.broker = Broker(directory / "data", env=ENVIRONMENT | {
            "LD_PRELOAD": ":".join([*preloaded, injector]), "INJECTOR_STATE": str(self.path),
            "INJECTOR_FOLDER": str(directory / "data")})
        self.confirmed, self.asked, self.settled = set(), set(), set()

    def fail(self, kind, first, count, number):
        struct.pack_into("<5q", self.state, 0, 0, first, count, number, kind)

    def be_sound(self):
        struct.pack_into("<4q", self.state, 8, 0, 0, 0, 0)

    @property
    def calls(self):
        return struct.unpack_from("<q", self.state)[0]

    # --- what clients do

    def put(self, peer, queue, number, **properties):
        body = b"%06d" % number
        self.asked.add(body)
        peer.raw(publish(queue, body + BODY, delivery_mode=2, **properties))
        while isinstance(reply := peer.read(), methods.ConnectionBlocked | methods.ConnectionUnblocked):
            pass
        if isinstance(reply, methods.BasicAck):
            self.confirmed.add(body)

    def work(self):
        """A little of everything that writes.  What is refused is refused; a publish without room waits."""
        for step in (self.declare, self.publish, self.transact, self.settle, self.die, self.delete):
            with contextlib.suppress(AssertionError, OSError, AttributeError, struct.error):
                with Peer(self.broker.port) as peer:
                    peer.socket.settimeout(2)
                    peer.open()
                    step(peer)

    def declare(self, peer):
        peer.ask(methods.QueueDeclare(queue="late", durable=True, arguments={"x-max-priority": 3}))
        peer.ask(methods.ExchangeDeclare(exchange="x", type="fanout", durable=True))
        peer.ask(methods.QueueBind(queue="late", exchange="x"))

    def publish(self, peer):
        peer.ask(methods.ConfirmSelect())
        for number in range(100, 130):
            self.put(peer, "q", number)

    def transact(self, peer):
        peer.ask(methods.TxSelect())
        bodies = [b"%06d" % number for number in range(200, 205)]
        for body in bodies:
            self.asked.add(body)
            peer.raw(publish("q", body + BODY, delivery_mode=2))
        if isinstance(peer.ask(methods.TxCommit()), methods.TxCommitOk):
            self.confirmed.update(bodies)

    def settle(self, peer):
        for _ in range(5):
            deliver = peer.ask(methods.BasicGet(queue="q"))
            body = peer.message()[1][:6]
            self.settled.add(body)          # From now on it may be gone, or come again.
            peer.send(methods.BasicAck(delivery_tag=deliver.delivery_tag))
        peer.ask(methods.BasicQos(prefetch_count=1))

    def die(self, peer):
        peer.ask(methods.ConfirmSelect())
        for number in range(300, 305):
            self.put(peer, "dying", number, expiration="1")

    def delete(self, peer):
        peer.ask(methods.QueueDelete(queue="late"))

    # --- what must hold

    def prepare(self):
        self.broker.start()
        with Peer(self.broker.port).open() as peer:
            peer.ask(methods.QueueDeclare(queue="q", durable=True))
            peer.ask(methods.QueueDeclare(queue="dying", durable=True, arguments={
                "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}))
            peer.ask(methods.ConfirmSelect())
            for number in range(20):
                self.put(peer, "q", number)
            peer.close()

    def goes_on(self):
        """There is room again: what is published now is confirmed."""
        with Peer(self.broker.port).open() as peer:
            peer.ask(methods.ConfirmSelect())
            self.put(peer, "q", 400)    # Its close could cross a connection.unblocked.
        assert b"000400" in self.confirmed

    def look(self):
        """Everything that was confirmed and not settled is there."""
        with Peer(self.broker.port).open() as peer:
            eventually(lambda: peer.ask(methods.QueueDeclare(queue="dying", passive=True)).message_count == 0)
            found = []
            while isinstance(peer.ask(methods.BasicGet(queue="q", no_ack=True)), methods.BasicGetOk):
                found.append(peer.message()[1][:6])
            peer.close()
        assert self.confirmed - self.settled <= set(found), sorted(self.confirmed - self.settled - set(found))
        assert set(found) <= self.asked

    def check_log(self):
        text = self.broker.log_text()
        assert not [fault for fault in FAULTS if fault in text], text


def round_of(machine, kind, first, count, number, end):
    """One failure.  Returns how many calls of the kind there were."""
    machine.prepare()
    machine.fail(kind, first, count, number)
    machine.work()
    calls = machine.calls
    machine.be_sound()
    if kind == SYNCS and calls >= first:    # A failed sync ends the broker, and says so.
        assert machine.broker.wait() == 1
        assert re.search("CRITICAL sync failed, stopping at once", machine.broker.log_text())
    else:
        machine.goes_on()
        if end == "kill":
            machine.broker.kill()
        else:
            machine.broker.stop()
    machine.check_log()
    machine.broker.start()
    machine.look()
    machine.broker.stop()
    return calls


FEW = (1, 3, 8, 21, 55)


@pytest.mark.parametrize(("count", "end"), [(1, "kill"), (FOR_EVER, "stop")], ids=["once", "for a while"])
@pytest.mark.parametrize(("kind", "number"), [(WRITES, errno.ENOSPC), (SYNCS, errno.EIO), (READS, errno.EIO)],
                         ids=["full", "broken at a sync", "broken at a read"])
def test_nothing_confirmed_is_lost_where_a_call_fails(tmp_path, injector, kind, number, count, end):
    first, calls = 0, 1
    while first < calls:
        first += 1
        if not EVERY and first not in FEW:
            if first > FEW[-1]:
                return
            continue
        folder = tmp_path / str(first)
        folder.mkdir()
        machine = Machine(folder, injector)
        try:
            calls = max(calls, round_of(machine, kind, first, count, number, end))
        except BaseException as error:
            error.add_note(f"call {first}\n{machine.broker.log_text()}")
            raise
        finally:
            machine.broker.kill()
