import resource
import subprocess
import sys

import pika
import pytest
from tests.broker import environment

from brokerd.server.descriptors import FEW

DURABLE = pika.BasicProperties(delivery_mode=2)


def fill(broker, queues):
    """Bind so many durable queues to amq.fanout, and publish a persistent message to all of them at once, confirmed."""
    connection = pika.BlockingConnection(pika.ConnectionParameters(port=broker.port))
    channel = connection.channel()
    for number in range(queues):
        channel.queue_declare(f"q{number}", durable=True)
        channel.queue_bind(f"q{number}", "amq.fanout")
    channel.confirm_delivery()
    channel.basic_publish("amq.fanout", "", b"first", DURABLE)
    return connection, channel


def test_a_start_raises_the_soft_limit_of_open_files_to_the_hard_one(broker):
    soft, hard = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
    assert soft == hard == resource.getrlimit(resource.RLIMIT_NOFILE)[1]


@pytest.mark.parametrize("queues", [60, 200])
def test_a_sync_of_more_files_than_the_process_may_open_is_done_and_loses_nothing(broker, queues):
    connection, channel = fill(broker, queues)
    limit = 40 + queues + 20        # Each queue in use has one, and a sync would want as many again.
    resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (limit, limit))
    for body in (b"second", b"third"):
        channel.basic_publish("amq.fanout", "", body, DURABLE)      # returns when confirmed
    broker.restart(kill=True)
    connection = pika.BlockingConnection(pika.ConnectionParameters(port=broker.port))
    channel = connection.channel()
    for number in range(queues):
        bodies = [channel.basic_get(f"q{number}", auto_ack=True)[2] for _ in range(4)]
        assert bodies == [b"first", b"second", b"third", None]
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
