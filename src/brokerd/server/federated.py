"""Which queues and exchanges are federated, with which upstreams: policies and parameters together, as rows of links.

A policy names an upstream, a set of upstreams (``all`` has each of the vhost), or a pattern that their names match.  An
entry of a set overrides keys of its upstream.  A row is that of ``server/links``.  An upstream that a policy or a
set names has a row even if it is missing; the row says so.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from brokerd.links.definition import ALL, UPSTREAM, UPSTREAM_SET
from brokerd.links.state import EXCHANGE_LINK, QUEUE_LINK
from brokerd.operations.plain import plain

if TYPE_CHECKING:
    from brokerd.node import Node
    from brokerd.vhost.vhost import VHost

INTERNAL_TYPE = "x-federation-upstream"
BINDINGS_AT_ONCE = 64  # that a walk looks at before it may rest


class Upstreams:
    """The upstreams and sets of one vhost."""

    def __init__(self, node: "Node", vhost: str) -> None:
        self.by_name = {key.name: value for key, value in node.parameters
                        if (key.component, key.vhost) == (UPSTREAM, vhost) and isinstance(value, dict)}  # fmt: skip
        self.sets = {key.name: value for key, value in node.parameters
                     if (key.component, key.vhost) == (UPSTREAM_SET, vhost) and isinstance(value, list)}  # fmt: skip

    def named_by(self, definition: Mapping[str, Any]) -> dict[str, dict[str, Any] | str]:
        """The upstreams that a policy means, by name, with what their set overrides; a text says what is missing."""
        if "federation-upstream-set" in definition:
            name = definition["federation-upstream-set"]
            if name not in self.sets:
                return dict(self.by_name) if name == ALL else {name: f"there is no upstream set '{name}'"}
            return {entry["upstream"]: self._in_set(name, entry) for entry in self.sets[name] if "upstream" in entry}
        if "federation-upstream-pattern" in definition:
            from brokerd.patterns import compiled

            search = compiled(definition["federation-upstream-pattern"])
            return {name: value for name, value in self.by_name.items() if search(name)}
        if "federation-upstream" not in definition:
            return {}
        name = definition["federation-upstream"]
        return {name: self.by_name.get(name) or f"there is no upstream '{name}'"}

    def _in_set(self, name: str, entry: dict[str, Any]) -> dict[str, Any] | str:
        upstream = self.by_name.get(entry["upstream"])
        if upstream is None:
            return f"there is no upstream '{entry['upstream']}', which upstream set '{name}' names"
        return {**upstream, **{key: value for key, value in entry.items() if key != "upstream"}}


def rows(node: "Node") -> Iterator[dict[str, Any] | None]:
    """A row for each link; None after each queue, exchange and some bindings: the walk may rest there.

    What changes meanwhile may be missed, or be there although it has gone.  The vhost's revision tells of it.
    """
    for vhost in list(node.vhosts.values()):
        if vhost.policies is not None and vhost.policies.name_upstreams:
            upstreams = Upstreams(node, vhost.name)
            yield from _of_queues(vhost, upstreams)
            yield from _of_exchanges(vhost, upstreams)


def _row(key: list[str], value: dict[str, Any] | str, **more: Any) -> dict[str, Any]:
    return {"key": key, "missing": value} if isinstance(value, str) else {"key": key, "value": value, **more}


def _of_queues(vhost: "VHost", upstreams: Upstreams) -> Iterator[dict[str, Any] | None]:
    for queue in list(vhost.queues.values()):
        yield None
        if queue.exclusive or queue.deleted:
            continue
        for name, value in upstreams.named_by(queue.effective.definition).items():
            yield _row([QUEUE_LINK, vhost.name, queue.name, name], value, place={"arguments": plain(queue.arguments)})


def _of_exchanges(vhost: "VHost", upstreams: Upstreams) -> Iterator[dict[str, Any] | None]:
    for exchange in list(vhost.exchanges.values()):
        yield None
        if not exchange.name or exchange.type == INTERNAL_TYPE:
            continue
        found = upstreams.named_by(exchange.effective.definition)
        if not found or vhost.exchanges.get(exchange.name) is not exchange:
            continue
        bindings = []
        for number, binding in enumerate(list(exchange.bindings())):
            bindings.append([binding.routing_key, plain(binding.arguments)])
            if number % BINDINGS_AT_ONCE == 0:
                yield None
        place = {"type": exchange.type, "durable": exchange.durable, "auto_delete": exchange.auto_delete,
                 "internal": exchange.internal, "arguments": plain(exchange.arguments)}  # fmt: skip
        for name, value in found.items():
            yield _row([EXCHANGE_LINK, vhost.name, exchange.name, name], value, bindings=bindings, place=place)
