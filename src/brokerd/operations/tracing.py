"""Traces: what the firehose of a vhost shows is written to a file, as RabbitMQ's plugin for tracing does.

    firehose ─ shown ─> records that wait (WAITING_OCTETS_MAX) ─ thread, some times a second ─> traces/NAME.log

A record is a text for people, or a JSON object in one line.  A file has at most FILE_OCTETS_MAX: then its trace is
``full``.  Records that find no room among those that wait are counted as missed.  Traces end with the broker, files
stay.  Knows nothing of rights.
"""

import os
from base64 import b64encode
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from brokerd.operations import OperationError
from brokerd.operations.changing import Lasting
from brokerd.operations.jobs import Steps, in_thread
from brokerd.operations.lists import find_vhost

if TYPE_CHECKING:
    from collections.abc import Callable

    from brokerd.node import Node
    from brokerd.vhost.vhost import VHost

FOLDER, SUFFIX = "traces", ".log"  # in the data directory
FILE_OCTETS_MAX = 64 << 20
WAITING_OCTETS_MAX = 4 << 20  # of one trace
TRACES_MAX = 20
NAME_OCTETS_MAX = 100
EVERY_NS = 200_000_000
RUNNING, FULL, FAILED = "running", "full", "failed"
_LINE = "=" * 80


class Trace:
    """One trace: an observer of a firehose (vhost.firehose.Observer)."""

    __slots__ = ("_cut", "_node", "_path", "_pattern", "_refused", "_waiting", "_waiting_octets", "_writing",
                 "messages", "octets", "request", "since", "state", "user", "vhost", "why")

    def __init__(self, node: "Node", vhost: "VHost", request: Any, user: str) -> None:
        """``request`` is a ``tracer.StartRequest``."""
        self._node, self.vhost, self.request, self.user = node, vhost, request, user
        self.since = node.clock.epoch_ns() // 1_000_000
        self.state, self.why = RUNNING, ""
        self.messages = self.octets = 0
        self._refused = self._cut = 0  # records for which there was no room: on the loop, and in the thread
        self._pattern = _words(request.pattern)
        self._path = os.path.join(node.data.path, FOLDER, request.name + SUFFIX)
        self._waiting: list[bytes] = []
        self._waiting_octets = 0
        self._writing = False

    @property
    def missed(self) -> int:
        """Records for which there was no room."""
        return self._refused + self._cut

    def shown(self, routing_key: str, headers: dict[str, Any], body: bytes) -> None:
        """As ``Observer``."""
        if self.state != RUNNING or not matches(self._pattern, _words(routing_key)):
            return
        if self._waiting_octets > WAITING_OCTETS_MAX:
            self._refused += 1
            return
        most = self.request.max_payload_bytes
        encode = as_json if self.request.format == "json" else as_text
        octets = encode(self._node.clock.epoch_ns(), routing_key, headers, body[:most] if most else body)
        self._waiting.append(octets)
        self._waiting_octets += len(octets)
        if not self._writing:
            self._writing = True
            self._node.call_at(self._node.clock.epoch_ns() + EVERY_NS, self._write_soon)

    def _write_soon(self) -> None:
        records = self.take()
        self._node.submit_slow(lambda: self.write(records), lambda error: self.written(error))

    def take(self) -> list[bytes]:
        """The records that wait; they do so no longer."""
        records, self._waiting, self._waiting_octets = self._waiting, [], 0
        return records

    def write(self, records: list[bytes]) -> None:
        """Append records, in the thread.  Raises OSError."""
        with open(self._path, "ab", opener=self._node.disk.open) as file:  # No link, pipe or device.
            size = os.fstat(file.fileno()).st_size
            room, fitting = FILE_OCTETS_MAX - size, list[bytes]()
            for record in records:
                room -= len(record)
                if room < 0:
                    self.state, self.why = FULL, f"the file has {FILE_OCTETS_MAX >> 20} MiB, which is the most"
                    break
                fitting.append(record)
            octets = b"".join(fitting)
            file.write(octets)
        self.messages += len(fitting)
        self._cut += len(records) - len(fitting)
        self.octets = size + len(octets)

    def written(self, error: BaseException | None) -> None:
        """On the loop, after ``write``."""
        self._writing = False
        if error is not None:
            self.state, self.why = FAILED, str(error)
        if self.state != RUNNING:
            self.vhost.firehose.ignore(self)
            self._waiting.clear()
        elif self._waiting:
            self._writing = True
            self._write_soon()


