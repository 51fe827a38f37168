"""Runs: dumps and audits that go on by themselves, one at a time, and what is known of them afterwards.

    <data_dir>/runs/<id>/run.json      what was asked for, by whom, and how it ended
                         dump/         of an audit: what is judged; gone when the audit is over, unless it is to stay
                         report/       of an audit: told.json, which "run show" tells, and the report's files

An audit dumps the queues, and has a process of its own judge the dump (``auditor/asked``), because that takes a
processor for minutes.  The process ends with the broker.  A run that a crash or a stop interrupted says so, and its
dump is removed by the next run.  All files are read and written in the slow thread.  Knows nothing of rights.
"""

import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from brokerd.operations import OperationError
from brokerd.operations.dump import Dump
from brokerd.operations.jobs import IN_THREAD, ON_LOOP, Job, Running, Steps, Wait
from brokerd.store.garbage import remove_tree
from brokerd.store.settled_segments import make_folders

if TYPE_CHECKING:
    from subprocess import Popen

    from brokerd.node import Node

FOLDER = "runs"  # in the data directory
STATE_FILE, DUMP, REPORT, TOLD = "run.json", "dump", "report", "told.json"
JUDGE = ("-P", "-m", "brokerd.auditor.asked")  # -P: a module in the broker's folder is not brokerd's
RUNS_MAX = 50  # that are kept
LOOK_NS = 200_000_000  # at the process that judges
SAID_OCTETS_MAX = 64 << 10
COPYING, JUDGING, DONE, FAILED, INTERRUPTED = "copying", "judging", "done", "failed", "interrupted"


class Runs:
    """The runs of a broker; its node has it from the first use on."""

    __slots__ = ("_node", "_running", "current", "folder")

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._running: Running | None = None
        self.folder = os.path.join(node.data.path, FOLDER)
        self.current: dict[str, Any] | None = None  # the row of the run that is under way

    def check_free(self) -> None:
        """Raise OperationError (409) if a run is under way."""
        if self.current is not None:
            number = self.current["id"]
            raise OperationError(f"run {number or 'before this'} is under way: wait for its end, or cancel it", 409)

    def is_under_way(self, number: int) -> bool:
        """Whether that run is."""
        return self.current is not None and bool(self.current["id"] == number)

    def start(self, run: "Run") -> None:
        """Begin a run."""
        self.current = run.row
        self._running = Running(run, submit=self._node.submit_slow, later=self._node.later,
                                progress=partial(_note, run.row), done=lambda answer, error: None)  # fmt: skip

    def over(self) -> None:
        """The run has ended."""
        self.current = self._running = None

    def cancel(self, number: int) -> None:
        """End the run that is under way.  Raises OperationError (409)."""
        if self._running is None or not self.is_under_way(number):
            raise OperationError(f"run {number} is not under way", 409)
        self._running.cancel()

    def close(self) -> None:
        """The broker stops."""
        if self._running is not None:
            self._running.cancel()

    # --- in the thread

    def numbers(self) -> list[int]:
        """Of all runs, the last one first."""
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return []
        return sorted((int(name) for name in names if name.isascii() and name.isdigit()), reverse=True)

    def path(self, number: int, *names: str) -> str:
        """Of a file of a run."""
        return os.path.join(self.folder, str(number), *names)

    def read(self, number: int) -> dict[str, Any]:
        """The row of a run.  Raises OperationError (404)."""
        current = self.current
        if current is not None and current["id"] == number:
            return dict(current)
        row = _read(self.path(number, STATE_FILE))
        if row is None:
            raise OperationError(f"no run {number}", 404)
        if row["state"] in (COPYING, JUDGING):
            row |= {"state": INTERRUPTED, "why": "the broker ended before the run did"}
        return row

    def tidy(self) -> None:
        """Remove the dumps of runs that were interrupted."""
        for number in self.numbers():
            try:
                row = self.read(number)
            except OperationError:
                continue
            if row["state"] == INTERRUPTED:
                remove_tree(self.path(number, DUMP))
                remove_tree(self.path(number, DUMP + ".partial"))

    def told(self, number: int) -> dict[str, Any] | None:
        """What an audit has found; None: it has found nothing yet."""
        return _read(self.path(number, REPORT, TOLD))


