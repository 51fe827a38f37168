"""Executors in processes of their own come to the same verdicts, with no brokerd but the zip that they are sent.

A whole standalone cluster, of a master and two workers, is tried where BROKERD_TEST_CLUSTER is set (any value):
    BROKERD_TEST_CLUSTER=1 python -m pytest tests/spark/test_cluster.py
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.audit import writer

from brokerd.audit.files import open_source
from brokerd.audit.verdicts import audit
from brokerd.spark.java import JavaError, java_home
from brokerd.spark.session import write_worker_zip

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = ROOT / "spark_jobs" / "ordering_audit.py"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Two queues; in one of them publishes are swapped, one pair over a boundary, and a message is delivered late."""
    pytest.importorskip("pyspark")
    try:
        java_home(dict(os.environ))
    except JavaError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("data")
    cut = writer.Options(segment_messages=100, kept=True)
    writer.write_queue(folder, writer.simple_level(450), cut, queue="fine")
    level = writer.simple_level(450)
    for place in (20, 199):
        numbers = level.messages["publish_seq"]
        numbers[place], numbers[place + 1] = numbers[place + 1].copy(), numbers[place].copy()
    level.events["ts"][600:602] += 900_000
    level.events.sort(order="ts")
    writer.write_queue(folder, level, cut, queue="swapped", folder="q2")
    return str(folder)


def audited(data, out, master):
    """Run the program against that master; its exit code and its summary."""
    environ = dict(os.environ) | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, str(PROGRAM), data, "--report", str(out), "--master", master], env=environ,
                          capture_output=True, text=True, timeout=900, check=False)
    assert "Traceback" not in done.stderr, done.stderr[-3000:]
    assert (out / "summary.json").exists(), done.stderr[-3000:]
    return done.returncode, json.loads((out / "summary.json").read_text())


def held_against(data, document):
    expected = audit(open_source(data))
    assert document["audits"] == [row for judged in expected for row in judged.audits]
    found = {row["audit"]: row.get("by_rule", row["found"]) for row in document["audits"] if row["found"]}
    assert found == {"publish_order": 2, "fifo": 450 - 301}


def test_a_worker_needs_only_the_zip_it_is_sent(tmp_path):
    program = ("import sys, brokerd.spark.engine, brokerd.spark.tables, brokerd.spark.stream, brokerd\n"
               "print('.zip' in brokerd.__file__, 'click' in sys.modules, 'brokerd.plane' in sys.modules)")
    paths = [str(write_worker_zip(tmp_path)), *(path for path in sys.path if path.endswith("-packages"))]
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True,
                          env=dict(os.environ) | {"PYTHONPATH": os.pathsep.join(paths)})
    assert done.stdout.split() == ["True", "False", "False"]


def test_a_cluster_of_processes_comes_to_the_same_verdicts(data, tmp_path):
    code, document = audited(data, tmp_path / "out", "local-cluster[2,1,1024]")
    assert code == 1
    held_against(data, document)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.mark.skipif(not os.environ.get("BROKERD_TEST_CLUSTER"), reason="BROKERD_TEST_CLUSTER is not set")
def test_a_standalone_cluster_comes_to_the_same_verdicts(data, tmp_path):
    import pyspark

    spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
    port, deploy = free_port(), "org.apache.spark.deploy"
    environ = dict(os.environ) | {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    environ.pop("PYTHONPATH", None)             # The workers know nothing of brokerd.
    java_home(environ)

    def start(name, *arguments):
        with open(tmp_path / f"{name}.log", "w") as log:
            return subprocess.Popen([str(spark_class), *arguments], env=environ, stdout=log, stderr=log,
                                    start_new_session=True)

    processes = [start("master", f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port),
                       "--webui-port", str(free_port()))]
    try:
        processes += [start(f"worker{number}", f"{deploy}.worker.Worker", "--host", "127.0.0.1", "--cores", "1",
                            "--memory", "1g", "--webui-port", str(free_port()), "--work-dir",
                            str(tmp_path / f"work{number}"), f"spark://127.0.0.1:{port}") for number in (1, 2)]
        deadline = time.monotonic() + 300
        while (tmp_path / "master.log").read_text().count("Registering worker") < 2:
            assert time.monotonic() < deadline, (tmp_path / "master.log").read_text()[-2000:]
            assert processes[0].poll() is None
            time.sleep(0.2)
        code, document = audited(data, tmp_path / "out", f"spark://127.0.0.1:{port}")
        assert code == 1
        held_against(data, document)
        assert len(list(tmp_path.glob("work*/app-*"))) == 2, "one of the workers did nothing"
    finally:
        for process in reversed(processes):
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(120)
