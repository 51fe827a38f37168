import os
import resource
import socket
import subprocess
import sys
import threading

import pika
import pytest
from tests.broker import Broker, environment
from tests.conversations import peer as wire
from tests.conversations.peer import Peer

from brokerd import descriptors
from brokerd.descriptors import FEW, Budget
from brokerd.wire import methods


def publish(channel, body):
    """Publish a persistent message to all queues at once; confirmed."""
    properties = pika.BasicProperties(delivery_mode=2, headers={"x-deduplication-header": body.decode()})
    channel.basic_publish("all", "", body, properties)


def fill(broker, queues, arguments):
    """Bind so many durable queues to an exchange, and publish a message to them, so that each has its files open."""
    connection = pika.BlockingConnection(pika.ConnectionParameters(port=broker.port, heartbeat=0))
    channel = connection.channel()
    channel.exchange_declare("all", "fanout", durable=True, arguments=arguments)
    for number in range(queues):
        channel.queue_declare(f"q{number}", durable=True)
        channel.queue_bind(f"q{number}", "all")
    channel.confirm_delivery()
    publish(channel, b"first")
    return connection, channel


LOW = "import os, resource, sys; hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1];" \
      "resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard)); os.execv(sys.argv[1], sys.argv[1:])"


def test_a_start_raises_the_soft_limit_of_open_files_to_the_hard_one(tmp_path):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with Broker(tmp_path / "data", before=[sys.executable, "-c", LOW]) as broker:
        assert resource.prlimit(broker.pid, resource.RLIMIT_NOFILE) == (hard, hard)


@pytest.mark.parametrize("type_", ["fanout", "deduplicating"])
@pytest.mark.parametrize("spare", [20, 0])
def test_a_sync_for_which_too_few_descriptors_are_left_is_done_and_loses_nothing(broker, spare, type_):
    """Each queue in use has one, and a sync would want as many again."""
    queues = 100
    arguments = {"x-message-deduplication": True} if type_ == "deduplicating" else None
    connection, channel = fill(broker, queues, arguments)
    limit = len(os.listdir(f"/proc/{broker.pid}/fd")) + spare
    _, hard = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (limit, hard))
    for body in (b"second", b"third"):
        publish(channel, body)          # returns when it is confirmed
    resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (hard, hard))
    connection.close()
    broker.restart(kill=True)
    connection = pika.BlockingConnection(pika.ConnectionParameters(port=broker.port, heartbeat=0))
    channel = connection.channel()
    channel.confirm_delivery()
    publish(channel, b"third")          # A duplicate, where these are looked for.
    fourth = None if type_ == "deduplicating" else b"third"
    for number in range(queues):
        bodies = [channel.basic_get(f"q{number}", auto_ack=True)[2] for _ in range(4)]
        assert bodies == [b"first", b"second", b"third", fourth]
    connection.close()


@pytest.mark.parametrize(("hard", "warned"), [(FEW - 1, True), (FEW, False)])
def test_a_low_hard_limit_is_told_and_the_soft_one_becomes_as_high(hard, warned):
    program = (
        "import logging, resource; logging.basicConfig();"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, (100, {hard}));"
        "from brokerd.descriptors import raise_limit; raise_limit();"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"({hard}, {hard})\n")
    assert (f"may have {hard} files open" in done.stderr) == warned


def test_publishers_wait_while_no_descriptor_is_left_and_are_confirmed_when_there_is_one(broker):
    connection = pika.BlockingConnection(pika.ConnectionParameters(port=broker.port, heartbeat=0))
    told = []
    connection.add_on_connection_blocked_callback(lambda _, frame: told.append(frame.method.reason))
    channel = connection.channel()
    channel.queue_declare("q", durable=True)
    channel.confirm_delivery()
    soft, hard = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{broker.pid}/fd")), hard))

    def end():
        broker.wait_for_log("cannot write messages: Too many open files; publishers wait")
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (soft, hard))

    thread = threading.Thread(target=end)
    thread.start()
    channel.basic_publish("", "q", b"x", pika.BasicProperties(delivery_mode=2))     # returns when it is confirmed
    thread.join()
    assert channel.basic_get("q", auto_ack=True)[2] == b"x"
    connection.process_data_events()    # calls the callback
    assert told == ["low on file descriptors"]
    connection.close()
    broker.wait_for_log("no longer low on file descriptors; publishers go on")
    assert len([line for line in broker.lines if "ERROR" in line or "WARNING" in line]) == 2


def limited(files):
    """What to run before a broker, so that it may have so many files open."""
    program = (f"import os, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, ({files}, {files}));"
               "os.execv(sys.argv[1], sys.argv[1:])")
    return [sys.executable, "-c", program]


