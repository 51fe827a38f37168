"""Exceptions that no caller can catch: each becomes one critical line of the log, with its traceback in it.

    sys.unraisablehook        raised where Python cannot pass it on: in callbacks from the plane, in __del__
    the loop's handler        raised by a callback or a task of the loop
    threading.excepthook      raised at the top of a thread

Without this module they would go to standard error, and not into a log file.  The broker runs on after each of them.
"""

import sys
import threading
from logging import getLogger
from traceback import format_exception
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

log = getLogger("brokerd")


def install(loop: "asyncio.AbstractEventLoop") -> None:
    """Log all three kinds from now on."""
    sys.unraisablehook = log_unraisable
    threading.excepthook = log_thread
    loop.set_exception_handler(log_callback)


def log_unraisable(unraisable: "sys.UnraisableHookArgs") -> None:
    """Log an exception that Python cannot raise; for ``sys.unraisablehook``."""
    where = unraisable.err_msg or "Exception ignored in"
    _log(f"{where} {unraisable.object!r}" if unraisable.object is not None else where, unraisable.exc_value)


def log_thread(lost: "threading.ExceptHookArgs") -> None:
    """Log an exception that ended a thread; for ``threading.excepthook``."""
    if lost.exc_type is not SystemExit:
        _log(f"thread {lost.thread.name if lost.thread is not None else '?'} ended", lost.exc_value)


def log_callback(_: "asyncio.AbstractEventLoop", context: dict[str, Any]) -> None:
    """Log an exception of a callback or task; for the loop's exception handler."""
    source = next((context[name] for name in ("handle", "task", "future", "transport") if name in context), None)
    _log(f"{context['message']} {source!r}" if source is not None else context["message"], context.get("exception"))


def _log(what: str, error: BaseException | None) -> None:
    traceback = "".join(format_exception(error)) if error is not None else "no exception is known"
    log.critical("internal error: %s: %s", what, traceback.rstrip())
