"""Code that operations on parameters share: those of the noun ``parameter``, and those of shovels and upstreams.

It checks the value of a component that makes links.  Events and refusals never have a password from the value.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from brokerd.links.definition import COMPONENTS, PAUSED, SHOVEL, UPSTREAM
from brokerd.links.state import LinkKey
from brokerd.links.uris import masked_value, with_kept_passwords
from brokerd.operations import OperationError
from brokerd.operations.changing import Lasting, change_files
from brokerd.operations.jobs import Steps, Wait
from brokerd.operations.lists import find_vhost
from brokerd.operations.rights import has_access
from brokerd.operations.rows import DONE, Done

if TYPE_CHECKING:
    from brokerd.node import Node
    from brokerd.operations.rows import Who
    from brokerd.policies.parameters import Key
    from brokerd.store.json_file import Change

FAULTS_SHOWN = 10


class ValueFault(OperationError):
    """No link can be made of a parameter's value."""


def set_parameter(node: "Node", who: "Who", key: "Key", value: Any) -> Lasting:
    """The job that sets a parameter of a vhost.  Raises OperationError (400)."""
    check_value(key, value, user=who.user, may_enter=enters(node, who))

    def plan() -> "Iterable[Change]":
        find_vhost(node, key.vhost)
        return [node.parameters.changed({key: value})]

    def then() -> Done:
        node.tell("parameter.set", {**fields_of(key), "value": masked_value(key.component, value)}, who.user)
        return DONE

    return change_files(node, plan, then)


def until_ended(node: "Node", keys: "list[LinkKey]", change: Lasting) -> Lasting:
    """The job that makes a change by which these links end, and is over when they move nothing more."""

    def steps() -> Steps:
        answer = yield from change.steps()
        yield Wait(lambda go_on: node.links.await_end(keys, go_on))
        return answer

    return Lasting(node, steps())


def _links_of(node: "Node", key: "Key") -> "list[LinkKey]":
    """The links that a parameter makes."""
    if key.component == SHOVEL:
        return [LinkKey(SHOVEL, key.vhost, key.name)]
    return [link for link in node.links.states if (link.vhost, link.upstream) == (key.vhost, key.name)]


def clear_parameter(node: "Node", who: "Who", key: "Key", what: str) -> Lasting:
    """The job that removes a parameter of a vhost, ``what`` in words; a shovel's pause goes with it."""

    def plan() -> "Iterable[Change]":
        find_vhost(node, key.vhost)
        if key not in node.parameters:
            raise OperationError(f"no {what} in vhost '{key.vhost}'", 404)
        gone = [key, pause_of(key)] if key.component == SHOVEL else [key]
        return [node.parameters.changed(gone=gone)]

    def then() -> Done:
        node.tell("parameter.cleared", fields_of(key), who.user)
        return DONE

    change = change_files(node, plan, then)
    return until_ended(node, _links_of(node, key), change) if key.component in (SHOVEL, UPSTREAM) else change


def check_value(key: "Key", value: Any, *, user: str, may_enter: Callable[[str], bool]) -> None:
    """Raise ValueFault (400) if no link can be made of the value."""
    if key.component not in COMPONENTS:
        return
    from brokerd.policies.link_parameters import faults

    found = faults(key.component, key.name, value, vhost=key.vhost, user=user, may_enter=may_enter)
    if found:
        more = len(found) - FAULTS_SHOWN
        said = "; ".join(found[:FAULTS_SHOWN]) + (f"; and {more} more" if more > 0 else "")
        raise ValueFault(f"{key.component} '{key.name}': {said}", 400)


# --- parameters that have operations of their own: shovels and upstreams


def key_of(component: str, request: Any) -> "Key":
    """The parameter that a request names by ``vhost`` and ``name``."""
    from brokerd.policies.parameters import Key

    return Key(component, request.vhost, request.name)


def listed(node: "Node", component: str, vhosts: set[str]) -> "Iterator[tuple[Any, str, Key]]":
    """The parameters of a component in these vhosts, as ``Listing`` takes them."""
    for key, _ in node.parameters:
        if key.component == component and key.vhost in vhosts:
            yield (key.vhost, key.name), key.name, key


def shown_definition(node: "Node", key: "Key") -> dict[str, Any]:
    """The parameter's value, without passwords."""
    value: dict[str, Any] = masked_value(key.component, node.parameters.get(key))
    return value


def set_shown(node: "Node", who: "Who", key: "Key", definition: Any) -> Lasting:
    """The job that sets a parameter to a value that was perhaps shown: a masked password stays as it was."""
    before = node.parameters.get(key) if key in node.parameters else None
    return set_parameter(node, who, key, with_kept_passwords(key.component, definition, before))


def enters(node: "Node", who: "Who") -> Callable[[str], bool]:
    """The function that tells whether a link that ``who`` makes may use a vhost of this broker: it acts for them."""
    if who.local:
        return lambda vhost: vhost in node.vhosts
    return lambda vhost: vhost in node.vhosts and has_access(node, who, vhost)


def fields_of(key: "Key") -> dict[str, Any]:
    """The fields that name a parameter in an event."""
    return {"vhost": key.vhost, "component": key.component, "name": key.name}


def pause_of(key: "Key") -> "Key":
    """The parameter that says that a shovel is paused."""
    return key._replace(component=PAUSED)


