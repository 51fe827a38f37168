"""Operations on the files of traces (``tracing``)."""

from typing import TYPE_CHECKING, Annotated

from brokerd.operations.changing import Lasting
from brokerd.operations.rows import Done, Field, Name, Operation, Right, TypedDict, Who, request

if TYPE_CHECKING:
    from brokerd.node import Node

READ_OCTETS_MAX = 1 << 20


class FileRow(TypedDict):
    name: Name
    size: int  # octets


@request
class ListRequest:
    pass


class Listed(TypedDict):
    items: list[FileRow]


def _list(node: "Node", who: Who, request: ListRequest) -> Lasting:
    from brokerd.operations import tracing

    return tracing.files(node)


@request
class ReadRequest:
    name: Annotated[str, Field("The file's name.", argument=True)]
    offset: Annotated[int, Field("Where to begin, in octets.", low=0)] = 0
    octets: Annotated[int, Field("How many octets at most.", low=1, high=READ_OCTETS_MAX)] = READ_OCTETS_MAX


class Part(TypedDict):
    text: str
    next_offset: int


def _read(node: "Node", who: Who, request: ReadRequest) -> Lasting:
    from brokerd.operations import tracing

    return tracing.read(node, request.name, request.offset, request.octets)


@request
class OneRequest:
    name: Annotated[str, Field("The file's name.", argument=True)]


def _delete(node: "Node", who: Who, request: OneRequest) -> Lasting:
    from brokerd.operations import tracing

    return tracing.delete(node, request.name)


OPERATIONS = (
    Operation(
        "trace_file", "list",
        "List the files of traces.",
        ListRequest, Listed, Right("administrator"), _list, job=True,
    ),
    Operation(
        "trace_file", "read",
        "Show a part of the file of a trace.",
        ReadRequest, Part, Right("administrator"), _read, job=True,
    ),
    Operation(
        "trace_file", "delete",
        "Delete the file of a trace.",
        OneRequest, Done, Right("administrator"), _delete, changes=True, job=True,
    ),
)  # fmt: skip
