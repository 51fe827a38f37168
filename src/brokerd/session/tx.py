"""Handles class tx, and the methods that settle deliveries on transactional channels.

A channel has one Transaction from tx.select on.  Knows nothing of how a transaction is kept and carried out.
"""

from typing import TYPE_CHECKING, Any

from brokerd.errors import PreconditionFailed
from brokerd.session.transaction_parts import ACK, CAUSES, NACKED_BACK, REJECT, REJECTED_BACK
from brokerd.session.transactions import Transaction
from brokerd.wire import methods

if TYPE_CHECKING:
    from brokerd.session.channel import Channel
    from brokerd.session.connection import Connection


def select(connection: "Connection", channel: "Channel", method: Any) -> Any:
    """tx.select.  A second one is no fault."""
    if channel.confirm:
        raise PreconditionFailed("cannot switch from confirm to tx mode")
    if channel.transaction is None:
        channel.transaction = Transaction(connection, channel)
        channel.tx = True
    return methods.TxSelectOk()


def commit(connection: "Connection", channel: "Channel", method: Any) -> Any:
    """tx.commit.  The answer comes when all of it is on disk."""
    return _transaction(channel).commit()


def rollback(connection: "Connection", channel: "Channel", method: Any) -> Any:
    """tx.rollback.  Deliveries that were settled stay with the channel, unacknowledged (RabbitMQ)."""
    _transaction(channel).rollback()
    return methods.TxRollbackOk()


def _transaction(channel: "Channel") -> Transaction:
    if channel.transaction is None:
        raise PreconditionFailed("channel is not transactional")
    return channel.transaction


def ack(connection: "Connection", channel: "Channel", method: Any) -> Any:
    """basic.ack on a transactional channel.  On others the data plane handles it."""
    _settle(channel, method.delivery_tag, method.multiple, ACK)


def nack(connection: "Connection", channel: "Channel", method: Any) -> Any:
    """basic.nack on a transactional channel."""
    _settle(channel, method.delivery_tag, method.multiple, NACKED_BACK if method.requeue else REJECT)


def reject(connection: "Connection", channel: "Channel", method: Any) -> Any:
    """basic.reject on a transactional channel."""
    _settle(channel, method.delivery_tag, False, REJECTED_BACK if method.requeue else REJECT)


def _settle(channel: "Channel", tag: int, multiple: bool, outcome: int) -> None:
    if channel.transaction is not None:
        channel.transaction.settle(tag, multiple, outcome)
    elif not channel.settle(tag, multiple, requeue=CAUSES.get(outcome, 0), reject=outcome == REJECT):
        raise PreconditionFailed(f"unknown delivery tag {tag}")


HANDLERS = {
    "tx.select": select,
    "tx.commit": commit,
    "tx.rollback": rollback,
    "basic.ack": ack,
    "basic.nack": nack,
    "basic.reject": reject,
}
