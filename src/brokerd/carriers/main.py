"""The main of the process of links: ``brokerd links``, which the broker starts while there are links.

Standard input has a line of JSON first, and stays open: its end is the broker's end.

    {"directory": ..., "secret": ..., "broker": ..., "cluster": ..., "links": [...]}  where the broker is, all links
    {"cluster": ..., "links": [...]}                    all links, anew: some have changed, or the cluster's name has
    {"restart": [kind, vhost, name, upstream]}          begin this one anew
    {"forget": [kind, vhost, name, upstream]}           its parameter has gone: a later one of the name is another link
    {"ended": [key, ...], "number": n}                  say when these, which have gone or changed, move nothing more

Standard output tells the broker, a line of JSON each: {"state": {...}} of a link that has changed, {"gone": [key]},
{"finished": [key]} of one that has done its work, {"ended": n} in answer, {"log": [level, text]}.

What links do not tell at once, their counters, goes out every second, more seldom where there are many links.
"""

import asyncio
import gc
import json
import logging
import os
import sys
import time
from typing import Any

from brokerd.carriers.link import Link, Spec, Surroundings
from brokerd.client.connection import Identity
from brokerd.links import state as states
from brokerd.links.state import LinkKey

READ_OCTETS = 1 << 20
LINKS_A_SECOND = 200  # whose counters are told
LAG_SECONDS = 2.0  # between questions how many messages wait at the sources of all links
LAGS_A_SECOND = 20


class Output:
    """Output that the broker has not read yet."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._unwritten = bytearray()
        os.set_blocking(1, False)

    def tell(self, table: dict[str, Any]) -> None:
        """Tell the broker."""
        waits = bool(self._unwritten)
        self._unwritten += json.dumps(table).encode() + b"\n"
        if not waits:
            self._write()
            if self._unwritten:
                self._loop.add_writer(1, self._write)

    def _write(self) -> None:
        try:
            del self._unwritten[:os.write(1, self._unwritten[:65536])]
        except BlockingIOError:
            return
        except OSError:
            self._unwritten.clear()  # The broker has gone: this process ends, too.
        if not self._unwritten:
            self._loop.remove_writer(1)


class Told(logging.Handler):
    """Gives log lines to the broker."""

    def __init__(self, output: Output) -> None:
        super().__init__()
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        """See ``logging``."""
        self._output.tell({"log": [record.levelname.lower(), self.format(record)]})


class Links:
    """All links of the process."""

    def __init__(self, output: Output, around: Surroundings) -> None:
        self._output, self.around = output, around
        self.by_key: dict[LinkKey, Link] = {}
        self.working: list[asyncio.Task[None]] = []  # tasks that never end
        self._before: dict[LinkKey, tuple[int, float]] = {}  # messages, and when they were counted
        self._ending: dict[LinkKey, asyncio.Task[None]] = {}

    def replace(self, rows: list[dict[str, Any]], cluster: str) -> None:
        """These are the links from now on: begin new ones, begin changed ones anew, end the others.  Those that begin
        know the cluster by this name."""
        self.around = self.around._replace(cluster=cluster)
        wanted = {spec.key: spec for spec in map(spec_of, rows)}
        for key, link in list(self.by_key.items()):
            if key not in wanted:
                self._end(link, gone=True)
            elif wanted[key] != link.spec and not link.take(wanted[key]):
                self._end(link)
                self._begin(wanted[key])
        for key, spec in wanted.items():
            if key not in self.by_key:
                self._begin(spec)

    def restart(self, key: LinkKey) -> None:
        """Begin a link anew."""
        link = self.by_key.get(key)
        if link is not None:
            self._end(link)
            self._begin(link.spec)

    def forget(self, key: LinkKey) -> None:
        """End a link that has done its work: if there is one of this key later, it is another one, although it may have
        the same definition."""
        link = self.by_key.get(key)
        if link is not None and link.state.state == states.TERMINATED:
            self._end(link, gone=True)

    def _begin(self, spec: Spec) -> None:
        link = make(spec, self.around)
        self.by_key[spec.key] = link
        before = self._ending.get(spec.key)
        if before is None:
            link.start()
        else:  # Two of one name must not carry at a time.
            before.add_done_callback(lambda _: link.start() if self.by_key.get(spec.key) is link else None)
        self._output.tell({"state": link.state.as_row()})

    def _end(self, link: Link, *, gone: bool = False) -> None:
        key = link.spec.key
        del self.by_key[key]
        self._before.pop(key, None)
        task = asyncio.get_running_loop().create_task(link.stop() if not gone else link.clean_up())
        self._ending[key] = task

        def ended(_: object) -> None:
            if self._ending.get(key) is task:
                del self._ending[key]

        task.add_done_callback(ended)
        if gone:
            self._output.tell({"gone": list(key)})

    def tell_end(self, keys: list[LinkKey], number: int) -> None:
        """Answer once the former links of these keys, if they are ending, have ended."""
        ending = [self._ending[key] for key in keys if key in self._ending]
        told = asyncio.gather(*ending, return_exceptions=True)
        told.add_done_callback(lambda _: self._output.tell({"ended": number}))

    def tell(self, link: Link) -> None:
        """Tell the broker of a link's state."""
        if self.by_key.get(link.spec.key) is link:
            self._output.tell({"state": link.state.as_row()})

    async def tell_counters(self) -> None:
        """Tell of the links that have carried something, for ever."""
        while True:
            await asyncio.sleep(max(1.0, len(self.by_key) / LINKS_A_SECOND))
            now = time.monotonic()
            for key, link in self.by_key.items():
                link.look()
                messages, when = self._before.get(key, (0, 0.0))
                state = link.state
                rate = round((state.messages - messages) / (now - when), 1) if when else 0.0
                self._before[key] = (state.messages, now)
                if state.messages != messages or rate != state.rate:
                    state.rate = max(0.0, rate)
                    self.tell(link)

    async def ask_lags(self) -> None:
        """Ask from time to time how many messages wait at each link's source, for ever."""
        while True:
            await asyncio.sleep(LAG_SECONDS)
            for number, link in enumerate(list(self.by_key.values()), 1):
                link.ask_lag()
                if number % LAGS_A_SECOND == 0:
                    await asyncio.sleep(1.0)

    async def stop(self) -> None:
        """End all of them."""
        for task in self.working:
            task.cancel()
        await asyncio.gather(*[link.stop() for link in self.by_key.values()], *self._ending.values())