def silent(broker, number):
    sockets = []
    for _ in range(number):
        sock = socket.create_connection(("127.0.0.1", broker.port))
        sockets.append(sock)
    return sockets


def test_silent_sockets_leave_descriptors_for_confirms_and_new_queues(tmp_path):
    with Broker(tmp_path / "data", before=limited(256)) as broker:
        connection = pika.BlockingConnection(pika.ConnectionParameters(port=broker.port, heartbeat=0))
        channel = connection.channel()
        channel.confirm_delivery()
        sockets = silent(broker, 600)
        for number in range(20):
            channel.queue_declare(f"q{number}", durable=True)
            channel.basic_publish("", f"q{number}", b"x", pika.BasicProperties(delivery_mode=2))
        broker.wait_for_log("connections refused; this process may have 256 files open")
        broker.wait_for_log("low on file descriptors: [0-9]{2,} connections refused")   # behind the first one
        for sock in sockets:
            sock.close()
        assert not [line for line in broker.lines if "publishers wait" in line or "ERROR" in line or "CRITICAL" in line]
        second = pika.BlockingConnection(pika.ConnectionParameters(port=broker.port, heartbeat=0))
        second.close()
        connection.close()


def test_refused_sockets_are_told_once_a_second(monkeypatch):
    now, told = [0.0], []
    monkeypatch.setattr(descriptors.log, "warning", lambda text, refused, limit: told.append(refused))
    budget = Budget(1024, lambda: now[0])
    assert not any(budget.admits(budget.sockets_most) for _ in range(5))
    now[0] = 1.0
    budget.admits(budget.sockets_most)
    assert told == [1, 5]


def test_sockets_refused_behind_the_last_line_are_told_though_no_further_one_comes(monkeypatch):
    now, told = [0.0], []
    monkeypatch.setattr(descriptors.log, "warning", lambda text, refused, limit: told.append(refused))
    budget = Budget(1024, lambda: now[0])
    for _ in range(5):
        budget.admits(budget.sockets_most)
    now[0] = 0.9
    budget.tell()
    assert told == [1]
    now[0] = 1.0
    budget.tell()
    now[0] = 2.0
    budget.tell()
    assert told == [1, 4]


def test_a_socket_is_admitted_if_segments_could_be_closed_for_it():
    budget = Budget(1024, lambda: 0.0)
    asked = []
    budget.serve(lambda most: asked.append(most) or 1)
    assert budget.admits(budget.sockets_most - 1)
    assert asked == []
    assert budget.admits(budget.sockets_most)
    assert len(asked) == 1


@pytest.mark.parametrize("limit", [16, 64, 256, 1024, 1 << 20])
def test_syncs_and_files_have_descriptors_that_no_socket_takes(limit):
    budget = Budget(limit, lambda: 0.0)
    assert 0 < budget.sockets_most < budget.files_most < limit


@pytest.mark.parametrize("durable", [True, False])
def test_more_queues_in_use_than_descriptors_hold_up_no_publisher_and_lose_nothing(tmp_path, durable):
    queues = 400
    with Broker(tmp_path / "data", before=limited(256)) as broker:
        connection = pika.BlockingConnection(pika.ConnectionParameters(port=broker.port, heartbeat=0))
        channel = connection.channel()
        channel.exchange_declare("all", "fanout", durable=durable)
        for number in range(queues):
            channel.queue_declare(f"q{number}", durable=durable)
            channel.queue_bind(f"q{number}", "all")
        channel.confirm_delivery()
        for body in (b"first", b"second" + bytes(200_000), b"third"):
            channel.basic_publish("all", "", body, pika.BasicProperties(delivery_mode=2))
        late = pika.BlockingConnection(pika.ConnectionParameters(port=broker.port, heartbeat=0))
        other = late.channel()
        for number in range(queues):
            bodies = [other.basic_get(f"q{number}", auto_ack=True)[2][:6] for _ in range(3)]
            assert bodies == [b"first", b"second", b"third"]
        assert len(os.listdir(f"/proc/{broker.pid}/fd")) < 256
        assert not [line for line in broker.lines if "WARNING" in line and "may have 256" not in line]
        late.close()
        connection.close()


def test_the_journals_of_more_queues_than_descriptors_are_all_synced(tmp_path):
    with Broker(tmp_path / "data", before=limited(256)) as broker:
        with Peer(broker.port).open() as peer:
            names = [f"q{number}" for number in range(300)]
            for name in names:
                peer.send(methods.QueueDeclare(queue=name, durable=True, arguments={"x-order-journal": True},
                                               no_wait=True),
                          wire.publish(name, b"x"), methods.BasicGet(queue=name, no_ack=True))
            for _ in names:
                assert isinstance(peer.read(), methods.BasicGetOk)
                peer.message()
            peer.close()
        broker.stop()
        assert not [line for line in broker.lines if "ERROR" in line]
