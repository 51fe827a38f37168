"""The broker as one process: its users, vhosts and connections, from start to stop, with one tick a second.

    data_dir/                      users, vhosts, connection numbers, lock: see store/data_dir
        <sha1 of vhost>/           .vhost (its name), definitions.amqp, policies.json
            <sha1 of queue>/       .queue (its name), segments
            transient/             the same for queues that do not survive a restart: emptied at start

Knows neither loop nor sockets: its builder hands in ``later`` (which calls something soon), and calls ``tick``.
"""

import os
from collections.abc import Callable, Iterator
from logging import getLogger
from socket import gethostname
from typing import TYPE_CHECKING, Any

from brokerd import plane
from brokerd.alarms import UNMEASURED, Alarms, Memory
from brokerd.auth.logins import Logins
from brokerd.auth.users import MAX_CHANNELS, MAX_CONNECTIONS
from brokerd.clock import Clock
from brokerd.descriptors import NO_LIMIT, Budget
from brokerd.errors import ConnectionForced, NotAllowed, PreconditionFailed
from brokerd.hoarders import Hoarders, TransactionMemory
from brokerd.links.book import LinkBook
from brokerd.pieces import Turns, once
from brokerd.policies.parameters import Parameters
from brokerd.store.data_dir import CRASHED, POWER_LOST
from brokerd.store.disk import Room
from brokerd.store.format import SPARE_FOLDER
from brokerd.store.sync import GroupCommit, SyncFiles
from brokerd.upkeep.definition_logs import LogKeeper
from brokerd.upkeep.upkeep import Submit, Upkeep
from brokerd.vhost import commits, events, redrives
from brokerd.vhost.access import Access
from brokerd.vhost.features import CallAt, Services, Timer, make_on_demand
from brokerd.vhost.folder import load_vhost, mark_deleted, remove_deleted
from brokerd.vhost.listing import NEW, Listing
from brokerd.vhost.vhost import VHost

if TYPE_CHECKING:
    from brokerd.auth import Permissions, Users
    from brokerd.queues.queue import Queue
    from brokerd.settings import Limits, Settings
    from brokerd.store.data_dir import DataDir
    from brokerd.store.disk import Disk

log = getLogger("brokerd")

EVENTS_VHOST = "/"  # the vhost of the event exchange
_NOT_YET: Any = None  # in place of Pulls, Runs and Traces of operations, until they are used
LOOK_EVERY_NS = 10_000_000_000  # at the clock, while messages wait for a time
WORK_NS = 1_000_000  # for one connection, before others have their turn
CALM_NS = 8_000_000  # A connection that used no more than one turn in so long has its next one early.
CROWD_NS = 4_000_000  # for the methods of all connections, before the loop looks after messages again


