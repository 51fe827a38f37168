"""What the tests of links share: parameters by the control socket, messages by pika."""

import itertools
import json
import time
from contextlib import closing

import pika
from tests.broker import SECONDS
from tests.server import clients

from brokerd import local_socket

QUICK = 0.05    # seconds between tries of a link


def ask(broker, verb, **fields):
    """The answer of an operation."""
    with closing(local_socket.connect(str(broker.directory), SECONDS)) as sock, sock.makefile("rwb") as file:
        file.write(json.dumps({"verb": verb, **fields}).encode() + b"\n")
        file.flush()
        while "progress" in (answer := json.loads(file.readline())):
            pass
    assert "result" in answer, answer
    return answer["result"]


def uri(broker, vhost=""):
    """The broker's address."""
    return f"amqp://guest:guest@127.0.0.1:{broker.port}/{vhost}"


def shovel(broker, name="s", **keys):
    """Make a shovel: src_queue="a" is src-queue, and so on.  Both ends are the broker itself unless given."""
    value = {"src-uri": "amqp://", "dest-uri": "amqp://", "reconnect-delay": QUICK}
    value |= {key.replace("_", "-"): each for key, each in keys.items()}
    ask(broker, "parameter set", component="shovel", name=name, value=value)


def fill(broker, queue, bodies, arguments=None, properties=clients.PERSISTENT):
    """Declare a queue and put messages there, each confirmed."""
    channel = clients.connect(broker).channel()
    channel.queue_declare(queue, durable=True, arguments=arguments)
    clients.publish_confirmed(channel, queue, bodies, properties)
    return channel


def take(broker, queue, count, arguments=None):
    """The next messages of a queue: (routing key, properties, body); waits for them, and acknowledges them."""
    channel = clients.connect(broker).channel()
    channel.queue_declare(queue, durable=True, arguments=arguments)
    found = []
    if count:
        for method, properties, body in channel.consume(queue, inactivity_timeout=SECONDS):
            assert method is not None, f"{len(found)} of {count} messages came"
            found.append((method.routing_key, properties, body))
            channel.basic_ack(method.delivery_tag)
            if len(found) == count:
                break
    channel.connection.close()
    return found


def bodies(messages):
    """Their bodies."""
    return [body for _, _, body in messages]


def numbered(count, start=0):
    """Bodies that are numbers."""
    return [b"%d" % number for number in range(start, start + count)]


def await_true(question):
    """Ask until the answer is yes: for what tells nobody."""
    deadline = time.monotonic() + SECONDS
    for _ in itertools.count():
        if question():
            return
        assert time.monotonic() < deadline
        time.sleep(0.02)


def headers(**values):
    """Persistent properties with headers."""
    return pika.BasicProperties(delivery_mode=2, headers=values)
