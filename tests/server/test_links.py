"""The broker and its process of links."""

import os
import signal
import subprocess
import sys

import pytest
from tests.broker import ROOT, environment
from tests.carriers import rounds
from tests.carriers.ends import ask, await_true, bodies, fill, numbered, shovel, take
from tests.server import clients
from tests.server.test_management import children, is_gone


def test_a_broker_without_links_starts_no_process_and_imports_nothing_of_them(broker):
    assert children(broker.pid) == []
    done = subprocess.run(
        [sys.executable, "-c", "import sys, brokerd.server.launch; print([name for name in sys.modules if name in"
         " ('brokerd.carriers.link', 'brokerd.links.state', 'brokerd.server.links', 'brokerd.client.connection')])"],
        env=environment(), cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_process_comes_with_the_first_link_and_goes_with_the_last(broker):
    shovel(broker, "a", src_queue="1", dest_queue="2")
    await_true(lambda: rounds.process_of_links(broker))
    pid = rounds.process_of_links(broker)
    shovel(broker, "b", src_queue="3", dest_queue="4")
    ask(broker, "parameter clear", component="shovel", name="a")
    fill(broker, "3", [b"m"])
    take(broker, "4", 1)
    assert rounds.process_of_links(broker) == pid
    ask(broker, "parameter clear", component="shovel", name="b")
    await_true(lambda: is_gone(pid))
    shovel(broker, "b", src_queue="3", dest_queue="4")
    fill(broker, "3", [b"n"])
    assert bodies(take(broker, "4", 1)) == [b"n"]
    clients.close_all()


def test_a_process_that_dies_is_started_again_and_nothing_is_lost(make_broker):
    broker = make_broker()
    broker.may_fork = False  # So its process is a new Python, too.
    broker.start()
    shovel(broker, src_queue="from", dest_queue="to")
    fill(broker, "from", numbered(1))
    take(broker, "to", 1)
    await_true(lambda: ask(broker, "queue show", queue="from")["messages"] == 0)
    os.kill(rounds.process_of_links(broker), signal.SIGKILL)
    fill(broker, "from", numbered(10))
    assert bodies(take(broker, "to", 10)) == numbered(10)
    broker.wait_for_log("links: the process ended by signal 9: it starts again in 1 s")
    clients.close_all()


def test_the_process_ends_with_its_broker_also_with_one_that_is_killed(broker):
    shovel(broker, src_queue="from", dest_queue="to")
    await_true(lambda: rounds.process_of_links(broker))
    pid = rounds.process_of_links(broker)
    broker.kill()
    await_true(lambda: is_gone(pid))
    broker.start()
    await_true(lambda: rounds.process_of_links(broker))


def test_nobody_starts_the_process_by_hand():
    done = subprocess.run([sys.executable, "-m", "brokerd", "links"], env=environment(), cwd=ROOT, input=b"x\n",
                          capture_output=True)
    assert done.returncode == 2
    assert done.stderr == b"brokerd links: the broker starts this by itself\n"


@pytest.mark.parametrize("count", [3])
def test_kills_under_load_lose_nothing_and_keep_the_order(tmp_path, count):
    rounds.run(count, tmp_path)
