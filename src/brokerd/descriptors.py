"""How many files this process may have open, and who may have the last of them.

    0 ... sockets, segments, logs ...     | sockets_most ...     | files_most ...      limit
                                            segments and files     files alone

A socket with a descriptor from ``sockets_most`` on finds segments closed for it that were not used lately; if there are
none, it is refused.  From ``files_most`` on each segment that is opened has another one closed (plane/files.pxi).  So
syncs, and files that are written anew, always find a descriptor, however many clients come or queues are in use.

The kernel gives the lowest number that is free: a high number says that nearly all are in use, and nothing is counted.
Knows neither sockets nor connections.
"""

import resource
from collections.abc import Callable
from logging import getLogger

log = getLogger("brokerd")

NO_LIMIT = 0x7FFFFFFF
FEW = 1025  # Fewer do not last for a thousand connections.
RESERVE = 256  # descriptors that sockets leave, or a quarter of the limit where that is less
CLOSED_AT_ONCE = 32  # segments, for sockets
TELL_SECONDS = 1.0  # Refusals are logged once in this time.


def raise_limit() -> int:
    """Raise this process's limit to the hard one, and warn if that is low.  Returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:  # The system's own limit, fs.nr_open, may be lower by now.
            log.warning("the limit of %d open files cannot be raised to %d: %s", soft, hard, error)
            return soft
    if hard < FEW:
        log.warning("this process may have %d files open; each connection takes one, and each queue in use: raise the "
                    "hard limit (ulimit -Hn, LimitNOFILE)", hard)
    return hard


class Budget:
    """The shares of one process."""

    __slots__ = ("_close_files", "_monotonic", "_told_at", "_untold", "files_most", "limit", "sockets_most")

    def __init__(self, limit: int, monotonic: Callable[[], float]) -> None:
        """``limit``: how many descriptors this process may have; ``monotonic()``: seconds."""
        reserve = min(RESERVE, limit // 4)
        self.sockets_most = limit - reserve
        self.files_most = limit - reserve // 2
        self.limit = limit
        self._monotonic = monotonic
        self._close_files: Callable[[int], int] = _close_none
        self._told_at = float("-inf")
        self._untold = 0  # sockets refused since the log said so

    def serve(self, close_files: Callable[[int], int]) -> None:
        """Name the function that closes up to so many segments and returns how many it has closed."""
        self._close_files = close_files

    def admits(self, descriptor: int) -> bool:
        """Whether an accepted socket with this descriptor may stay.  The log tells of those that may not."""
        if descriptor < self.sockets_most or self._close_files(CLOSED_AT_ONCE):
            return True
        self._untold += 1
        self.tell()
        return False

    def tell(self) -> None:
        """Log how many sockets were refused since the log last said so, if that is long enough ago."""
        now = self._monotonic()
        if self._untold and now >= self._told_at + TELL_SECONDS:
            log.warning("low on file descriptors: %d connections refused; this process may have %d files open",
                        self._untold, self.limit)
            self._told_at, self._untold = now, 0


def _close_none(most: int) -> int:
    return 0
