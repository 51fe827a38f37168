import os
import resource
import subprocess
import sys
import threading

import pika
import pytest
from tests.broker import Broker, environment

from brokerd.server.descriptors import FEW


def publish(channel, body):
    """Publish a persistent message to all queues at once; confirmed."""
    properties = pika.BasicProperties(delivery_mode=2, headers={"x-deduplication-header": body.decode()})
    channel.basic_publish("all", "", body, properties)


def fill(broker, queues, arguments):
    """Bind so many durable queues to an exchange, and publish a message to them, so that each has its files open."""
    connection = pika.BlockingConnection(pika.ConnectionParameters(port=broker.port))
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
    connection = pika.BlockingConnection(pika.ConnectionParameters(port=broker.port))
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
        "from brokerd.server.descriptors import raise_limit; raise_limit();"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"({hard}, {hard})\n")
    assert (f"may have {hard} files open" in done.stderr) == warned


def test_publishers_wait_while_no_descriptor_is_left_and_are_confirmed_when_there_is_one(broker):
    connection = pika.BlockingConnection(pika.ConnectionParameters(port=broker.port))
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
