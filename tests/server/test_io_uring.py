"""libuv uses io_uring by itself where the kernel has it."""


import errno
import os
import subprocess
import sys
from pathlib import Path

import pika
from tests.broker import Broker

FORBID = [sys.executable, str(Path(__file__).with_name("forbid.py"))]


def descriptors(pid):
    """What the descriptors of a process lead to."""
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.append(os.readlink(f"/proc/{pid}/fd/{name}"))
        except FileNotFoundError:
            pass
    return found


def test_the_profile_of_this_test_forbids_io_uring():
    program = "import ctypes; print(ctypes.CDLL(None, use_errno=True).syscall(425, 1, 0), ctypes.get_errno())"
    done = subprocess.run([*FORBID, sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == f"-1 {errno.EPERM}\n"


def test_a_broker_to_which_io_uring_is_forbidden_serves_its_clients(tmp_path):
    with Broker(tmp_path / "data", before=FORBID) as broker:
        connection = pika.BlockingConnection(pika.ConnectionParameters(port=broker.port))
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", "q", b"x", pika.BasicProperties(delivery_mode=2))
        assert channel.basic_get("q", auto_ack=True)[2] == b"x"
        connection.close()
        assert "anon_inode:[eventpoll]" in descriptors(broker.pid)
        assert "anon_inode:[io_uring]" not in descriptors(broker.pid)
