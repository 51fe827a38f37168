"""Operations on the change log: who changed what, and when."""

from typing import TYPE_CHECKING, Annotated, Any

from brokerd.operations.jobs import IN_THREAD, Steps
from brokerd.operations.rows import Field, Name, Operation, Right, TypedDict, Who, request

if TYPE_CHECKING:
    from brokerd.node import Node
    from brokerd.operations.jobs import Job

LINES_AT_ONCE = 1000


@request
class ListRequest:
    """The filters for the log; a change must meet all that are given."""

    count: Annotated[int, Field("How many at most, the last ones first.", low=1, high=10_000)] = 100
    user: Annotated[str, Field("Only changes by this user.")] = ""
    operation: Annotated[str, Field("Only operations with a name that begins so: queue, or queue delete.")] = ""
    contains: Annotated[str, Field("Only changes whose request has this text.")] = ""
    since: Annotated[int, Field("Only changes since then: ms since 1970.", low=0)] = 0
    until: Annotated[int, Field("Only changes before then: ms since 1970; 0: no limit.", low=0)] = 0
    failed: Annotated[bool, Field("Only those that were refused, or failed.")] = False


class ChangeRow(TypedDict):
    """One change.  ``user`` "": who may use the control socket.  ``code``: why it was refused, as HTTP says; else 0."""

    at: int  # ms since the epoch: when it was over
    user: Name
    face: str  # brokerctl, or HTTP
    address: str  # of the client; "": on this machine
    operation: str
    request: dict[str, Any]  # without passwords; of a long value only its length
    done: bool
    text: str  # why not
    code: int
    undo: int  # the number that undoes a change of messages; 0: none


class Changes(TypedDict):
    items: list[ChangeRow]


class Reading:
    """The job: reads the files in the thread."""

    def __init__(self, node: "Node", request: ListRequest) -> None:
        self._node, self._request = node, request

    def steps(self) -> Steps:
        """As ``jobs.Job``."""
        import json

        from brokerd.store.change_log import ChangeLog

        asked, found = self._request, list[dict[str, Any]]()
        yield IN_THREAD
        for number, line in enumerate(ChangeLog(self._node.data.path, self._node.disk).newest_first(), 1):
            if line["at"] < asked.since or len(found) == asked.count:
                break
            if (asked.user in ("", line["user"]) and line["operation"].startswith(asked.operation)
                    and (not asked.until or line["at"] < asked.until) and not (asked.failed and line["done"])
                    and asked.contains in json.dumps(line["request"], ensure_ascii=False)):  # fmt: skip
                found.append(line)
            if number % LINES_AT_ONCE == 0:
                yield IN_THREAD
        return {"items": found}

    def clean_up(self) -> None:
        """As ``jobs.Job``."""


def _list(node: "Node", who: Who, request: ListRequest) -> "Job":
    return Reading(node, request)


OPERATIONS = (
    Operation(
        "change", "list",
        "Show who changed what, through brokerctl or HTTP, the last change first.",
        ListRequest, Changes, Right("administrator"), _list, job=True, aliases=("list_changes",),
    ),
)  # fmt: skip