class Traces:
    """All traces of a broker, by name."""

    __slots__ = ("_node", "by_name")

    def __init__(self, node: "Node") -> None:
        self._node = node
        self.by_name: dict[str, Trace] = {}

    def current(self) -> list[Trace]:
        """Those whose vhost is there, in order of their names."""
        for name, trace in list(self.by_name.items()):
            if self._node.vhosts.get(trace.vhost.name) is not trace.vhost:
                del self.by_name[name]
        return [self.by_name[name] for name in sorted(self.by_name)]

    def find(self, vhost: str, name: str) -> Trace:
        """The trace of that name.  Raises OperationError (404)."""
        for trace in self.current():
            if (trace.vhost.name, trace.request.name) == (vhost, name):
                return trace
        raise OperationError(f"no trace '{name}' in vhost '{vhost}'", 404)

    def close(self) -> None:
        """The broker stops: write what waits."""
        for trace in self.current():
            trace.vhost.firehose.ignore(trace)
            try:
                trace.write(trace.take())
            except OSError:
                pass  # The trace was told of as failed, or is the last to know.


def traces_of(node: "Node") -> Traces:
    """The traces of this broker; the first use makes the object."""
    if node.traces is None:
        node.traces = Traces(node)
    return node.traces


def _taken(trace: Trace) -> OperationError:
    return OperationError(f"the name '{trace.request.name}' is that of a trace of vhost '{trace.vhost.name}'", 409)


def start(node: "Node", user: str, request: Any) -> Lasting:
    """The job that begins a trace, in place of one of its name.  Raises OperationError (400, 404, 409)."""
    vhost = find_vhost(node, request.vhost)
    check_name(request.name)
    traces = traces_of(node)
    there = [each for each in traces.current() if each.request.name == request.name]
    if there and there[0].vhost is not vhost:
        raise _taken(there[0])
    if not there and len(traces.by_name) >= TRACES_MAX:
        raise OperationError(f"there are {TRACES_MAX} traces already", 409)

    def steps() -> Steps:
        trace = Trace(node, vhost, request, user)
        os.makedirs(os.path.join(node.data.path, FOLDER), 0o750, exist_ok=True)
        yield from _with_file(lambda: trace.write([]))
        if node.vhosts.get(vhost.name) is not vhost:
            raise OperationError(f"no vhost '{vhost.name}'", 404)
        if trace.octets >= FILE_OCTETS_MAX:
            raise OperationError(f"the file of trace '{request.name}' is full: delete it first", 409)
        former = traces.by_name.get(request.name)
        if former is not None and former.vhost is not vhost:
            raise _taken(former)
        if former is not None:
            former.vhost.firehose.ignore(former)
            trace._waiting = former.take()
        traces.by_name[request.name] = trace
        vhost.firehose.observe(trace)
        return {"created": former is None}

    return Lasting(node, steps())


def stop(node: "Node", vhost: str, name: str) -> Lasting:
    """The job that ends a trace, and answers when its records are written.  Raises OperationError (404)."""
    trace = traces_of(node).find(vhost, name)

    def steps() -> Steps:
        trace.vhost.firehose.ignore(trace)
        if traces_of(node).by_name.get(name) is trace:
            del traces_of(node).by_name[name]
        records = trace.take()
        yield from _with_file(lambda: trace.write(records))
        return {"messages": trace.messages, "missed": trace.missed}

    return Lasting(node, steps())


def row_of(trace: Trace) -> dict[str, Any]:
    """A trace; ``tracer.TraceRow`` is its shape."""
    request = trace.request
    return {
        "vhost": trace.vhost.name, "name": request.name, "format": request.format, "pattern": request.pattern,
        "max_payload_bytes": request.max_payload_bytes, "user": trace.user, "since": trace.since,
        "state": trace.state, "why": trace.why, "messages": trace.messages, "missed": trace.missed,
        "octets": trace.octets,
    }  # fmt: skip


# --- files


def files(node: "Node") -> Lasting:
    """The job that lists the files."""

    def steps() -> Steps:
        found: list[dict[str, Any]] = []
        yield from _with_file(lambda: found.extend(_listed(os.path.join(node.data.path, FOLDER))))
        return {"items": found}

    return Lasting(node, steps())


def _listed(folder: str) -> list[dict[str, Any]]:
    try:
        with os.scandir(folder) as entries:
            named = sorted((each.name, each.stat(follow_symlinks=False).st_size) for each in entries
                           if each.name.endswith(SUFFIX) and each.is_file(follow_symlinks=False))  # fmt: skip
    except FileNotFoundError:
        return []
    return [{"name": name, "size": size} for name, size in named]


def read(node: "Node", name: str, offset: int, octets: int) -> Lasting:
    """The job that reads a part of a file.  Raises OperationError (404)."""
    path = file_path(node.data.path, name)

    def steps() -> Steps:
        found: list[bytes] = []

        def work() -> None:
            with open(path, "rb", opener=node.disk.open) as file:
                file.seek(offset)
                found.append(file.read(octets))

        yield from _with_file(work)
        return {"text": found[0].decode("utf-8", "replace"), "next_offset": offset + len(found[0])}

    return Lasting(node, steps())


