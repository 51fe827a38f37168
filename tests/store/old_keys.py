"""A data directory with deduplication keys of a broker of before, which kept them in mapped files ``dedup``.

    old_directories.unpack("keys-1", folder, boot)      the directory
    python -m tests.store.old_keys SOURCES              makes fixtures/keys-1.tar.xz

In it: queue ``keyed`` with x-message-deduplication, which knows the keys "q0" to "q9" (the messages of the first five
are acked); exchange ``once`` with x-message-deduplication, bound to queue ``plain``, which knows "e0" to "e4".
"""

import sys
import tarfile
import tempfile
from pathlib import Path

import pika
from tests.broker import Broker
from tests.store.old_directories import FIXTURES, SEGMENT_OCTETS, _anonymous

KEY_HEADER = "x-deduplication-header"


def connect(port):
    """A pika connection."""
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))


def send(channel, exchange, routing_key, key):
    """One persistent message with that key."""
    channel.basic_publish(exchange, routing_key, key.encode(), pika.BasicProperties(
        delivery_mode=2, headers={KEY_HEADER: key}))


def make(sources):
    """Have the broker of those sources write what the module's docstring says, and kill it."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "data"
        broker = Broker(directory, "--segment-octets", SEGMENT_OCTETS, env={"PYTHONPATH": str(Path(sources).resolve())})
        broker.start()
        channel = connect(broker.port).channel()
        channel.confirm_delivery()
        keyed = {"x-message-deduplication": True, "x-cache-size": 100}
        channel.queue_declare("keyed", durable=True, arguments=keyed)
        channel.queue_declare("plain", durable=True)
        channel.exchange_declare("once", "fanout", durable=True, arguments=keyed)
        channel.queue_bind("plain", "once")
        for number in range(10):
            send(channel, "", "keyed", f"q{number}")
        for number in range(5):
            send(channel, "once", "", f"e{number}")
            channel.basic_get("keyed", auto_ack=True)
        channel.queue_declare("plain", passive=True)
        broker.kill()
        for path in directory.rglob("*"):
            if path.is_socket() or path.name == ".lock":
                path.unlink()       # They name the machine, and no start needs them.
        (directory / "running").write_text("made whole\n")
        with tarfile.open(FIXTURES / "keys-1.tar.xz", "w:xz", preset=9) as archive:
            archive.add(directory, "data", filter=_anonymous)


if __name__ == "__main__":
    make(sys.argv[1])
