"""Exceptions that no caller can catch become one critical line of the log each, with their traceback in it.

    sys.unraisablehook        raised where Python cannot pass it on: in callbacks from the data plane, in __del__
    the loop's handler        raised by a callback or a task of the loop
    threading.excepthook      raised at the top of a thread

Without this they go to standard error, which a log file does not hold.  Decides nothing: the broker goes on.
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
    """From now on all three kinds are logged."""
    sys.unraisablehook = log_unraisable
    threading.excepthook = log_thread
    loop.set_exception_handler(log_callback)


def log_unraisable(unraisable: "sys.UnraisableHookArgs") -> None:
    """What ``sys.unraisablehook`` is called with."""
    where = unraisable.err_msg or "Exception ignored in"
    _log(f"{where} {unraisable.object!r}" if unraisable.object is not None else where, unraisable.exc_value)


def log_thread(lost: "threading.ExceptHookArgs") -> None:
    """What ``threading.excepthook`` is called with."""
    if lost.exc_type is not SystemExit:
        _log(f"thread {lost.thread.name if lost.thread is not None else '?'} ended", lost.exc_value)


def log_callback(_: "asyncio.AbstractEventLoop", context: dict[str, Any]) -> None:
    """What the loop calls with a fault of one of its callbacks."""
    source = next((context[name] for name in ("handle", "task", "future", "transport") if name in context), None)
    _log(f"{context['message']} {source!r}" if source is not None else context["message"], context.get("exception"))


def _log(what: str, error: BaseException | None) -> None:
    told = "".join(format_exception(error)) if error is not None else "no exception is known"
    log.critical("internal error: %s: %s", what, told.rstrip())
