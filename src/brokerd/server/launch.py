"""The main of the broker process: build the node, listen, wait for a signal, stop.

This module chooses the loop, the clock and the disk of the process, and writes the log's lines at start and end.
"""

import asyncio
import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from logging import Handler, getLogger
from typing import TYPE_CHECKING

import uvloop

from brokerd import __version__
from brokerd.auth import Permissions, Users
from brokerd.clock import Clock
from brokerd.config import changed_options
from brokerd.errors import ConfigError
from brokerd.node import Node
from brokerd.server import amqp, listeners, lost_errors, memory
from brokerd.server.control import Control
from brokerd.server.descriptors import raise_limit
from brokerd.server.log import configure
from brokerd.server.threads import FileSyncs, SlowThread
from brokerd.server.values import limits_of, settings_of
from brokerd.store.data_dir import CRASHED, POWER_LOST, DataDir
from brokerd.store.disk import Disk
from brokerd.store.sync import SyncThread

if TYPE_CHECKING:
    from ssl import SSLContext

    from brokerd.config import Config
    from brokerd.server.tls import Gate

log = getLogger("brokerd")

TICK_SECONDS = 1.0


def serve(config: "Config", *, reload: Callable[[], "Config"]) -> int:
    """Run the broker until a signal stops it, and return the exit status: 2 if certificates cannot be used.

    Raises BrokerError or OSError if it cannot start.
    """
    configure(config)
    raise_limit()
    # libuv up to 1.48 uses io_uring unless told not to, and has a thread of the kernel poll it.  Later ones use it to
    # add sockets to epoll, whatever they are told, and do without where a container's seccomp profile forbids it.
    os.environ.setdefault("UV_USE_IO_URING", "0")
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    lost_errors.install(loop)
    try:
        return loop.run_until_complete(Server(config, loop, reload).run())
    except ConfigError as error:
        sys.stderr.write(f"brokerd: {error}\n")
        return 2
    finally:
        loop.close()