def delete(node: "Node", name: str) -> Lasting:
    """The job that deletes a file; a trace that is under way begins it anew.  Raises OperationError (404)."""
    path = file_path(node.data.path, name)

    def steps() -> Steps:
        yield from _with_file(lambda: os.unlink(path))
        return {"done": True}

    return Lasting(node, steps())


def file_path(data_dir: str, name: str) -> str:
    """Of a trace's file.  Raises OperationError (404) for a name that none has."""
    if not name.endswith(SUFFIX) or not is_name(name.removesuffix(SUFFIX)):
        raise _no_file(name)
    return os.path.join(data_dir, FOLDER, name)


def _no_file(name: str) -> OperationError:
    return OperationError(f"no trace file '{name}'", 404)


def is_name(name: str) -> bool:
    """Whether a trace, and so its file, may have this name."""
    return (name.isprintable() and "/" not in name and not name.startswith(".")
            and 0 < len(name.encode()) <= NAME_OCTETS_MAX)  # fmt: skip


def check_name(name: str) -> None:
    """Raise OperationError (400) if no trace may have this name."""
    if not is_name(name):
        raise OperationError("the name of a trace is that of its file: at most 100 octets that can be printed, no /, "
                             "and no dot at the beginning", 400)


def _with_file(work: "Callable[[], object]") -> Steps:
    """Do it in the thread.  Raises OperationError (404) if the file is not there, or OSError."""
    try:
        yield from in_thread(work)
    except FileNotFoundError as error:
        raise _no_file(os.path.basename(error.filename or "")) from None


# --- records


def _words(key: str) -> list[str]:
    return key.split(".") if key else []


def matches(pattern: list[str], words: list[str]) -> bool:
    """Whether a pattern of a topic exchange matches: ``*`` is one word, ``#`` any number of them."""
    places = _through_hashes(pattern, {0})
    for word in words:
        places = _through_hashes(pattern, {
            at if pattern[at] == "#" else at + 1
            for at in places if at < len(pattern) and pattern[at] in ("#", "*", word)
        })  # fmt: skip
    return len(pattern) in places


def _through_hashes(pattern: list[str], places: set[int]) -> set[int]:
    """These places, and those that are reached without a word."""
    found = set(places)
    for at in places:
        while at < len(pattern) and pattern[at] == "#":
            at += 1
            found.add(at)
    return found


def as_json(at_ns: int, routing_key: str, headers: dict[str, Any], body: bytes) -> bytes:
    """A record as a JSON object, with the fields of RabbitMQ's plugin: the payload is in base64."""
    import json  # A broker without traces does without.

    is_publish, queue = _kind_of(routing_key)
    record = {
        "timestamp": _moment(at_ns), "type": "published" if is_publish else "received", "node": headers["node"],
        "connection": headers["connection"], "vhost": headers["vhost"], "user": headers["user"],
        "channel": headers["channel"], "exchange": headers["exchange_name"],
        "queue": "none" if is_publish else queue, "routed_queues": headers.get("routed_queues", "none"),
        "routing_keys": headers["routing_keys"], "properties": headers["properties"],
        "payload": b64encode(body).decode(),
    }  # fmt: skip
    return json.dumps(record, default=str).encode() + b"\n"


def as_text(at_ns: int, routing_key: str, headers: dict[str, Any], body: bytes) -> bytes:
    """A record for people, with the lines of RabbitMQ's plugin."""
    is_publish, queue = _kind_of(routing_key)
    last = (f"Routed queues: {_shown(headers['routed_queues'])}" if is_publish else f"Queue:        {_shown(queue)}")
    head = (
        f"\n{_LINE}\n{_moment(at_ns)}: Message {'published' if is_publish else 'received'}\n\n"
        f"Node:         {headers['node']}\nConnection:   {headers['connection']}\n"
        f"Virtual host: {_shown(headers['vhost'])}\nUser:         {_shown(headers['user'])}\n"
        f"Channel:      {headers['channel']}\nExchange:     {_shown(headers['exchange_name'])}\n"
        f"Routing keys: {_shown(headers['routing_keys'])}\n{last}\n"
        f"Properties:   {_shown(headers['properties'])}\nPayload: \n"
    )
    return head.encode() + body + b"\n"


def _shown(thing: Any) -> str:
    """In one line, whatever a peer chose."""
    if isinstance(thing, str) and thing.isprintable():
        return thing
    import json  # As above.

    return json.dumps(thing, default=str)


def _kind_of(routing_key: str) -> tuple[bool, str]:
    """Whether it tells of a publish; the exchange or the queue."""
    kind, _, name = routing_key.partition(".")
    return kind == "publish", name


def _moment(at_ns: int) -> str:
    return datetime.fromtimestamp(at_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S:%f")[:-3]
