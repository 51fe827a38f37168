"""Operations on parameters."""

from typing import TYPE_CHECKING, Annotated, Any

from brokerd.links.definition import PAUSED
from brokerd.operations import OperationError
from brokerd.operations.changing import Lasting
from brokerd.operations.lists import Listing, Page, Paging, vhosts_to_list
from brokerd.operations.parameters import clear_parameter, set_parameter
from brokerd.operations.rows import Done, Field, Name, Operation, Right, TypedDict, Who, request

if TYPE_CHECKING:
    from brokerd.node import Node

# RabbitMQ keeps these among the parameters; here they have operations of their own.
ELSEWHERE = {
    PAUSED: "shovel", "operator_policy": "operator_policy", "policy": "policy", "vhost-limits": "vhost",
    "user-limits": "user",
}  # fmt: skip


class ParameterRow(TypedDict):
    component: str
    vhost: Name
    name: Name
    value: Any


# --- parameter list


@request
class ListRequest(Paging):
    vhost: Annotated[str, Field("Only those of this vhost; empty: of all.")] = ""
    component: Annotated[str, Field("Only those of this component.")] = ""


class Parameters(Page):
    items: list[ParameterRow]


def _list(node: "Node", who: Who, request: ListRequest) -> Listing:
    vhosts = {vhost.name for vhost in vhosts_to_list(node, who, request.vhost)}
    rows = [
        (key, key.name, {**key._asdict(), "value": value}) for key, value in node.parameters
        if key.vhost in vhosts and request.component in ("", key.component) and key.component != PAUSED
    ]  # fmt: skip
    return Listing(rows, lambda row: row, request)


# --- parameter set, clear


@request
class SetRequest:
    component: Annotated[str, Field("Its component, such as shovel.", argument=True, low=1, high=255)]
    name: Annotated[str, Field("Its name.", argument=True, low=1, high=255)]
    value: Annotated[Any, Field("Its value, as JSON.", argument=True)]
    vhost: Annotated[str, Field("Its vhost.")] = "/"


def _set(node: "Node", who: Who, request: SetRequest) -> Lasting:
    _check_component(request.component)
    return set_parameter(node, who, _key(request), request.value)


def _check_component(component: str) -> None:
    if component in ELSEWHERE:
        noun = ELSEWHERE[component]
        raise OperationError(f"component '{component}' is no parameter here: see the operations of {noun}", 400)


@request
class ClearRequest:
    component: Annotated[str, Field("Its component.", argument=True)]
    name: Annotated[str, Field("Its name.", argument=True)]
    vhost: Annotated[str, Field("Its vhost.")] = "/"


def _clear(node: "Node", who: Who, request: ClearRequest) -> Lasting:
    _check_component(request.component)
    what = f"parameter '{request.name}' of component '{request.component}'"
    return clear_parameter(node, who, _key(request), what)


def _key(request: Any) -> Any:
    from brokerd.policies.parameters import Key

    return Key(request.component, request.vhost, request.name)


OPERATIONS = (
    Operation(
        "parameter", "list",
        "List the parameters of vhosts.",
        ListRequest, Parameters, Right("policymaker", "visit"), _list, job=True, aliases=("list_parameters",),
    ),
    Operation(
        "parameter", "set",
        "Set a parameter of a vhost.",
        SetRequest, Done, Right("policymaker", "visit"), _set, changes=True, job=True, aliases=("set_parameter",),
    ),
    Operation(
        "parameter", "clear",
        "Remove a parameter of a vhost.",
        ClearRequest, Done, Right("policymaker", "visit"), _clear, changes=True, job=True,
        aliases=("clear_parameter",),
    ),
)  # fmt: skip
