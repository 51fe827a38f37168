"""The time, asked in one place so that tests can travel in it.

``epoch_ns`` is what is written down (records, logs, JSON); ``monotonic`` is what
is waited for (heartbeats, handshakes).  Knows nothing of loops or timers.
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