class Server:
    """One running broker process."""

    __slots__ = (
        "config", "control", "failed", "file_syncs", "gate", "handlers", "loop", "node", "reload", "servers",
        "slow_thread", "socket_path", "stop_signals", "stopped", "sync_thread", "timer",
    )  # fmt: skip

    def __init__(self, config: "Config", loop: asyncio.AbstractEventLoop, reload: Callable[[], "Config"]) -> None:
        self.config = config
        self.loop = loop
        self.reload = reload
        self.stopped = asyncio.Event()
        self.stop_signals = 0
        self.failed = False
        self.servers: list[asyncio.AbstractServer] = []
        self.socket_path = ""  # of the unix socket that listens for AMQP; empty: there is none
        self.gate: Gate | None = None  # None: no TLS
        self.control: Control | None = None  # None: not made yet
        self.timer: asyncio.TimerHandle | None = None  # of the next tick
        self.handlers: list[Handler] = []  # handlers of log lines, beside the one that the configuration names

    async def run(self) -> int:
        """Start, serve and stop; return the exit status."""
        # Signals may come as soon as the log says that the broker listens, so their handlers come first.
        for number in (signal.SIGTERM, signal.SIGINT):
            self.loop.add_signal_handler(number, self._on_stop_signal, number)
        self.loop.add_signal_handler(signal.SIGHUP, self._on_reload_signal)
        if self.config.tls_cert:  # First, because a start with unusable certificates must not open or write anything.
            from brokerd.server.tls import Gate

            self.gate = Gate(self.config, _tls_context(self.config))
        self.node = self._build_node()
        try:
            await self._listen()
        except BaseException:
            self._close_ports()
            await self._stop()  # Close all that the node opened, as after any other run.
            raise
        gc.freeze()  # The collector starts here.  The objects of the start stay for ever, so it need not look at them.
        gc.enable()
        self.timer = self.loop.call_later(TICK_SECONDS, self._tick)
        try:
            await self.stopped.wait()
        finally:
            self._close_ports()
        if self.failed:
            return 1
        await self._stop()
        if self.failed:
            return 1
        if self.config.pid_file:
            remove_if_there(self.config.pid_file)
        log.info("stopped")
        return 0

    def _build_node(self) -> Node:
        """The node with all its parts, recovered from the data directory.  Raises StoreError, OSError."""
        disk = Disk()
        data = DataDir(self.config.data_dir, disk)
        if data.left in (CRASHED, POWER_LOST):
            log.warning("the former broker did not stop cleanly (%s): recovering", data.left)
        try:
            return self._recovered_node(data, disk)
        except BaseException:
            data.give_up()
            raise

    def _recovered_node(self, data: DataDir, disk: Disk) -> Node:
        config = self.config
        users = Users(config.data_dir, disk, config.default_user, config.default_password)
        permissions = Permissions(config.data_dir, disk, config.default_user)
        call = self.loop.call_soon_threadsafe
        self.sync_thread = SyncThread(call)
        self.file_syncs = FileSyncs(self.loop)
        self.slow_thread = SlowThread(call)
        node = Node(
            settings_of(config),
            limits_of(config),
            clock=Clock(),
            disk=disk,
            data=data,
            users=users,
            permissions=permissions,
            later=self.loop.call_soon,
            submit=self.sync_thread.submit,
            submit_slow=self.slow_thread.submit,
            sync_files=self.file_syncs.begin,
            sync_failed=self._storage_lost,
            used_memory=memory.used_octets,
            memory_octets=memory.available_octets(),
            call_at=self._call_at,
        )
        node.open_vhosts()
        data.end_recovery()
        handler = node.log_handler(call)
        if handler is not None:
            self.handlers.append(handler)
            configure(config, handler)
        return node

    async def _listen(self) -> None:
        """Open the ports and log their addresses.  Raises ListenError, OSError."""
        config = self.config
        plain = await listeners.listen(self.loop, amqp.factory(self.node), config.bind, config.amqp_port)
        self.servers.append(plain)
        tls = None
        if self.gate is not None:
            from brokerd.server.tls import factory

            make = factory(self.node, self.gate, self.loop)
            tls = await listeners.listen(self.loop, make, config.amqps_bind or config.bind, config.amqps_port)
            self.servers.append(tls)
        if config.unix_path:
            local = await listeners.listen_on_path(self.loop, amqp.factory(self.node), config.unix_path)
            self.servers.append(local)
            self.socket_path = config.unix_path
        self.control = Control(self.node, self.loop, self.slow_thread.submit)
        await self.control.start()
        self._announce(plain, tls)

    def _close_ports(self) -> None:
        for server in self.servers:
            server.close()
        if self.socket_path:
            remove_if_there(self.socket_path)
            self.socket_path = ""
        if self.control is not None:
            self.control.stop()

    def _announce(self, plain: asyncio.AbstractServer, tls: asyncio.AbstractServer | None) -> None:
        if not self.config.sync:
            log.warning("--no-sync: messages are confirmed BEFORE they are on disk: a power cut loses confirmed ones")
        if self.config.http_port:
            log.warning("http_port %d: nothing listens there yet", self.config.http_port)
        if self.config.pid_file:
            with open(self.config.pid_file, "w") as file:
                file.write(f"{os.getpid()}\n")
        log.info("brokerd %s, process %d, data in %s", __version__, os.getpid(), self.config.data_dir)
        for address in listeners.addresses(tls) if tls is not None else ():
            log.info("listening on %s (AMQP over TLS)", address)
        if self.socket_path:
            log.info("listening on %s (AMQP on a unix socket)", self.socket_path)
        for address in listeners.addresses(plain):
            log.info("listening on %s (AMQP)", address)

    def _call_at(self, when_ns: int, callback: Callable[[], object]) -> asyncio.TimerHandle:
        """Call back at that time.  The loop's timer may be early; the callback then asks for another call."""
        return self.loop.call_later(max(0.0, (when_ns - time.time_ns()) / 1e9), callback)

    def _tick(self) -> None:
        self.timer = self.loop.call_later(TICK_SECONDS, self._tick)
        try:
            self.node.tick()
        except OSError as error:
            log.error("%s", error)

    def _on_stop_signal(self, number: int) -> None:
        self.stop_signals += 1
        if self.stop_signals > 1:
            log.warning("%s again: stopping at once", signal.Signals(number).name)
            sys.stderr.flush()
            os._exit(1)
        log.info("%s: stopping", signal.Signals(number).name)
        self.stopped.set()

    def _on_reload_signal(self) -> None:
        """Read the configuration again, and apply the options that can change while the broker runs."""
        try:
            new = self.reload()
            context = _tls_context(new) if self.gate is not None and new.tls_cert else None
            configure(new, *self.handlers)
        except (ConfigError, OSError) as error:
            log.error("reload failed, nothing changed: %s", error)
            return
        for fault in (*self.node.reload_vhosts(), *self.node.reload_policies()):
            log.error("reload: %s", fault)
        values = {}
        for row in changed_options(self.config, new):
            if row.option.section == "tls" and context is None:
                log.warning("reload: %s takes effect at the next start: TLS is not switched on or off before", row.name)
            elif row.option.reloadable:
                values[row.name] = getattr(new, row.name)
                log.info("reload: %s is now %s", row.name, values[row.name])
            else:
                log.warning("reload: %s takes effect at the next start", row.name)
        if values:
            from dataclasses import replace

            self.config = replace(self.config, **values)
            self.node.settings, self.node.limits = settings_of(self.config), limits_of(self.config)
        if self.gate is not None and context is not None:
            self.gate.config, self.gate.context = self.config, context
        log.info("reloaded")

    def _storage_lost(self, error: BaseException) -> None:
        """Stop at once: after a failed sync the broker can no longer promise that a message is on the disk."""
        log.critical("sync failed, stopping at once: %s", error)
        self.failed = True
        self.stopped.set()

    async def _stop(self) -> None:
        self.node.stop_connections()
        deadline = self.loop.time() + self.config.stop_timeout_seconds
        while self.node.connections and self.loop.time() < deadline:  # noqa: ASYNC110 - once, and both may end it
            await asyncio.sleep(0.01)  # The tick goes on, and cuts off clients that leave their sockets open.
        if self.timer is not None:
            self.timer.cancel()
        for connection in list(self.node.connections):
            connection.transport.abort()
        await asyncio.sleep(0)
        while (self.node.core.has_errands or not self.node.commit.idle) and not self.failed:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.001)
        if self.failed:
            return  # Nothing may say that the end was clean.
        for handler in self.handlers:  # They publish to a vhost, which closes now.
            getLogger().removeHandler(handler)
        self.node.upkeep.close()
        self.file_syncs.stop()
        self.sync_thread.stop()
        self.slow_thread.stop()
        self.node.close()


def _tls_context(config: "Config") -> "SSLContext":
    """The context for TLS connections.  Raises ConfigError."""
    from brokerd.server.tls import context  # A start without TLS saves this import.

    return context(config)


def remove_if_there(path: str) -> None:
    """Remove a file, which may have been removed before."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