class Node:
    """All parts of one broker.  A reload replaces ``settings`` and ``limits``."""

    __slots__ = (
        "_call_at", "_due", "_expiry", "_give_features", "_look_every_ns", "alarms", "blocked", "call_at",
        "certificates", "changing", "clock", "commit", "connections", "core", "data", "descriptors", "disk", "ending",
        "events", "hoarders", "later", "limits", "links", "listeners", "listing", "log_after", "logins", "parameters",
        "permissions", "pulls", "room", "runs", "settings", "start_frames", "started_ns", "stopping",
        "submit_logins", "submit_slow", "traces", "transaction_memory", "upkeep", "users", "vhosts",
    )  # fmt: skip

    def __init__(
        self,
        settings: "Settings",
        limits: "Limits",
        *,
        clock: Clock,
        disk: "Disk",
        data: "DataDir",
        users: "Users",
        permissions: "Permissions",
        later: Callable[[Callable[[], object]], object],
        submit: Submit,
        submit_slow: Submit,
        submit_logins: Submit | None = None,
        sync_files: SyncFiles | None = None,
        sync_failed: Callable[[BaseException], object],
        memory: Memory = UNMEASURED,
        call_at: CallAt | None = None,
        descriptors: Budget | None = None,
        look_every_ns: int = LOOK_EVERY_NS,
    ) -> None:
        """``submit(work, done)`` runs work() in one thread, then done(error or None) on the loop; ``submit_slow``
        in another, for work that no client waits for; ``submit_logins`` in one for passwords.  ``sync_files`` syncs a
        few files in others (see GroupCommit); without it the first does.  ``sync_failed`` is called when a sync has
        failed: then the broker can promise nothing.  ``memory``: see Alarms.
        ``call_at(when, callback)`` calls back on the loop at that time (ns since the epoch); without it times to live
        and delays are precise to the second.  ``descriptors``: None is no limit.  ``look_every_ns``: while messages
        wait for a time, the clock is looked at so often, in case that somebody sets it."""
        self.settings, self.limits = settings, limits
        self.clock, self.disk = clock, disk
        self.data = data
        self.users, self.permissions = users, permissions
        permissions.on_change = permissions.topics.on_change = self._permission_changed
        self.later = later
        self.vhosts, self.ending = dict[str, VHost](), set[str]()  # the latter: names of vhosts under deletion
        self.events = events.Events(clock, self.name)
        self.listing: Listing  # of the vhosts there are: see open_vhosts
        self.connections: dict[Any, None] = {}  # in order of arrival
        self.stopping, self.start_frames = False, dict[str, bytes]()
        self.started_ns, self.listeners = clock.epoch_ns(), list[tuple[str, str, int]]()  # protocol, address, port
        self.log_after: Callable[[int], list[tuple[int, int, str, str]]] = lambda number: []  # see server/log.Recent
        self.certificates = list[tuple[str, int]]()  # of TLS: the file, and when it expires, in seconds
        self.descriptors = descriptors or Budget(NO_LIMIT, clock.monotonic)
        self.core = self._make_core(data, settings, limits)
        self.descriptors.serve(self.core.close_files)
        self.room = Room(disk)  # for transactions
        self.call_at = self._call_at = call_at or self._at_a_tick
        self.pulls, self.runs, self.traces = _NOT_YET, _NOT_YET, _NOT_YET
        self._look_every_ns, self.links = look_every_ns, LinkBook()
        self.submit_slow, self.submit_logins = submit_slow, submit_logins or submit_slow
        self.changing, self.parameters = Turns(), Parameters(data.path, disk)  # the former: of changes of JSON files
        self._due: list[_Due] = []  # what waits for a tick
        self._expiry: Timer | None = None
        self.upkeep = Upkeep(self.vhosts, self.core, disk, data.path, submit_slow, now=clock.epoch_ns,
                             monotonic=clock.monotonic_ns, call_at=self._call_at, sync=settings.sync,
                             suspect=data.suspect)  # fmt: skip
        self.upkeep.archive, self.upkeep.chain_log = settings.order_journal_archive, settings.order_journal_chain_log
        self.commit = GroupCommit(self.core, disk, submit=submit, soon=later, fatal=sync_failed, sync_files=sync_files,
                                  everything=data.sync, sync=settings.sync, now=clock.monotonic_ns)  # fmt: skip
        self.upkeep.definition_logs = LogKeeper(self.vhosts, self.core, self.commit, submit_slow)
        self.alarms = Alarms(
            self.core, free_disk=lambda: disk.free_octets(data.path), has_room=lambda: disk.takes_a_file(data.path),
            memory=memory, make_room=self.upkeep.make_room, tell=self._tell_alarm,
        )  # fmt: skip
        self.blocked, self.hoarders = self.alarms.blocked, Hoarders(self.core, self.alarms)
        self.transaction_memory, self.logins = TransactionMemory(), Logins(users, lambda: self.settings, clock)
        services = Services(clock.epoch_ns, self.commit.wait, self._call_at)
        self._give_features = make_on_demand(services, self.events, self.name, disk, self.commit.follow)

    # --- what the data plane asks

    def _make_core(self, data: "DataDir", settings: "Settings", limits: "Limits") -> plane.Core:
        return plane.Core(
            schedule=once(self.later, lambda: self.core.turn()),
            request_sync=self._request_sync,
            storage_failed=self.storage_failed,
            damaged=self._damaged,
            segment_octets=settings.segment_octets,
            deliver_octets_per_turn=settings.deliver_octets_per_turn,
            message_octets_max=settings.message_octets_max,
            frame_octets_max=limits.frame_max_octets,
            deadline=self._deadline,
            sync=settings.sync,
            work_ns=WORK_NS,
            calm_ns=CALM_NS,
            crowd_ns=CROWD_NS,
            go_on=self._go_on_soon,
            lost=self._lost,
            descriptors_most=self.descriptors.files_most,
            spare_directory=_empty_folder(os.path.join(data.path, SPARE_FOLDER)),
            device=self.disk.device(data.path),
        )

    def _go_on_soon(self) -> None:
        self.later(self.core.go_on)

    def _deadline(self, when_ns: int) -> None:
        """The next message expires then."""
        if self._expiry is not None:
            self._expiry.cancel()
        # Timers run by another clock: a clock that was set is seen at the next look.
        self._expiry = self._call_at(min(when_ns, self.clock.epoch_ns() + self._look_every_ns), self.core.expire)

    def _at_a_tick(self, when_ns: int, callback: Callable[[], object]) -> Timer:
        due = _Due(when_ns, callback)
        self._due.append(due)
        return due

    def _request_sync(self) -> None:
        self.commit.request()

    def storage_failed(self, number: int) -> None:
        """Block publishers: a write failed, and its message was not taken."""
        self.alarms.storage_failed(number)

    def _damaged(self, path: str, position: int, octets: int) -> None:
        what = "what they settled comes again" if "/acks." in path else "the messages in them are lost"
        log.error("%s: damaged at %d: %d octets skipped, %s", path, position, octets, what)

    def _lost(self, queue: "Queue") -> None:
        """End the service of a queue with lost pages in its files."""
        log.critical("%s is out of service: its files in %s were cut off, or cannot be read or written; what is not "
                     "confirmed is refused; the next start recovers what is left", queue, queue.directory)

        def end() -> None:  # Not from within a turn.
            vhost = self.vhosts.get(queue.vhost_name)
            if vhost is not None and not queue.deleted:
                vhost.end_service(queue)
                self.core.turn()

        self.data.distrust()
        self.later(end)

    @property
    def alarm_reason(self) -> str:
        """The reason for blocked publishers; "" while there is no alarm."""
        return self.alarms.reason

    def _tell_alarm(self, what: str, raised: bool) -> None:
        def tell() -> None:  # Not from within a publish that failed.
            self.events.publish_alarm(what, raised=raised)
            self.core.turn()

        if self.events.wanted:
            self.later(tell)

    # --- users and vhosts

    def open_vhosts(self) -> None:
        """Open every vhost that is listed in vhosts.json.  Raises StoreError, OSError."""
        self.listing = Listing(self.data.path, self.disk)
        for name in self.listing.rows:
            self.open_vhost(name)
        for name, row in self.listing.rows.items():
            self.vhosts[name].firehose.switch(row.tracing)
        self._check_alarms(self.clock.monotonic())  # Before the first publish.
        self.later(self.core.turn)  # What expired while there was no broker goes.

    @property
    def name(self) -> str:
        """The broker's name for clients and events."""
        return f"brokerd@{gethostname()}"

    def is_firehose_on(self, name: str) -> bool:
        """Whether the firehose of a vhost is on.  Raises KeyError."""
        return self.listing.rows[name].tracing

    def switch_firehose(self, name: str, on: bool) -> None:
        """Turn the firehose of a vhost on or off (``tracing`` in vhosts.json).  Raises KeyError; OSError: unchanged."""
        self.listing.put(name, self.listing.rows[name]._replace(tracing=on))
        self.vhosts[name].firehose.switch(on)

    def make_vhost(self, name: str) -> VHost:
        """Open an empty vhost, before it is listed.  Raises StoreError, OSError.

        A job does this in its turn of ``changing``, as the deletion does: two vhosts of one name would share a folder.
        """
        assert name not in self.vhosts, f"{name} is open already"
        assert name not in self.ending, f"{name} is being deleted"
        remove_deleted(name, self.data.path, self.upkeep.garbage)
        return self.open_vhost(name)

    def mark_deleted(self, vhost: VHost) -> None:
        """Say in the vhost's folder that its contents are deleted.  Raises OSError."""
        mark_deleted(vhost.directory, self.disk)

    def tell(self, name: str, fields: dict[str, Any], user: str = "") -> None:
        """Publish an event that no client's method has caused; ``user``: who asked for it on another way."""
        if self.events.wanted:
            self.events.publish_named(name, fields, user)
            self.core.turn()

    def set_vhost_limits(self, name: str, limits: dict[str, Any]) -> None:
        """Replace a vhost's limits ({}: no limits).  Raises KeyError; PreconditionFailed for an impossible limit;
        OSError."""
        vhost = self.vhosts[name]
        self.listing.set_limits(name, limits)
        vhost.take_settings(self.listing.rows[name])
        self.tell(f"vhost.limits.{'set' if limits else 'cleared'}", {"name": name, "limits": limits})

    def open_vhost(self, name: str) -> VHost:
        """Open a vhost, with what its folder holds.  Raises StoreError, OSError."""
        suspect = self.data.suspect
        vhost = load_vhost(
            name,
            self.data.path,
            self.core,
            self.disk,
            self.upkeep.garbage,
            suspect=suspect,
            report=log.warning,
            recover=self._recover,
            give_features=self._give_features,
            remove_files=self._remove_files,
            listen=self.upkeep.listen,
            prepare=self._install_events if name == EVENTS_VHOST else None,
        )
        vhost.take_settings(self.listing.rows.get(name, NEW))
        self.upkeep.review_journals(vhost)
        if self.data.left in (CRASHED, POWER_LOST):
            # The former broker may have died before its sync.  From now on confirms depend on these definitions.
            self.disk.fdatasync(vhost.log.fileno(), vhost.log.path)
            if self.settings.sync and vhost.duplicates.asked:
                # And duplicates are confirmed where it stored the first, perhaps in the page cache alone.
                self.data.sync()
                vhost.duplicates.mark_all_synced()
        self.vhosts[name] = vhost
        sync = self.data.sync if self.settings.sync else _sync_nothing
        start = commits.Start(self.disk, suspect, log.warning, sync, self.data.next_connection_number)
        commits.finish_commits(vhost, start)
        redrives.finish_redrives(vhost, start)
        return vhost

    def _install_events(self, vhost: VHost) -> None:
        exchange = events.install(vhost, events.EVENT_EXCHANGE)
        if self.settings.log_exchange:
            events.install(vhost, events.LOG_EXCHANGE)
        self.events.begin(vhost, exchange)

    def log_handler(self, soon: Callable[[Callable[[], object]], object]) -> events.LogExchange | None:
        """The handler that publishes log lines to the log exchange; None without that exchange.  ``soon``:
        call_soon_threadsafe."""
        vhost = self.vhosts.get(EVENTS_VHOST)
        exchange = None if vhost is None else vhost.exchanges.get(events.LOG_EXCHANGE)
        if vhost is None or not isinstance(exchange, events.WatchedExchange):
            return None
        return events.LogExchange(vhost, exchange, self.name, soon)

    def _remove_files(self, queue: "Queue") -> None:
        """Remove the files of a deleted queue.  The move of its folder is on disk before delete-ok goes out.  Otherwise
        a power cut could bring its messages back into a new queue of that name."""
        self.upkeep.remove_files(queue)
        if queue.durable:
            self.commit.sync_directory(os.path.dirname(queue.directory))

    def _recover(self, queue: "Queue") -> None:
        from brokerd.store.recovery import recover  # An empty broker has nothing to recover.

        if recover(queue, self.disk, self.data.suspect, log.warning, stream=queue.stream is not None):
            self.upkeep.journals.add_recovered(queue)
        if self.data.suspect:
            try:
                queue.renew_name()
            except OSError as error:
                log.warning("%s: its name cannot be written into its folder: %s", queue, error)

    def begin_vhost_end(self, vhost: VHost) -> None:
        """Have no client find a vhost any more, and nothing write into its folder.  ``end_vhost`` must follow."""
        assert self.vhosts.get(vhost.name) is vhost, f"{vhost.name} is being deleted already"
        del self.vhosts[vhost.name]
        vhost.deleted = True
        self.ending.add(vhost.name)

    def end_vhost(self, vhost: VHost) -> None:
        """Give up the files of a vhost that is deleted, and has neither clients nor messages any more."""
        if vhost.commit_log is not None:
            vhost.commit_log.close()
        vhost.log.close()
        self.upkeep.forget(vhost.queues.values())
        if vhost.name == EVENTS_VHOST:
            self.events.end()
        self.ending.discard(vhost.name)
        self.upkeep.garbage.discard(vhost.directory)

    def delete_user(self, name: str) -> None:
        """Forget a user's permissions, then the user; close the connections.  Raises NotFound, OSError."""
        self.users.get(name)
        for file in (self.permissions, self.permissions.topics, self.users):
            file.check_unedited()
        # First what was granted: a later user of that name must not inherit it, even if the broker dies in between.
        self.permissions.forget_user(name)
        self.permissions.topics.forget_user(name)
        self.users.delete(name)
        for _ in self.shut_users({name: None}):
            pass

    def shut_users(self, names: dict[str, None]) -> Iterator[None]:
        """Close the connections of users who are no longer there, a connection at a time, and tell of them in order."""
        for connection in list(self.connections) if names else ():
            if connection.user in names:
                connection.shut(ConnectionForced(f"user '{connection.user}' is deleted"))
            yield
        for name in names:
            self.tell("user.deleted", {"name": name})

    def enter(self, vhost_name: str, user: str, grant: Any = None) -> Access:
        """The door to a vhost for ``user``, who is granted this (``session/grants``).  Raises NotAllowed (530)."""
        self._check_connection_limits(vhost_name, user)
        if not (grant.has_access(vhost_name) if grant else self.permissions.has_access(user, vhost_name)):
            raise NotAllowed(f"access to vhost '{vhost_name}' refused for user '{user}'")
        return grant.door(self.vhosts[vhost_name]) if grant else self.door(vhost_name, user)

    def door(self, vhost_name: str, user: str) -> Access:
        """The door to a vhost that is there; what the user may not do is refused there."""
        vhost = self.vhosts[vhost_name]
        access = vhost.accesses.get(user)
        if access is None:
            check = self.permissions.check

            def may(operation: str, name: str, kind: str) -> bool:
                return check(user, vhost_name, operation, name)

            def has_tag(tag: str) -> bool:
                return user in self.users and tag in self.users.get(user).tags

            check_topic = self.permissions.topics.check

            def may_use_key(operation: str, exchange: str, routing_key: str) -> bool:
                return check_topic(user, vhost_name, operation, exchange, routing_key)

            access = vhost.accesses[user] = Access(vhost, user, may, has_tag, may_use_key)
        return access

    def _check_connection_limits(self, vhost_name: str, user: str) -> None:
        """Check the limits of the node, the vhost and the user, in RabbitMQ's order and words.  Raises NotAllowed
        (530)."""
        limit = self.settings.connection_max
        if limit and len(self.connections) > limit:
            raise NotAllowed(f"connection refused: node connection limit ({limit}) is reached")
        vhost = self.vhosts.get(vhost_name)
        if vhost is None:
            raise NotAllowed(f"vhost {vhost_name} not found")
        limit = self.listing.rows.get(vhost_name, NEW).limit(MAX_CONNECTIONS)
        if limit >= 0 and limit <= sum(each.access.vhost is vhost for each in self._opened()):
            raise NotAllowed(
                f"access to vhost '{vhost_name}' refused for user '{user}': connection limit ({limit}) is reached"
            )
        limit = self.users.limit(user, MAX_CONNECTIONS)
        if limit >= 0 and limit <= sum(each.user == user for each in self._opened()):
            raise NotAllowed(f"connection refused for user '{user}': user connection limit ({limit}) is reached")

    def _opened(self) -> list[Any]:
        """The connections that are in a vhost and are not about to end."""
        return [each for each in self.connections if each.access is not None and not each.discard]

    def check_channel_limit(self, user: str) -> None:
        """Check that ``user`` may open one more channel.  Raises NotAllowed (530)."""
        limit = self.users.limit(user, MAX_CHANNELS)
        if limit < 0:
            return
        if limit <= sum(len(each.channels or ()) for each in self.connections if each.user == user):
            raise NotAllowed(
                f"number of channels opened for user '{user}' has reached the maximum allowed user limit of ({limit})"
            )

    def _permission_changed(self, user: str, vhost_name: str) -> None:
        """The user's connections forget their rights."""
        vhost = self.vhosts.get(vhost_name)
        if vhost is not None and user in vhost.accesses:
            vhost.accesses[user].permission_changed()

    # --- connections

    def connected(self, connection: Any) -> None:
        """Add a connection: its socket was accepted."""
        self.connections[connection] = None
        if self.stopping:  # The client was connecting, or busy with TLS, when the ports were closed.
            connection.transport.abort()

    def disconnected(self, connection: Any) -> None:
        """Forget a connection: its socket is closed."""
        self.connections.pop(connection, None)

    # --- time

    def tick(self) -> None:
        """Do the work of each second: heartbeats and timeouts, alarms, idle queues, upkeep."""
        now = self.clock.monotonic()
        for connection in list(self.connections):
            try:
                connection.tick(now)
            except OSError as error:  # What one client leaves behind must not keep the others waiting.
                log.error("%s: %s", connection, error)
        if self._due:
            self._run_due()
        if self.pulls is not None:
            self.pulls.tick()
        if self.core.timeouts:
            self._close_overdue()
        self.room.measure_again()
        self._check_alarms(now)
        self.upkeep.archive = self.settings.order_journal_archive
        self.upkeep.chain_log = self.settings.order_journal_chain_log
        self.upkeep.tick(self.clock.epoch_ns() - self.settings.idle_queue_seconds * 1_000_000_000)
        self.core.turn()

    def _check_alarms(self, now: float) -> None:
        self.alarms.check(self.settings)
        self.descriptors.tell()  # The last of many may have come before the log could speak of them.
        limit = self.alarms.memory_limit(self.settings)
        self.core.unfinished_most = limit // 4 or NO_LIMIT
        self.transaction_memory.most = limit // 8 or NO_LIMIT
        self.hoarders.tick(self.connections, now)

    def _run_due(self) -> None:
        now = self.clock.epoch_ns()
        due = [each for each in self._due if each.when_ns <= now]
        self._due = [each for each in self._due if each.when_ns > now]
        for each in due:
            if not each.cancelled:
                each.callback()

    def _close_overdue(self) -> None:
        """Close the channels of consumers that have not acked in time, where the rules say so (RabbitMQ).  Their
        deliveries have returned already."""
        for consumer in self.core.return_overdue():
            channel = consumer.channel
            channel.connection.on_error(
                channel.number,
                PreconditionFailed(
                    f"delivery acknowledgement on channel {channel.number} timed out. Timeout value used: "
                    f"{consumer.timeout_ms} ms. This timeout value can be configured, see consumers doc guide to learn "
                    "more"
                ),
                0,
                0,
            )

    # --- the end

    def stop_connections(self) -> None:
        """Tell every client that the broker stops (320)."""
        self.stopping = True
        for connection in list(self.connections):
            connection.shut(ConnectionForced("broker forced connection closure with reason 'shutdown'"))
        if self.pulls is not None:
            self.pulls.close()
        for each in (self.runs, self.traces):
            if each is not None:
                each.close()
        self.core.turn()

    def check_queues(self) -> None:
        """In tests: every count of every queue is right.  Raises AssertionError."""
        for vhost in self.vhosts.values():
            for queue in vhost.queues.values():
                queue.check()

    def close(self) -> None:
        """Write everything to disk and close it, so that the next start finds a clean end.  Raises OSError."""
        if plane.asserted:
            self.check_queues()
        self.core.end()  # A timer of the loop may still call it.
        for vhost in self.vhosts.values():
            vhost.close()
            for queue in vhost.queues.values():
                queue.close()
            vhost.log.close()
        self.core.release_spares()
        for path in self.core.take_garbage():
            _unlink(path)
        if any(vhost.duplicates.asked for vhost in self.vhosts.values()):
            self.data.sync()  # Their logs of keys say that all is on disk, which must be so by then.
            for vhost in self.vhosts.values():
                vhost.duplicates.mark_all_synced()
        logs = [vhost.commit_log for vhost in self.vhosts.values() if vhost.commit_log is not None]
        if logs:
            self.data.sync()  # The queues must have all before their commit logs are gone.
            for log_ in logs:
                log_.close(remove=True)
        self.data.close()


class _Due:
    """A callback that waits for a tick."""

    __slots__ = ("callback", "cancelled", "when_ns")

    def __init__(self, when_ns: int, callback: Callable[[], object]) -> None:
        self.when_ns = when_ns
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        """Drop the callback."""
        self.cancelled = True


def _empty_folder(path: str) -> str:
    """Make the folder, or empty it of what the former broker left."""
    try:
        os.mkdir(path)
    except FileExistsError:
        for name in os.listdir(path):
            _unlink(os.path.join(path, name))
    return path


def _sync_nothing() -> None:
    """Stands for a sync with --no-sync."""


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
