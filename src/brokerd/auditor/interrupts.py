"""Ctrl-C and SIGTERM while an audit works.

pyspark's own handler of Ctrl-C asks the JVM to cancel its jobs in the middle of another question to it; that fails, and
prints tracebacks.  Without a handler, SIGTERM would end a process that has not yet said its verdict.

    with Interrupts() as interrupts:
        interrupts.defer()      # From here on an interrupt only sets ``arrived``.  A second one ends the process.
        spark = in_thread(…)    # A JVM whose start is cut short would stay for ever.
        interrupts.watch()      # From here on an interrupt is a KeyboardInterrupt, and py4j writes no log about it.

Knows nothing of Spark.
"""

import logging
import signal
import threading
from collections.abc import Callable
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """The handling of SIGINT and SIGTERM until the end of the ``with`` block.  Does nothing outside the main thread."""

    def __init__(self) -> None:
        self.arrived = threading.Event()
        self._handles = threading.current_thread() is threading.main_thread()
        self._deferred = False
        self._former: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        if self._handles:
            self._former = {number: signal.getsignal(number) for number in SIGNALS}
        self.watch()
        return self

    def __exit__(self, *_: object) -> None:
        logging.disable(logging.NOTSET)
        for number, handler in self._former.items():
            if handler is not None:             # A handler that Python did not install cannot be put back.
                signal.signal(number, handler)

    def watch(self) -> None:
        """Let an interrupt raise KeyboardInterrupt, also one that was deferred.  Also after something else has
        installed a handler."""
        self._install(deferred=False)
        if self.arrived.is_set():
            raise KeyboardInterrupt

    def defer(self) -> None:
        """Let an interrupt only set ``arrived``, so that no question to the JVM ends before its answer."""
        self._install(deferred=True)

    def _install(self, *, deferred: bool) -> None:
        self._deferred = deferred
        if self._handles:
            for number in SIGNALS:
                signal.signal(number, self._handle)

    def _handle(self, number: int, *_: object) -> None:
        logging.disable(logging.CRITICAL)   # py4j logs every question that ends early, with a traceback.
        self.arrived.set()
        if not self._deferred:
            raise KeyboardInterrupt
        signal.signal(number, signal.SIG_DFL)


def in_thread(work: Callable[[], Any]) -> Any:
    """Do work() in another thread, and return its answer.  Raises what it raises.

    Spark is started so, because pyspark installs its handler only if it is started in the main thread.
    """
    done: list[tuple[Any, BaseException | None]] = []

    def run() -> None:
        try:
            done.append((work(), None))
        except BaseException as error:
            done.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.2)        # In between Python runs signal handlers, even if the signal came to another thread.
    answer, error = done[0]
    if error is not None:
        raise error
    return answer
