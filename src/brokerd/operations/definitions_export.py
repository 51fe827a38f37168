"""Exports definitions, in pieces, in the format that RabbitMQ and LavinMQ import."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from brokerd.links.definition import PAUSED
from brokerd.operations.definitions_file import OPERATOR_POLICY, VHOST_LIMITS_COMPONENT
from brokerd.operations.jobs import ON_LOOP, Encoded, Pace, Steps
from brokerd.operations.plain import plain
from brokerd.policies.parameters import entry
from brokerd.vhost.names import RESERVED_PREFIX

if TYPE_CHECKING:
    from brokerd.node import Node
    from brokerd.vhost.vhost import VHost

RABBITMQ_VERSION = "3.13.0"  # whose format it is


class Exporting:
    """The job.  ``single``: one vhost, without what belongs to no vhost, and without its name in each entry."""

    def __init__(self, node: "Node", vhosts: "list[VHost]", *, single: bool) -> None:
        self._node, self._vhosts, self._single = node, vhosts, single

    def steps(self) -> Steps:
        """As ``jobs.Job``."""
        import json

        pace = Pace()
        parts = [json.dumps(self._head()).encode()[:-1]]
        for section, entries in self._sections():
            parts.append(f', "{section}": ['.encode())
            first = True
            for each in entries:
                if each is not None:
                    if self._single:
                        each.pop("vhost", None)
                    parts.append((b"" if first else b", ") + json.dumps(each).encode())
                    first = False
                if pace.is_over():
                    yield ON_LOOP
            parts.append(b"]")
        parts.append(b"}")
        return Encoded(parts)

    def clean_up(self) -> None:
        """As ``jobs.Job``."""

    def _head(self) -> dict[str, Any]:
        from brokerd import __version__

        head = {
            "rabbit_version": RABBITMQ_VERSION, "rabbitmq_version": RABBITMQ_VERSION, "product_name": "brokerd",
            "product_version": __version__,
            "rabbitmq_definition_format": "single_virtual_host" if self._single else "cluster",
        }  # fmt: skip
        name = self._node.parameters.cluster_name(self._node.name)
        return head if self._single else {**head, "original_cluster_name": name}

    def _sections(self) -> Iterator[tuple[str, Iterator[dict[str, Any] | None]]]:
        node = self._node
        if not self._single:
            yield "users", ({"limits": {}, **user.definition()} for user in list(node.users))
            yield "vhosts", (_vhost(vhost.name, node.listing.rows.get(vhost.name)) for vhost in self._vhosts)
            yield "permissions", (dict(each.definition()) for each in list(node.permissions))
            yield "topic_permissions", (dict(each.definition()) for each in list(node.permissions.topics))
            yield "global_parameters", (entry(key, value) for key, value in list(node.parameters) if not key.component)
        yield "parameters", self._parameters()
        yield "policies", (
            {"vhost": vhost.name, **policy.entry()} for vhost in self._vhosts for policy in list(vhost.policies or ())
        )
        yield "queues", (_queue(vhost, each) for vhost in self._vhosts for each in list(vhost.queues.values()))
        yield "exchanges", (_exchange(vhost, each) for vhost in self._vhosts for each in list(vhost.exchanges.values()))
        yield "bindings", (_binding(vhost, each) for vhost in self._vhosts for source in list(vhost.exchanges.values())
                           if source.durable for each in list(source.bindings()))  # fmt: skip

    def _parameters(self) -> Iterator[dict[str, Any] | None]:
        node, names = self._node, {vhost.name for vhost in self._vhosts}
        for key, value in list(node.parameters):
            if key.component and key.component != PAUSED and key.vhost in names:  # RabbitMQ refuses what it knows not.
                yield entry(key, value)
        for vhost in self._vhosts:
            row = node.listing.rows.get(vhost.name)
            if row is not None and row.limits:
                yield {"value": row.limits, "vhost": vhost.name, "component": VHOST_LIMITS_COMPONENT, "name": "limits"}
            for policy in list(vhost.policies.operators if vhost.policies is not None else ()):
                value = policy.entry()
                name = value.pop("name")
                yield {"value": value, "vhost": vhost.name, "component": OPERATOR_POLICY, "name": name}


def _vhost(name: str, row: Any) -> dict[str, Any] | None:
    if row is None:
        return None  # It is being deleted.
    about = {"description": row.description, "tags": list(row.tags)}
    if row.default_queue_type:
        about["default_queue_type"] = row.default_queue_type
    return {"name": name, **about, "metadata": about}


def _queue(vhost: "VHost", queue: Any) -> dict[str, Any] | None:
    if not queue.durable or queue.exclusive or queue.deleted:
        return None
    kind = queue.arguments.get("x-queue-type", "classic")
    return {
        "name": queue.name, "vhost": vhost.name, "durable": True, "auto_delete": queue.auto_delete, "type": kind,
        "arguments": plain(queue.arguments),
    }  # fmt: skip


def _exchange(vhost: "VHost", exchange: Any) -> dict[str, Any] | None:
    if not exchange.durable or not exchange.name or exchange.name.startswith(RESERVED_PREFIX):
        return None
    return {
        "name": exchange.name, "vhost": vhost.name, "type": exchange.type, "durable": True,
        "auto_delete": exchange.auto_delete, "internal": exchange.internal, "arguments": plain(exchange.arguments),
    }  # fmt: skip


def _binding(vhost: "VHost", binding: Any) -> dict[str, Any] | None:
    to = binding.destination
    if not to.durable:
        return None
    return {
        "source": binding.source.name, "vhost": vhost.name, "destination": to.name,
        "destination_type": "exchange" if hasattr(to, "bindings_to") else "queue",
        "routing_key": binding.routing_key, "arguments": plain(binding.arguments),
    }  # fmt: skip
