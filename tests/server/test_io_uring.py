"""libuv uses io_uring by itself where the kernel has it."""

import errno
import subprocess
import sys
from pathlib import Path

import pika
import pytest
from tests.broker import Broker, environment

FORBID = [sys.executable, str(Path(__file__).with_name("forbid.py"))]


def test_the_profile_of_this_test_forbids_io_uring():
    program = "import ctypes; print(ctypes.CDLL(None, use_errno=True).syscall(425, 1, 0), ctypes.get_errno())"
    done = subprocess.run([*FORBID, sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == f"-1 {errno.EPERM}\n"


def test_a_broker_to_which_io_uring_is_forbidden_serves_its_clients(tmp_path):
    with Broker(tmp_path / "data", before=FORBID) as broker:
        connection = pika.BlockingConnection(pika.ConnectionParameters(port=broker.port, heartbeat=0))
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", "q", b"x", pika.BasicProperties(delivery_mode=2))
        assert channel.basic_get("q", auto_ack=True)[2] == b"x"
        connection.close()


@pytest.mark.parametrize(("given", "used"), [(None, "0"), ("1", "1")])
def test_libuv_is_told_not_to_use_it_unless_the_operator_says_otherwise(tmp_path, given, used):
    program = (
        "import os, sys, uvloop;"
        "uvloop.new_event_loop = lambda: (print(os.environ['UV_USE_IO_URING'], flush=True), os._exit(0));"
        f"sys.argv = ['brokerd', '-D', {str(tmp_path / 'data')!r}];"
        "from brokerd.__main__ import main; main()"
    )
    env = environment({"UV_USE_IO_URING": given} if given else {})
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert done.stdout == f"{used}\n", done.stderr
