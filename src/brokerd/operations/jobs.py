"""Work that takes longer than a turn of the loop: a generator that goes back and forth between the loop and a thread.

    yield IN_THREAD     what follows runs in the slow thread
    yield ON_LOOP       what follows runs on the loop, where queues may be touched
    yield {...}         progress; the job goes on in the same place
    yield Wait(begin)   begin(go_on) is called on the loop, and the job goes on there after go_on()

A job begins on the loop.  It yields a few times a second, also while it stays in the thread, so that other
work for that thread gets its turn in between.  On the loop a piece takes at most a millisecond: ``yield ON_LOOP``
lets others have their turn.  It returns the answer.  When nothing waits for the answer any more, the job is closed
where it stands, in the thread, so that its ``finally`` clauses undo its work.

Knows neither loop nor thread: it is given ``submit`` and ``later``.
"""

from collections.abc import Callable, Generator
from time import monotonic_ns
from typing import Any, NamedTuple, Protocol

from brokerd.pieces import PIECE_NS

IN_THREAD, ON_LOOP = "in the thread", "on the loop"

Steps = Generator[Any, None, Any]
Submit = Callable[[Callable[[], object], Callable[[Any], object]], object]


class Wait(NamedTuple):
    """A job yields this to wait on the loop until ``go_on()``, which ``begin(go_on)`` was given, is called."""

    begin: Callable[[Callable[[], object]], object]


class Encoded(NamedTuple):
    """An answer that is JSON already, in parts: a long list is encoded in the same pieces as it is made."""

    parts: list[bytes]


def encoded(answer: dict[str, Any]) -> Generator[str, None, Encoded]:
    """The steps that encode an answer: each row of a list in it by itself, because thousands of them take tens of
    milliseconds."""
    import json  # A job that has no such answer does without.

    pace, parts = Pace(), list[bytes]()
    for name, value in answer.items():
        parts.append((b", " if parts else b"{") + json.dumps(name).encode() + b": ")
        if not isinstance(value, list):
            parts.append(json.dumps(value).encode())
            continue
        parts.append(b"[")
        for number, row in enumerate(value):
            parts += (b", " if number else b"", json.dumps(row).encode())
            if pace.is_over():
                yield ON_LOOP
        parts.append(b"]")
    parts.append(b"}")
    return Encoded(parts)


def in_thread(work: Callable[[], object]) -> Steps:
    """The steps that do this work in the thread, and go on on the loop.

    What it raises is raised on the loop: in the thread the caller's clauses would touch queues.
    """
    yield IN_THREAD
    error: Exception | None = None
    try:
        work()
    except Exception as caught:
        error = caught
    yield ON_LOOP
    if error is not None:
        raise error


class Pace:
    """Says when a piece of work on the loop has taken its millisecond."""

    __slots__ = ("_until",)

    def __init__(self) -> None:
        self._until = monotonic_ns() + PIECE_NS

    def is_over(self) -> bool:
        """Whether the piece must end; the next one begins then."""
        now = monotonic_ns()
        if now < self._until:
            return False
        self._until = now + PIECE_NS
        return True


class Job(Protocol):
    """Something to run."""

    def steps(self) -> Steps:
        """The generator that does the work."""

    def clean_up(self) -> None:
        """Called on the loop at the end of every job, also of one that failed or was cancelled."""


class Running:
    """A job under way.

    ``submit(work, done)`` runs work() in a thread, one after the other, then done(error or None) on the loop;
    ``later`` runs a callback on the loop.  ``progress(table)`` and, once, ``done(answer, None)`` or
    ``done(None, error)`` are called on the loop; neither after ``cancel``.
    """

    __slots__ = ("_done", "_error", "_in_thread", "_job", "_later", "_progress", "_said", "_steps", "_submit",
                 "cancelled", "over")  # fmt: skip

    def __init__(
        self,
        job: Job,
        *,
        submit: Submit,
        later: Callable[[Callable[[], object]], object],
        progress: Callable[[dict[str, Any]], object],
        done: Callable[[Any, Exception | None], object],
    ) -> None:
        self._job = job
        self._steps = job.steps()
        self._submit = submit
        self._later = later
        self._progress = progress
        self._done = done
        self._in_thread = False
        self._said: Any = None
        self._error: Exception | None = None
        self.cancelled = False
        self.over = False
        later(self._go)

    def cancel(self) -> None:
        """The answer is no longer wanted: close the job in the thread, after the step that it is in."""
        if not self.over and not self.cancelled:
            self.cancelled = True
            self._submit(self._steps.close, self._closed)

    def _go(self) -> None:
        """On the loop: have the next step done, here or in the thread."""
        if self.cancelled:
            return
        if self._in_thread:
            self._submit(self._step, self._stepped)
        else:
            self._step()
            self._stepped(None)

    def _step(self) -> None:
        if self.cancelled:
            return
        try:
            self._said = next(self._steps)
        except StopIteration as end:
            self.over, self._said = True, end.value
        except Exception as error:  # The client hears of every fault.
            self.over, self._error = True, error

    def _stepped(self, _error: object) -> None:
        """On the loop, after a step: go on as its yield says."""
        if self.cancelled:
            return
        if self.over:
            self._job.clean_up()
            self._done(self._said if self._error is None else None, self._error)
            return
        if isinstance(self._said, Wait):
            self._in_thread = False
            self._said.begin(lambda: self._later(self._go))
            return
        if self._said is IN_THREAD or self._said is ON_LOOP:
            self._in_thread = self._said is IN_THREAD
        else:
            self._progress(self._said)
        self._later(self._go)

    def _closed(self, _error: object) -> None:
        self.over = True
        self._job.clean_up()
