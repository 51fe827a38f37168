"""How operations change the broker: a change that has begun goes on to its end, and is on disk before it is answered.

    Lasting(node, job)      the job runs to its end, also where the client that asked for it goes away
    file_changes(...)       changes of JSON files: written in the thread, one such change at a time, then in force
    definitions(...)        work in a vhost in pieces, then the sync of its definitions
"""

from collections.abc import Callable, Generator, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from brokerd.operations import OperationError, rights
from brokerd.operations.jobs import IN_THREAD, ON_LOOP, Pace, Running, Steps, Wait

if TYPE_CHECKING:
    from brokerd.node import Node
    from brokerd.operations.rows import Who
    from brokerd.store.json_file import Change
    from brokerd.vhost.access import Access
    from brokerd.vhost.vhost import VHost


class Operator:
    """Stands for the connection of a client where a door asks for one: it owns nothing."""

    def own(self, queue: Any) -> None:
        """As of a connection."""
        raise OperationError("an exclusive queue belongs to a connection: only a client can declare it", 400)

    def disown(self, queue: Any) -> None:
        """As of a connection."""


OPERATOR = Operator()


class Lasting:
    """A job that runs to its end, whether or not its client waits for the answer."""

    def __init__(self, node: "Node", steps: Steps) -> None:
        self._node, self._steps = node, steps
        self._answer: Any = None
        self._error: Exception | None = None

    def steps(self) -> Steps:
        """As ``jobs.Job``."""
        yield Wait(self._begin)
        if self._error is not None:
            raise self._error
        return self._answer

    def _begin(self, go_on: Callable[[], object]) -> None:
        def done(answer: Any, error: Exception | None) -> None:
            self._answer, self._error = answer, error
            go_on()

        Running(_Plain(self._steps), submit=self._node.submit_slow, later=self._node.later,
                progress=lambda table: None, done=done)  # fmt: skip

    def clean_up(self) -> None:
        """As ``jobs.Job``."""


class _Plain:
    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def steps(self) -> Steps:
        """As ``jobs.Job``."""
        return self._steps

    def clean_up(self) -> None:
        """As ``jobs.Job``."""


def change_files(
    node: "Node", plan: Callable[[], Iterable["Change"]], then: Callable[[], Any] = dict,
) -> Lasting:  # fmt: skip
    """The job that does what ``plan()`` says, and answers with what ``then()`` returns: a value, or the steps of it.

    ``plan()`` runs on the loop, while no other such change is under way.  It raises OperationError or AMQPError for
    what cannot be.  The changes are written in order, in the thread, and each is in force when it is on disk.
    """
    return Lasting(node, file_changes(node, plan, then))


def file_changes(node: "Node", plan: Callable[[], Iterable["Change"]], then: Callable[[], Any]) -> Steps:
    """The steps of ``change_files``."""
    yield Wait(node.changing.take)
    error: Exception | None = None
    try:
        changes = list(plan())
        for change in changes:
            yield IN_THREAD
            try:
                change.write()
            except Exception as caught:  # It must not leave this generator in the thread.
                error = caught
            yield ON_LOOP
            if error is not None:
                raise error
            change.apply()
        answer = then()
        if isinstance(answer, Generator):
            answer = yield from answer
        node.core.turn()
    finally:
        node.changing.give()
    return answer


def in_pieces(work: Iterable[None]) -> Steps:
    """Work with yields at which others may have their turn."""
    pace = Pace()
    for _ in work:
        if pace.is_over():
            yield ON_LOOP


def define(node: "Node", vhost: "VHost", work: Callable[[], Any]) -> Lasting:
    """The job that does ``work()``, and waits until the definitions that this has written are on disk.

    ``work()`` returns the answer, or a generator that takes turns and returns it.
    """
    return Lasting(node, _define(node, vhost, work))


def _define(node: "Node", vhost: "VHost", work: Callable[[], Any]) -> Steps:
    answer = work()
    if isinstance(answer, Generator):
        pace, steps = Pace(), answer
        while True:
            try:
                next(steps)
            except StopIteration as end:
                answer = end.value
                break
            if pace.is_over():
                yield ON_LOOP
    node.core.turn()
    appended = vhost.appended
    if appended != vhost.on_disk:
        yield Wait(lambda go_on: node.commit.wait(partial(_synced, vhost, appended, go_on), vhost.log))
    return answer


def _synced(vhost: "VHost", appended: int, go_on: Callable[[], object]) -> None:
    vhost.entries_on_disk(appended)
    go_on()


def settle(node: "Node", vhost: "VHost", work: Callable[[], Any]) -> Lasting:
    """The job that does ``work()`` with messages, and waits until it is on disk."""

    def steps() -> Steps:
        answer = work()
        node.core.turn()
        yield Wait(lambda go_on: node.commit.wait(go_on, vhost.log))
        yield from sync_everything(node)
        return answer

    return Lasting(node, steps())


def sync_everything(node: "Node") -> Steps:
    """Have on disk what became of messages, too: no confirm depends on that, so the group commit does not know of it.
    Raises OSError."""
    if node.settings.sync:
        yield IN_THREAD
        error: OSError | None = None
        try:
            node.data.sync()
        except OSError as caught:  # It must not leave the generator in the thread.
            error = caught
        yield ON_LOOP
        if error is not None:
            raise error


# --- who asks


def door(node: "Node", who: "Who", vhost: "VHost") -> "Access":
    """The vhost as ``who`` may use it.  The broker's owner may do everything."""
    if who.granted is not None:
        from brokerd.vhost.access import access_by

        return access_by(vhost, who.user, who.granted)
    if not who.local:
        return node.door(vhost.name, who.user)
    access = vhost.accesses.get("")
    if access is None:
        from brokerd.vhost.access import Access

        access = vhost.accesses[""] = Access(vhost, "", lambda operation, name, kind: True, lambda tag: True)
    return access


def check_policymaker(node: "Node", who: "Who", vhost: str) -> None:
    """A policymaker changes what belongs to vhosts that it may enter, an administrator in all.  Raises OperationError
    (403)."""
    if not rights.visible_vhosts(node, who)(vhost):
        raise OperationError(f"user '{who.user}' has no permissions in vhost '{vhost}'", 403)
