"""``Broker``: a broker for one test, one test session, a script or a notebook, with verbs for tests.

It is a process of its own, on a free port of 127.0.0.1.  Its data is in the folder for temporary files, and goes when
``stop`` is called or this process ends in any way.  All verbs are plain functions that take some milliseconds, so
coroutines may call them, too.  Threads may share a Broker.
"""

import contextlib
import json
import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from brokerd.config import OPTIONS, Row
from brokerd.errors import BrokerError
from brokerd.testing import keeper_process
from brokerd.testing.order import Order

ANSWER_SECONDS = 120.0  # for one verb
LATEST = datetime(2200, 1, 1, tzinfo=UTC)  # The broker counts ns since 1970 in 64 bits.
LOG_LINES_SHOWN = 15  # in the text of an error
FIXED = ("data_dir", "log_file", "sync")  # options that a test does not choose by this name
# What a test wants otherwise than a machine that serves: small files, and no alarm but by disk_full().
DEFAULTS: dict[str, Any] = {"bind": "127.0.0.1", "amqp_port": 0, "http_port": 0, "segment_octets": 1 << 20,
                            "free_disk_min_octets": 1}
ErrorType = type[BaseException] | None


class BrokerFailed(BrokerError):
    """A broker for tests could not start, has ended, or does not run; the text says why."""


