"""The periodic work of a running broker, a little each second.

Idle queues give their files back.  Sparse old segments are compacted in a thread, one at a time.  Garbage is removed.
Unused queues expire, and changed policies are put in force.  Each second looks at a bounded number of queues.  Order
journals are the work of ``order_journals``, keys of deduplication that of ``keys``, indexes of streams that of
``indexes``, definitions logs that of ``definition_logs``.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from logging import getLogger
from typing import TYPE_CHECKING, Any

from brokerd.clock import Clock
from brokerd.pieces import Piece, add_work, do_first_piece
from brokerd.queues.expires import CallAt, Expires, Timer
from brokerd.store.format import ARCHIVING_FOLDER
from brokerd.store.garbage import Garbage, Submit
from brokerd.upkeep.indexes import IndexKeeper
from brokerd.upkeep.keys import KeyKeeper

if TYPE_CHECKING:
    from brokerd import plane
    from brokerd.policies import Policies
    from brokerd.queues.queue import Queue
    from brokerd.store.compaction import Sparse
    from brokerd.store.disk import Disk
    from brokerd.upkeep.definition_logs import LogKeeper
    from brokerd.upkeep.order_journals import Journals
    from brokerd.vhost.vhost import VHost

log = getLogger("brokerd")

QUEUES_PER_TICK = 2000  # looked at: well under 1 ms, unless many of them have files to give back
RETIRED_PER_TICK = 16  # segments beyond their queue's retention: each costs a rename or two
COMPACT_QUEUES_PER_TICK = 100  # the search for sparse segments reads the segments of so many queues
COMPACT_EVERY_TICKS = 30
RETAIN_EVERY_TICKS = 60


class Upkeep:
    """Called once a second by the node.  ``submit(work, done)`` runs work() in a thread that may be slow."""

    __slots__ = (
        "_compacting", "_core", "_data_dir", "_discarding", "_disk", "_indexes", "_journals", "_keys", "_leaving",
        "_now", "_resting", "_retaining", "_spares_used", "_sparse", "_submit", "_suspect", "_sync", "_ticks",
        "_vhosts", "archive", "chain_log", "definition_logs", "expires", "garbage",
    )  # fmt: skip

    def __init__(
        self,
        vhosts: "dict[str, VHost]",
        core: "plane.Core",
        disk: "Disk",
        data_dir: str,
        submit: Submit,
        *,
        now: Callable[[], int] | None = None,
        monotonic: Callable[[], int] | None = None,
        call_at: CallAt | None = None,
        sync: bool = True,
        suspect: bool = False,
    ) -> None:
        """``now()``: ns since the epoch.  ``monotonic()``: ns of a clock that cannot be set.  ``call_at(when, …)``: ns
        since the epoch; without it unused queues go at a tick.
        ``suspect``: power was lost before this start."""
        self._vhosts = vhosts
        self._core = core
        self._disk = disk
        self._submit = submit
        self._retaining: Iterator[Queue] = iter(())  # streams among them have their retention looked at in this round
        self._resting: Iterator[Queue] = iter(())  # to be checked for idleness in this round
        self._sparse: Iterator[Queue] | None = None  # as above, for sparse segments; None: the round is over
        self._leaving: deque[str] = deque()  # files that the data plane does not need any more
        self._discarding = False  # an earlier second's work goes on
        self._compacting = False
        self._keys = KeyKeeper(vhosts, core, submit)
        self._ticks = 0
        self._spares_used = 0
        self.garbage = Garbage(data_dir, submit)
        self.garbage.prepare()
        self._indexes = IndexKeeper(core, disk, submit, self.garbage)
        self._now = now or Clock().epoch_ns
        uptime = monotonic or now or Clock().monotonic_ns

        def call_in_time(when: int, callback: Callable[[], object]) -> Timer:
            assert call_at is not None
            return call_at(self._now() + max(when - uptime(), 0), callback)

        self.expires = Expires(uptime, self._delete_unused, None if call_at is None else call_in_time)
        self._data_dir = data_dir
        self._sync = sync
        self._suspect = suspect
        self.definition_logs: LogKeeper | None = None
        self.archive = ""  # the folder that order journals go to after their retention; "": none
        self.chain_log = ""  # the file that is told of the heads of their hash chains; "": none
        self._journals: Journals | None = None
        if os.path.exists(os.path.join(data_dir, ARCHIVING_FOLDER)):
            self.journals  # noqa: B018 - it has work to do

    def tick(self, idle_since_ns: int) -> None:
        """Do the work of one second.  Queues not touched since ``idle_since_ns`` (epoch) are idle."""
        self._ticks += 1
        self.expires.run()
        self._rest(idle_since_ns)
        self._keys.tick()
        self._indexes.tick()
        self._core.enforce_retention(RETIRED_PER_TICK)
        self._retain()
        for vhost in self._vhosts.values():
            if vhost.commit_log is not None:
                vhost.commit_log.rotate()
        if not self._compacting:
            self._compact()
        if self._ticks % COMPACT_EVERY_TICKS == 0:
            if self._sparse is None:
                self._sparse = self._queues()
            self._keys.sweep()
            if self.definition_logs is not None:
                self.definition_logs.tick()
            if self._core.spares_used == self._spares_used:
                self._core.release_spares()  # No spare segment was needed since the last time.
            self._spares_used = self._core.spares_used
        if self._journals is not None:
            self._journals.tick(self.archive, self.chain_log)
        if not self._discarding:
            work = self._take_garbage_in_pieces()
            if do_first_piece(work) is None:
                self._discarding = True
                add_work(self._core, work, self._discarded)

    # --- order journals

    @property
    def journals(self) -> "Journals":
        """The order journals of all queues.  The first use makes this object."""
        if self._journals is None:
            from brokerd.upkeep.order_journals import Journals  # Most brokers have none.

            self._journals = Journals(
                self._core, self._disk, self._data_dir, self._submit, self.garbage, self._now, sync=self._sync,
                suspect=self._suspect,
            )  # fmt: skip
            self._journals.retention.archive = self.archive
            self._journals.chains.log_path = self.chain_log
        return self._journals

    def _watch_journal(self, queue: "Queue") -> None:
        self.journals.watch(queue)

    def make_room(self, free: int, limit: int) -> bool:
        """Remove kept segments of order journals while the disk is nearly full.  Returns whether that will be enough
        where ``free`` octets are too few."""
        return self._journals is not None and self._journals.make_room(free, limit)

    def forget(self, queues: "Iterable[Queue]") -> None:
        """Forget queues that were dropped with their vhost.  Their folders are still there."""
        self.take_garbage()
        if self._journals is not None:
            for queue in queues:
                self._journals.forget(queue)

    # --- files in passing

    def _queues(self) -> "Iterator[Queue]":
        """All queues.  Changes of a vhost that the walk has reached do not disturb it."""
        for vhost in list(self._vhosts.values()):
            yield from list(vhost.queues.values())

    def _rest(self, idle_since_ns: int) -> None:
        looked_at = list(islice(self._resting, QUEUES_PER_TICK))
        for queue in looked_at:
            if queue.next_seq > 1 and queue.touched < idle_since_ns:
                queue.rest()
        if len(looked_at) < QUEUES_PER_TICK:
            self._resting = self._queues()

    def begin_retention(self) -> None:
        """The ticks from now on look at what streams keep: once a minute, and when a clock was set forward."""
        self._retaining = self._queues()

    def _retain(self) -> None:
        """Remove what streams need not keep any more.  Where that is much, others have their turn between."""
        if self._ticks % RETAIN_EVERY_TICKS == 0:
            self.begin_retention()
        piece = Piece()
        for queue in islice(self._retaining, QUEUES_PER_TICK):
            if queue.stream is not None and not queue.deleted:
                from brokerd.queues.stream import retain_in_pieces  # Most brokers have none.

                work = retain_in_pieces(queue)
                if do_first_piece(work) is None:
                    add_work(self._core, work, self._core.turn)
                if piece.is_over():
                    return

    def _compact(self) -> None:
        """Look for a sparse segment, and begin to compact it."""
        if self._sparse is None:
            return
        examined = 0
        for _ in range(QUEUES_PER_TICK):
            queue = next(self._sparse, None)
            if queue is None:
                self._sparse = None
                return
            if queue.next_seq == 1 or queue.deleted or queue.copying:
                continue
            from brokerd.store import compaction  # Its numpy is worth loading only when there is work.

            sparse = compaction.find_sparse(queue, self.journals.exclude_retained(queue) if queue.journaled else None)
            if sparse is not None and self._keys.can_compact(queue, sparse):
                self._compact_segment(queue, sparse)
                return
            examined += 1
            if examined == COMPACT_QUEUES_PER_TICK:
                return

    def _compact_segment(self, queue: "Queue", sparse: "Sparse") -> None:
        from brokerd.store import compaction

        self._compacting = True
        prepared: list[Any] = []

        def work() -> None:
            prepared.append(compaction.prepare(queue.directory, sparse, self._disk))

        def done(error: BaseException | None) -> None:
            self._compacting = False
            if error is not None:
                log.warning("%s: segment %s could not be compacted: %s", queue, sparse, error)
            elif prepared[0] is not None:
                if queue.deleted:
                    return
                prepared[0].finish(queue)

        self._submit(work, done)

    # --- unused queues

    def _delete_unused(self, queue: "Queue") -> None:
        vhost = self._vhosts.get(queue.vhost_name)
        if vhost is None or vhost.queues.get(queue.name) is not queue:
            queue.deleted = True
            return
        work = vhost.delete_unused_queue(queue)
        if do_first_piece(work) is None:
            add_work(self._core, work, self._core.turn)
        else:
            self._core.turn()

    # --- policies

    def listen(self, policies: "Policies") -> None:
        """Begin to watch queues that expire or have an order journal.  Call this before any rule is in force."""
        policies.on_expires = self.expires.watch
        policies.on_journal = self._watch_journal

    def review_journals(self, vhost: "VHost") -> None:
        """Note the settings of the vhost's order journals: its rules were put in force."""
        if self._journals is not None:
            self._journals.review(vhost.name)

    def apply_policies(self, vhost: "VHost") -> None:
        """Put the vhost's policies in force.  Call this after each change of them."""
        for _ in self.put_policies_in_force(vhost):
            pass

    def put_policies_in_force(self, vhost: "VHost") -> Iterator[None]:
        """Do what ``apply_policies`` does, a queue at a time.  A queue declared meanwhile has the new policies."""
        if vhost.policies is None:
            return
        yield from vhost.put_rules_in_force()
        self.review_journals(vhost)

    # --- files

    def close(self) -> None:
        """Remove all garbage before the broker stops."""
        self.take_garbage()

    def remove_files(self, queue: "Queue") -> None:
        """Remove the folder of a queue that was dropped."""
        journaled = self._journals is not None and queue.directory in self._journals.entries
        if queue.next_seq > 1 or queue.has_folder or journaled:
            # Its own files go with the folder.  By their names they would hit those of a later queue of that name.
            self._leaving.extend(self._core.take_garbage())
            own = f"{queue.directory}/"
            self._leaving = deque(path for path in self._leaving if not path.startswith(own))
            if journaled:
                self.journals.forget(queue)
            self.garbage.discard(queue.directory)

    def take_garbage(self) -> None:
        """Move files away that the data plane does not need any more."""
        for _ in self._take_garbage_in_pieces():
            pass

    def _discarded(self) -> None:
        self._discarding = False

    def _take_garbage_in_pieces(self) -> Iterator[None]:
        """The same in pieces: each file costs a rename, and a stream may give up a thousand segments at once."""
        self._leaving.extend(self._core.take_garbage())
        while self._leaving:
            self.garbage.discard(self._leaving.popleft())
            yield
        self.garbage.flush()
