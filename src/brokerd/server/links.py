"""The broker's side of the process of links: the list of links, and the state of each.

    parameters, policies, queues, exchanges, bindings -> rows -> ``brokerd links`` -> states -> node.links

The process runs while there is at least one link, and gets all rows anew when one of them may have changed.  Its
protocol: ``carriers/main``.  A row is {"key": [kind, vhost, name, upstream], "value": ..., "paused": ..., ...}.  A row
with "missing" is not for the process: there can be no link, and the row says why.
"""

import asyncio
import os
from itertools import islice
from logging import getLogger
from typing import TYPE_CHECKING, Any

from brokerd.links.definition import PAUSED, SHOVEL, UPSTREAM, UPSTREAM_SET
from brokerd.links.state import TERMINATED, LinkKey, LinkState
from brokerd.pieces import add_work
from brokerd.policies.parameters import Key
from brokerd.server.child import Child
from brokerd.server.link_events import tell_change, tell_end

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from brokerd.node import Node

log = getLogger("brokerd")

SECRET_OCTETS = 32
END_SECONDS = 5.0  # that an operation waits for the end of a link
SOON_SECONDS = 0.02  # Changes that come together are told together.
MISSING_MOST = 1000  # of the links that cannot be, so many have a state
LOOK_SECONDS = 0.25  # while there is federation: how often queues, exchanges and bindings are looked at, if any changed