class Broker:
    """A real broker that leaves no trace::

        with Broker() as broker:                    # or: async with Broker() as broker
            connect(broker.url())

    Raises BrokerFailed where the broker does not run, BrokerError if it refuses what a verb asks for, TypeError and
    ValueError for impossible values.
    """

    def __init__(self, *, sync: bool = False, order_journal: bool = True, **options: Any) -> None:
        """``sync``: confirms wait for the disk, which is what power_cut() needs; the disk is a model and waits for no
        hardware.  ``order_journal``: durable queues write down what becomes of each message, which is what
        ``order`` reads.  ``options`` are brokerd's, as in its file: ``heartbeat_seconds=5``."""
        _check_options(options)
        self._given: dict[str, Any] = {
            "order_journal": order_journal, "options": DEFAULTS | options | {"sync": sync},
        }  # fmt: skip
        self._user = quote(str(options.get("default_user", "guest")), safe="")
        self._password = quote(str(options.get("default_password", "guest")), safe="")
        self._lock = threading.Lock()
        self._keeper: keeper_process.KeeperProcess | None = None
        self._ended_log = ""  # of the life before
        self._buffer = b""  # of the keeper's answers
        self._asked = 0
        self._vhosts: list[str] = []
        self._made = 0  # vhosts
        self._is_full = False  # the disk
        self._facts: dict[str, Any] = {}
        self.clock = Clock(self)
        self.order = Order(self)

    # --- life

    def start(self) -> Self:
        """Start, and return when clients can connect."""
        if self._keeper is not None:
            raise BrokerFailed("the broker runs already")
        self._asked, self._buffer = 0, b""
        self._is_full, self.clock = False, Clock(self)
        self._keeper = keeper_process.take()
        try:
            self._keeper.socket.settimeout(ANSWER_SECONDS)
            self._send(self._keeper, self._given | {"temporary": tempfile.gettempdir()})
            self._facts = self._hear(self._keeper)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End the broker and remove all that it kept.  Without effect on a broker that does not run."""
        with self._lock:
            keeper, self._keeper = self._keeper, None
            self._vhosts.clear()
            if keeper is not None:
                keeper.end()
                self._ended_log = keeper.log_text()
                keeper.log.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: ErrorType, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        from asyncio import to_thread  # Who enters here has imported it; others need not.

        return await to_thread(self.start)

    async def __aexit__(self, kind: ErrorType, error: BaseException | None, trace: TracebackType | None) -> None:
        from asyncio import to_thread

        await to_thread(self.stop)

    def __del__(self) -> None:
        if getattr(self, "_keeper", None) is not None:
            self.stop()

    # --- where it is

    @property
    def host(self) -> str:
        """The address that it listens on."""
        return str(self._given["options"]["bind"])

    @property
    def port(self) -> int:
        """The port that it listens on.  It stays the same over a crash."""
        return int(self._fact("port"))

    @property
    def pid(self) -> int:
        """The process id of the broker; 0 while it is down.  A crash changes it."""
        return int(self._fact("pid"))

    @property
    def data_dir(self) -> Path:
        """Where its data is: for ``brokerctl -D`` and for audits."""
        return Path(self._fact("folder")) / "data"

    @property
    def vhost(self) -> str:
        """The vhost that was made last and is still there; "/" if there is none."""
        return self._vhosts[-1] if self._vhosts else "/"

    def url(self, vhost: str | None = None) -> str:
        """``amqp://guest:guest@127.0.0.1:PORT/VHOST``; without a name it is ``vhost``."""
        name = quote(self.vhost if vhost is None else vhost, safe="")
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"amqp://{self._user}:{self._password}@{host}:{self.port}/{name}"

    def log_text(self) -> str:
        """Its whole log from start() on, over all crashes; also after stop()."""
        return self._ended_log if self._keeper is None else self._keeper.log_text()

    def _fact(self, name: str) -> Any:
        if self._keeper is None:
            raise BrokerFailed("the broker does not run: start() it, or use it in a with statement")
        return self._facts[name]

    # --- vhosts

    def make_vhost(self, name: str | None = None) -> str:
        """Make a vhost in which the user of ``url`` may do everything, and return its name."""
        with self._lock:
            self._made += 1
            name = f"test-{os.getpid()}-{self._made}" if name is None else name
        _check_vhost(name)
        self.ask("make_vhost", name=name)
        self._vhosts.append(name)
        return name

    def delete_vhost(self, name: str) -> None:
        """Close all connections to a vhost, and delete it with its queues and messages."""
        self.ask("delete_vhost", name=name)
        with contextlib.suppress(ValueError):
            self._vhosts.remove(name)

    # --- what may happen to a broker

    def crash(self) -> None:
        """kill -9, and start again on the same data and the same port.  All clients lose their connection."""
        self.ask("crash")

    @contextlib.contextmanager
    def outage(self) -> Iterator[None]:
        """kill -9; start again on the same data and the same port at the end of the ``with`` block.

        In between the port refuses connections."""
        self.ask("kill")
        try:
            yield
        finally:
            self.ask("start")

    def power_cut(self, seed: int | None = None) -> None:
        """Lose all that was not synced, and start again on the rest.  Needs Broker(sync=True).

        ``seed``: each page that was not synced is there or not, as chance has it: what one seed finds, it finds each
        time."""
        if seed is not None and not isinstance(seed, int):
            raise TypeError(f"seed must be a whole number, not {seed!r}")
        self.ask("power_cut", seed=seed)

    def disk_full(self) -> "DiskFull":
        """From now on the disk is full: publishers are blocked (connection.blocked), and no file grows.

        It ends with the ``with`` block, or by ``end()`` of what this returns."""
        return DiskFull(self)

    def heal(self) -> None:
        """End the full disk and the outage that a test may have left behind."""
        if self._is_full:
            self.fill_disk(False)
        if not self.pid:
            self.ask("start")

    def fill_disk(self, full: bool) -> None:
        """From now on the disk is full, or has room again."""
        self.ask("fill_disk", full=full)
        self._is_full = full

    def drop_connections(self) -> int:
        """Cut off every client without a word, as a network does.  Returns how many there were."""
        return int(self.ask("drop_connections")["dropped"])

    # --- the keeper

    def ask(self, verb: str, **fields: Any) -> dict[str, Any]:
        """Have the keeper or the broker do something (``keeper`` and ``server`` have the verbs).

        Raises BrokerError if the broker refuses, and BrokerFailed if it does not run or has ended."""
        with self._lock:
            keeper = self._keeper
            if keeper is None:
                raise BrokerFailed("the broker does not run: start() it, or use it in a with statement")
            if keeper.owner != os.getpid():
                raise BrokerFailed("this process is a fork of the one that started the broker: only that one may ask")
            self._asked += 1
            self._send(keeper, fields | {"verb": verb, "id": self._asked})
            answer = self._hear(keeper)
            if answer["pid"] != self._facts["pid"]:
                self._is_full = False  # A broker starts with room on its disk.
            self._facts |= {name: answer[name] for name in ("port", "pid", "folder")}
            return answer

    def _send(self, keeper: keeper_process.KeeperProcess, what: dict[str, Any]) -> None:
        """Raises BrokerFailed."""
        try:
            keeper.socket.sendall(json.dumps(what).encode() + b"\n")
        except OSError as error:
            raise self._failed(f"{what.get('verb', 'start')}: the broker's keeper is gone", with_log=True) from error

    def _hear(self, keeper: keeper_process.KeeperProcess) -> dict[str, Any]:
        """The answer to what was asked last.  Raises BrokerFailed, or BrokerError for a refusal."""
        while True:
            while b"\n" not in self._buffer:
                self._buffer += self._receive(keeper.socket)
            line, _, self._buffer = self._buffer.partition(b"\n")
            answer: dict[str, Any] = json.loads(line)
            if answer.get("id", 0) == self._asked:  # Ctrl-C may have kept somebody from hearing an earlier one.
                break
        if "error" in answer:
            if "pid" in answer:
                self._facts = answer
            if answer.get("refused", False):
                raise BrokerError(answer["error"])
            raise self._failed(answer["error"], with_log=answer.get("log", False))
        return answer

    def _receive(self, sock: socket.socket) -> bytes:
        octets = b""
        try:
            octets = sock.recv(1 << 16)
        except TimeoutError:
            raise self._failed(f"the broker has not answered for {ANSWER_SECONDS:.0f} s", with_log=True) from None
        except ConnectionError:
            pass
        if not octets:
            raise self._failed("the broker's keeper has ended", with_log=True)
        return octets

    def _failed(self, text: str, *, with_log: bool = False) -> BrokerFailed:
        lines = self.log_text().splitlines()[-LOG_LINES_SHOWN:] if with_log else []
        return BrokerFailed("\n    ".join([text, *lines]))


