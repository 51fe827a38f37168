"""The control socket: where ``brokerctl`` asks a running broker, ``<data_dir>/control.sock``.

A stream socket for the broker's own user (mode 0600).  Both sides write JSON objects, one a line.

    request     {"verb": "ordering", "vhost": "/", "queue": "orders"}
    answer      {"progress": {...}}     any number of them, while the work goes on
                {"result": {...}}       or
                {"error": "no queue 'orders' in vhost '/'", "code": 404}

    verb        fields (default)                            result
    ordering    vhost ("/"), queue                          operations.ordering.ordering()
    trace       vhost ("/"), queue, seq                     operations.trace: the life of one message
    dump        queues ("": all), out (absolute path)       operations.dump: a consistent copy, made by the broker

Codes are HTTP's: 400 the request is wrong, 404 there is no such thing, 409 not now, 500 it failed.  Requests of one
connection are answered one after the other; a request has at most 64 KiB.  A client that goes away ends what it
asked for.  One that does not read is not read from, nor told of progress: it costs one answer.  After a minute of
silence a connection is closed, but for one whose request is being worked.

Made without haste: nothing is imported for it before the first request.
"""

import asyncio
import os
from collections.abc import Callable
from logging import getLogger
from typing import TYPE_CHECKING, Any

from brokerd.operations import DUMP_STAGE
from brokerd.server import local_socket
from brokerd.store.garbage import remove_tree

if TYPE_CHECKING:
    from brokerd.node import Node
    from brokerd.operations.jobs import Job, Running, Submit

log = getLogger("brokerd")

REQUEST_OCTETS_MAX = 64 << 10
CONNECTIONS_MAX = 32
SILENCE_SECONDS = 60.0
BACKLOG = 128


