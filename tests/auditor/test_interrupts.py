"""Ctrl-C and SIGTERM while an audit works: raised, or only noted; and what handled them before does so afterwards."""

import logging
import signal
import threading

import pytest

from brokerd.auditor.interrupts import SIGNALS, Interrupts, in_thread


@pytest.fixture(autouse=True)
def former():
    """A handler of somebody else, which stands before and after."""
    calls = []
    handlers = {number: signal.signal(number, lambda *_: calls.append("former")) for number in SIGNALS}
    yield calls
    for number, handler in handlers.items():
        signal.signal(number, handler)


each_signal = pytest.mark.parametrize("number", SIGNALS)


@each_signal
def test_an_interrupt_is_raised_also_after_another_handler_was_installed(former, number):
    with Interrupts() as interrupts:
        signal.signal(number, signal.SIG_IGN)
        interrupts.watch()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        assert interrupts.arrived.is_set()
        assert not logging.getLogger("py4j").isEnabledFor(logging.CRITICAL)
    assert logging.getLogger("py4j").isEnabledFor(logging.CRITICAL)
    signal.raise_signal(number)
    assert former == ["former"]


@each_signal
def test_a_deferred_interrupt_is_noted_and_the_second_ends_the_process(former, number):
    with Interrupts() as interrupts:
        interrupts.defer()
        assert not interrupts.arrived.is_set()
        signal.raise_signal(number)
        assert interrupts.arrived.is_set()
        assert signal.getsignal(number) is signal.SIG_DFL
        with pytest.raises(KeyboardInterrupt):
            interrupts.watch()
    signal.raise_signal(number)
    assert former == ["former"]


def test_another_thread_handles_no_interrupt(former):
    def work():
        with Interrupts() as interrupts:
            interrupts.watch()
            interrupts.defer()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    signal.raise_signal(signal.SIGINT)
    assert former == ["former"]


def test_work_in_another_thread_answers_and_fails_as_it_would_here():
    assert in_thread(lambda: threading.current_thread() is threading.main_thread()) is False
    with pytest.raises(KeyError, match="none"):
        in_thread(lambda: {}["none"])


def test_an_interrupt_does_not_disturb_work_in_another_thread(former):
    arrived = threading.Event()

    def work():
        assert arrived.wait(60)
        return "done"

    with Interrupts() as interrupts:
        interrupts.defer()
        arrived, _ = interrupts.arrived, threading.Timer(0, signal.raise_signal, [signal.SIGINT]).start()
        assert in_thread(work) == "done"