def spec_of(row: dict[str, Any]) -> Spec:
    """A link as the broker tells of it."""
    return Spec(LinkKey(*row["key"]), row["value"], row.get("paused", False),
                tuple([(key, arguments) for key, arguments in row.get("bindings", ())]), row.get("place"))  # fmt: skip


def make(spec: Spec, around: Surroundings) -> Link:
    """The link."""
    if spec.key.kind == states.SHOVEL:
        from brokerd.carriers.shovel import Shovel

        return Shovel(spec, around)
    from brokerd.carriers.federation import ExchangeLink, QueueLink

    return (QueueLink if spec.key.kind == states.QUEUE_LINK else ExchangeLink)(spec, around)


def main() -> int:
    """Run until the broker ends.  Returns the exit status."""
    import uvloop

    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    gc.enable()
    try:
        return loop.run_until_complete(_serve(loop))
    finally:
        loop.close()


async def _serve(loop: asyncio.AbstractEventLoop) -> int:
    output = Output(loop)
    logging.basicConfig(level=logging.INFO, handlers=[Told(output)], format="%(message)s")
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    links: Links | None = None
    ended, by_hand = asyncio.Event(), asyncio.Event()
    buffer = b""

    def read() -> None:
        nonlocal links, buffer
        octets = os.read(0, READ_OCTETS)
        if not octets:
            loop.remove_reader(0)
            ended.set()
            return
        *lines, buffer = (buffer + octets).split(b"\n")
        for line in lines:
            try:
                said = json.loads(line)
                if links is None:
                    links = _links(output, said)
            except (ValueError, TypeError, KeyError):
                by_hand.set()
                ended.set()
                return
            if "links" in said:
                links.replace(said["links"], said["cluster"])
            if "ended" in said:
                links.tell_end([LinkKey(*key) for key in said["ended"]], said["number"])
            if "forget" in said:
                links.forget(LinkKey(*said["forget"]))
            if "restart" in said:
                links.restart(LinkKey(*said["restart"]))

    for number in (2, 15):
        loop.add_signal_handler(number, lambda: None)  # The broker gets it too, and this process ends with it.
    loop.add_reader(0, read)
    await ended.wait()
    if by_hand.is_set():
        sys.stderr.write("brokerd links: the broker starts this by itself\n")
        return 2
    if links is not None:
        await links.stop()
    return 0


def _links(output: Output, first: dict[str, Any]) -> Links:
    links: Links

    def changed(link: Link) -> None:
        links.tell(link)

    def finished(link: Link) -> None:
        links.tell(link)
        output.tell({"finished": list(link.spec.key)})

    identity = Identity(first["directory"], "BROKERD-LINK", first["secret"])
    links = Links(output, Surroundings(identity, first["broker"], first["cluster"], changed, finished))
    links.working = [asyncio.get_running_loop().create_task(work()) for work in (links.tell_counters, links.ask_lags)]
    return links
