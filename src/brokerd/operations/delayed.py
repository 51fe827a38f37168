"""Messages that wait in a delayed exchange: shown by due time, sent on before their time, or dropped.

The messages wait in a queue of the exchange that no client may use.  So the exchange's permissions count: a user needs
read to look at them, and also write to send them on or drop them.
"""

from typing import TYPE_CHECKING, Any

from brokerd.exchanges.delayed import DelayedExchange
from brokerd.operations import OperationError
from brokerd.operations.changing import Lasting, door, settle
from brokerd.operations.jobs import ON_LOOP, Pace, Steps
from brokerd.operations.lists import find_exchange, find_vhost
from brokerd.operations.messages import payload_of, properties_of
from brokerd.operations.rows import DONE

if TYPE_CHECKING:
    from brokerd.node import Node
    from brokerd.operations.rows import Who
    from brokerd.vhost.delays import Delays
    from brokerd.vhost.vhost import VHost


def _held(node: "Node", who: "Who", request: Any, *rights: str) -> "tuple[VHost, Delays]":
    """Raises OperationError, AMQPError."""
    vhost = find_vhost(node, request.vhost)
    exchange = find_exchange(vhost, request.exchange)
    for right in rights:
        door(node, who, vhost).check_exchange(right, exchange.name)
    if not isinstance(exchange, DelayedExchange) or exchange.holder is None:
        raise OperationError(f"exchange '{request.exchange}' in vhost '{vhost.name}' delays nothing", 409)
    return vhost, exchange.holder  # type: ignore[return-value]  # Its owner is the vhost's Delays.


class Listing:
    """The job that lists them."""

    def __init__(self, node: "Node", who: "Who", request: Any) -> None:
        self._request = request
        _, self._delays = _held(node, who, request, "read")

    def steps(self) -> Steps:
        """As ``jobs.Job``."""
        request, pace, items = self._request, Pace(), list[dict[str, Any]]()
        for due_ms, seq in self._delays.due_times(request.exchange, request.count):
            row = self._delays.row(request.exchange, seq)
            if row is not None:
                body = row[6]
                payload, kind = payload_of(body[: request.truncate] if request.truncate else body, "auto")
                items.append({
                    "seq": seq, "due_at": due_ms, "routing_key": row[4].decode("utf-8", "surrogateescape"),
                    "properties": properties_of(row[5]), "payload": payload, "payload_encoding": kind,
                    "payload_bytes": len(body),
                })  # fmt: skip
            if pace.is_over():
                yield ON_LOOP
        waiting = self._delays.count_waiting(request.exchange)
        return {"exchange": request.exchange, "waiting": waiting, "items": items}

    def clean_up(self) -> None:
        """As ``jobs.Job``."""


def deliver_now(node: "Node", who: "Who", request: Any) -> Lasting:
    """The job that sends one on."""
    vhost, delays = _held(node, who, request, "read", "write")

    def work() -> Any:
        _check(delays.deliver_now(request.exchange, request.seq), request)
        return DONE

    return settle(node, vhost, work)


def cancel(node: "Node", who: "Who", request: Any) -> Lasting:
    """The job that drops one."""
    vhost, delays = _held(node, who, request, "read", "write")

    def work() -> Any:
        _check(delays.cancel(request.exchange, request.seq), request)
        return DONE

    return settle(node, vhost, work)


def _check(found: bool, request: Any) -> None:
    if not found:
        raise OperationError(f"no message {request.seq} of exchange '{request.exchange}' waits (any more)", 404)