class Control:
    """The listening socket and who is connected to it."""

    __slots__ = ("_directory", "_server", "loop", "node", "peers", "submit")

    def __init__(self, node: "Node", loop: asyncio.AbstractEventLoop, submit: "Submit") -> None:
        """``submit(work, done)`` runs work() in a thread that may be slow, then done(error or None) on the loop."""
        self.node = node
        self.loop = loop
        self.submit = submit
        self.peers: set[Peer] = set()
        self._directory = node.data.path
        self._server: asyncio.AbstractServer | None = None

    async def start(self) -> None:
        """Listen.  A data directory that can hold no socket is told in the log and stops nobody."""
        self._tidy()
        try:
            sock = local_socket.bound(self._directory)
            try:
                self._server = await self.loop.create_unix_server(lambda: Peer(self), sock=sock, backlog=BACKLOG)
            except BaseException:
                sock.close()
                raise
        except OSError as error:
            path = os.path.join(self._directory, local_socket.NAME)
            log.warning("%s: %s: brokerctl cannot reach this broker", path, error.strerror or error)

    def _tidy(self) -> None:
        """Remove what a crash in the middle of a dump has left."""
        stage = os.path.join(self._directory, DUMP_STAGE)
        if os.path.exists(stage):
            self.submit(lambda: remove_tree(stage), lambda error: None)

    def stop(self) -> None:
        """Nobody is heard any more; jobs are closed by the thread they run in."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        try:
            os.unlink(os.path.join(self._directory, local_socket.NAME))
        except OSError:
            pass
        for peer in list(self.peers):
            peer.end("the broker is stopping")


class Peer(asyncio.Protocol):
    """One connection."""

    __slots__ = ("_buffer", "_control", "_ended", "_held", "_job", "_slow", "_timer", "_transport")

    def __init__(self, control: Control) -> None:
        self._control = control
        self._buffer = b""
        self._job: Running | None = None
        self._ended = False  # The client writes no more: what it asked is answered, then the connection closed.
        self._slow = False  # The client does not read.
        self._held = False  # It is not read from.
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport = None  # type: ignore[assignment]  # until connected

    # --- the loop's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As the loop calls it."""
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]
        if len(self._control.peers) >= CONNECTIONS_MAX:
            self._refuse(f"{CONNECTIONS_MAX} connections are open already", 409)
            return
        self._control.peers.add(self)
        self._rest()

    def data_received(self, octets: bytes) -> None:
        """As the loop calls it."""
        if self._transport.is_closing():
            return
        self._buffer += octets
        self._work()

    def eof_received(self) -> bool:
        """As the loop calls it: the client may still read."""
        self._ended = True
        self._work()
        return True

    def pause_writing(self) -> None:
        """As the loop calls it."""
        self._slow = True
        self._hold()

    def resume_writing(self) -> None:
        """As the loop calls it."""
        self._slow = False
        self._work()

    def connection_lost(self, error: Exception | None) -> None:
        """As the loop calls it: what was asked for is not wanted any more."""
        self._control.peers.discard(self)
        self._quiet()
        if self._job is not None:
            self._job.cancel()
            self._job = None

    # --- requests

    def _work(self) -> None:
        """Answer what can be answered, up to the first job."""
        while self._job is None and not self._slow and not self._transport.is_closing():
            line, newline, rest = self._buffer.partition(b"\n")
            if len(line) > REQUEST_OCTETS_MAX:
                self._refuse(f"a request has at most {REQUEST_OCTETS_MAX} octets", 400)
                return
            if not newline:
                if self._ended:
                    self._transport.close()
                break
            self._buffer = rest
            if line.strip():
                self._rest()
                self._answer(line)
        self._hold()

    def _hold(self) -> None:
        """Do not read more than can be answered."""
        if self._transport.is_closing():
            return
        hold = self._slow or (self._job is not None and len(self._buffer) > REQUEST_OCTETS_MAX)
        if hold and not self._held:
            self._transport.pause_reading()
        elif self._held and not hold:
            self._transport.resume_reading()
        self._held = hold

    def _answer(self, line: bytes) -> None:
        try:
            answer = ask(self._control.node, line)
            if isinstance(answer, dict):
                self._write({"result": answer})
                return
        except Exception as error:  # Every fault is the client's to hear, and none is to end the broker.
            self._fault(error)
            return
        from brokerd.operations.jobs import Running

        control = self._control
        self._quiet()
        self._job = Running(answer, submit=control.submit, later=control.loop.call_soon, progress=self._progress,
                            done=self._done)  # fmt: skip

    def _progress(self, table: dict[str, Any]) -> None:
        if not self._slow:
            self._write({"progress": table})

    def _done(self, answer: dict[str, Any] | None, error: Exception | None) -> None:
        self._job = None
        if error is not None:
            self._fault(error)
        else:
            self._write({"result": answer})
        self._rest()
        self._work()

    def _fault(self, error: Exception) -> None:
        text, code = told(error)
        self._write({"error": text, "code": code})

    def _write(self, table: dict[str, Any]) -> None:
        import json  # No start needs it.

        self._transport.write(json.dumps(table).encode() + b"\n")

    # --- the end

    def end(self, text: str) -> None:
        """The broker's end of it."""
        if self._job is not None:
            self._job.cancel()
            self._job = None
            self._refuse(text, 409)
        else:
            self._transport.close()

    def _refuse(self, text: str, code: int) -> None:
        self._write({"error": text, "code": code})
        self._transport.close()

    def _rest(self) -> None:
        """From now on it is silent."""
        self._quiet()
        self._timer = self._control.loop.call_later(SILENCE_SECONDS, self._transport.abort)

    def _quiet(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def told(error: Exception) -> tuple[str, int]:
    """A fault in one line, with its code; what should not have happened goes to the log."""
    from brokerd.audit import AuditError
    from brokerd.errors import BrokerError
    from brokerd.operations import OperationError

    if isinstance(error, OperationError):
        return str(error), error.code
    if isinstance(error, BrokerError | AuditError):
        return str(error), 500
    if isinstance(error, OSError):
        reason = error.strerror or str(error)
        return f"{error.filename}: {reason}" if error.filename else reason, 500
    log.error("control socket: internal error", exc_info=error)
    return "internal error: see the broker's log", 500


# --- verbs: what each is asked with, and who answers


def _ordering(node: "Node", asked: dict[str, Any]) -> dict[str, Any]:
    from brokerd.operations.ordering import ordering

    return ordering(node, asked["vhost"], asked["queue"])


def _trace(node: "Node", asked: dict[str, Any]) -> "Job":
    from brokerd.operations.trace import Trace

    return Trace(node, asked["vhost"], asked["queue"], asked["seq"])


def _dump(node: "Node", asked: dict[str, Any]) -> "Job":
    from brokerd.operations.dump import Dump

    return Dump(node, asked["queues"], asked["out"])


VERBS: dict[str, tuple[Callable[["Node", dict[str, Any]], Any], dict[str, tuple[type, Any]]]] = {
    "ordering": (_ordering, {"vhost": (str, "/"), "queue": (str, None)}),
    "trace": (_trace, {"vhost": (str, "/"), "queue": (str, None), "seq": (int, None)}),
    "dump": (_dump, {"queues": (str, ""), "out": (str, None)}),
}
TYPE_NAMES = {str: "a text", int: "a whole number"}


def ask(node: "Node", line: bytes) -> "dict[str, Any] | Job":
    """The answer to one request, or the job that leads to it.  Raises OperationError and what the verb raises."""
    import json

    try:
        asked = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _wrong(f"not JSON: {error}") from error
    if not isinstance(asked, dict):
        raise _wrong("not a JSON object")
    verb = asked.pop("verb", None)
    if not isinstance(verb, str) or verb not in VERBS:
        raise _wrong(f"verb must be one of {', '.join(VERBS)}")
    answer, fields = VERBS[verb]
    for name in asked:
        if name not in fields:
            raise _wrong(f"{verb}: unknown field '{name}'")
    values = {}
    for name, (kind, default) in fields.items():
        value = asked.get(name, default)
        if type(value) is not kind:
            raise _wrong(f"{verb}: {name} must be {TYPE_NAMES[kind]}")
        values[name] = value
    return answer(node, values)


def _wrong(text: str) -> Exception:
    from brokerd.operations import OperationError

    return OperationError(text, 400)
