"""Operations on runs: dumps and audits that go on by themselves (``runs``)."""

from typing import TYPE_CHECKING, Annotated, Any

from brokerd.operations import OperationError
from brokerd.operations.changing import Lasting
from brokerd.operations.rows import DONE, Done, Field, Name, Operation, Right, TypedDict, Who, request

if TYPE_CHECKING:
    from brokerd.node import Node
    from brokerd.operations.jobs import Job


class RunRow(TypedDict):
    id: int
    kind: str  # audit or dump
    queues: str  # the pattern
    audits: str
    out: Name  # the folder of the dump, while it is there
    user: Name  # who asked for it; empty: brokerctl on the broker's machine
    state: str  # copying, judging, done, failed, interrupted
    started_at: int  # ms since the epoch
    ended_at: int  # 0: not yet
    progress: dict[str, Any]  # copying: vhost, queue, number, queues, octets; judging: octets, of
    why: str  # it failed, or was interrupted
    verdict: str  # of an audit that is over
    findings: int
    report: bool  # there is a report


QUEUES = "Only queues with a matching name, or vhost/name: a pattern with * and ?."


# --- run audit


@request
class AuditRequest:
    queues: Annotated[str, Field(QUEUES, high=4096)] = ""
    audits: Annotated[str, Field("Only these audits, with commas between; empty: all.", high=1000)] = ""
    keep_dump: Annotated[bool, Field("Keep the dump that was judged.")] = False


def _audit(node: "Node", who: Who, request: AuditRequest) -> "Job":
    from brokerd.audit.scan import AUDITS
    from brokerd.operations import runs

    unknown = [name for name in request.audits.split(",") if name not in AUDITS] if request.audits else []
    if unknown:
        raise OperationError(f"no such audit: {unknown[0]!r} (there are {', '.join(AUDITS)})", 400)
    return Lasting(node, runs.begin(node, who.user, request))


# --- run dump


@request
class DumpRequest:
    out: Annotated[str, Field("The folder to make.", argument=True, path=True)]
    queues: Annotated[str, Field(QUEUES, high=4096)] = ""


def _dump(node: "Node", who: Who, request: DumpRequest) -> "Job":
    from brokerd.operations import runs

    return Lasting(node, runs.begin(node, who.user, request))


# --- run list, run show, run cancel, run delete


@request
class ListRequest:
    pass


class Listed(TypedDict):
    items: list[RunRow]


class AuditRow(TypedDict):
    vhost: Name
    queue: Name
    audit: str
    verdict: str
    checked: int
    found: int
    reason: Name


class Finding(TypedDict):
    vhost: Name
    queue: Name
    audit: str
    seq: int
    ts: int  # ns since the epoch
    detail: Name


class Told(TypedDict):
    """What an audit has found.  ``audits``: the first 500 that did not hold; ``findings``: the first 500."""

    verdict: str
    verdicts: dict[str, int]  # how many audits of queues had each
    inputs: dict[str, int]
    findings_total: int
    audits: list[AuditRow]
    findings: list[Finding]


class Shown(RunRow):
    told: Told | None


@request
class RunRequest:
    id: Annotated[int, Field("The number of the run.", argument=True, low=1)]


@request
class ShowRequest(RunRequest):
    wait: Annotated[float, Field("Wait so many seconds for its end.", low=0, high=86_400)] = 0


def _list(node: "Node", who: Who, request: ListRequest) -> "Job":
    from brokerd.operations import runs

    return runs.job(runs.list_all(node))


def _show(node: "Node", who: Who, request: ShowRequest) -> "Job":
    from brokerd.operations import runs

    return runs.job(runs.show(node, request.id, request.wait))


def _cancel(node: "Node", who: Who, request: RunRequest) -> Done:
    from brokerd.operations import runs

    runs.runs_of(node).cancel(request.id)
    return DONE


def _delete(node: "Node", who: Who, request: RunRequest) -> "Job":
    from brokerd.operations import runs

    return runs.job(runs.delete(node, request.id))


ADMINISTRATOR = Right("administrator")
OPERATIONS = (
    Operation(
        "run", "audit",
        """Begin an audit: have durable queues copied, and judged whether messages kept their order.

        It goes on by itself; "run show" tells how far it is, and what it has found.  One run is under way at a time.
        """,
        AuditRequest, RunRow, ADMINISTRATOR, _audit, changes=True, job=True,
    ),
    Operation(
        "run", "dump",
        """Begin a dump: have the files of durable queues copied to a folder on the broker's machine.

        It goes on by itself; "run show" tells how far it is.  The folder must be new or empty.
        """,
        DumpRequest, RunRow, ADMINISTRATOR, _dump, changes=True, job=True,
    ),
    Operation(
        "run", "list", "List dumps and audits, the last one first.", ListRequest, Listed, ADMINISTRATOR, _list,
        job=True,
    ),
    Operation(
        "run", "show", "Show how far a dump or an audit is, and what an audit has found.", ShowRequest, Shown,
        ADMINISTRATOR, _show, job=True,
    ),
    Operation(
        "run", "cancel", "End a dump or an audit that is under way.", RunRequest, Done, ADMINISTRATOR, _cancel,
        changes=True,
    ),
    Operation(
        "run", "delete", "Delete what is kept of a dump or an audit; the folder of a dump stays.", RunRequest, Done,
        ADMINISTRATOR, _delete, changes=True, job=True,
    ),
)  # fmt: skip
