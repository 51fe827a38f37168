"""Operations on traces of what comes into and goes out of a vhost (``tracing``)."""

from typing import TYPE_CHECKING, Annotated, Literal

from brokerd.operations.changing import Lasting
from brokerd.operations.lists import Listing, Page, Paging
from brokerd.operations.rows import Field, Name, Operation, Right, TypedDict, Who, request

if TYPE_CHECKING:
    from brokerd.node import Node


class TraceRow(TypedDict):
    vhost: Name
    name: Name
    format: str
    pattern: Name
    max_payload_bytes: int  # 0: the whole payload
    user: Name  # who began it; empty: brokerctl on the broker's machine
    since: int  # ms since the epoch
    state: str  # running, full, failed
    why: str  # it does not run
    messages: int  # that were written
    missed: int  # for which there was no room
    octets: int  # of the file


@request
class ListRequest(Paging):
    vhost: Annotated[str, Field("Only those of this vhost; empty: of all.")] = ""


class Listed(Page):
    items: list[TraceRow]


def _list(node: "Node", who: Who, request: ListRequest) -> Listing:
    from brokerd.operations import tracing

    there = [each for each in tracing.traces_of(node).current() if request.vhost in ("", each.vhost.name)]
    return Listing(((each.request.name, each.request.name, each) for each in there), tracing.row_of, request)


@request
class OneRequest:
    name: Annotated[str, Field("The trace's name.", argument=True)]
    vhost: Annotated[str, Field("Its vhost.")] = "/"


def _show(node: "Node", who: Who, request: OneRequest) -> TraceRow:
    from brokerd.operations import tracing

    return tracing.row_of(tracing.traces_of(node).find(request.vhost, request.name))  # type: ignore[return-value]


@request
class StartRequest:
    name: Annotated[str, Field("Its name, and that of its file.", argument=True)]
    pattern: Annotated[str, Field("Which messages: publish.EXCHANGE, deliver.QUEUE, or a topic exchange's pattern.",
                                  high=255)] = "#"
    format: Annotated[Literal["text", "json"], Field("How they are written.")] = "text"
    max_payload_bytes: Annotated[int, Field("So much of each payload; 0: all.", low=0)] = 0
    vhost: Annotated[str, Field("The vhost.")] = "/"


class Started(TypedDict):
    created: bool  # false: it took the place of one with its name


def _start(node: "Node", who: Who, request: StartRequest) -> Lasting:
    from brokerd.operations import tracing

    return tracing.start(node, who.user, request)


class Stopped(TypedDict):
    messages: int  # that are in the file of this trace
    missed: int


def _stop(node: "Node", who: Who, request: OneRequest) -> Lasting:
    from brokerd.operations import tracing

    return tracing.stop(node, request.vhost, request.name)


OPERATIONS = (
    Operation(
        "tracer", "list",
        "List the traces that write what comes into and goes out of a vhost to a file.",
        ListRequest, Listed, Right("administrator"), _list, job=True,
    ),
    Operation(
        "tracer", "show",
        "Show one trace.",
        OneRequest, TraceRow, Right("administrator"), _show,
    ),
    Operation(
        "tracer", "start",
        """Write the messages that come into and go out of a vhost to a file, until the trace is stopped.

        The file is traces/NAME.log in the data directory, and has at most 64 MiB.  A trace ends with the broker.
        """,
        StartRequest, Started, Right("administrator"), _start, changes=True, job=True,
    ),
    Operation(
        "tracer", "stop",
        "End a trace; its file stays.",
        OneRequest, Stopped, Right("administrator"), _stop, changes=True, job=True,
    ),
)  # fmt: skip
