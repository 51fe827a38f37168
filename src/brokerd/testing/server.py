"""The broker's server with a clock and a disk that can be replaced, and the commands of the keeper.

The keeper writes one JSON object a line, and gets one answer for each::

    {"verb": "advance", "ns": 3600000000000}        {"ahead_ns": 3600000000000}
    {"verb": "make_vhost", "name": "test"}          {}
    {"verb": "no such verb"}                        {"error": "...", "refused": true}

The first line, ``{"ready": true}``, comes unasked, when the broker listens.  When the keeper's end of the socket is
closed, the keeper is dead: then this process removes the data and ends.
"""

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from logging import getLogger
from typing import TYPE_CHECKING, Any

from brokerd.errors import BrokerError
from brokerd.policies import Policy
from brokerd.server.launch import Server, serve
from brokerd.store.data_dir import DataDir
from brokerd.testing.clock import MovableClock, Timer, Timers
from brokerd.testing.disk import FillableDisk, ForgetfulDisk, Nothing, TemporaryDisk

if TYPE_CHECKING:
    from brokerd.config import Config
    from brokerd.node import Node
    from brokerd.operations.jobs import Job
    from brokerd.store.json_file import Change
    from brokerd.vhost.vhost import VHost

log = getLogger("brokerd")

NEVER_NS = 1 << 62
BUSY_SECONDS_MAX = 5.0  # that a step of the clock may take
QUIET_ROUNDS = 3  # of the loop, without work: then all is done
JOURNALS = Policy("brokerd.testing", ".*", {"order-journal": True}, apply_to="queues")


