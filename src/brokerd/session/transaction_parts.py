"""The parts of a transaction: publishes, settlements, and the steps in which a commit stores the publishes.

session/transactions makes and uses them.  Knows nothing of commit logs or of the order of things.
"""

from typing import TYPE_CHECKING, NamedTuple

from brokerd import plane
from brokerd.store.commit_log import Place
from brokerd.store.format import CAUSE_NACK, CAUSE_REJECT, COMMIT_ACKED, COMMIT_REJECTED
from brokerd.wire import methods
from brokerd.wire.frames import body_frames, header_frame

if TYPE_CHECKING:
    from brokerd.queues.queue import Queue
    from brokerd.session.connection import Connection

ACK, REJECT, NACKED_BACK, REJECTED_BACK = COMMIT_ACKED, COMMIT_REJECTED, 2, 3  # The last two give a message back.
CAUSES = {NACKED_BACK: CAUSE_NACK, REJECTED_BACK: CAUSE_REJECT}  # why a message comes back


class Published(NamedTuple):
    """One publish of an open transaction."""

    place: Place
    bits: int  # mandatory, immediate
    header: bytes | None  # the content header as it came; None where its properties are stored unchanged


class Settlement(NamedTuple):
    """The claim of a settling method: deliveries from one tag to another, without those that were claimed before."""

    first: int
    last: int
    outcome: int


class Step(NamedTuple):
    """One publish of a transaction that is committed: where it goes."""

    place: Place
    answer: plane.Answer
    queues: "tuple[Queue, ...]"  # as routed at the commit
    returned: int  # the reply code of basic.return, for a message that is stored nowhere; else 0
    mandatory: bool


def return_frames(
    connection: "Connection", number: int, code: int, exchange: bytes, key: bytes, properties: bytes, body: bytes
) -> bytes:
    """The frames of a basic.return."""
    method = methods.BasicReturn(
        reply_code=code,
        reply_text="NO_ROUTE" if code == 312 else "NO_CONSUMERS",
        exchange=exchange.decode("utf-8", "surrogateescape"),
        routing_key=key.decode("utf-8", "surrogateescape"),
    )
    header = b"\0\x3c\0\0" + len(body).to_bytes(8) + properties
    return method.frame(number) + header_frame(number, header) + body_frames(number, body, connection.frame_max)
