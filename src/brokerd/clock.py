"""The time.  All code asks here, so that tests can set the time as they need it.

``epoch_ns`` is for times that are written down (records, logs, JSON); ``monotonic`` is for times that are waited for
(heartbeats, handshakes).  Knows nothing of loops or timers.
"""

import time


class Clock:
    """The machine's clock."""

    __slots__ = ()

    def epoch_ns(self) -> int:
        """Nanoseconds since 1970-01-01 UTC."""
        return time.time_ns()

    def monotonic(self) -> float:
        """Seconds since some moment in the past; never goes back."""
        return time.monotonic()

    def monotonic_ns(self) -> int:
        """``monotonic`` in nanoseconds, the clock of the data plane for how long something was unused."""
        return time.monotonic_ns()