class TemporaryServer(Server):
    """One broker, from a fork of the keeper to a kill."""

    __slots__ = ("_buffer", "_commands", "_folder", "_given", "_soon", "_timers")

    def __init__(
        self, config: "Config", loop: asyncio.AbstractEventLoop, reload: Any, descriptors: Any, notify: Any, *,
        given: dict[str, Any], commands: socket.socket,
    ) -> None:  # fmt: skip
        """``given``: what the keeper says: ``folder``, ``ahead_ns``, ``boot`` and ``order_journal``."""
        super().__init__(config, loop, reload, descriptors, notify)
        self._given, self._commands = given, commands
        self._folder: str = given["folder"]
        self._buffer = b""
        self._soon = 0  # callbacks of the node that are on their way
        self.clock: MovableClock = MovableClock(given["ahead_ns"])
        self.disk: FillableDisk = ForgetfulDisk(config.data_dir) if config.sync else TemporaryDisk()
        self._timers = Timers(self.clock, loop)

    # --- what is built otherwise

    def _open_data(self) -> DataDir:
        return DataDir(self.config.data_dir, self.disk, boot=self._given["boot"])

    def _make_node(self, data: DataDir, **_: Any) -> "Node":
        # Timers follow the clock, so no code need look at it.
        node = super()._make_node(data, later=self._later, only_by_disk=True, look_every_ns=NEVER_NS)
        if self.clock.ahead_ns:
            node.core.clock = self.clock.epoch_ns
            node.core.monotonic = self.clock.monotonic_ns
        return node

    def _call_at(self, when_ns: int, callback: Callable[[], object]) -> Timer:
        return self._timers.call_at(when_ns, callback)

    def _later(self, callback: Callable[[], object]) -> None:
        self._soon += 1
        self.loop.call_soon(self._run_soon, callback)

    def _run_soon(self, callback: Callable[[], object]) -> None:
        self._soon -= 1
        callback()

    async def _listen(self) -> None:
        if self._given["order_journal"]:
            for vhost in self.node.vhosts.values():
                self._journal(vhost)
        await super()._listen()
        self.loop.add_reader(self._commands.fileno(), self._read)
        self._answer({"ready": True})

    # --- commands

    def _read(self) -> None:
        octets = self._commands.recv(1 << 16)
        if not octets:
            end_without_keeper(self._folder)
        *lines, self._buffer = (self._buffer + octets).split(b"\n")
        for line in lines:
            self.loop.create_task(self._perform(line))

    async def _perform(self, line: bytes) -> None:
        from json import loads

        command = loads(line)
        verb = VERBS.get(command.pop("verb"))
        try:
            if verb is None:
                raise BrokerError("no such verb")
            answer = verb(self, **command)
            if asyncio.iscoroutine(answer):
                answer = await answer
        except (BrokerError, OSError) as error:
            self._answer({"error": str(error), "refused": True})
        except BaseException as error:
            self._answer({"error": f"{type(error).__name__}: {error}"})
            raise  # The loop logs it.
        else:
            self._answer(answer or {})

    def _answer(self, answer: dict[str, Any]) -> None:
        from json import dumps

        self._commands.sendall(dumps(answer).encode() + b"\n")

    async def make_vhost(self, name: str) -> None:
        """Make a vhost in which the default user may do everything."""
        from brokerd.auth.permissions import Permission
        from brokerd.operations.changing import change_files
        from brokerd.vhost.listing import NEW

        node = self.node

        def plan() -> "list[Change]":
            if name in node.listing.rows:
                raise BrokerError(f"vhost '{name}' is there already")
            if name not in node.vhosts:
                node.make_vhost(name)
            return [node.listing.changed({name: NEW}),
                    node.permissions.changed([Permission(self.config.default_user, name, ".*", ".*", ".*")])]

        def then() -> None:
            node.tell("vhost.created", {"name": name})
            if self._given["order_journal"]:
                self._journal(node.vhosts[name])

        await self._carry_out(change_files(node, plan, then))

    def _journal(self, vhost: "VHost") -> None:
        if vhost.policies is not None and not len(vhost.policies):
            vhost.policies.put(JOURNALS)
            self.node.upkeep.apply_policies(vhost)

    async def delete_vhost(self, name: str) -> None:
        """Close the vhost's connections, and delete it with its queues and messages."""
        from brokerd.operations.rows import LOCAL
        from brokerd.operations.vhost_end import delete

        if name not in self.node.vhosts:
            raise BrokerError(f"there is no vhost '{name}'")
        await self._carry_out(delete(self.node, LOCAL, name))

    async def _carry_out(self, job: "Job") -> None:
        """Run a job of the broker to its end.  Raises what the job raises."""
        from brokerd.operations.jobs import Running

        over = self.loop.create_future()

        def done(answer: Any, error: Exception | None) -> None:
            if error is None:
                over.set_result(None)
            else:
                over.set_exception(error)

        Running(job, submit=self.node.submit_slow, later=self.node.later, progress=lambda table: None, done=done)
        await over

    async def advance(self, ns: int) -> dict[str, int]:
        """Set the clock forward, and do all that is due by then."""
        self.node.core.clock = self.clock.epoch_ns
        self.node.core.monotonic = self.clock.monotonic_ns
        await self._timers.advance(ns, self.settle)
        self.node.upkeep.begin_retention()
        self._look_around()
        await self.settle()
        return {"ahead_ns": self.clock.ahead_ns}

    def _look_around(self) -> None:
        """The broker's work of each second: among other things it closes the channels of consumers that have not acked
        in time, and looks at the disk."""
        try:
            self.node.tick()
        except OSError as error:
            log.error("%s", error)

    async def settle(self) -> None:
        """Return when all is done that clients have asked for before, as far as the kernel has handed it over."""
        quiet, until = 0, self.loop.time() + BUSY_SECONDS_MAX
        while quiet < QUIET_ROUNDS and self.loop.time() < until:
            await asyncio.sleep(0)
            quiet += 1
            if self._soon or self.node.core.has_errands:
                quiet = 0
            elif not self.node.commit.idle:
                quiet = 0
                await asyncio.sleep(0.0005)  # A thread syncs.

    def drop_connections(self) -> dict[str, int]:
        """Cut every client off, without a word."""
        connections = list(self.node.connections)
        for connection in connections:
            connection.transport.abort()
        return {"dropped": len(connections)}

    def fill_disk(self, full: bool) -> None:
        """From now on the disk is full, or is no longer."""
        self.disk.full = full
        self.node.room.measure_again()
        self._look_around()

    def lose_power(self, target: str, seed: int | None) -> None:
        """Write to ``target`` what is on the disk, and stop in the midst of everything.  There is no answer."""
        from random import Random

        if not isinstance(self.disk, ForgetfulDisk):
            raise BrokerError("power_cut() needs Broker(sync=True): without syncs everything would be gone")
        self.disk.lose_power(target, Nothing() if seed is None else Random(seed))
        os.kill(os.getpid(), signal.SIGKILL)


VERBS: dict[str, Callable[..., Any]] = {
    "advance": TemporaryServer.advance, "delete_vhost": TemporaryServer.delete_vhost,
    "drop_connections": TemporaryServer.drop_connections, "fill_disk": TemporaryServer.fill_disk,
    "lose_power": TemporaryServer.lose_power, "make_vhost": TemporaryServer.make_vhost,
    "settle": TemporaryServer.settle,
}  # fmt: skip


def run(given: dict[str, Any], commands: socket.socket) -> int:
    """Be the broker until the end; returns the exit status.  Raises BrokerError or OSError if it cannot start."""
    from brokerd.config import Config

    config = Config(**given["options"])

    def make(*parts: Any) -> TemporaryServer:
        return TemporaryServer(*parts, given=given, commands=commands)

    return serve(config, reload=lambda: config, make=make)


def end_without_keeper(folder: str) -> None:
    """The keeper was killed, so this process is the last one that knows of the data: remove it, and end."""
    from shutil import rmtree

    rmtree(folder, ignore_errors=True)
    os._exit(1)