class DiskFull:
    """A full disk, until ``end()`` or the end of the ``with`` block."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        broker.fill_disk(True)

    def end(self) -> None:
        """The disk has room again.  A second call has no effect."""
        self._broker.fill_disk(False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: ErrorType, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end()


class Clock:
    """The broker's time of day: message times, TTL, queue expiry, delays, ack timeouts, deduplication, retention.

    Heartbeats and handshakes keep the machine's time."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._ahead = timedelta()

    def advance(
        self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0, milliseconds: float = 0
    ) -> None:
        """Set the clock forward.  When this returns, all that was due on the way has happened, in its order.

        Raises ValueError for a time that is not above 0, because the clock never goes back, and for the year 2200."""
        if any(each != each for each in (days, hours, minutes, seconds, milliseconds)):
            raise ValueError("the clock goes forward by a number, not by nan")
        try:
            by = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds)
        except OverflowError:
            raise ValueError(f"the clock goes forward only, and no further than the year {LATEST.year}") from None
        if by <= timedelta():
            raise ValueError(f"the clock goes forward only, not by {by}")
        if by > LATEST - self.now():
            raise ValueError(f"the clock goes no further than the year {LATEST.year}")
        answer = self._broker.ask("advance", ns=by // timedelta(microseconds=1) * 1000)
        self._ahead = timedelta(microseconds=answer["ahead_ns"] / 1000)

    def now(self) -> datetime:
        """The broker's time, in UTC."""
        return datetime.now(UTC) + self._ahead


def _check_vhost(name: str) -> None:
    """Raises TypeError and ValueError for a name that no URL can have."""
    if not isinstance(name, str):
        raise TypeError(f"the name of a vhost must be a text, not {name!r}")
    if not name.isprintable() or not 0 < len(name.encode(errors="replace")) < 256:
        raise ValueError(f"the name of a vhost must be a printable text of 1 to 255 octets, not {name!r:.80}")


def _check_options(options: dict[str, Any]) -> None:
    """Raises TypeError for a name, ValueError for a value."""
    for name, value in options.items():
        if name not in OPTIONS or name in FIXED:
            raise TypeError(f"Broker() has no option {name}: see brokerd --help for those it has")
        if not _is_possible(OPTIONS[name], value):
            raise ValueError(f"{name} must be {OPTIONS[name].rule}, not {value!r}")


def _is_possible(row: Row, value: Any) -> bool:
    if row.choices:
        return value in row.choices
    if not isinstance(value, row.type) or (row.type is int and isinstance(value, bool)):
        return False
    size = len(value) if isinstance(value, str) else value
    low, high = row.option.low, row.option.high
    return (low is None or size >= low) and (high is None or size <= high)
