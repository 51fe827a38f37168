"""docs/groups.md as a reader follows it: its programs and commands as they stand there, and what it says of them."""

import json
import os
import re
import shutil
import subprocess
import sys
from itertools import groupby
from pathlib import Path

import pytest
from tests.broker import ROOT, SECONDS, Broker, environment

from brokerd.cli import brokerctl

PAGE = (ROOT / "docs" / "groups.md").read_text(encoding="utf-8")
PUBLISH, WORKERS, SIDE_BY_SIDE, CELERY, AIO_PIKA = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
(AMQPLIB,) = re.findall(r"^```javascript\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
LOOK, SHOW, RELEASE, AUDIT = re.findall(r"^    brokerctl (.*)$", PAGE.split("\n## What a group waits for\n")[0],
                                        re.MULTILINE)
NODE_MODULES = Path(__file__).parent / "amqplib" / "node_modules"
ORDER_TASKS = """
import tasks
for number in range(1, 6):
    for customer in ("ann", "bob", "cid"):
        tasks.order(customer, number)
"""
# A program as it stands, only that the port that pika uses by itself is the test's broker's.
RUN = "import pika, runpy, sys; pika.connection.Parameters.DEFAULT_PORT = int(sys.argv.pop(1)); del sys.argv[0]; " \
      "runpy.run_path(sys.argv[0], run_name='__main__')"


@pytest.fixture
def broker(tmp_path):
    """Its data is in ``data``, beside where the programs run."""
    with Broker(tmp_path / "data") as broker:
        yield broker


def run(broker, program, *words):
    """What a program of the page prints."""
    script = broker.directory.parent / "program.py"
    script.write_text(program, encoding="utf-8")
    done = subprocess.run([sys.executable, "-c", RUN, str(broker.port), script, *words], env=environment(),
                          cwd=script.parent, capture_output=True, text=True, timeout=SECONDS)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def numbers_of(lines):
    """customer: the numbers of its lines \"customer word number\", in their order"""
    found = {}
    for line in lines:
        customer, _, number = line.split()
        found.setdefault(customer, []).append(int(number))
    return found


def test_ten_workers_of_which_one_dies_and_one_rejects_and_the_group_that_is_released(broker, capsys, monkeypatch):
    monkeypatch.chdir(broker.directory.parent)

    def ctl(command, *more):
        assert brokerctl.run([*command.split(), *more]) == 0
        return capsys.readouterr().out

    assert run(broker, PUBLISH) == []
    done = numbers_of(run(broker, WORKERS))
    assert done.pop("c7") == [1, 2]
    # The worker that dies has printed orders whose acks the broker may not have read: these orders come once more.
    done = {customer: [number for number, _ in groupby(numbers)] for customer, numbers in done.items()}
    assert done == {f"c{n}": [1, 2, 3, 4, 5] for n in range(1, 101) if n != 7}

    (row,) = json.loads(ctl(LOOK, "--json"))["items"]
    assert (row["group"], row["state"], row["ready"]) == ("c7", "parked", 3)
    assert "parked" in ctl(LOOK)
    assert row["why"] in ctl(SHOW)
    assert row["why"] == (
        "Its first message failed 3 times, more often than the delivery limit allows; 'group release' lets it go on.")
    ctl(RELEASE)
    assert run(broker, WORKERS, "mended") == ["c7 order 3", "c7 order 4", "c7 order 5"]
    assert json.loads(ctl(LOOK, "--json"))["items"] == []

    assert "0 violated, 0 undecidable" in ctl(AUDIT)
    summary = json.loads(Path("audit/summary.json").read_text(encoding="utf-8"))
    rows = {row["audit"]: (row["verdict"], row["checked"]) for row in summary["audits"]}
    assert rows["group_order"] == rows["group_owner"]
    assert rows["group_order"][0] == "held"
    assert rows["group_order"][1] > 500                     # deliveries
    assert rows["stop_kept"] == ("held", 1)


def test_behind_a_hash_exchange_a_slow_customer_holds_up_others_and_with_groups_none(broker):
    behind, groups = run(broker, SIDE_BY_SIDE)
    assert groups == "with groups: c7"
    words = behind.removeprefix("behind the exchange: ").split()
    assert "c7" in words
    assert 1 < len(words) < 20


def test_celery_runs_the_tasks_of_a_customer_in_order_with_ten_workers(broker, tmp_path):
    url = f"amqp://127.0.0.1:{broker.port}"
    (tmp_path / "tasks.py").write_text(CELERY.replace("amqp://localhost", url), encoding="utf-8")
    env = environment({"C_FORCE_ROOT": "1"})
    reader, writer = os.pipe()
    workers = [subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "tasks", "worker", "--pool", "threads", "--concurrency", "5",
         "--without-mingle", "--without-gossip", "--hostname", name, "--loglevel", "info"],
        env=env, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=writer) for name in "ab"]
    os.close(writer)
    log = []

    def wait_for(word, count):
        """Until the workers have said it so often."""
        while sum(word in line for line in log) < count:
            log.append(next(lines))

    try:
        with open(reader, encoding="utf-8") as lines:
            wait_for("ready.", 2)
            subprocess.run([sys.executable, "-c", ORDER_TASKS], env=env, cwd=tmp_path, check=True, timeout=SECONDS)
            wait_for("succeeded", 15)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    for one in ("ann", "bob", "cid"):
        assert (tmp_path / f"{one}.txt").read_text().split() == list("12345"), "".join(log)


def test_aio_pika_gets_the_messages_of_a_customer_in_order(broker):
    program = AIO_PIKA.replace("amqp://localhost", f"amqp://127.0.0.1:{broker.port}")
    assert numbers_of(run(broker, program)) == {"ann": [1, 2, 3, 4, 5], "bob": [1, 2, 3, 4, 5]}


def test_amqplib_gets_the_messages_of_a_customer_in_order(broker, tmp_path):
    if shutil.which("node") is None or not (NODE_MODULES / "amqplib").exists():
        pytest.skip(f"needs node, and amqplib by: npm ci --prefix {NODE_MODULES.parent.relative_to(ROOT)}")
    (tmp_path / "program.js").write_text(AMQPLIB, encoding="utf-8")
    done = subprocess.run(
        ["node", "program.js"], cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS,
        env=os.environ | {"NODE_PATH": str(NODE_MODULES), "AMQP_URL": f"amqp://127.0.0.1:{broker.port}"})
    assert (done.returncode, done.stderr) == (0, "")
    assert numbers_of(done.stdout.splitlines()) == {"ann": [1, 2, 3, 4, 5], "bob": [1, 2, 3, 4, 5]}
