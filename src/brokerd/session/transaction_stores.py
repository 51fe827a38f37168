"""Stores the messages of a decided commit in their queues, in pieces.

session/transactions decides, and says when to go on: knows nothing of the order of things there, nor of settlements.
"""

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

from brokerd import plane
from brokerd.pieces import Piece, drop_in_pieces
from brokerd.session.transaction_parts import Published, Step, return_frames

if TYPE_CHECKING:
    from brokerd.queues.queue import Queue
    from brokerd.session.channel import Channel
    from brokerd.session.connection import Connection
    from brokerd.store.commit_log import CommitLog

_MANDATORY, _IMMEDIATE = 1, 2


def resolve(connection: "Connection", channel: "Channel", commit_log: "CommitLog", published: Published) -> Step:
    """Where a publish goes now.  Raises what publishing raises; OSError."""
    message = commit_log.read(published.place)
    header = published.header or b"\0\x3c\0\0" + len(message.body).to_bytes(8) + message.properties
    access = connection.access
    access.is_at_commit = True
    try:
        answer = access.resolve(message.exchange, message.routing_key, header, channel)
    finally:
        access.is_at_commit = False
    queues: tuple[Queue, ...] = answer.before_storing()
    mandatory = bool(published.bits & _MANDATORY)
    if not queues and not answer.counts_as_routed and mandatory:
        return Step(published.place, answer, (), 312, True)
    if queues and published.bits & _IMMEDIATE and not any(queue.consumer_count for queue in queues):
        return Step(published.place, answer, (), 313, mandatory)
    return Step(published.place, answer, queues, 0, mandatory)


class Stores:
    """The messages of one commit: those that the data plane has kept, or else the steps of the session's.

    ``queues``: those to which the messages go.  ``channel_left``: nothing is returned to the client any more.
    ``refused``: a queue has refused a message.
    """

    __slots__ = ("_channel", "_commit_log", "_connection", "_kept", "_steps", "_stored", "channel_left", "queues",
                 "refused")  # fmt: skip

    def __init__(
        self, connection: "Connection", channel: "Channel", commit_log: "CommitLog", what: plane.Kept | list[Step]
    ) -> None:
        self._connection = connection
        self._channel = channel
        self._commit_log = commit_log
        self._kept = None if isinstance(what, list) else what
        self._steps = what if isinstance(what, list) else []
        self._stored = 0  # of the steps
        self.queues: Collection[Queue] = () if self._kept is None else self._kept.queues
        self.channel_left = False
        self.refused = False

    @property
    def stored(self) -> int:
        """How many messages are in their queues, from the first one on."""
        return self._stored if self._kept is None else self._kept.stored

    def drop(self) -> None:
        """Let go of all, in pieces: the commit is over."""
        drop_in_pieces(self._connection.node.core, self._steps)

    def in_pieces(self, note: Callable[[int], None], *, sync: bool) -> Iterator[None]:
        """Store what is not stored yet.  ``note`` hears how many messages are stored, before others have their turn.

        ``sync``: the next sync covers what the data plane has kept.  Raises OSError, after a note, where the disk is
        full: another call goes on.
        """
        piece = self._store_some if self._kept is None else lambda: self._store_kept(sync=sync)
        try:
            while not piece():
                note(self.stored)
                yield
        except OSError:
            note(self.stored)
            raise

    def _store_kept(self, *, sync: bool) -> bool:
        assert self._kept is not None
        connection, returns = self._connection, None if self.channel_left else self._channel
        try:
            return self._kept.put(connection.node.core, connection.number, self._channel.number, sync=sync,
                                  returns=returns)  # fmt: skip
        finally:
            self.refused = self._kept.refused

    def _store_some(self) -> bool:
        """Store as many as fit into a piece; whether all are stored now."""
        piece = Piece()
        try:
            while self._stored < len(self._steps):
                self._store(self._steps[self._stored])
                self._stored += 1
                if piece.is_over():
                    break
        finally:
            self._connection.node.core.write_stages()
        return self._stored == len(self._steps)

    def _store(self, step: Step) -> None:
        connection, channel = self._connection, self._channel
        number, exchange, key, properties, body = self._commit_log.read(step.place)
        # The participants are asked again: an earlier message of this transaction may have had the same key.
        step.answer.take_body(body)
        queues = tuple([queue for queue in step.answer.before_storing() if not queue.deleted])
        stored: tuple[Queue, ...] = ()
        if queues and not step.returned:
            returns = channel if step.mandatory and not self.channel_left else None
            stored = connection.node.core.put(
                queues, exchange, key, properties, body, connection=connection.number, channel=channel.number,
                publish_seq=number, sync=any(queue.durable for queue in queues), keys=step.answer.keys,
                returns=returns, staged=not step.answer.participants)  # fmt: skip
            self.refused |= len(stored) < len(queues)
        self.refused |= step.answer.refuses
        step.answer.after_storing(plane.Message(exchange, key, properties, body), channel, stored)
        if step.returned and not self.channel_left:
            connection.write(return_frames(connection, channel.number, step.returned, exchange, key, properties, body))
