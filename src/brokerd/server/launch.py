"""The main of the broker process: build the node, listen, wait for a signal, stop.

This module chooses the loop, the clock and the disk of the process, and writes the log's lines at start and end.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from logging import Handler, getLogger
from socket import socket
from typing import TYPE_CHECKING, Any

import uvloop

from brokerd import __version__
from brokerd.alarms import Memory
from brokerd.auth import Permissions, Users
from brokerd.clock import Clock
from brokerd.descriptors import Budget, raise_limit
from brokerd.errors import BrokerError, ConfigError, StoreError, in_words
from brokerd.node import LOOK_EVERY_NS, Node
from brokerd.server import amqp, collector, listeners, lost_errors, memory, unknown
from brokerd.server.control import Control
from brokerd.server.lateness import Lateness
from brokerd.server.log import Recent, configure
from brokerd.server.notify import Notifier
from brokerd.server.threads import FileSyncs, SlowThread, SlowThreads
from brokerd.server.values import limits_of, settings_of
from brokerd.store.data_dir import CRASHED, POWER_LOST, DataDir
from brokerd.store.disk import Disk
from brokerd.store.format import IMPORT_FILE
from brokerd.store.sync import SyncThread

if TYPE_CHECKING:
    from brokerd.auth.hook import Ask
    from brokerd.config import Config
    from brokerd.server.links import Links
    from brokerd.server.management import Management
    from brokerd.server.spans import Spans
    from brokerd.server.tls_certificates import Certificate
    from brokerd.server.tls_context import Gate
    from brokerd.vhost.features import Timer

log = getLogger("brokerd")

TICK_SECONDS = 1.0
HTTP_THREADS = 8  # questions to the web server of logins that are under way at a time
SWITCH_SECONDS = 0.0005  # that a thread keeps Python's lock while the loop waits for it; by itself Python gives it 5 ms


def serve(
    config: "Config", *, reload: Callable[[], "Config"], make: "Callable[..., Server] | None" = None
) -> int:  # fmt: skip
    """Run the broker until a signal stops it, and return the exit status: 2 if certificates cannot be used.

    ``make``: what makes the server; None: the class Server.  Raises BrokerError or OSError if it cannot start.  Where
    the log is a file, it has the reason of each failure, too: who looks for it there may never see standard error.
    """
    configure(config)
    descriptors = Budget(raise_limit(), Clock().monotonic)
    # libuv up to 1.48 uses io_uring unless told not to, and has a thread of the kernel poll it.  Later ones use it to
    # add sockets to epoll even if told not to, and do without where a container's seccomp profile forbids it.
    os.environ.setdefault("UV_USE_IO_URING", "0")
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    lost_errors.install(loop)
    server = (make or Server)(config, loop, reload, descriptors, Notifier(os.environ))
    try:
        return loop.run_until_complete(server.run())
    except ConfigError as error:
        _log_failure(server, error)
        sys.stderr.write(f"brokerd: {error}\n")
        return 2
    except Exception as error:
        _log_failure(server, error)
        raise
    finally:
        server.notify.close()
        loop.close()


def _log_failure(server: "Server", error: Exception) -> None:
    """Tell the service manager, and write the line into the log file, if there is one.  The caller writes to standard
    error."""
    what = "start failed" if server.timer is None else "ended by a failure"
    server.notify.status(f"{what}: {in_words(error)}")
    if server.config.log_file:
        known = isinstance(error, BrokerError | OSError)
        log.critical("%s: %s", what, in_words(error), exc_info=None if known else error)


class Server:
    """One running broker process."""

    __slots__ = (
        "clock", "config", "control", "descriptors", "disk", "failed", "file_syncs", "gate", "handlers", "hook",
        "http_threads", "lateness", "links", "login_thread", "loop", "management", "node", "notify", "paths", "reload",
        "reload_again", "reloading", "servers", "serving", "slow_thread", "socket_path", "spans", "stop_signals",
        "stopped", "summing_up", "sync_thread", "timer", "token_thread",
    )  # fmt: skip

    def __init__(
        self,
        config: "Config",
        loop: asyncio.AbstractEventLoop,
        reload: Callable[[], "Config"],
        descriptors: Budget,
        notify: Notifier,
    ) -> None:
        self.config = config
        self.notify = notify
        self.serving = ""  # what it serves, in one line
        self.descriptors = descriptors
        self.loop = loop
        self.reload = reload
        self.stopped = asyncio.Event()
        self.stop_signals = 0
        self.failed = False
        self.servers: list[Any] = []
        self.paths: list[str] = []  # of unix sockets beside that, which the broker removes
        self.socket_path = ""  # of the unix socket that listens for AMQP; empty: no unix socket does
        self.gate: Gate | None = None  # None: no TLS
        self.hook: Ask | None = None  # None: no package decides about logins
        self.control: Control | None = None  # None: not made yet
        self.management: Management | None = None  # None: not started, or no HTTP
        self.links: Links | None = None  # None: there has been no link yet
        self.spans: Spans | None = None  # None: not started, or no collector for spans
        self.lateness = Lateness()
        self.summing_up = False  # a summary of the state is under way
        self.reloading = self.reload_again = False  # a reload is under way; another was asked for meanwhile
        self.timer: asyncio.TimerHandle | None = None  # of the next tick
        self.clock = Clock()
        self.disk = Disk()
        self.handlers: list[Handler] = []  # handlers of log lines, beside the one that the configuration names

    async def run(self) -> int:
        """Start, serve and stop; return the exit status."""
        # Signals may come as soon as the log says that the broker listens, so their handlers come first.
        for number in (signal.SIGTERM, signal.SIGINT):
            self.loop.add_signal_handler(number, self._on_stop_signal, number)
        self.loop.add_signal_handler(signal.SIGHUP, self._on_reload_signal)
        self.loop.add_signal_handler(signal.SIGUSR1, self._on_summary_signal)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # It means nothing here; a slip must not kill the broker.
        found: list[Certificate] = []
        if self.config.tls_cert:  # First, because a start with unusable certificates must not open or write anything.
            from brokerd.server.tls_context import Gate, certificates, context

            self.gate = Gate(self.config, context(self.config))
            found = certificates(self.config)
        if self.config.auth_hook:
            from brokerd.auth.hook import load

            self.hook = load(self.config.auth_hook, self.config.auth_hook_config)
        elif "hook" in self.config.auth_backends.split(","):
            raise ConfigError("auth_backends has hook, but auth_hook names none")
        if self.config.otlp_endpoint and not self.config.otlp_endpoint.startswith(("http://", "https://")):
            raise ConfigError("otlp_endpoint must be a URL that begins with http:// or https://, such as "
                              "http://127.0.0.1:4318/v1/traces")
        self.notify.status("reading the data directory")
        self.node = self._build_node()
        self.note_certificates(found)
        try:
            await self._listen()
        except BaseException:
            self._close_ports()
            self.node.data.note_failure()
            await self._stop()  # Close all that the node opened, as after any other run.
            raise
        sys.setswitchinterval(SWITCH_SECONDS)
        collector.begin()  # The objects of the start stay for ever, so it need not look at them.
        self.timer = self.loop.call_later(TICK_SECONDS, self._tick)
        self.notify.ready(self.serving)
        if management_wanted(self.config):
            self.loop.call_soon(self._start_management)
        if self.config.otlp_endpoint:
            self.loop.call_soon(self._start_spans)
        self._start_links_if_wanted()
        try:
            await self.stopped.wait()
        finally:
            self.notify.stopping()
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

    def note_certificates(self, found: "list[Certificate]") -> None:
        """Keep when the certificates in force expire, and warn of those that soon will."""
        assert self.node is not None
        self.node.certificates = [(each.file, each.expires_at) for each in found]
        if found:
            from brokerd.server.tls_certificates import warnings

            for line in warnings(found, self.node.clock.epoch_ns() / 1e9):
                log.warning("%s", line)

    def _build_node(self) -> Node:
        """The node with all its parts, recovered from the data directory.  Raises StoreError, OSError."""
        data = self._open_data()
        if data.left in (CRASHED, POWER_LOST):
            log.warning("the former broker did not stop cleanly (%s): recovering", data.left)
        try:
            return self._recovered_node(data)
        except BaseException:
            data.give_up()
            raise

    def _open_data(self) -> DataDir:
        """The locked data directory.  Raises StoreError, OSError."""
        return DataDir(self.config.data_dir, self.disk)

    def _recovered_node(self, data: DataDir) -> Node:
        node = self._make_node(data)
        node.open_vhosts()
        self._import_definitions(node)
        unknown.warn_of_missing(node)
        unknown.warn_of_permissions(node)
        unknown.warn_of_folders(node)
        data.end_recovery()
        recent = Recent()
        node.log_after = recent.after
        self.handlers.append(recent)
        getLogger().addHandler(recent)
        handler = node.log_handler(self.loop.call_soon_threadsafe)
        if handler is not None:
            self.handlers.append(handler)
            configure(self.config, *self.handlers)
        return node

    def _import_definitions(self, node: Node) -> None:
        """Finish an import that was under way, and load the file that the options name.  Raises StoreError, OSError."""
        under_way = os.path.exists(os.path.join(node.data.path, IMPORT_FILE))
        path = self.config.load_definitions
        if not under_way and not path:
            return
        from brokerd.operations import OperationError, definitions_import

        try:
            if definitions_import.finish(node):
                log.warning("the import of definitions that the former broker had begun is finished")
            if path:
                log.info("%s: definitions loaded, %d changes", path, definitions_import.load(node, path))
        except OperationError as error:
            raise StoreError(f"{path or IMPORT_FILE}: {error}") from error

    def _make_node(
        self,
        data: DataDir,
        *,
        later: Callable[[Callable[[], object]], object] | None = None,
        only_by_disk: bool = False,
        look_every_ns: int = LOOK_EVERY_NS,
    ) -> Node:
        """The node, not yet recovered.

        ``later``: None is the loop's call_soon.  ``only_by_disk``: every sync goes through ``disk``.
        """
        config, disk = self.config, self.disk
        users = Users(config.data_dir, disk, config.default_user, config.default_password)
        permissions = Permissions(config.data_dir, disk, config.default_user)
        call = self.loop.call_soon_threadsafe
        self.sync_thread = SyncThread(call)
        self.file_syncs = FileSyncs(self.loop)
        self.slow_thread, self.login_thread = SlowThread(call), SlowThread(call, "logins")
        self.token_thread = SlowThread(call, "tokens")  # It may wait for a server of keys, and no password for it.
        self.http_threads = SlowThreads(call, "http-logins", HTTP_THREADS)
        node = Node(
            settings_of(config),
            limits_of(config),
            clock=self.clock,
            disk=disk,
            data=data,
            users=users,
            permissions=permissions,
            later=later or self.loop.call_soon,
            submit=self.sync_thread.submit,
            submit_slow=self.slow_thread.submit,
            submit_logins=self.login_thread.submit,
            sync_files=None if only_by_disk else self.file_syncs.begin,
            sync_failed=self._storage_lost,
            memory=Memory(memory.used_octets, sys.getallocatedblocks, trim_memory, memory.available_octets()),
            call_at=self._call_at,
            descriptors=self.descriptors,
            look_every_ns=look_every_ns,
        )
        node.logins.hook = self.hook
        node.logins.submit_tokens, node.logins.submit_http = self.token_thread.submit, self.http_threads.submit
        return node

    async def _listen(self) -> None:
        """Open the ports and log their addresses.  Raises ListenError, OSError."""
        config = self.config
        plain = await self._listen_on(amqp.factory(self.node), config.bind, config.amqp_port)
        tls = None
        if self.gate is not None:
            from brokerd.server.tls import factory

            make = factory(self.node, self.gate, self.loop)
            tls = await self._listen_on(make, config.amqps_bind or config.bind, config.amqps_port)
        if config.unix_path:
            local = await listeners.listen_on_path(self.loop, amqp.factory(self.node), config.unix_path)
            self.servers.append(local)
            self.socket_path = config.unix_path
        if management_wanted(config):
            self._listen_for_own()
        self.control = Control(self.node, self.loop, self.slow_thread.submit)
        await self.control.start()
        self.node.listeners = [
            *listeners.described("amqp", plain), *(listeners.described("amqp/ssl", tls) if tls is not None else ()),
        ]  # fmt: skip
        self._announce(plain, tls)

    async def _listen_on(self, make: Callable[..., Any], address: str, port: int) -> Any:
        serve = None
        if self.config.proxy_protocol_from:
            from brokerd.server.proxied import Acceptor, networks

            trusted, seconds = networks(self.config.proxy_protocol_from), self.config.handshake_timeout_seconds

            def serve(sock: socket) -> Acceptor:
                return Acceptor(self.loop, sock, make, trusted, seconds)

        server = await listeners.listen(self.loop, make, address, port, serve)
        self.servers.append(server)
        return server

    def _listen_for_own(self) -> None:
        """Where the broker's own processes come: the one of management brings the octets of WebSockets, behind a header
        with the client's address, and the one of links its own."""
        from brokerd import local_socket
        from brokerd.server.proxied import Acceptor

        path = os.path.join(self.config.data_dir, local_socket.AMQP_NAME)
        if path in self.paths:
            return
        try:
            sock = local_socket.bind(self.config.data_dir, local_socket.AMQP_NAME)
        except OSError as error:
            log.warning("%s: %s: no AMQP over WebSocket, and no links to this broker", path, error.strerror or error)
            return
        sock.listen(listeners.BACKLOG)
        seconds = self.config.handshake_timeout_seconds
        self.servers.append(Acceptor(self.loop, sock, amqp.factory(self.node), None, seconds))
        self.paths.append(path)

    def _start_links_if_wanted(self) -> None:
        """Start what looks after links, with the first parameter or policy that may make one; most have none."""
        node = self.node
        policies = [vhost.policies for vhost in node.vhosts.values() if vhost.policies is not None]
        if any(key.component for key, _ in node.parameters) or any(each.name_upstreams for each in policies):
            node.parameters.on_change = node.links.changed = _nothing
            self.loop.call_soon(self._start_links)
        else:
            node.parameters.on_change = node.links.changed = self._start_links_if_wanted

    def _start_links(self) -> None:
        from brokerd.server.links import Links

        if not self.stopped.is_set():
            self.links = Links(self.node, self.loop, self._listen_for_own)

    def _start_management(self) -> None:
        from brokerd.server.management import Management  # A start without HTTP saves this import.

        if not self.stopped.is_set():
            self.management = Management(self.config, self.loop)
            self.management.start()

    def _start_spans(self) -> None:
        from brokerd.server.spans import Spans

        if not self.stopped.is_set():
            self.spans = Spans(self.config, self.node.name, self.loop)
            self.spans.start()

    def _close_ports(self) -> None:
        for server in self.servers:
            server.close()
        while self.paths:
            remove_if_there(self.paths.pop())
        if self.socket_path:
            remove_if_there(self.socket_path)
            self.socket_path = ""
        if self.control is not None:
            self.control.stop()

    def _announce(self, plain: asyncio.AbstractServer, tls: asyncio.AbstractServer | None) -> None:
        if not self.config.sync:
            log.warning("--no-sync: messages are confirmed BEFORE they are on disk: a power cut loses confirmed ones")
        if self.config.pid_file:
            with open(self.config.pid_file, "w") as file:
                file.write(f"{os.getpid()}\n")
        log.info("brokerd %s, process %d, data in %s", __version__, os.getpid(), self.config.data_dir)
        for address in listeners.addresses(tls) if tls is not None else ():
            log.info("listening on %s (AMQP over TLS)", address)
        if self.socket_path:
            log.info("listening on %s (AMQP on a unix socket)", self.socket_path)
        addresses = listeners.addresses(plain)
        for address in addresses:
            log.info("listening on %s (AMQP)", address)
        self.serving = f"listening on {', '.join(addresses)} (AMQP)"

    def _call_at(self, when_ns: int, callback: Callable[[], object]) -> "Timer":
        """Call back at that time.  The loop's timer may be early; the callback then asks for another call."""
        return self.loop.call_later(max(0.0, (when_ns - self.clock.epoch_ns()) / 1e9), callback)

    def _tick(self) -> None:
        self.timer = self.loop.call_later(TICK_SECONDS, self._tick)
        self.lateness.tick(TICK_SECONDS)
        self.notify.alive()
        try:
            self.node.tick()
        except OSError as error:
            log.error("%s", error)
        if not self.stopped.is_set():
            alarm = self.node.alarm_reason
            self.notify.status(f"{alarm}: publishers are blocked" if alarm else self.serving)

    def _on_stop_signal(self, number: int) -> None:
        self.stop_signals += 1
        if self.stop_signals > 1:
            log.warning("%s again: stopping at once", signal.Signals(number).name)
            sys.stderr.flush()
            os._exit(1)
        log.info("%s: stopping", signal.Signals(number).name)
        self.stopped.set()

    def _on_reload_signal(self) -> None:
        if self.reloading:
            self.reload_again = True  # The files may have changed since they were read.
            return
        from brokerd.server.reload import begin  # A start saves this import.

        self.reloading = True
        self.notify.reloading()
        begin(self, self._on_reloaded)

    def _on_reloaded(self) -> None:
        self.reloading = False
        self.notify.reloaded()
        if self.reload_again:
            self.reload_again = False
            self._on_reload_signal()

    def _on_summary_signal(self) -> None:
        if not self.summing_up:
            from brokerd.server.summary import begin

            begin(self)

    def _storage_lost(self, error: BaseException) -> None:
        """Stop at once: after a failed sync the broker can no longer promise that a message is on the disk."""
        log.critical("sync failed, stopping at once: %s", error)
        self.failed = True
        self.stopped.set()

    def _is_busy(self) -> bool:
        """Whether octets of clients that have gone, errands or syncs are under way."""
        node = self.node
        return bool(node.core.has_errands or not node.commit.idle or any(each.ended for each in node.connections))

    async def _stop(self) -> None:
        self.node.parameters.on_change = _nothing
        for child in (self.management, self.links, self.spans):
            if child is not None:
                await child.stop()
        self.node.stop_connections()
        deadline = self.loop.time() + self.config.stop_timeout_seconds
        while self.node.connections and self.loop.time() < deadline:  # noqa: ASYNC110 - once, and both may end it
            await asyncio.sleep(0.01)  # The tick goes on, and cuts off clients that leave their sockets open.
        if self.timer is not None:
            self.timer.cancel()
        for connection in list(self.node.connections):
            connection.transport.abort()
        await asyncio.sleep(0)
        while self._is_busy() and not self.failed:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.001)
        if self.failed:
            return  # Nothing may say that the end was clean.
        for handler in self.handlers:  # They publish to a vhost, which closes now.
            getLogger().removeHandler(handler)
        self.node.upkeep.close()
        self.file_syncs.stop()
        self.sync_thread.stop()
        self.slow_thread.stop()
        self.login_thread.stop()
        self.token_thread.stop()
        self.http_threads.stop()
        self.node.close()


def _nothing() -> None:
    pass


def management_wanted(config: "Config") -> bool:
    """Whether the options ask for a port or a path of HTTP."""
    return bool(config.http_port or config.http_unix_path or (config.https_port and config.tls_cert))


def trim_memory(low: bool) -> None:
    """Give memory that holds nothing back to the kernel.  ``low``: there is so little of it that it may take longer."""
    if low:
        collector.collect_all()
    memory.trim()


def remove_if_there(path: str) -> None:
    """Remove a file, which may have been removed before."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
