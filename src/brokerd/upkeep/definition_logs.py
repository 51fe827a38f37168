"""Rewrites definitions logs that mostly undo themselves, one at a time, while clients go on to define things.

The new file is written in pieces on the loop, from what the vhost has.  A thread syncs it.  Then the group commit puts
it into the place of the old one, with what that has got meanwhile: ``store.definitions.Rewrite`` has the steps.  Knows
no layout.
"""

from collections.abc import Iterator
from functools import partial
from logging import getLogger
from typing import TYPE_CHECKING

from brokerd.pieces import add_work
from brokerd.store.garbage import Submit
from brokerd.vhost.definitions import is_worth_rewriting

if TYPE_CHECKING:
    from brokerd import plane
    from brokerd.store.definitions import Rewrite
    from brokerd.store.sync import GroupCommit
    from brokerd.vhost.vhost import VHost

log = getLogger("brokerd")


class LogKeeper:
    """Looks at all vhosts' logs.  ``submit(work, done)`` runs work() in a thread that may be slow."""

    __slots__ = ("_commit", "_core", "_rewriting", "_submit", "_vhosts")

    def __init__(self, vhosts: "dict[str, VHost]", core: "plane.Core", commit: "GroupCommit", submit: Submit) -> None:
        self._vhosts = vhosts
        self._core = core
        self._commit = commit
        self._submit = submit
        self._rewriting = False

    def tick(self) -> None:
        """Begin to rewrite a log for which it is worth the work, if none is rewritten now."""
        if self._rewriting:
            return
        for vhost in self._vhosts.values():
            if is_worth_rewriting(vhost):
                self._rewriting = True
                add_work(self._core, self._write(vhost), lambda: None)
                return

    def _write(self, vhost: "VHost") -> Iterator[None]:
        if vhost.deletions_under_way:
            self._give_up(vhost, None, None)
            return
        try:
            rewrite = vhost.log.rewrite()
        except OSError as error:
            self._give_up(vhost, None, error)
            return
        deletes, begun = vhost.deletes, vhost.deletions_begun
        try:
            for payload in vhost.definitions():
                rewrite.add(payload)
                yield
        except OSError as error:
            self._give_up(vhost, rewrite, error)
            return
        self._submit(rewrite.sync, partial(self._follow, vhost, rewrite, deletes, begun))

    def _follow(
        self, vhost: "VHost", rewrite: "Rewrite", deletes: int, begun: int, error: BaseException | None
    ) -> None:
        """The entries that were there at the beginning are on disk."""
        if vhost.deleted or begun != vhost.deletions_begun or error is not None:
            # A queue was without some of its bindings meanwhile, and may have got them back.  There is a next time.
            self._give_up(vhost, rewrite, error)
            return
        self._commit.follow(rewrite)
        self._commit.wait(partial(self._end, vhost, rewrite, deletes))

    def _end(self, vhost: "VHost", rewrite: "Rewrite", deletes: int) -> None:
        if not rewrite.is_begun:  # Nothing is ever synced.
            rewrite.begin_sync()()
        failed = rewrite.end()
        if failed is None:
            vhost.deletes -= deletes
        else:
            _report(vhost, failed)
        self._rewriting = False

    def _give_up(self, vhost: "VHost", rewrite: "Rewrite | None", error: BaseException | None) -> None:
        if rewrite is not None:
            rewrite.end()
        if error is not None:
            _report(vhost, error)
        self._rewriting = False


def _report(vhost: "VHost", error: BaseException) -> None:
    log.warning("vhost '%s': its definitions log was not made shorter: %s", vhost.name, error)
