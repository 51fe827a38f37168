"""Celery: workers as they come, tasks with results, retries, times to wait, chords, remote control, events."""

import os
import subprocess
import sys
import threading
import time

import kombu.pools
import pytest
from celery import chain, chord, group
from tests.broker import ROOT, SECONDS
from tests.rabbitmq import either
from tests.server import celery_app


class Worker:
    """One `celery worker`; its log is read for what is waited for."""

    def __init__(self, broker, directory, name, app="app"):
        self.lines = []
        self.changed = threading.Condition()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", f"tests.server.celery_app:{app}", "worker", "--pool", "solo",
             "--hostname", f"{name}@test", "--loglevel", "info", "--events"],
            env=os.environ | {"BROKER": url(broker), "RESULTS": str(directory), "C_FORCE_ROOT": "1",
                              "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])},
            cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stderr:
            with self.changed:
                self.lines.append(line.decode().rstrip())
                self.changed.notify_all()

    def said(self, what, begin=0):
        """Return when a line from ``begin`` on holds ``what``."""
        with self.changed:
            assert self.changed.wait_for(lambda: any(what in line for line in self.lines[begin:]), SECONDS), (
                "\n".join(self.lines))
        return self

    def end(self):
        """The process ends, by SIGTERM if it has not already."""
        self.process.terminate()
        try:
            self.process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.reader.join()
        self.process.stderr.close()


def url(broker):
    return f"amqp://guest:guest@127.0.0.1:{broker.port}//"


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("celery")


@pytest.fixture(scope="module")
def broker(directory):
    """One broker for the whole file: workers take seconds to start."""
    with either(directory / "data") as broker:
        for app in (celery_app.app, celery_app.mortals, celery_app.chords):
            app.conf.broker_url = url(broker)
        celery_app.chords.conf.result_backend = f"file://{directory}"
        yield broker
        # A broker that stops waits for its clients, and these would not answer.
        for app in (celery_app.app, celery_app.mortals):
            if app.backend.result_consumer._consumer is not None:   # A test of it ran.
                app.backend.result_consumer.stop()
        kombu.pools.reset()
        for app in (celery_app.app, celery_app.mortals, celery_app.chords):
            app.close()


@pytest.fixture(scope="module")
def workers(broker, directory):
    """A worker for each application."""
    workers = [Worker(broker, directory, "one"), Worker(broker, directory, "two", "chords")]
    try:
        yield [worker.said("ready.") for worker in workers]
    finally:
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.end()


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "written")


def test_a_result_comes_back(workers):
    assert celery_app.add.delay(2, 3).get(timeout=SECONDS) == 5


def test_a_failure_comes_back(workers):
    with pytest.raises(KeyError, match="broken"):
        celery_app.broken.delay().get(timeout=SECONDS)


def test_a_task_is_tried_again(workers):
    assert celery_app.stubborn.delay(3).get(timeout=SECONDS) == 4


def test_a_task_waits_for_its_time(workers):
    begin = time.monotonic()
    assert celery_app.add.apply_async((1, 1), countdown=0.6).get(timeout=SECONDS) == 2
    assert time.monotonic() - begin > 0.55


def test_tasks_that_wait_for_their_time_do_not_hold_up_others(workers):
    """The worker raises its prefetch for each of them; broker and worker must mean the same by it."""
    for n in range(6):
        celery_app.add.apply_async((n, 1), countdown=3600, ignore_result=True)
    assert celery_app.add.delay(0, 0).get(timeout=SECONDS) == 0


def test_groups_and_chains(workers):
    add = celery_app.add
    assert group(add.s(n, n) for n in range(20))().get(timeout=SECONDS) == [2 * n for n in range(20)]
    assert chain(add.s(1, 1), add.s(10), add.s(100))().get(timeout=SECONDS) == 112


def test_a_chord(workers):
    """Over files: the backend rpc:// has none."""
    result = chord((celery_app.double.s(n) for n in range(5)), celery_app.total.s())()
    assert result.get(timeout=SECONDS, interval=0.05) == 20


def test_remote_control(workers):
    inspect = celery_app.app.control.inspect(["one@test"], timeout=SECONDS, limit=1)
    assert inspect.ping() == {"one@test": {"ok": "pong"}}
    assert inspect.active_queues()["one@test"][0]["name"] == "celery"
    assert "tests.server.celery_app.add" in inspect.registered()["one@test"]
    (reply,) = celery_app.app.control.broadcast(
        "rate_limit", {"task_name": "tests.server.celery_app.order", "rate_limit": "100/s"},
        destination=["one@test"], reply=True, timeout=SECONDS, limit=1)
    assert "ok" in reply["one@test"]


def test_a_task_that_waits_can_be_revoked(workers, path):
    (worker, _), begin = workers, len(workers[0].lines)
    result = celery_app.order.apply_async((1, path), countdown=1)
    worker.said(result.id, begin)
    celery_app.app.control.revoke(result.id, reply=True, destination=["one@test"], timeout=SECONDS, limit=1)
    worker.said("Discarding revoked task", begin)
    assert not os.path.exists(path)


def test_tasks_of_one_queue_run_in_their_order(workers, path):
    results = [celery_app.order.delay(n, path) for n in range(50)]
    results[-1].get(timeout=SECONDS)
    with open(path) as file:
        assert file.read().split() == [str(n) for n in range(50)]
    for result in results[:-1]:
        result.forget()


def test_events_tell_what_a_worker_does(workers):
    seen = []
    with celery_app.app.connection_for_read() as first:
        receiver = celery_app.app.events.Receiver(first, handlers={"*": lambda event: seen.append(
            (event["type"], event.get("uuid")))})
        with receiver.consumer_context() as (connection, _, _):
            result = celery_app.add.delay(1, 2)
            while ("task-succeeded", result.id) not in seen:
                connection.drain_events(timeout=SECONDS)
    assert result.get(timeout=SECONDS) == 3
    assert seen.index(("task-received", result.id)) < seen.index(("task-succeeded", result.id))


def test_a_worker_that_dies_loses_no_task(workers, broker, directory, path):
    """Acked late, what it held is run by the next one."""
    mortal = Worker(broker, directory, "mortal", "mortals").said("ready.")
    result = celery_app.fatal.delay(path)
    assert mortal.process.wait(SECONDS) == 9
    mortal.end()
    heir = Worker(broker, directory, "heir", "mortals")
    try:
        assert result.get(timeout=SECONDS) == "survived"
    finally:
        heir.end()
