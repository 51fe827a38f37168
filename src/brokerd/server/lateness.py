"""How late the loop is: work that keeps it from its clients shows here, and so does a busy machine.

Knows no loop: the caller says at each tick when the next one is due.
"""

from time import monotonic


class Lateness:
    """How late the ticks come."""

    __slots__ = ("_due", "latest", "most", "started")

    def __init__(self) -> None:
        self.started = monotonic()
        self._due = self.started
        self.latest = 0.0  # seconds
        self.most = 0.0  # since forget()

    def tick(self, seconds: float) -> None:
        """A tick is here; the next one is due in so many seconds."""
        now = monotonic()
        if self._due > self.started:
            self.latest = max(0.0, now - self._due)
            self.most = max(self.most, self.latest)
        self._due = now + seconds

    def forget(self) -> None:
        """Begin to look for the most anew."""
        self.most = self.latest