class Links(Child):
    """The process, and the book of links that the node has."""

    __slots__ = ("_asked", "_listen", "_looking", "_missing", "_node", "_number", "_revisions", "_rows", "_soon",
                 "_stop", "_waiting", "_walks", "_work")  # fmt: skip

    def __init__(self, node: "Node", loop: asyncio.AbstractEventLoop, listen: "Callable[[], object]") -> None:
        """``listen()``: see that the socket is there over which the process comes."""
        super().__init__("links", loop, self._first, self._on_said_of_link, "no shovels, no federation")
        self._node, self._listen = node, listen
        self._rows: list[dict[str, Any]] = []
        self._missing: dict[LinkKey, str] = {}
        self._soon: asyncio.TimerHandle | None = None
        self._revisions: dict[str, int] | None = None  # of vhosts, when they were last looked at; None: no federation
        self._looking: asyncio.TimerHandle | None = None
        self._walks = False  # the rows are looked for just now, in pieces
        self._work: asyncio.Task[None] | None = None
        self._stop = False
        self._number = 0  # of the last question for the end of links
        self._asked: list[dict[str, Any]] = []  # questions for the process, when it knows what has changed
        self._waiting: dict[int, Callable[[], object]] = {}  # for the answers, by number
        book = node.links
        book.changed, book.restart, book.await_end = self.changed, self.restart, self.await_end
        node.parameters.on_change = self.changed
        self.changed()

    def changed(self) -> None:
        """See soon which links there are now."""
        if self._soon is None and not self._stop:
            self._soon = self._loop.call_later(SOON_SECONDS, self._renew)

    def restart(self, key: LinkKey) -> bool:
        """Have a link begun anew."""
        if key not in self._node.links.states or key in self._missing:
            return False
        self.tell({"restart": list(key)})
        return True

    def await_end(self, keys: list[LinkKey], go_on: "Callable[[], object]") -> None:
        """See ``LinkBook``."""
        self._number += 1
        self._waiting[self._number] = go_on
        self._loop.call_later(END_SECONDS, self._answer, self._number)
        self._asked.append({"ended": [list(key) for key in keys], "number": self._number})
        self.changed()

    def _answer(self, number: int) -> None:
        go_on = self._waiting.pop(number, None)
        if go_on is not None:
            go_on()

    def _ask(self, asked: list[dict[str, Any]]) -> None:
        for question in asked:
            if self.pid:
                self.tell(question)
            else:
                self._answer(question["number"])

    def _renew(self) -> None:
        self._soon = None
        if self._work is not None or self._walks:
            self.changed()  # The process ends just now, or what has changed may lie behind the walk.
            return
        self._walks = True
        asked, self._asked = self._asked, []
        add_work(self._node.core, self._walk(asked), self._on_walked)

    def _walk(self, asked: list[dict[str, Any]]) -> "Iterator[None]":
        found = []
        for row in self._all_rows():
            if row is not None:
                found.append(row)
            yield
        if not self._stop:
            self._take_rows(found)
            self._ask(asked)

    def _on_walked(self) -> None:
        self._walks = False

    def _take_rows(self, rows: list[dict[str, Any]]) -> None:
        self._tell_missing({LinkKey(*row["key"]): row["missing"] for row in rows if "missing" in row})
        self._rows = [row for row in rows if "missing" not in row and self._is_there(row)]
        if self._rows and self.pid:
            self.tell(self._told())
        elif self._rows and self._timer is None:
            self._listen()
            self.start()
        elif not self._rows and (self.pid or self._timer is not None):
            self.tell(self._told())  # What links have made elsewhere goes before the process does.
            self._work = self._loop.create_task(self._end())

    def _is_there(self, row: dict[str, Any]) -> bool:
        """False for a shovel that was removed since its row was looked for: the process has perhaps forgotten it."""
        kind, vhost, name, _ = row["key"]
        return kind != SHOVEL or Key(SHOVEL, vhost, name) in self._node.parameters

    def _tell_missing(self, missing: dict[LinkKey, str]) -> None:
        """Have a state for each link that cannot be, so that lists and the log say why."""
        states = self._node.links.states
        for key in self._missing.keys() - missing.keys():
            states.pop(key, None)  # If there can be a link now, its own state comes.
        self._missing = dict(islice(missing.items(), MISSING_MOST))
        for key, why in self._missing.items():
            before = states.get(key)
            state = LinkState(*key, state=TERMINATED, reason=why, since=self._node.clock.epoch_ns() / 1e9)
            if before is None or (before.state, before.reason) != (TERMINATED, why):
                states[key] = state
                tell_change(self._node, before, state)

    async def _end(self) -> None:
        await Child.stop(self)
        for number in list(self._waiting):
            self._answer(number)
        self._node.links.secret = ""
        self._node.links.states = {key: state for key, state in self._node.links.states.items() if key in self._missing}
        self._timer = self._work = None

    async def stop(self) -> None:
        """End the process, and look at nothing any more."""
        self._stop = True
        for timer in (self._soon, self._looking):
            if timer is not None:
                timer.cancel()
        if self._work is not None:
            await self._work
        await super().stop()

    def _first(self) -> dict[str, Any]:
        book = self._node.links
        book.secret = os.urandom(SECRET_OCTETS).hex()
        for state in book.states.values():
            if state.state != TERMINATED:
                state.state, state.unconfirmed, state.rate = "starting", 0, 0.0
        data = self._node.data
        return {"directory": os.path.abspath(data.path), "secret": book.secret, "broker": data.identity,
                **self._told()}  # fmt: skip

    def _told(self) -> dict[str, Any]:
        """The line for the process when something has changed."""
        node = self._node
        return {"links": self._rows, "cluster": node.parameters.cluster_name(node.name)}

    # --- which links there are

    def _all_rows(self) -> "Iterator[dict[str, Any] | None]":
        """All rows; None: nothing more yet."""
        parameters = self._node.parameters
        federates = False
        for key, value in list(parameters):
            if key.component == SHOVEL and key.vhost in self._node.vhosts and isinstance(value, dict):
                paused = Key(PAUSED, key.vhost, key.name) in parameters
                yield {"key": [SHOVEL, key.vhost, key.name, ""], "value": value, "paused": paused}
            federates = federates or key.component in (UPSTREAM, UPSTREAM_SET)
        vhosts = self._node.vhosts.values()
        federates = federates or any(vhost.policies.name_upstreams for vhost in vhosts if vhost.policies is not None)
        self._watch(federates)
        if federates:
            from brokerd.server import federated

            yield from federated.rows(self._node)

    def _watch(self, federates: bool) -> None:
        """While there is an upstream, look from time to time whether queues, exchanges, bindings or policies have
        changed."""
        self._revisions = self._seen() if federates else None
        if federates and self._looking is None:
            self._looking = self._loop.call_later(LOOK_SECONDS, self._look)

    def _seen(self) -> dict[str, int]:
        return {name: vhost.revision for name, vhost in self._node.vhosts.items()}

    def _look(self) -> None:
        self._looking = None
        if self._revisions is None or self._stop:
            return
        if self._revisions != self._seen():
            self.changed()
        self._looking = self._loop.call_later(LOOK_SECONDS, self._look)

    # --- what the process says

    def _on_said_of_link(self, said: dict[str, Any]) -> None:
        states = self._node.links.states
        if "state" in said:
            state = LinkState.from_row(said["state"])
            before = states.get(state.key)
            if state.key in self._missing:
                return  # The process has not heard yet that it is gone.
            states[state.key] = state
            tell_change(self._node, before, state)
        elif "gone" in said:
            key = LinkKey(*said["gone"])
            last = None if key in self._missing else states.pop(key, None)
            if last is not None:
                tell_end(self._node, last)
        elif "ended" in said:
            self._answer(said["ended"])
        elif "finished" in said:
            self._remove_shovel(LinkKey(*said["finished"]))

    def _remove_shovel(self, key: LinkKey) -> None:
        """The shovel has done its work: its parameter goes (RabbitMQ)."""
        from brokerd.operations.changing import change_files
        from brokerd.operations.jobs import Running

        node = self._node
        name = Key(SHOVEL, key.vhost, key.name)
        log.info("shovel '%s' in vhost '%s' has done its work, and is removed", key.name, key.vhost)

        def plan() -> "list[Any]":
            return [node.parameters.changed(gone=[name, name._replace(component=PAUSED)])]

        def then() -> None:
            self.tell({"forget": list(key)})
            node.tell("parameter.cleared", {"vhost": key.vhost, "component": SHOVEL, "name": key.name})

        def done(_: object, error: Exception | None) -> None:
            if error is not None:
                log.error("shovel '%s' in vhost '%s' cannot be removed: %s", key.name, key.vhost, error)

        Running(change_files(node, plan, then), submit=node.submit_slow, later=node.later,
                progress=lambda table: None, done=done)  # fmt: skip
