"""The broker as one process: users, vhosts, connections, alarms; started, ticked once a second, stopped.

    data_dir/                      users, vhosts, connection numbers, lock: see store/data_dir
        <sha1 of vhost>/           .vhost (its name), definitions.amqp, policies.json
            <sha1 of queue>/       .queue (its name), segments
            transient/             the same for queues that do not survive a restart: emptied at start

Knows neither loop nor sockets: whoever builds a Node hands in ``later`` (call this
soon) and calls ``tick``.
"""

import os
from collections.abc import Callable
from logging import getLogger
from typing import TYPE_CHECKING, Any

from brokerd import plane
from brokerd.clock import Clock
from brokerd.errors import ConnectionForced, LoginRefused, NotAllowed
from brokerd.vhost import definitions
from brokerd.vhost.access import Access
from brokerd.vhost.vhost import VHost

if TYPE_CHECKING:
    from brokerd.auth import Permissions, Users
    from brokerd.config import Config

log = getLogger("brokerd")

LOW_ON_DISK = "low on disk"  # reason told to blocked publishers (RabbitMQ's words)
COMPACT_SECONDS = 60


class Node:
    """Everything one broker holds.  ``config`` may be replaced by another while running (reload)."""

    __slots__ = (
        "alarm_reason", "blocked", "clock", "commit", "config", "connections", "core", "data", "disk", "disk_full",
        "later", "permissions", "start_frame", "stopping", "ticks", "users", "vhosts",
    )  # fmt: skip

    def __init__(
        self,
        config: "Config",
        *,
        clock: Clock,
        disk: Any,
        data: Any,
        users: "Users",
        permissions: "Permissions",
        later: Callable[[Callable[[], None]], object],
        commit: Callable[["Node"], Any],
    ) -> None:
        """``commit(node)`` makes the group commit, once the data plane's core is there."""
        self.config = config
        self.clock = clock
        self.disk = disk
        self.data = data
        self.users = users
        self.permissions = permissions
        self.later = later
        self.vhosts: dict[str, VHost] = {}
        self.connections: dict[Any, None] = {}  # in order of arrival
        self.blocked: set[Any] = set()  # connections told that there is no room
        self.alarm_reason = ""  # "" : no alarm
        self.disk_full = False  # a write failed for want of space
        self.stopping = False
        self.start_frame = b""  # connection.start, made by the first handshake
        self.ticks = 0
        self.core = plane.Core(
            schedule=self._schedule_turn,
            request_sync=self._request_sync,
            storage_failed=self._storage_failed,
            damaged=self._damaged,
            segment_octets=config.segment_octets,
            deliver_octets_per_turn=config.deliver_octets_per_turn,
            message_octets_max=config.message_octets_max,
        )
        self.commit = commit(self)

    # --- what the data plane asks

    def _schedule_turn(self) -> None:
        self.later(self.core.turn)

    def _request_sync(self) -> None:
        self.commit.request()

    def _storage_failed(self, number: int, path: str = "") -> None:
        """A write failed; the message was not taken and its publisher stands still."""
        if not self.disk_full:
            log.error("cannot write%s: %s; publishers wait", f" {path}" if path else "", os.strerror(number))
        self.disk_full = True
        self._raise_alarm()

    def _damaged(self, path: str, position: int, records: int, octets: int) -> None:
        log.error("%s: damaged at %d: %d messages lost, %d octets skipped", path, position, records, octets)

    # --- alarms

    def _raise_alarm(self) -> None:
        if not self.alarm_reason:
            self.alarm_reason = LOW_ON_DISK
            self.core.blocked = True

    def check_disk(self) -> None:
        """Block publishers when free space falls below the limit; let them go on when there is room again."""
        limit = self.config.free_disk_min_octets
        if not limit and not self.disk_full:
            return
        free = self.disk.free_octets(self.config.data_dir)
        if free < limit:
            if not self.alarm_reason:
                log.warning("low on disk: %d octets free, limit %d; publishers are blocked", free, limit)
            self._raise_alarm()
        elif self.alarm_reason and (not self.disk_full or free >= 2 * self.config.segment_octets):
            log.warning("no longer low on disk: %d octets free; publishers go on", free)
            self.alarm_reason = ""
            self.disk_full = False
            self.core.blocked = False
            for connection in list(self.blocked):
                connection.unblock()

    # --- users and vhosts

    def add_vhost(self, name: str) -> VHost:
        """Open a vhost, with what its folder holds.  Raises StoreError, OSError."""
        vhost = self.data.open_vhost(name, self.core)
        self.vhosts[name] = vhost
        return vhost

    def delete_vhost(self, name: str) -> None:
        """Close a vhost's connections, then drop all it holds.  Raises KeyError."""
        vhost = self.vhosts.pop(name)
        for connection in list(self.connections):
            if connection.access is not None and connection.access.vhost is vhost:
                connection.shut(ConnectionForced(f"vhost '{name}' is deleted"))
        for queue in list(vhost.queues.values()):
            vhost.delete_queue(queue)
        self.data.delete_vhost(vhost)

    def authenticate(self, mechanism: str, response: bytes, loopback: bool) -> str:
        """The user who logs in.  Raises LoginRefused with the reason for the log."""
        from brokerd.auth.mechanisms import credentials

        name, password = credentials(mechanism, response)
        if not self.users.authenticate(name, password):
            raise LoginRefused(f"user '{name}' - invalid credentials")
        if not loopback and self.config.default_user_only_loopback and name == self.config.default_user:
            raise LoginRefused(f"user '{name}' can only connect via localhost")
        return name

    def enter(self, vhost_name: str, user: str) -> Access:
        """The door to a vhost for ``user``.  Raises NotAllowed (530)."""
        vhost = self.vhosts.get(vhost_name)
        if vhost is None:
            raise NotAllowed(f"vhost {vhost_name} not found")
        if not self.permissions.has_access(user, vhost_name):
            raise NotAllowed(f"access to vhost '{vhost_name}' refused for user '{user}'")
        access = vhost.accesses.get(user)
        if access is None:
            check = self.permissions.check

            def may(operation: str, name: str) -> bool:
                return check(user, vhost_name, operation, name)

            access = vhost.accesses[user] = Access(vhost, user, may)
        return access

    # --- connections

    def connected(self, connection: Any) -> None:
        """A socket was accepted."""
        self.connections[connection] = None

    def disconnected(self, connection: Any) -> None:
        """A socket is closed."""
        self.connections.pop(connection, None)

    # --- time

    def tick(self) -> None:
        """Once a second: heartbeats and timeouts, disk space, idle queues, logs worth rewriting."""
        self.ticks += 1
        now = self.clock.monotonic()
        for connection in list(self.connections):
            connection.tick(now)
        self.check_disk()
        self.core.sweep(self.config.idle_queue_seconds * 1_000_000_000)
        if self.ticks % COMPACT_SECONDS == 0:
            for vhost in self.vhosts.values():
                definitions.compact_if_worthwhile(vhost)
        self.core.turn()

    # --- the end

    def stop_connections(self) -> None:
        """Tell every client that the broker stops (320)."""
        self.stopping = True
        for connection in list(self.connections):
            connection.shut(ConnectionForced("broker forced connection closure with reason 'shutdown'"))
        self.core.turn()

    def close(self) -> None:
        """All on disk, nothing open: the next start finds a clean end.  Raises OSError."""
        self.commit.close()
        files: list[tuple[int, str]] = []
        for vhost in self.vhosts.values():
            for queue in vhost.queues.values():
                if queue.durable:
                    files += queue.close() or []
        self.data.close(files)
