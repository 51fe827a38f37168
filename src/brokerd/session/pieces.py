"""Work for one client that takes long: it is done in pieces, between which other clients have their turn.

The client's next octets rest until the last piece is done, so the work costs its own client and no other.
"""

from collections.abc import Iterator
from time import monotonic_ns
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from brokerd.session.connection import Connection

PIECE_NS = 1_000_000


def do_in_pieces(connection: "Connection", work: Iterator[None]) -> None:
    """Have ``work`` done from the next turn on.  At each of its yields a piece may end.

    What it raises goes to the loop; it should raise nothing, because its client would not hear of it.
    """

    def piece() -> bool:
        until = monotonic_ns() + PIECE_NS
        try:
            for _ in work:
                if monotonic_ns() >= until:
                    return False
        except BaseException:
            connection.go_on()
            raise
        connection.go_on()
        return True

    connection.rest()
    connection.node.core.add_errand(piece)
