"""No room on the disk: publishers wait, nothing is lost, order is kept, and all goes on when there is room."""

import os
import signal
import subprocess
import threading

import pytest
from tests.conversations.peer import Peer, publish

from brokerd.wire import methods

MIB = 1 << 20


class Publisher:
    """Publishes persistent messages with confirms from a thread of its own, so that it may stand still."""

    def __init__(self, port, queue, bodies):
        self.peer = Peer(port).open()
        assert self.peer.ask(methods.ConfirmSelect()) == methods.ConfirmSelectOk()
        self.queue, self.bodies = queue, bodies
        self.confirmed = 0
        self.thread = threading.Thread(target=self._publish)
        self.thread.start()

    def _publish(self):
        for body in self.bodies:
            self.peer.raw(publish(self.queue, body, delivery_mode=2))

    def until(self, kind):
        """The next method of ``kind``; acks on the way are counted."""
        while not isinstance(method := self.peer.read(), kind):
            assert isinstance(method, methods.BasicAck), method
            self.confirmed = method.delivery_tag
        return method

    def finish(self):
        """Until everything is confirmed."""
        while self.confirmed < len(self.bodies):
            method = self.peer.read()
            if isinstance(method, methods.BasicAck):
                self.confirmed = method.delivery_tag
            else:
                assert isinstance(method, methods.ConnectionBlocked | methods.ConnectionUnblocked), method
        self.thread.join()
        self.peer.close()


def drain(port, queue, count):
    """The first eight octets of ``count`` messages, acknowledged."""
    with Peer(port).open() as peer:
        peer.ask(methods.BasicQos(prefetch_count=50))
        peer.ask(methods.BasicConsume(queue=queue, consumer_tag="t"))
        heads = []
        for _ in range(count):
            deliver, body = peer.delivery()
            assert not deliver.redelivered
            heads.append(body[:8])
            peer.send(methods.BasicAck(delivery_tag=deliver.delivery_tag))
        peer.close()
        return heads


def declare(port, queue):
    with Peer(port).open() as peer:
        assert isinstance(peer.ask(methods.QueueDeclare(queue=queue, durable=True)), methods.QueueDeclareOk)
        peer.close()


def numbered(count, size=8):
    return [b"%08d" % n + b"x" * (size - 8) for n in range(count)]


def test_low_disk_blocks_publishers_alone_and_loses_nothing(make_broker, tmp_path):
    file = tmp_path / "brokerd.toml"
    file.write_text("free_disk_min_octets = 0\n")
    broker = make_broker("-c", file).start()
    declare(broker.port, "q")
    file.write_text(f"free_disk_min_octets = {1 << 50}\n")
    os.kill(broker.pid, signal.SIGHUP)
    broker.wait_for_log("WARNING low on disk: .* publishers are blocked")
    publisher = Publisher(broker.port, "q", numbered(500, 1000))
    assert publisher.until(methods.ConnectionBlocked) == methods.ConnectionBlocked(reason="low on disk")
    with Peer(broker.port).open() as other:  # Who does not publish notices nothing.
        reply = other.ask(methods.QueueDeclare(queue="q", passive=True))
        assert reply.consumer_count == 0
        other.close()
    file.write_text("free_disk_min_octets = 0\n")
    os.kill(broker.pid, signal.SIGHUP)
    publisher.until(methods.ConnectionUnblocked)
    publisher.finish()
    assert drain(broker.port, "q", 500) == numbered(500)


def test_a_blocked_client_without_the_capability_is_not_told_and_waits(make_broker, tmp_path):
    file = tmp_path / "brokerd.toml"
    file.write_text(f"free_disk_min_octets = {1 << 50}\n")
    broker = make_broker("-c", file).start()
    broker.wait_for_log("publishers are blocked")
    with Peer(broker.port).open(capabilities={}) as peer:
        name = peer.ask(methods.QueueDeclare(exclusive=True)).queue
        peer.send(publish(name, b"held"), methods.BasicGet(queue=name, no_ack=True))
        file.write_text("free_disk_min_octets = 0\n")
        os.kill(broker.pid, signal.SIGHUP)
        assert isinstance(peer.read(), methods.BasicGetOk)
        assert peer.message()[1] == b"held"
        peer.close()


