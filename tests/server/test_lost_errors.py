"""No exception is lost: one that nothing can catch is a critical line of the log, with its traceback."""

import asyncio
import logging
import signal
import sys
import threading
from types import SimpleNamespace

import pytest
from tests.broker import Broker

from brokerd.server import lost_errors

FAULTY = """
from brokerd.node import Node

class Leaves:
    def __del__(self):
        raise ValueError("cannot be raised")

def tick(self, honest=Node.tick):
    Node.tick = honest
    Leaves()
    raise KeyError("in a callback")

Node.tick = tick
"""


@pytest.fixture
def lines(caplog):
    """What is logged, as (level, line)."""
    caplog.set_level(logging.INFO, "brokerd")
    return lambda: [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "brokerd"]


def raised(error):
    try:
        raise error
    except type(error) as caught:
        return caught


def test_a_broker_logs_each_exception_that_nothing_can_catch_in_one_line_and_goes_on(tmp_path):
    broker = Broker(tmp_path / "data", first=FAULTY).start()
    try:
        first = broker.wait_for_log("ValueError")
        second = broker.wait_for_log("KeyError")
    finally:
        status = broker._end(signal.SIGTERM)
    assert status == 0
    assert " CRITICAL internal error: Exception ignored" in first
    assert "Leaves.__del__" in first
    assert r": Traceback (most recent call last):\n" in first
    assert first.endswith("ValueError: cannot be raised")
    assert " CRITICAL internal error: " in second
    assert second.endswith("KeyError: 'in a callback'")
    assert not [line for line in broker.lines if line.startswith("Traceback")]


def test_the_traceback_is_in_the_record_itself(lines):
    lost_errors.log_unraisable(SimpleNamespace(err_msg=None, object=None, exc_value=raised(ValueError("lost"))))
    [(level, line)] = lines()
    assert level == "CRITICAL"
    assert line.startswith("internal error: Exception ignored in: Traceback (most recent call last):\n")
    assert line.endswith("ValueError: lost")


def test_a_fault_of_the_loop_without_an_exception_is_told_all_the_same(lines):
    lost_errors.log_callback(None, {"message": "Task was destroyed but it is pending!", "task": "t"})
    assert lines() == [
        ("CRITICAL", "internal error: Task was destroyed but it is pending! 't': no exception is known")]


def test_a_thread_that_ends_by_an_exception_is_named_and_one_that_exits_is_not(lines, monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lost_errors.log_thread)
    for error in (SystemExit(1), ValueError("in a thread")):
        thread = threading.Thread(target=lambda error=error: (_ for _ in ()).throw(error), name=f"sync {error}")
        thread.start()
        thread.join()
    [(level, line)] = lines()
    assert (level, line.partition(" ended: ")[0]) == ("CRITICAL", "internal error: thread sync in a thread")
    assert line.endswith("ValueError: in a thread")


def test_all_three_are_installed(monkeypatch):
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    loop = asyncio.new_event_loop()
    try:
        lost_errors.install(loop)
        assert sys.unraisablehook is lost_errors.log_unraisable
        assert threading.excepthook is lost_errors.log_thread
        assert loop.get_exception_handler() is lost_errors.log_callback
    finally:
        loop.close()
