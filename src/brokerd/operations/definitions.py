"""Operations on definitions: everything that an operator has set and clients have declared, as one JSON object."""

from typing import TYPE_CHECKING, Annotated, Any, NotRequired

from brokerd.operations.changing import Lasting
from brokerd.operations.lists import vhosts_to_list
from brokerd.operations.rows import Field, Name, Operation, Right, TypedDict, Who, request

if TYPE_CHECKING:
    from brokerd.node import Node
    from brokerd.operations.jobs import Job


# --- definitions export


@request
class ExportRequest:
    vhost: Annotated[str, Field("Only those of this vhost, without users and permissions; empty: all.")] = ""


class Exported(TypedDict):
    """As RabbitMQ's definitions."""

    rabbit_version: str
    rabbitmq_version: str
    product_name: str
    product_version: str
    rabbitmq_definition_format: str
    original_cluster_name: NotRequired[str]
    users: NotRequired[list[dict[str, Any]]]
    vhosts: NotRequired[list[dict[str, Any]]]
    permissions: NotRequired[list[dict[str, Any]]]
    topic_permissions: NotRequired[list[dict[str, Any]]]
    parameters: list[dict[str, Any]]
    global_parameters: NotRequired[list[dict[str, Any]]]
    policies: list[dict[str, Any]]
    queues: list[dict[str, Any]]
    exchanges: list[dict[str, Any]]
    bindings: list[dict[str, Any]]


def _export(node: "Node", who: Who, request: ExportRequest) -> "Job":
    from brokerd.operations.definitions_export import Exporting

    return Exporting(node, vhosts_to_list(node, who, request.vhost), single=bool(request.vhost))


# --- definitions import


@request
class ImportRequest:
    file: Annotated[str, Field("The file, on the broker's machine.", argument=True, path=True)] = ""
    text: Annotated[str, Field("The definitions themselves, in place of a file: JSON.")] = ""
    vhost: Annotated[str, Field("Vhost of entries that name none, as in an export of one vhost.")] = ""
    dry_run: Annotated[bool, Field("Change nothing; say what would change.")] = False


class ChangeRow(TypedDict):
    action: str  # add, replace; keep: it is there, is not as the file says, and stays
    kind: str
    vhost: Name
    name: Name


class Imported(TypedDict):
    changes: list[ChangeRow]  # the first 10,000
    count: int
    dry_run: bool
    ignored: list[str]  # sections that mean nothing here


def _import(node: "Node", who: Who, request: ImportRequest) -> Lasting:
    from brokerd.operations.definitions_import import run

    return run(node, who, file=request.file, text=request.text, vhost=request.vhost, dry_run=request.dry_run)


OPERATIONS = (
    Operation(
        "definitions", "export",
        "Show all definitions as RabbitMQ does: users, vhosts, permissions, policies, exchanges, queues, bindings.",
        ExportRequest, Exported, Right("administrator"), _export, job=True, aliases=("export_definitions",),
    ),
    Operation(
        "definitions", "import",
        "Import definitions of this broker, RabbitMQ or LavinMQ: all of them, or none.",
        ImportRequest, Imported, Right("administrator"), _import, changes=True, job=True,
        aliases=("import_definitions",),
    ),
)  # fmt: skip
