"""Helpers of these tests are modules beside them."""

import shutil
import sys
from pathlib import Path

import pika
import pytest
from tests.in_memory import in_memory  # noqa: F401 - its folders

from brokerd.store.disk import Disk
from brokerd.upkeep.indexes import write_index

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def stream_files(tmp_path_factory):
    """A copy of a stopped broker's files: a stream of which retention has removed the first segments, two readers, and
    indexes; and a queue."""
    from brokerd.testing import Broker

    folder = tmp_path_factory.mktemp("files") / "data"
    with Broker(segment_octets=1 << 20, order_journal=False) as broker:
        with pika.BlockingConnection(pika.URLParameters(broker.url())) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("log", durable=True, arguments={"x-queue-type": "stream", "x-max-length": 60})
            channel.queue_declare("queue", durable=True)
            channel.basic_publish("", "queue", b"x", pika.BasicProperties(delivery_mode=2))
            channel.basic_qos(prefetch_count=1)
            for number in range(100):
                headers = {"x-stream-filter-value": f"v{number // 40}"} if number % 10 else {}
                channel.basic_publish("", "log", bytes(50_000),
                                      pika.BasicProperties(delivery_mode=2, headers=headers))
            for name in ("billing", "search"):
                channel.basic_consume("log", print, arguments={"x-stream-reader": name, "x-stream-offset": 70})
        with broker.outage():
            shutil.copytree(broker.data_dir, folder, ignore=shutil.ignore_patterns("control.sock", ".lock"))
    for path in sorted(folder.rglob("readers"))[0].parent.glob("msgs.*"):
        write_index(str(path.parent), int(path.name[5:]), Disk())   # The broker's short life has not made them all.
    return folder


@pytest.fixture
def stream_copy(stream_files, tmp_path):
    shutil.copytree(stream_files, tmp_path / "data")
    return tmp_path / "data"
