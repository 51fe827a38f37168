"""The control socket: where ``brokerctl`` asks a running broker, ``<data_dir>/control.sock``.

A stream socket for the broker's own user (mode 0600).  Both sides write JSON objects, one a line.

    request     {"verb": "queue ordering", "vhost": "/", "queue": "orders"}
    answer      {"progress": {...}}     any number of them, while the work goes on
                {"result": {...}}       or
                {"error": "no queue 'orders' in vhost '/'", "code": 404}

A verb is the name of an operation, or an alias of it.  The other fields are the operation's request, and the result is
its answer: see ``operations``.  The peer is the broker's own user and may do everything.  With "as": "alice" it asks
for a user that it has authenticated, and the operation needs that user's rights; "as_user" is the same.  "grant" is
the answer of ``user authenticate`` if the user's rights come from a token or a web server.

Codes are HTTP's: 400 the request is wrong, 403 the user may not do this, 404 the thing does not exist, 409 not now, 500
it failed, 503 too many connections.  The change log is told of each change, and of each that was refused, before it is
answered; with "by": {"face": "HTTP", "address": "10.0.0.7"} a process that asks for a user gives the user's address.

The broker answers the requests of one connection one after the other; a request has at most 16 MiB.  When a client goes
away, the broker cancels the client's job.  The broker does not read from a client that does not read, and sends it no
progress, so such a client costs the memory of one answer.  The broker closes a connection after a minute of silence,
unless it works on a request of it.

A start imports nothing for this module.  The first request imports it in the slow thread, so that no message waits.
"""

import asyncio
import os
from collections.abc import Callable, Iterator
from functools import partial
from logging import getLogger
from typing import TYPE_CHECKING, Any, NamedTuple

from brokerd import json_text, local_socket
from brokerd.errors import NotAnsweredYet
from brokerd.operations import DUMPING_FOLDER
from brokerd.store.garbage import remove_tree

if TYPE_CHECKING:
    from brokerd.node import Node
    from brokerd.operations.changes import By
    from brokerd.operations.jobs import Running, Submit
    from brokerd.operations.rows import Who

log = getLogger("brokerd")

REQUEST_OCTETS_MAX = 16 << 20
SENT_AT_ONCE = 256 << 10  # octets of a long answer: some 0.1 ms
WAITING_OCTETS_MAX = 64 << 10  # what is read of requests while an earlier one is worked on
CONNECTIONS_MAX = 192  # the HTTP process has up to 112 of them
SILENCE_SECONDS = 60.0
BACKLOG = 256
GONE = {"error": "its client went before the answer: what had begun was done", "code": 408}


