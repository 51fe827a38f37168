"""The fixtures in runs of pytest as users have them."""

import os
import re
import subprocess
import sys

import pytest
from tests.broker import SECONDS, environment

USES = """
import pika, pytest

seen = []

@pytest.mark.parametrize("number", range(3))
def test_each_test_has_an_empty_vhost(amqp_broker, amqp_url, amqp_vhost, number):
    assert amqp_broker.url() == amqp_url
    with pika.BlockingConnection(pika.URLParameters(amqp_url)) as connection:
        assert connection.channel().queue_declare("q", durable=True).method.message_count == 0
        connection.channel().basic_publish("", "q", b"x")
    seen.append((amqp_broker.pid, amqp_vhost))

def test_all_tests_have_one_broker():
    assert len({pid for pid, _ in seen}) == 1
    assert len({vhost for _, vhost in seen}) == 3
"""


def run(folder, *arguments):
    """pytest, as where brokerd is installed.  (status, output)"""
    plugin = [] if has_entry_point() else ["-p", "brokerd.testing.plugin"]
    # The imports of other plugins take longest.
    without = [f"-pno:{name}" for name in ("cacheprovider", "hypothesispytest", "anyio", "timeout")]
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", *without, *plugin, *arguments, "."],
                          env=environment(), cwd=folder, capture_output=True, text=True, timeout=SECONDS)
    return done.returncode, done.stdout + done.stderr


def has_entry_point():
    from importlib.metadata import entry_points

    return any(each.value == "brokerd.testing.plugin" for each in entry_points(group="pytest11"))


def test_tests_share_a_broker_and_have_a_vhost_each(tmp_path):
    (tmp_path / "test_it.py").write_text(USES)
    status, output = run(tmp_path)
    assert status == 0, output
    assert "4 passed" in output


def test_each_worker_has_a_broker_of_its_own(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"test_{name}.py").write_text(
            "import os\ndef test_it(amqp_broker):\n"
            f"    open(f'{tmp_path}/{name} {{os.getpid()}} {{amqp_broker.pid}}.pids', 'x').close()\n")
    status, output = run(tmp_path, "-n", "2", "--dist", "each")     # Each worker runs both files.
    assert status == 0, output
    assert "4 passed" in output
    pairs = [tuple(path.stem.split()[1:]) for path in tmp_path.glob("*.pids")]
    assert len(pairs) == 4
    workers, brokers = zip(*set(pairs), strict=True)
    assert len(workers) == len(set(workers)) == len(set(brokers)) == 2


def test_options_come_from_a_fixture(tmp_path):
    (tmp_path / "conftest.py").write_text(
        "import pytest\n@pytest.fixture(scope='session')\ndef amqp_broker_options():\n"
        "    return {'sync': True, 'heartbeat_seconds': 7}\n")
    (tmp_path / "test_it.py").write_text("""
import pika

def test_it(amqp_broker, amqp_url):
    amqp_broker.power_cut()
    with pika.BlockingConnection(pika.URLParameters(amqp_url)) as connection:
        assert connection._impl.params.heartbeat == 7
""")
    status, output = run(tmp_path)
    assert status == 0, output


def test_a_test_that_fails_leaves_the_next_one_a_broker(tmp_path):
    (tmp_path / "test_it.py").write_text("""
import pika

def test_one(amqp_broker, amqp_url):
    connection = pika.BlockingConnection(pika.URLParameters(amqp_url))
    connection.channel().queue_declare("q", exclusive=True)
    amqp_broker.disk_full()
    raise ZeroDivisionError

def test_two(amqp_broker, amqp_url):
    with pika.BlockingConnection(pika.URLParameters(amqp_url)) as connection:
        connection.channel().queue_declare("q", durable=True)
        connection.channel().basic_publish("", "q", b"x")
    amqp_broker.outage().__enter__()

def test_three(amqp_url):
    pika.BlockingConnection(pika.URLParameters(amqp_url)).close()
""")
    status, output = run(tmp_path, "-p", "no:unraisableexception")
    assert status == 1
    assert "1 failed, 2 passed" in output, output


@pytest.mark.parametrize("disturb", ["disk_full", "outage"])
def test_what_a_test_leaves_behind_ends_before_the_next_though_it_asked_for_the_broker_alone(tmp_path, disturb):
    (tmp_path / "test_it.py").write_text(f"""
import pika

left = []

def leave_behind(broker):
    left.append(broker.{disturb}())
    left[-1].__enter__()

def test_one(amqp_broker):
    leave_behind(amqp_broker)

def test_two(amqp_broker):
    amqp_broker.make_vhost()
    leave_behind(amqp_broker)

def test_three(amqp_url):
    with pika.BlockingConnection(pika.URLParameters(amqp_url)) as connection:
        connection.channel().queue_declare("q", durable=True)
""")
    status, output = run(tmp_path, "-p", "no:unraisableexception")
    assert status == 0, output
    assert "3 passed" in output


PREPARED = """
from brokerd.testing import keeper_process

def pytest_collection_finish(session):
    where = "worker" if hasattr(session.config, "workerinput") else "main"
    print("prepared", len(keeper_process._prepared), "in", where)

def pytest_unconfigure(config):
    assert not keeper_process._prepared
"""


def test_a_run_prepares_a_broker_if_the_one_before_needed_it(tmp_path):
    (tmp_path / "conftest.py").write_text(PREPARED)
    (tmp_path / "test_it.py").write_text(
        "def test_with(amqp_broker):\n    assert amqp_broker.pid\n\ndef test_without():\n    pass\n")
    for tests, prepared in ("without", 0), ("with or without", 0), ("without", 1), ("with or without", 0), ("with", 1):
        status, output = run(tmp_path, "-s", "-p", "cacheprovider", "-k", tests)
        assert status == 0, output
        assert f"prepared {prepared} in main" in output, (tests, output)


def test_a_run_whose_workers_need_a_broker_prepares_none_where_no_test_runs(tmp_path):
    (tmp_path / "conftest.py").write_text(PREPARED)
    (tmp_path / "test_it.py").write_text("def test_with(amqp_broker):\n    assert amqp_broker.pid\n")
    for _ in range(2):
        status, output = run(tmp_path, "-s", "-p", "cacheprovider", "-n", "1")
        assert status == 0, output
        assert "prepared 1 in main" not in output


def test_the_fixtures_are_listed_with_what_they_are(tmp_path):
    (tmp_path / "test_it.py").write_text("def test_it(): pass\n")
    _, output = run(tmp_path, "--fixtures")
    for name, text in (("amqp_broker", "A real AMQP broker"), ("amqp_vhost", "a vhost for this test alone"),
                       ("amqp_url", "amqp://guest:guest@127.0.0.1:PORT/VHOST")):
        assert re.search(rf"^{name}\b.*\n.*{re.escape(text)}", output, re.MULTILINE), output


def test_a_run_that_needs_no_broker_imports_nothing_of_it(tmp_path):
    (tmp_path / "test_it.py").write_text("""
import sys

def test_it():
    found = {name for name in sys.modules if name.startswith("brokerd")}
    assert found <= {"brokerd", "brokerd.testing", "brokerd.testing.plugin"}, found
""")
    status, output = run(tmp_path)
    assert status == 0, output


@pytest.mark.parametrize("part", ["server", "node", "cli.brokerd"])
def test_the_broker_never_imports_its_testing(part):
    script = f"import sys, brokerd.{part}\nassert not [n for n in sys.modules if n.startswith('brokerd.testing')]"
    done = subprocess.run([sys.executable, "-c", script], env=environment(), cwd=os.sep, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
