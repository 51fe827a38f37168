"""What the tests with pika share."""

import contextlib
import json

import pika
from tests.broker import SECONDS

from brokerd.auth.passwords import hash_password

made = []
# No limit of pika's is reached while all is well, however busy the machine.
WAITS = {"socket_timeout": SECONDS, "stack_timeout": SECONDS}
PERSISTENT = pika.BasicProperties(delivery_mode=2)


def parameters(broker, user="guest", password=None, vhost="/", heartbeat=0, **more):
    """Connection parameters for pika; the password is the user's name unless given."""
    credentials = pika.PlainCredentials(user, user if password is None else password)
    options = WAITS | {"heartbeat": heartbeat} | more
    return pika.ConnectionParameters("127.0.0.1", broker.port, vhost, credentials, **options)


def connect(broker, **more):
    """A BlockingConnection; alive until the test is over."""
    made.append(pika.BlockingConnection(parameters(broker, **more)))
    return made[-1]


def close_all():
    """Close every connection that is still open."""
    for connection in made:
        if connection.is_open:
            with contextlib.suppress(pika.exceptions.AMQPError):
                connection.close()


def publish_confirmed(channel, queue, bodies, properties=PERSISTENT):
    """Publish with confirms and wait for all of them."""
    channel.confirm_delivery()
    for body in bodies:
        channel.basic_publish("", queue, body, properties)


def drain(channel, queue):
    """The bodies of all ready messages, taken."""
    bodies = []
    while True:
        method, _, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return bodies
        bodies.append(body)


def count(channel, queue):
    """How many messages are ready."""
    return channel.queue_declare(queue, passive=True).method.message_count


def write_json(path, value):
    """What an operator's editor leaves."""
    path.write_text(json.dumps(value, indent=2) + "\n")


def user_entry(name, password=None, tags=()):
    """A user as users.json has it."""
    return {"name": name, "password_hash": hash_password(name if password is None else password),
            "hashing_algorithm": "rabbit_password_hashing_sha256", "tags": list(tags)}


def permission(user, vhost="/", configure=".*", write=".*", read=".*"):
    """A row of permissions.json."""
    return {"user": user, "vhost": vhost, "configure": configure, "write": write, "read": read}
