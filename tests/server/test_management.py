"""The broker and its management process: one starts the other, neither brings the other down, both end together."""

import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest
from tests.broker import ROOT, SECONDS, environment
from tests.management.http import Http, reserve_http
from tests.server.clients import close_all, connect

LISTENS = r"listening on 127\.0\.0\.1:\d+ \(HTTP\)"


def children(pid):
    """The processes that a process has started."""
    found = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children") as file:
            found += map(int, file.read().split())
    return found


def is_gone(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def await_true(question):
    deadline = time.monotonic() + SECONDS
    while not question():
        assert time.monotonic() < deadline
        time.sleep(0.02)    # The kernel tells nobody but the parent of a process's end.


def test_a_broker_without_http_starts_no_second_process(broker):
    assert children(broker.pid) == []
    assert "HTTP" not in broker.log_text()


MAPPED = """
import ctypes
from brokerd.management.main import give_back_at_once
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]

class Figures(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks".split()
                + ["fordblks", "keepcost"]]

libc.mallinfo.restype = Figures
give_back_at_once()
libc.free(libc.malloc(2 << 20))     # After this one glibc would take such room from its heap.
before = libc.mallinfo().hblks
libc.malloc(1 << 20)
print(libc.mallinfo().hblks - before)
"""


@pytest.mark.parametrize(("env", "maps"), [({}, "1"), ({"MALLOC_MMAP_THRESHOLD_": str(4 << 20)}, "0")])
def test_large_answers_leave_no_gaps_in_the_heap_and_the_operators_environment_comes_first(env, maps):
    command = [sys.executable, "-c", MAPPED]
    done = subprocess.run(command, env=environment(env), cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == maps


def test_the_start_of_the_broker_imports_nothing_of_http(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", "import sys, brokerd.server.launch, brokerd.server.management;"
         "print({name.partition('.')[0] for name in sys.modules} & {'uvicorn', 'starlette', 'httptools', 'pydantic'})"],
        env=environment(), cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_the_process_listens_and_ends_with_its_broker(make_broker):
    port = reserve_http()
    broker = make_broker("--http-port", port)
    broker.may_fork = False  # So its process is a new Python, too.
    broker.start()
    broker.wait_for_log(LISTENS)
    (pid,) = children(broker.pid)
    assert Http(port).ask("GET", "/api/overview").status == 200
    broker.stop()
    assert is_gone(pid)


def test_a_killed_broker_takes_the_process_with_it(make_broker):
    port = reserve_http()
    broker = make_broker("--http-port", port).start()
    broker.wait_for_log(LISTENS)
    (pid,) = children(broker.pid)
    broker.kill()
    await_true(lambda: is_gone(pid))
    begin = len(broker.lines)
    broker.start()
    broker.wait_for_log(LISTENS, begin)


def test_a_killed_process_disturbs_no_client_and_starts_again(make_broker):
    port = reserve_http()
    broker = make_broker("--http-port", port).start()
    broker.wait_for_log(LISTENS)
    channel = connect(broker).channel()
    channel.queue_declare("there", durable=True)
    (pid,) = children(broker.pid)
    begin = len(broker.lines)
    os.kill(pid, signal.SIGKILL)
    broker.wait_for_log(r"management: the process ended by signal 9: it starts again in 1 s", begin)
    broker.wait_for_log(LISTENS, begin)
    channel.queue_declare("there", passive=True)
    assert Http(port).ask("GET", "/api/overview").status == 200
    close_all()


def test_a_port_in_use_is_one_line_of_the_log_and_amqp_goes_on(make_broker):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        broker = make_broker("--http-port", port).start()
        line = broker.wait_for_log("management: ")
        assert re.search(rf" ERROR   management: cannot listen on 127\.0\.0\.1:{port}: the port is in use by another "
                         "process: no HTTP until that changes$", line)
        connect(broker).channel().queue_declare("there", exclusive=True)
    broker.wait_for_log(LISTENS)    # It tried again, and the port was free.
    assert broker.log_text().count("cannot listen on") == 1
    close_all()


def test_the_process_does_not_run_by_hand(tmp_path):
    done = subprocess.run([sys.executable, "-m", "brokerd", "management"], env=environment(), cwd=ROOT, input=b"",
                          capture_output=True, timeout=SECONDS)
    assert done.returncode == 2
    assert done.stderr == b"brokerd management: the broker starts this by itself (option http_port)\n"