class Control:
    """The listening socket and its connections."""

    __slots__ = ("_directory", "_preparing", "_server", "loop", "node", "peers", "ready", "submit")

    def __init__(self, node: "Node", loop: asyncio.AbstractEventLoop, submit: "Submit") -> None:
        """``submit(work, done)`` runs work() in a thread that may be slow, then done(error or None) on the loop."""
        self.node = node
        self.loop = loop
        self.submit = submit
        self.peers: set[Peer] = set()
        self.ready = False  # True: the modules that requests need are imported
        self._preparing = False
        self._directory = node.data.path
        self._server: asyncio.AbstractServer | None = None

    async def start(self) -> None:
        """Listen.  If the data directory cannot hold a socket, the broker logs it and runs without one."""
        self._tidy()
        try:
            sock = local_socket.bind(self._directory)
            try:
                self._server = await self.loop.create_unix_server(lambda: Peer(self), sock=sock, backlog=BACKLOG)
            except BaseException:
                sock.close()
                raise
        except OSError as error:
            path = os.path.join(self._directory, local_socket.NAME)
            log.warning("%s: %s: brokerctl cannot reach this broker", path, error.strerror or error)

    def _tidy(self) -> None:
        """Remove the files that a crash during a dump left behind."""
        stage = os.path.join(self._directory, DUMPING_FOLDER)
        if os.path.exists(stage):
            self.submit(lambda: remove_tree(stage), lambda error: None)

    def prepare(self) -> None:
        """Import the modules that requests need, in the slow thread; then the peers go on."""
        if not self._preparing:
            self._preparing = True
            self.submit(_prepare, self._prepared)

    def _prepared(self, error: object) -> None:
        self.ready = True  # After an error too: the first request imports again and reports the error.
        for peer in list(self.peers):
            peer.work()

    def note(self, asked: "Asked", answer: dict[str, Any], then: Callable[[], object]) -> None:
        """Tell the change log, then call ``then()``."""
        from brokerd.store.change_log import ChangeLog

        node = self.node
        line = asked.note(node.clock.epoch_ns() // 1_000_000, answer)

        def noted(error: object) -> None:
            if error is not None:
                log.warning("the change log lacks '%s' by '%s': %s", line["operation"], line["user"], error)
            then()

        self.submit(lambda: ChangeLog(node.data.path, node.disk).append(line), noted)

    def stop(self) -> None:
        """Close the socket and all connections; each job closes in the thread that runs it."""
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

    __slots__ = ("_asked", "_buffer", "_control", "_ended", "_job", "_noting", "_paused", "_slow", "_timer",
                 "_transport")  # fmt: skip

    def __init__(self, control: Control) -> None:
        self._control = control
        self._buffer = b""
        self._job: Running | Asking | Sending | None = None
        self._asked: Asked | None = None  # what the answer is to, where the change log is told of it
        self._noting = False  # True: the change log is being told of a change, whose answer waits.
        self._ended = False  # True: the client writes no more, gets its answers, and then the connection closes.
        self._slow = False  # True: the client does not read.
        self._paused = False  # True: the broker does not read from the client.
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport = None  # type: ignore[assignment]  # until connected

    # --- the loop's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As the loop calls it."""
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]
        if len(self._control.peers) >= CONNECTIONS_MAX:
            self._refuse(f"{CONNECTIONS_MAX} connections are open already", 503)
            return
        self._control.peers.add(self)
        self._rest()

    def data_received(self, octets: bytes) -> None:
        """As the loop calls it."""
        if self._transport.is_closing():
            return
        self._buffer += octets
        self.work()

    def eof_received(self) -> bool:
        """As the loop calls it: the client writes no more, but may still read."""
        self._ended = True
        self.work()
        return True

    def pause_writing(self) -> None:
        """As the loop calls it."""
        self._slow = True
        self._pause_or_resume()

    def resume_writing(self) -> None:
        """As the loop calls it."""
        self._slow = False
        if isinstance(self._job, Sending):
            self._job.go_on()
        self.work()

    def connection_lost(self, error: Exception | None) -> None:
        """As the loop calls it: the client no longer wants the result of its job."""
        self._control.peers.discard(self)
        self._quiet()
        if self._job is not None:
            self._job.cancel()
            self._job = None
            if self._asked is not None:
                self._control.note(self._asked, GONE, lambda: None)

    # --- requests

    def work(self) -> None:
        """Answer the requests in the buffer; after the first job the others wait."""
        while self._job is None and not self._noting and not self._slow and not self._transport.is_closing():
            line, newline, rest = self._buffer.partition(b"\n")
            if len(line) > REQUEST_OCTETS_MAX:
                self._refuse(f"a request has at most {REQUEST_OCTETS_MAX} octets", 400)
                return
            if not newline:
                if self._ended:
                    self._transport.close()
                break
            if line.strip() and not self._control.ready:
                self._quiet()
                self._control.prepare()
                break
            self._buffer = rest
            if line.strip():
                self._rest()
                self._answer(line)
        self._pause_or_resume()

    def _pause_or_resume(self) -> None:
        """Read from the client only while its requests can be answered."""
        if self._transport.is_closing():
            return
        busy = self._job is not None or self._noting or not self._control.ready
        pause = self._slow or (busy and len(self._buffer) > WAITING_OCTETS_MAX)
        if pause and not self._paused:
            self._transport.pause_reading()
        elif self._paused and not pause:
            self._transport.resume_reading()
        self._paused = pause

    def _answer(self, line: bytes) -> None:
        self._asked = None
        try:
            asked = read(line)
            self._asked = asked if asked.is_noted else None
            answer = asked.perform(self._control.node)
            if not hasattr(answer, "steps"):
                self._end_with({"result": answer})
                return
        except Exception as error:  # The client gets every error as its answer, and no error ends the broker.
            self._fault(error, line)
            return
        from brokerd.operations.jobs import Running

        control = self._control
        self._quiet()
        self._job = Running(answer, submit=control.submit, later=control.loop.call_soon, progress=self._progress,
                            done=partial(self._done, line))  # fmt: skip

    def _progress(self, table: dict[str, Any]) -> None:
        if not self._slow:
            self._write({"progress": table})

    def _done(self, line: bytes, answer: Any, error: Exception | None) -> None:
        from brokerd.operations.jobs import Encoded

        self._job = None
        if error is not None:
            self._fault(error, line)
        elif isinstance(answer, Encoded):
            self._asked = None
            self._job = Sending(answer.parts, self._send, self._control.loop.call_soon)
            self._job.go_on()
            return
        else:
            self._end_with({"result": answer})
        self._rest()
        self.work()

    def _fault(self, error: Exception, line: bytes) -> None:
        if isinstance(error, NotAnsweredYet):  # Nothing has happened yet.
            self._quiet()
            self._job = Asking(self._control.node, error, partial(self._answer_again, line))
            return
        text, code = fault_in_words(error)
        self._end_with({"error": text, "code": code})

    def _answer_again(self, line: bytes) -> None:
        self._job = None
        self._rest()
        self._answer(line)
        self.work()

    def _end_with(self, answer: dict[str, Any]) -> None:
        """Write the answer, once the change log is told of what was done or refused."""
        asked, self._asked = self._asked, None
        if asked is None:
            self._write(answer)
            return
        self._noting = True

        def noted() -> None:
            self._noting = False
            self._write(answer)
            self.work()

        self._control.note(asked, answer, noted)

    def _write(self, table: dict[str, Any]) -> None:
        import json  # A start saves this import.

        if not self._transport.is_closing():  # The client may have gone, and the loop tells of it a turn later.
            self._transport.write(json.dumps(table).encode() + b"\n")

    def _send(self, octets: bytes | None) -> bool:
        """Write a part of a long answer; None: the answer is out.  Returns whether the client takes more at once."""
        if octets is None:
            self._job = None
            self._rest()
            self.work()
            return False
        if self._transport.is_closing():
            return False
        self._rest()
        self._transport.write(octets)
        return not self._slow

    # --- the end

    def end(self, text: str) -> None:
        """Close the connection; a job that runs is cancelled with ``text``."""
        if self._job is None or isinstance(self._job, Sending):
            self._transport.close()
        else:
            self._job.cancel()
            self._job = None
            self._refuse(text, 409)

    def _refuse(self, text: str, code: int) -> None:
        self._write({"error": text, "code": code})
        self._transport.close()

    def _rest(self) -> None:
        """Start the minute of silence after which the connection closes."""
        self._quiet()
        self._timer = self._control.loop.call_later(SILENCE_SECONDS, self._transport.abort)

    def _quiet(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Sending:
    """A long answer on its way, in place of the job that has made it."""

    __slots__ = ("_asked_for", "_later", "_left", "_send")

    def __init__(
        self,
        parts: list[bytes],
        send: Callable[[bytes | None], bool],
        later: Callable[[Callable[[], object]], object],
    ) -> None:
        """``send`` gets the pieces, and None behind the last one; it says whether the next one may follow at once."""
        self._left: Iterator[bytes] | None = _pieces_of(parts)
        self._send, self._later = send, later
        self._asked_for = False

    def go_on(self) -> None:
        """Send a piece, and more in later turns."""
        if self._asked_for or self._left is None:
            return
        octets = next(self._left, None)
        if octets is None:
            self._left = None
        if self._send(octets):
            self._asked_for = True
            self._later(self._again)

    def _again(self) -> None:
        self._asked_for = False
        self.go_on()

    def cancel(self) -> None:
        """Send no more."""
        self._left = None


def _pieces_of(parts: list[bytes]) -> Iterator[bytes]:
    """The answer's line, cut at the parts, which are given up one by one: to free a million at once takes 20 ms."""
    piece, size = [b'{"result": '], 0
    parts.reverse()
    while parts:
        part = parts.pop()
        piece.append(part)
        size += len(part)
        if size >= SENT_AT_ONCE:
            yield b"".join(piece)
            piece, size = [], 0
    yield b"".join([*piece, b"}\n"])


class Asking:
    """Waits in place of a job until it is known what decides about it, as a web server's answer."""

    __slots__ = ("_then",)

    def __init__(self, node: "Node", missing: NotAnsweredYet, then: Callable[[], object]) -> None:
        self._then: Callable[[], object] | None = then
        missing.find_out(node, self._go_on)

    def _go_on(self) -> None:
        if self._then is not None:
            self._then()

    def cancel(self) -> None:
        """The client has gone."""
        self._then = None


def _prepare() -> None:
    from brokerd.operations.table import prepare

    prepare()


def fault_in_words(error: Exception) -> tuple[str, int]:
    """An error as one line and its code; a bug of the broker also goes to the log."""
    import errno

    from brokerd.audit import AuditError
    from brokerd.errors import AMQPError, BrokerError
    from brokerd.operations import OperationError

    if isinstance(error, OperationError):
        return str(error), error.code
    if isinstance(error, AMQPError):
        return str(error), error.reply_code if error.reply_code in (403, 404) else 400
    if isinstance(error, BrokerError | AuditError):
        return str(error), 500
    if isinstance(error, OSError):
        reason = error.strerror or str(error)
        code = 409 if error.errno == errno.EBUSY else 500  # A file was edited, and waits for HUP.
        return f"{error.filename}: {reason}" if error.filename else reason, code
    log.error("control socket: internal error", exc_info=error)
    return "internal error: see the broker's log", 500


def _is_text(asked: Any) -> bool:
    """Whether all texts are Unicode, but for the surrogates that stand for octets that are not UTF-8."""
    import json

    try:
        json.dumps(asked, ensure_ascii=False).encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


class Asked(NamedTuple):
    """A request.  ``who``: in whose name."""

    name: str
    who: "Who"
    by: "By"
    fields: dict[str, Any]
    grant: str = ""  # the key of what the user is granted: see auth.granted

    @property
    def is_noted(self) -> bool:
        """Whether the change log is told of it.  Raises OperationError (400)."""
        from brokerd.operations import changes, table

        return changes.is_noted(table.find(self.name))

    def perform(self, node: "Node") -> Any:
        """The answer, or the job that leads to it.  Raises OperationError, NotAnsweredYet, and the errors of the
        operation."""
        from brokerd.operations import OperationError, table

        who = self.who
        if self.grant:
            found = node.logins.granted.find(self.grant)
            if found is None or found.user != who.user:
                raise OperationError("the login has ended: log in again", 401)
            who = who._replace(granted=found.granted)
        return table.perform(node, who, self.name, self.fields)[1]

    def note(self, at_ms: int, answer: dict[str, Any]) -> dict[str, Any]:
        """The line of the change log."""
        from brokerd.operations import changes, table

        fault = (str(answer["error"]), int(answer["code"])) if "error" in answer else None
        result = answer.get("result")
        undo = result.get("undo", 0) if isinstance(result, dict) else 0
        return changes.line_of(table.find(self.name), self.who, self.by, self.fields, at_ms, fault, undo)


def read(line: bytes) -> Asked:
    """The request in one line.  Raises OperationError (400)."""
    from brokerd.operations import OperationError
    from brokerd.operations.changes import ON_MACHINE, By
    from brokerd.operations.rows import LOCAL, Who

    try:
        asked = json_text.decode(line)
    except (ValueError, RecursionError) as error:
        raise OperationError(f"not JSON: {error}", 400) from error
    if not isinstance(asked, dict):
        raise OperationError("not a JSON object", 400)
    if (b"\\ud" in line or b"\\uD" in line) and not _is_text(asked):
        raise OperationError("not JSON: half of a surrogate pair", 400)
    name, user, by = asked.pop("verb", None), asked.pop("as", None), asked.pop("by", None)
    user, grant = asked.pop("as_user", user), asked.pop("grant", "")
    if not isinstance(name, str):
        raise OperationError("verb is missing: it must be a noun and a verb, as in 'queue ordering'", 400)
    if user is not None and not isinstance(user, str):
        raise OperationError("as must be the name of a user", 400)
    if not isinstance(grant, str):
        raise OperationError("grant must be a text", 400)
    if by is not None and not (isinstance(by, dict) and by.keys() == set(By._fields)):
        raise OperationError("by must be an object with face and address", 400)
    place = ON_MACHINE if by is None else By(str(by["face"]), str(by["address"]))
    return Asked(name, LOCAL if user is None else Who(user), place, asked, grant)
