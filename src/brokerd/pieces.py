"""Work that takes long is done in pieces, between which clients have their turn.

If the work is for one client, that client's next octets wait until the last piece is done, so only this client waits.
"""

from collections import deque
from collections.abc import Callable, Iterator
from time import monotonic_ns
from typing import Any, Protocol

PIECE_NS = 1_000_000
DROPPED_AT_ONCE = 4096  # objects of a list, with the few that each holds: some 0.5 ms


class Core(Protocol):
    """The part of the data plane that takes turns: ``plane.Core``."""

    def add_errand(self, step: Callable[[], bool]) -> None:
        """Call ``step()`` in each ``go_on()``, in turns with other errands, until it returns True."""

    @property
    def is_crowded(self) -> bool:
        """Whether clients have used up the time that they have together before the loop looks after anything else."""

    def count_work(self, ns: int) -> None:
        """Work for a client took so long."""


class Node(Protocol):
    """A broker, as this module sees it."""

    @property
    def core(self) -> Core:
        """Its data plane."""


class Client(Protocol):
    """A connection that can rest."""

    @property
    def node(self) -> Node:
        """Its broker."""

    def rest(self) -> None:
        """Work on nothing more that the client sends."""

    def go_on(self) -> None:
        """Work on what the client sends again."""


def do_in_pieces(connection: Client, work: Iterator[None]) -> None:
    """Have ``work`` done for a client from the next turn on, which rests meanwhile.

    The work should raise nothing, because its client would not hear of it.
    """
    connection.rest()
    add_work(connection.node.core, work, connection.go_on)


class Turns:
    """Lets one piece of work that takes several turns be done at a time; the others wait in order."""

    __slots__ = ("_taken", "_waiting")

    def __init__(self) -> None:
        self._taken = False
        self._waiting: deque[Callable[[], object]] = deque()

    def take(self, go_on: Callable[[], object]) -> None:
        """Call ``go_on()`` when it is the caller's turn, at once or later.  The caller calls ``give`` in the end."""
        if self._taken:
            self._waiting.append(go_on)
            return
        self._taken = True
        go_on()

    def give(self) -> None:
        """The work is done: the next one may go on."""
        if self._waiting:
            self._waiting.popleft()()
        else:
            self._taken = False


def once(later: Callable[[Callable[[], object]], object], work: Callable[[], object]) -> Callable[[], None]:
    """A function that has ``work`` called later: once, however often the function is called before that.

    The data plane asks for another turn at the end of each one that leaves work, also of a turn that a client's octets
    or the end of a sync have caused while the asked one is still to come.  If each of them came, each would ask for
    one more, for as long as there is work: each pass of the loop would do more and more turns.
    """
    is_to_come = False

    def do() -> None:
        nonlocal is_to_come
        is_to_come = False
        work()

    def ask() -> None:
        nonlocal is_to_come
        if not is_to_come:
            is_to_come = True
            later(do)

    return ask


class Done:
    """Work that was done in one piece, with its result."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Piece:
    """A piece of work that begins now."""

    __slots__ = ("_until",)

    def __init__(self) -> None:
        self._until = monotonic_ns() + PIECE_NS

    def is_over(self) -> bool:
        """Whether it has taken as long as a piece may."""
        return monotonic_ns() >= self._until


def do_first_piece(work: Iterator[None]) -> Done | None:
    """Do one piece of ``work`` now.  Returns its result; None: there is more of it.

    Raises what the work raises.
    """
    piece = Piece()
    try:
        while True:
            next(work)
            if piece.is_over():
                return None
    except StopIteration as end:
        return Done(end.value)  # The exception itself would keep its caller's frame, which would keep the exception.


def add_work(core: Core, work: Iterator[None], done: Callable[[], object]) -> None:
    """Have ``work`` done from the next turn on, then call ``done()``.  At each of its yields a piece may end.

    What it raises goes to the loop, after ``done()``.
    """

    def step() -> bool:
        piece = Piece()
        try:
            for _ in work:
                if piece.is_over():
                    return False
        except BaseException:
            done()
            raise
        done()
        return True

    core.add_errand(step)


def drop_in_pieces(core: Core, items: list[Any]) -> None:
    """Let go of the objects of a list, which nothing else refers to.  To free a million takes 100 ms and more."""
    if len(items) > DROPPED_AT_ONCE:
        add_work(core, _drop(items), lambda: None)


def _drop(items: list[Any]) -> Iterator[None]:
    while items:
        del items[-DROPPED_AT_ONCE:]
        yield


def do_from_now(core: Core, work: Iterator[None], done: Callable[[], object]) -> None:
    """Have ``work`` done, its first piece at once, unless the turn is crowded already.  Then call ``done()``, also if
    the first piece raises something."""
    if core.is_crowded:
        add_work(core, work, done)
        return
    began, ended = monotonic_ns(), True
    try:
        ended = do_first_piece(work) is not None
    finally:
        core.count_work(monotonic_ns() - began)
        if ended:
            done()
        else:
            add_work(core, work, done)