def test_a_broker_stops_while_publishers_are_blocked(make_broker, tmp_path):
    broker = make_broker(env={"BROKERD_FREE_DISK_MIN_OCTETS": str(1 << 50)}).start()
    broker.wait_for_log("publishers are blocked")
    with Peer(broker.port).open() as peer:
        name = peer.ask(methods.QueueDeclare(exclusive=True)).queue
        peer.send(publish(name))
        assert isinstance(peer.read(), methods.ConnectionBlocked)
        os.kill(broker.pid, signal.SIGTERM)
        while not isinstance(method := peer.read(), methods.ConnectionClose):
            assert isinstance(method, methods.ConnectionUnblocked), method
        assert method.reply_code == 320
        peer.send((0, methods.ConnectionCloseOk()))
        assert peer.read() is None
    assert broker.wait() == 0


# --- a disk that is full indeed


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 24 MiB; ``fill(octets)`` leaves that much of it, ``free()`` gives all back."""
    if os.geteuid():
        pytest.skip("only root can mount a small file system")
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", path], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.strip()}")

    class Disk:
        data = path / "data"
        filler = path / "filler"

        @classmethod
        def fill(cls, leave):
            with cls.filler.open("wb") as file:
                state = os.statvfs(path)
                file.write(bytes(max(0, state.f_bavail * state.f_frsize - leave)))

        @classmethod
        def free(cls):
            cls.filler.unlink()

    try:
        yield Disk
    finally:
        subprocess.run(["umount", "-l", path], check=True)


FULL = {"BROKERD_FREE_DISK_MIN_OCTETS": "0", "BROKERD_SEGMENT_OCTETS": str(MIB)}


@pytest.fixture
def broker(small_disk, make_broker):
    """A broker on the small disk; the disk stays until it has stopped."""
    broker = make_broker(env=FULL, directory=small_disk.data).start()
    declare(broker.port, "q")
    yield broker
    if broker.process is not None:
        broker.stop()
    broker.check_log()


def test_a_full_disk_is_an_alarm_and_publishing_goes_on_when_there_is_room(broker, small_disk):
    small_disk.fill(5 * MIB)
    publisher = Publisher(broker.port, "q", numbered(150, 100_000))
    publisher.until(methods.ConnectionBlocked)
    broker.wait_for_log("ERROR   cannot write messages: No space left on device; publishers wait")
    assert publisher.confirmed < 150
    with Peer(broker.port).open() as other:  # Reading is possible all the time.
        assert other.get("q")[1][:8] == b"00000000"
        other.close()
    small_disk.free()
    publisher.until(methods.ConnectionUnblocked)
    publisher.finish()
    assert drain(broker.port, "q", 149) == numbered(150)[1:]


def test_consuming_makes_room_on_a_full_disk(broker, small_disk):
    small_disk.fill(6 * MIB)
    publisher = Publisher(broker.port, "q", numbered(150, 100_000))
    publisher.until(methods.ConnectionBlocked)
    finishing = threading.Thread(target=publisher.finish)
    finishing.start()
    assert drain(broker.port, "q", 150) == numbered(150)
    finishing.join()


@pytest.mark.parametrize("kill", [False, True])
def test_a_broker_may_be_stopped_or_killed_on_a_full_disk(broker, small_disk, kill):
    small_disk.fill(5 * MIB)
    publisher = Publisher(broker.port, "q", numbered(150, 100_000))
    publisher.until(methods.ConnectionBlocked)
    confirmed = publisher.confirmed
    if kill:
        broker.kill()
    else:
        os.kill(broker.pid, signal.SIGTERM)
        publisher.peer.socket.shutdown(1)
        assert broker.wait() == 0
    publisher.thread.join()
    publisher.peer.hang_up()
    small_disk.free()
    broker.start()
    heads = drain_all(broker.port, "q")
    assert heads[:confirmed] == numbered(confirmed)
    assert heads == numbered(len(heads))


def drain_all(port, queue):
    with Peer(port).open() as peer:
        heads = []
        while (message := peer.get(queue)) is not None:
            heads.append(message[1][:8])
        peer.close()
        return heads


def test_definitions_on_a_full_disk_are_refused_and_the_connection_lives(broker, small_disk):
    small_disk.fill(0)
    with Peer(broker.port).open() as peer:
        refused = 0
        for n in range(2000):
            reply = peer.ask(methods.QueueDeclare(queue=f"{n:0250}", durable=True))
            if isinstance(reply, methods.ChannelClose):
                assert (reply.reply_code, reply.reply_text) == (
                    406, "PRECONDITION_FAILED - the definition cannot be stored: No space left on device")
                peer.send(methods.ChannelCloseOk())
                peer.open_channel(1)
                refused = n
                break
        small_disk.free()
        assert isinstance(peer.ask(methods.QueueDeclare(queue=f"{refused:0250}", durable=True)),
                          methods.QueueDeclareOk)
        peer.close()
    broker.restart()
    with Peer(broker.port).open() as peer:
        for n in range(refused + 1):
            assert isinstance(peer.ask(methods.QueueDeclare(queue=f"{n:0250}", passive=True)), methods.QueueDeclareOk)
        peer.close()


def keyed(body):
    """A message to the exchange "x" with itself as its deduplication key."""
    return publish("", body, "x", delivery_mode=2, headers={"x-deduplication-header": body.decode()})


class KeyedPublisher(Publisher):
    """Publishes bodies to the exchange "x", with keys."""

    def _publish(self):
        for body in self.bodies:
            self.peer.raw(keyed(body))


def bind_queues(port, queues):
    """An exchange that leaves out duplicates, and queues that have a file already."""
    with Peer(port).open() as peer:
        arguments = {"x-message-deduplication": True, "x-cache-size": 100_000}
        peer.ask(methods.ExchangeDeclare(exchange="x", type="fanout", durable=True, arguments=arguments))
        for queue in queues:
            peer.ask(methods.QueueDeclare(queue=queue, durable=True))
            peer.ask(methods.QueueBind(queue=queue, exchange="x"))
            peer.raw(publish(queue, b"no key", delivery_mode=2))
        peer.close()


def count(port, queue):
    with Peer(port).open() as peer:
        messages = peer.ask(methods.QueueDeclare(queue=queue, passive=True)).message_count
        peer.close()
        return messages


@pytest.mark.parametrize("kill", [False, True])
@pytest.mark.parametrize("queues", ["q", "qr"])
def test_a_first_key_waits_for_room_and_is_known_after_a_restart(broker, small_disk, queues, kill):
    bind_queues(broker.port, queues)
    small_disk.fill(0)
    publisher = KeyedPublisher(broker.port, None, numbered(100))
    publisher.until(methods.ConnectionBlocked)
    assert publisher.confirmed == 0
    small_disk.free()
    publisher.finish()
    broker.restart(kill=kill)
    KeyedPublisher(broker.port, None, numbered(100)).finish()
    assert [count(broker.port, queue) for queue in queues] == [101] * len(queues)


@pytest.mark.parametrize("kill", [False, True])
@pytest.mark.parametrize("queues", ["q", "qr"])
def test_keys_that_were_confirmed_on_a_full_disk_are_known_after_a_restart(broker, small_disk, queues, kill):
    bind_queues(broker.port, queues)
    bodies = numbered(5000)
    confirmed = 0
    with Peer(broker.port).open() as peer:
        peer.ask(methods.ConfirmSelect())
        for body in bodies:
            peer.raw(keyed(body))
            if isinstance(peer.read(), methods.ConnectionBlocked):
                break
            confirmed += 1
            if confirmed == 1:
                small_disk.fill(0)
        peer.hang_up()
    assert 1 < confirmed < 5000
    if kill:
        broker.kill()
    else:
        broker.stop()
    small_disk.free()
    broker.start()
    before = count(broker.port, "q")
    KeyedPublisher(broker.port, None, bodies[:confirmed]).finish()
    assert count(broker.port, "q") == before > confirmed
