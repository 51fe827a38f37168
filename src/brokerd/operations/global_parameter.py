"""Operations on global parameters."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

from brokerd.operations import OperationError
from brokerd.operations.changing import Lasting, change_files
from brokerd.operations.lists import Listing, Page, Paging
from brokerd.operations.rows import DONE, Done, Field, Name, Operation, Right, TypedDict, Who, request

if TYPE_CHECKING:
    from brokerd.node import Node
    from brokerd.store.json_file import Change


class GlobalParameterRow(TypedDict):
    name: Name
    value: Any


# --- global_parameter list


@request
class ListRequest(Paging):
    pass


class GlobalParameters(Page):
    items: list[GlobalParameterRow]


def _list(node: "Node", who: Who, request: ListRequest) -> Listing:
    rows = [(key, key.name, {"name": key.name, "value": value}) for key, value in node.parameters if not key.component]
    return Listing(rows, lambda row: row, request)


# --- global_parameter set, clear


@request
class SetRequest:
    name: Annotated[str, Field("Its name.", argument=True, low=1, high=255)]
    value: Annotated[Any, Field("Its value, as JSON.", argument=True)]


def _set(node: "Node", who: Who, request: SetRequest) -> Lasting:
    from brokerd.policies.parameters import CLUSTER_NAME

    if request.name == CLUSTER_NAME and not (isinstance(request.value, str) and request.value):
        raise OperationError(f"global parameter '{CLUSTER_NAME}' is a text that is not empty", 400)

    def plan() -> "Iterable[Change]":
        return [node.parameters.changed({_key(request): request.value})]

    def then() -> Done:
        node.tell("parameter.set", {"name": request.name, "value": request.value}, who.user)
        return DONE

    return change_files(node, plan, then)


@request
class ClearRequest:
    name: Annotated[str, Field("Its name.", argument=True)]


def _clear(node: "Node", who: Who, request: ClearRequest) -> Lasting:
    def plan() -> "Iterable[Change]":
        if _key(request) not in node.parameters:
            raise OperationError(f"no global parameter '{request.name}'", 404)
        return [node.parameters.changed(gone=[_key(request)])]

    def then() -> Done:
        node.tell("parameter.cleared", {"name": request.name}, who.user)
        return DONE

    return change_files(node, plan, then)


def _key(request: Any) -> Any:
    from brokerd.policies.parameters import Key

    return Key("", "", request.name)


OPERATIONS = (
    Operation(
        "global_parameter", "list",
        "List the global parameters.",
        ListRequest, GlobalParameters, Right("policymaker"), _list, job=True, aliases=("list_global_parameters",),
    ),
    Operation(
        "global_parameter", "set",
        "Set a global parameter.",
        SetRequest, Done, Right("policymaker"), _set, changes=True, job=True, aliases=("set_global_parameter",),
    ),
    Operation(
        "global_parameter", "clear",
        "Remove a global parameter.",
        ClearRequest, Done, Right("policymaker"), _clear, changes=True, job=True,
        aliases=("clear_global_parameter",),
    ),
)  # fmt: skip