def _read(path: str) -> dict[str, Any] | None:
    """The object in a JSON file; None: there is none."""
    import json  # A broker without runs does without.

    try:
        with open(path, encoding="utf-8") as file:
            found: dict[str, Any] = json.load(file)
    except (OSError, ValueError):
        return None
    return found


def _note(row: dict[str, Any], table: dict[str, Any]) -> None:
    row["progress"] = table


def runs_of(node: "Node") -> Runs:
    """The runs of this broker; the first use makes it."""
    if node.runs is None:
        node.runs = Runs(node)
    return node.runs


class Run:
    """The job of a run.  ``request`` has the fields of "run dump" (``out``) or "run audit" (``audits``, ``keep_dump``).

    The dump is chosen on the loop.  Raises OperationError (400, 404, 409).
    """

    def __init__(self, node: "Node", runs: Runs, user: str, request: Any) -> None:
        runs.check_free()
        self._node, self._runs = node, runs
        self._is_audit = not hasattr(request, "out")
        self._audits = getattr(request, "audits", "")
        self._keeps = getattr(request, "keep_dump", False)
        self._glob = request.queues
        self._dump: Dump | None = None if self._is_audit else Dump(node, request.queues, request.out)
        self._child: Popen[bytes] | None = None
        self.row: dict[str, Any] = {
            "id": 0, "kind": "audit" if self._is_audit else "dump", "queues": request.queues, "audits": self._audits,
            "out": "" if self._is_audit else request.out, "user": user, "state": COPYING,
            "started_at": node.clock.epoch_ns() // 1_000_000, "ended_at": 0, "progress": {}, "why": "", "verdict": "",
            "findings": 0, "report": False,
        }  # fmt: skip

    def choose(self) -> Steps:
        """The steps that give the run its number and its folder, before it begins."""
        yield IN_THREAD
        self._runs.tidy()
        numbers = self._runs.numbers()
        if len(numbers) >= RUNS_MAX:
            raise OperationError(f"{RUNS_MAX} runs are kept already: delete some", 409)
        number = numbers[0] + 1 if numbers else 1
        make_folders(self._runs.path(number), self._node.disk)
        self.row["id"] = number
        if self._is_audit:
            self.row["out"] = self._runs.path(number, DUMP)
        self._write()
        yield ON_LOOP
        if self._is_audit:
            try:
                self._dump = Dump(self._node, self._glob, self.row["out"], digests=False, is_own=True)
            except OperationError as error:
                yield IN_THREAD
                remove_tree(self._runs.path(number))
                raise error from None

    # --- the job

    def steps(self) -> Steps:
        """As ``jobs.Job``."""
        assert self._dump is not None
        state, why = INTERRUPTED, "it was cancelled"
        try:
            yield from self._dump.steps()
            yield ON_LOOP
            self._dump.clean_up()
            yield IN_THREAD
            if self._is_audit:
                self.row |= {"state": JUDGING, "progress": {}}
                self._write()
                yield from self._judge()
            state, why = DONE, ""
        except (OperationError, OSError) as error:
            state, why = FAILED, str(error)
        finally:  # In the thread, also where the run is cancelled.
            self._end_child()
            if self._is_audit and not self._keeps:
                remove_tree(self.row["out"])
                self.row["out"] = ""
            self.row |= {"state": state, "why": why, "progress": {},
                         "ended_at": self._node.clock.epoch_ns() // 1_000_000}  # fmt: skip
            self._write()

    def clean_up(self) -> None:
        """As ``jobs.Job``."""
        if self._dump is not None:
            self._dump.clean_up()
        self._runs.over()

    def _write(self) -> None:
        import json

        row = self.row | {"progress": {}}
        self._node.disk.replace(self._runs.path(row["id"], STATE_FILE), json.dumps(row).encode())

    # --- the process that judges

    def _judge(self) -> Iterator[Any]:
        from subprocess import PIPE, Popen  # A broker that audits nothing does without.

        out, faults = self._runs.path(self.row["id"], REPORT), self._runs.path(self.row["id"], "faults")
        command = [sys.executable, *JUDGE, self.row["out"], out, self._audits]
        with open(faults, "wb") as said:
            child = self._child = Popen(command, stdin=PIPE, stdout=PIPE, stderr=said, start_new_session=True)
        assert child.stdout is not None
        os.set_blocking(child.stdout.fileno(), False)
        while child.poll() is None:
            progress = _last_line(child.stdout.fileno())
            if progress:
                yield progress
            yield _pause(self._node)
            yield IN_THREAD
        told = self._runs.told(self.row["id"])
        if child.returncode or told is None:
            with open(faults, encoding="utf-8", errors="replace") as said_file:
                last = said_file.read(SAID_OCTETS_MAX).strip().rpartition("\n")[2]
            raise OperationError(last or f"the process that judges ended with status {child.returncode}", 500)
        os.unlink(faults)
        self.row |= {"verdict": told["verdict"], "findings": told["findings_total"],
                     "report": os.path.exists(os.path.join(out, "report.html"))}  # fmt: skip

    def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        if child.poll() is None:
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except OSError:
                pass  # It has just ended.
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()


def _pause(node: "Node") -> Wait:
    return Wait(lambda go_on: node.call_at(node.clock.epoch_ns() + LOOK_NS, go_on))


def _last_line(fd: int) -> dict[str, Any]:
    """The latest that the process has said of its progress; {}: nothing new."""
    import json

    try:
        octets = os.read(fd, SAID_OCTETS_MAX)
    except BlockingIOError:
        return {}
    lines = octets.split(b"\n")[:-1]
    try:
        return dict(json.loads(lines[-1])) if lines else {}
    except ValueError:
        return {}  # It had begun before this piece.


# --- the operations


def begin(node: "Node", user: str, request: Any) -> Steps:
    """The steps that begin a run; its row is the answer.  Raises OperationError (400, 404, 409)."""
    runs = runs_of(node)
    run = Run(node, runs, user, request)
    runs.current = run.row  # No other begins meanwhile.
    begun = False
    try:
        yield from run.choose()
        yield ON_LOOP
        begun = True
        runs.start(run)
    finally:
        if not begun:
            runs.current = None
    return dict(run.row)


def list_all(node: "Node") -> Steps:
    """The steps that list all runs, the last one first."""
    yield IN_THREAD
    runs, rows = runs_of(node), []
    for number in runs.numbers():
        try:
            rows.append(runs.read(number))
        except OperationError:
            continue  # It has just begun, or is being deleted.
    return {"items": rows}


def show(node: "Node", number: int, wait: float) -> Steps:
    """The steps that show a run, and what it has found; when it is over, or after so many seconds.
    Raises OperationError (404)."""
    runs, until = runs_of(node), node.clock.monotonic() + wait
    while runs.is_under_way(number) and node.clock.monotonic() < until:
        yield _pause(node)
    yield IN_THREAD
    return runs.read(number) | {"told": runs.told(number)}


def delete(node: "Node", number: int) -> Steps:
    """The steps that delete what is kept of a run, not a dump that was asked for.  Raises OperationError (404, 409)."""
    runs = runs_of(node)
    if runs.is_under_way(number):
        raise OperationError(f"run {number} is under way: cancel it first", 409)
    yield IN_THREAD
    if number not in runs.numbers():
        raise OperationError(f"no run {number}", 404)
    remove_tree(runs.path(number))
    return {"done": True}


class Plain:
    """A job of these steps."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def steps(self) -> Steps:
        """As ``jobs.Job``."""
        return self._steps

    def clean_up(self) -> None:
        """As ``jobs.Job``."""


def job(steps: Steps) -> Job:
    """The job of these steps."""
    return Plain(steps)
