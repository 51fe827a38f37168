"""Operations on the broker as a whole."""

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from brokerd.links.state import STATES
from brokerd.operations.counting import Histogram, count, histograms_of
from brokerd.operations.rows import Field, Name, Operation, Right, TypedDict, Who, request

if TYPE_CHECKING:
    from brokerd.node import Node
    from brokerd.operations.jobs import Job


# --- node show


@request
class ShowRequest:
    histograms: Annotated[bool, Field(
        "Show sizes and times of messages, which are counted from the first such request on.",
    )] = False  # fmt: skip


class Listener(TypedDict):
    protocol: str
    address: str
    port: int


class Certificate(TypedDict):
    """A file with certificates, and when the first of them expires (seconds since the epoch)."""

    file: str
    expires_at: int


class Totals(TypedDict):
    """How many there are, in all vhosts."""

    connections: int
    channels: int
    consumers: int
    exchanges: int
    queues: int
    queues_paused: int  # by an operator
    publishers: int  # channels that have published
    messages_ready: int
    messages_unacknowledged: int


class Streams(TypedDict):
    """Of all streams.  ``lag`` and ``oldest_age_ms`` are the largest; ``missed``: messages that readers missed, because
    retention or a purge had removed them."""

    count: int
    readers: int
    octets: int  # of segment files
    lag: int
    oldest_age_ms: int
    removed: int
    missed: int


class NodeShown(TypedDict):
    name: str
    cluster_name: Name
    identity: Name  # the data directory's, by which links end their loops
    version: str
    python: str
    process: int
    started_at: int  # ms since the epoch
    uptime_seconds: float
    alarms: list[str]  # what is short; publishers wait
    mem_used: int  # octets
    mem_limit: int  # 0: none
    disk_free: int
    disk_free_limit: int
    fd_total: int
    fd_used: int
    vhosts: int
    users: int
    listeners: list[Listener]
    certificates: list[Certificate]  # of TLS
    exchange_types: list[str]
    data_dir: Name
    blocked_connections: int
    connection_max: int  # 0: no limit
    totals: Totals
    streams: Streams
    links: dict[str, int]  # shovels and federation links, by state
    churn: dict[str, int]  # counters since the start: what came and went
    message_stats: dict[str, int]  # counters since the start, summed over the queues and exchanges that are there
    histograms: dict[str, Histogram]  # message_octets, waiting_seconds, working_seconds; none unless asked for


class Showing:
    """The job: counts in pieces."""

    def __init__(self, node: "Node", histograms: bool) -> None:
        self._node, self._histograms = node, histograms

    def steps(self) -> Any:
        """As ``jobs.Job``."""
        node = self._node
        totals, stats, streams = yield from count(node)
        return {**_facts(node), "totals": totals, "streams": streams, "message_stats": stats,
                "churn": dict(node.events.counts),
                "histograms": histograms_of(node.core) if self._histograms else {}}  # fmt: skip

    def clean_up(self) -> None:
        """As ``jobs.Job``."""


def _facts(node: "Node") -> dict[str, Any]:
    from brokerd import __version__
    from brokerd.exchanges import EXCHANGE_TYPES

    now = node.clock.epoch_ns()
    return {
        "name": node.name,
        "cluster_name": node.parameters.cluster_name(node.name),
        "identity": node.data.identity,
        "version": __version__,
        "python": ".".join(map(str, sys.version_info[:3])),
        "process": os.getpid(),
        "started_at": node.started_ns // 1_000_000,
        "uptime_seconds": (now - node.started_ns) / 1e9,
        **node.alarms.figures(node.settings),
        "fd_total": node.descriptors.limit,
        "fd_used": _descriptors(),
        "vhosts": len(node.vhosts),
        "users": len(node.users),
        "listeners": [dict(zip(("protocol", "address", "port"), each, strict=True)) for each in node.listeners],
        "certificates": [{"file": file, "expires_at": expires_at} for file, expires_at in node.certificates],
        "exchange_types": sorted(EXCHANGE_TYPES),
        "data_dir": node.data.path,
        "blocked_connections": len(node.blocked),
        "connection_max": node.settings.connection_max,
        "links": _links(node),
    }


def _links(node: "Node") -> dict[str, int]:
    found = dict.fromkeys(STATES, 0)
    for link in node.links.states.values():
        found[link.state] += 1
    return found


def _descriptors() -> int:
    """How many this process has open; 0: the kernel (before Linux 6.2) does not say."""
    try:
        return os.stat("/proc/self/fd").st_size
    except OSError:
        return 0


def _show(node: "Node", who: Who, request: ShowRequest) -> Showing:
    return Showing(node, request.histograms)


# --- node backup


@request
class BackupRequest:
    out: Annotated[str, Field("The folder to make.", argument=True, path=True)]


class BackedUp(TypedDict):
    out: Name
    queues: int
    segments: int
    octets: int
    cut: int  # ns since the epoch: what the broker had then is in the backup


def _backup(node: "Node", who: Who, request: BackupRequest) -> "Job":
    from brokerd.operations.backup import Backup

    return Backup(node, request.out)


# --- node log

Level = Literal["debug", "info", "warning", "error", "critical"]
LEVELS = get_args(Level)


@request
class LogRequest:
    after: Annotated[int, Field("Only lines with a higher number.", low=0)] = 0
    level: Annotated[Level, Field("Only lines of this severity and above.")] = "debug"
    contains: Annotated[str, Field("Only lines with this text.", high=4096)] = ""


class LogLine(TypedDict):
    number: int
    at: int  # ms since the epoch
    level: str
    text: str


class Log(TypedDict):
    items: list[LogLine]
    last: int  # the number of the last line that was looked at: ask for those after it


def _log(node: "Node", who: Who, request: LogRequest) -> Log:
    lines = node.log_after(request.after)
    grave = LEVELS[LEVELS.index(request.level) :]
    items = [LogLine(number=number, at=at, level=level, text=text) for number, at, level, text in lines
             if level in grave and request.contains in text]  # fmt: skip
    return {"items": items, "last": lines[-1][0] if lines else request.after}


OPERATIONS = (
    Operation(
        "node", "backup",
        """Copy the whole data directory, as it is at one instant, to a folder on the broker's machine.

        Messages go on meanwhile.  brokerctl restore makes a data directory of it.
        """,
        BackupRequest, BackedUp, Right("administrator"), _backup, changes=True, job=True, aliases=("backup",),
    ),
    Operation(
        "node", "log",
        "Show the last lines of the broker's log: up to 1,000 since its start.",
        LogRequest, Log, Right("administrator"), _log, aliases=("log_tail",),
    ),
    Operation(
        "node", "show",
        "Show the broker's state: version, memory, disk, alarms, and counts of queues, clients and messages.",
        ShowRequest, NodeShown, Right("management"), _show, job=True, aliases=("status", "cluster_status", "ping"),
    ),
)  # fmt: skip
