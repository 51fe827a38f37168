"""The main of the management process: ``brokerd management``, which the broker starts.

Standard input has one line, a JSON object of settings, and stays open: its end is the broker's end, and this process
ends too.  A later line, {"tls": {...}, "oauth": {...}}, says that certificates may have changed, and has the options
of logins by an OpenID provider.  Standard output tells the broker what
happens, a JSON object a line:

    {"listening": [["127.0.0.1:15672", "HTTP"]]}    the ports are open
    {"failed": "cannot listen on ..."}              one is not; the process ends with status 1
    {"log": ["warning", "..."]}                     a line for the broker's log

Settings: data_dir, key (hex; signs sessions), and those of ``doors``.
"""

import asyncio
import gc
import json
import logging
import os
import resource
import signal
import sys
import time
from email.utils import formatdate
from typing import TYPE_CHECKING, Any

from brokerd.errors import BrokerError

if TYPE_CHECKING:
    from brokerd.management.doors import Doors

SETTINGS_OCTETS_MAX = 64 << 10
DESCRIPTORS_KEPT = 64  # for everything that is no client
DESCRIPTORS_EACH = 3  # of a client, and of one that speaks AMQP over WebSocket, which has a second to the broker
GRACE_SECONDS = 1.0
NICE = 5  # Messages come before pages.
M_MMAP_THRESHOLD, MMAP_THRESHOLD = -3, 256 << 10  # of mallopt(3)
SECURITY_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "vary": "origin, cookie, authorization",
}  # fmt: skip


class Told(logging.Handler):
    """Gives log lines to the broker.  A line that it does not take at once is lost: nothing waits for it."""

    def emit(self, record: logging.LogRecord) -> None:
        tell({"log": [record.levelname.lower(), self.format(record)]})


def _is_fault(record: logging.LogRecord) -> bool:
    """Whether a line is of a fault: a client that goes before its answer is none."""
    return "without completing response" not in record.getMessage()


def tell(table: dict[str, Any]) -> None:
    """Tell the broker."""
    try:
        os.write(1, json.dumps(table).encode() + b"\n")
    except OSError:
        pass  # It does not read, or has gone; then this process ends, too.


def give_back_at_once() -> None:
    """Have glibc give what a list of ten thousand rows takes back to the system at once.

    It would take such room from its heap after the first time, and the heap would keep the gaps.  Does nothing where
    the C library is not glibc, or where the environment says another threshold.
    """
    from ctypes import CDLL

    mallopt = getattr(CDLL(None), "mallopt", None)
    if mallopt is not None and "MALLOC_MMAP_THRESHOLD_" not in os.environ:
        mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD)


def main() -> int:
    """Run until the broker ends.  Returns the exit status."""
    line = sys.stdin.buffer.raw.read(SETTINGS_OCTETS_MAX) if hasattr(sys.stdin.buffer, "raw") else b""
    try:
        settings = json.loads(line or b"")
    except ValueError:
        sys.stderr.write("brokerd management: the broker starts this by itself (option http_port)\n")
        return 2
    os.set_blocking(1, False)
    give_back_at_once()
    logging.basicConfig(level=logging.INFO, handlers=[Told()], format="%(message)s")
    for name in ("uvicorn", "asyncio"):
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger("uvicorn.error").addFilter(_is_fault)
    try:
        os.nice(NICE)
    except OSError:
        pass
    import uvloop

    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    gc.enable()
    try:
        return loop.run_until_complete(_serve(loop, settings))
    finally:
        loop.close()


async def _serve(loop: asyncio.AbstractEventLoop, settings: dict[str, Any]) -> int:
    from uvicorn.config import Config
    from uvicorn.server import ServerState

    from brokerd.management.app import App, Services
    from brokerd.management.control import Control
    from brokerd.management.doors import Doors
    from brokerd.management.logins import Logins
    from brokerd.management.protocol import CLIENTS_MAX, Connection, Room
    from brokerd.management.routes import Routes
    from brokerd.management.samples import Samples
    from brokerd.management.table import all_routes

    control = Control(settings["data_dir"])
    samples = Samples(control)
    services = Services(control, Logins(control, bytes.fromhex(settings["key"])), samples, settings)
    app = App(services, Routes(all_routes()))
    config = Config(app, http="httptools", ws="none", ws_per_message_deflate=False, ws_ping_interval=None,
                    lifespan="off", proxy_headers=False, log_config=None, access_log=False,
                    timeout_keep_alive=60)  # fmt: skip
    config.load()
    state = ServerState()
    room = Room(loop, min(CLIENTS_MAX, max(16, (_raise_limit() - DESCRIPTORS_KEPT) // DESCRIPTORS_EACH)))
    ended = asyncio.Event()
    doors = Doors(loop, settings, room, lambda: Connection(config, state, room))
    loop.add_reader(0, Input(ended, doors, settings).read)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: None)  # The broker gets it too, and this process ends with it.
    try:
        listening = await doors.open()
    except BrokerError as error:
        tell({"failed": str(error)})
        return 1
    gc.collect()
    gc.freeze()
    tell({"listening": listening})
    work = [loop.create_task(_tell_time(state)), loop.create_task(samples.run())]
    await ended.wait()
    doors.close()
    for task in work:
        task.cancel()
    for client in [*room.open, *room.websockets]:
        client.shutdown()
    deadline = loop.time() + GRACE_SECONDS
    while (room.open or room.websockets) and loop.time() < deadline:  # noqa: ASYNC110 - once
        await asyncio.sleep(0.02)
    for client in [*room.open, *room.websockets]:
        client.transport.abort()
    control.close()
    return 0


class Input:
    """The broker's lines on standard input after the settings."""

    def __init__(self, ended: asyncio.Event, doors: "Doors", settings: dict[str, Any]) -> None:
        self._ended, self._doors, self._settings = ended, doors, settings
        self._buffer = b""

    def read(self) -> None:
        """There is something to read, or the end."""
        octets = os.read(0, SETTINGS_OCTETS_MAX)
        if not octets:
            asyncio.get_running_loop().remove_reader(0)
            self._ended.set()
            return
        *lines, self._buffer = (self._buffer + octets).split(b"\n")
        for line in lines:
            said = json.loads(line)
            self._settings["oauth"] = said["oauth"]
            self._doors.renew(said["tls"])


async def _tell_time(state: Any) -> None:
    """Keep the headers that each answer has, Date among them."""
    fixed = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]
    while True:
        state.default_headers = [(b"date", formatdate(time.time(), usegmt=True).encode()), *fixed]
        await asyncio.sleep(1.0)


def _raise_limit() -> int:
    """As many descriptors as this process may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or soft < hard:
        wanted = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
            soft = max(soft, wanted)
        except (OSError, ValueError):
            pass
    return soft
