"""The main of the process of spans: ``brokerd spans``, which the broker starts with the option otlp_endpoint.

Standard input has one line, a JSON object of settings (data_dir, endpoint, one_in, messages_per_second, name). It stays
open: its end is the broker's end, and this process ends too.  Standard output tells the broker {"log": [level, text]}
and {"failed": text}, as those of the other processes.
"""

import json
import os
import select
import sys
from time import monotonic
from typing import Any

from brokerd import __version__
from brokerd.spans.export import Export
from brokerd.spans.follow import Follower, Limit
from brokerd.spans.lives import Lives

SETTINGS_OCTETS_MAX = 64 << 10
SAY_SECONDS = 60.0  # between two lines of what was lost
NICE = 10  # Messages come before spans.
NEEDS = "otlp_endpoint needs the package opentelemetry-exporter-otlp-proto-http (pip install 'brokerd[otlp]')"


def tell(table: dict[str, Any]) -> None:
    """Tell the broker."""
    try:
        os.write(1, json.dumps(table).encode() + b"\n")
    except OSError:
        pass  # It does not read, or has gone; then this process ends, too.


def main() -> int:
    """Run until the broker ends.  Returns the exit status."""
    try:
        settings = json.loads(os.read(0, SETTINGS_OCTETS_MAX))
    except ValueError:
        sys.stderr.write("brokerd spans: the broker starts this by itself (option otlp_endpoint)\n")
        return 2
    os.set_blocking(1, False)
    try:
        os.nice(NICE)
    except OSError:
        pass
    resource = {"service.name": "brokerd", "service.version": __version__, "service.instance.id": settings["name"]}
    try:
        export = Export(settings["endpoint"], resource, __version__)
    except ImportError:
        tell({"failed": NEEDS})
        return 1
    lives, limit = Lives(settings["one_in"]), Limit(settings["messages_per_second"])
    follower = Follower(settings["data_dir"], lives, limit)
    losses = Losses(settings["endpoint"], lives, limit, export)
    tell({"log": ["info", f"messages with a traceparent in queues with an order journal go to {settings['endpoint']}"]})
    has_ended = False
    while not has_ended:
        pause = follower.look()
        spans, lives.spans = lives.spans, []
        export.give(spans)
        losses.say()
        has_ended = bool(select.select([0], [], [], pause)[0]) and not os.read(0, SETTINGS_OCTETS_MAX)
    follower.look()
    export.give(lives.spans)
    export.end()
    return 0


class Losses:
    """What is not told, in the log: once a minute at most."""

    def __init__(self, endpoint: str, lives: Lives, limit: Limit, export: Export) -> None:
        self._endpoint, self._lives, self._limit, self._export = endpoint, lives, limit, export
        self._missed = self._lost = 0
        self._said_at = -SAY_SECONDS

    def say(self) -> None:
        """Say what was lost since the last line."""
        missed, lost = self._limit.missed + self._lives.forgotten, self._export.lost
        if (missed, lost) == (self._missed, self._lost) or monotonic() < self._said_at + SAY_SECONDS:
            return
        self._said_at = monotonic()
        if lost > self._lost:
            why = f": {self._export.why}" if self._export.why else ""
            tell({"log": ["warning", f"{lost - self._lost} spans were lost, {self._endpoint} did not take them{why}"]})
        if missed > self._missed:
            tell({"log": ["warning", f"{missed - self._missed} messages were more than otlp_messages_per_second, "
                                     "or too many to follow"]})
        self._missed, self._lost = missed, lost
