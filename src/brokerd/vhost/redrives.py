"""Dead letters that go back where they died: all of a redrive or nothing, over ``kill -9`` and loss of power.

    redrive.N is written, and on disk      which letters of a source go into a target; N is a connection number
      | letter k is put into the target, as publish k of connection N, and held
      | that is on disk
    the letters are taken out of their source
      | that is on disk
    the file ``redriven`` in the folder of a target with message groups names those that stand before later ones
    each message goes to its place, and may go out
    redrive.N is removed

Nothing is handed out before its letter is gone.  So the records of connection N say which letters the target has, and a
start does the rest.

A target with message groups gets a letter back at its place: before the messages of its group that came after it.  Any
other gets it at its end.  Knows nothing of jobs, threads or requests.
"""

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from brokerd.errors import StoreError
from brokerd.queues.dead_letter import read_properties, write_properties
from brokerd.queues.redriven import write_redriven
from brokerd.store import json_file
from brokerd.store.commit_log import published_in
from brokerd.store.format import REDRIVE_PREFIX

if TYPE_CHECKING:
    from brokerd import plane
    from brokerd.queues.queue import Queue
    from brokerd.store.disk import Disk
    from brokerd.vhost.commits import Start
    from brokerd.vhost.vhost import VHost

FIRST_QUEUE, FIRST_EXCHANGE = "x-first-death-queue", "x-first-death-exchange"
HISTORY = (
    "x-death", "x-first-death-reason", FIRST_QUEUE, FIRST_EXCHANGE, "x-last-death-reason", "x-last-death-queue",
    "x-last-death-exchange",
)  # fmt: skip
GROUP, PLACE = "x-group-id", "x-group-seq"
VERSION = 1
_TEXT = ("utf-8", "surrogateescape")


class Letter(NamedTuple):
    """A dead letter as it was before it died.  ``placed``: its properties say where it stood in its message group."""

    seq: int
    exchange: bytes
    routing_key: bytes
    properties: bytes
    body: bytes
    placed: bool


def as_it_was(row: "plane.Row", target: "Queue") -> Letter:
    """The message that a dead letter was, for the queue that gets it back."""
    properties = read_properties(row[5])
    headers = dict(properties.headers or {})
    exchange, key = _first_way(headers, row)
    stood = headers.get(PLACE)
    placed = target.groups is not None and headers.get(FIRST_QUEUE) == target.name and isinstance(stood, int)
    dropped = HISTORY if placed else (*HISTORY, GROUP, PLACE) if FIRST_QUEUE in headers else HISTORY
    properties.headers = {name: value for name, value in headers.items() if name not in dropped} or None
    return Letter(row[0], exchange, key, write_properties(properties), row[6], placed)


def _first_way(headers: dict[str, Any], row: "plane.Row") -> tuple[bytes, bytes]:
    """The exchange and the routing key with which the message came into the queue where it died first; where its
    headers do not say, those that it has now."""
    exchange = headers.get(FIRST_EXCHANGE)
    deaths = headers.get("x-death")
    first = deaths[-1] if isinstance(deaths, list) and deaths else None
    keys = first.get("routing-keys") if isinstance(first, dict) else None
    key = keys[0] if isinstance(keys, list) and keys else None
    ways = []
    for value, now in ((exchange, row[3]), (key, row[4])):
        octets = value.encode(*_TEXT) if isinstance(value, str) else now
        ways.append(octets if len(octets) <= 255 else now)
    return ways[0], ways[1]


class Redrive:
    """Letters that go from ``source`` into ``target``; they are set aside in ``source``."""

    __slots__ = ("_lasts", "_number", "_path", "_seqs", "letters", "source", "target", "vhost")

    def __init__(self, vhost: "VHost", source: "Queue", target: "Queue", letters: list[Letter], number: int) -> None:
        """``number``: a connection number that was never used."""
        self.vhost, self.source, self.target, self.letters = vhost, source, target, letters
        self._number = number
        self._path = os.path.join(vhost.directory, f"{REDRIVE_PREFIX}{number}")
        self._lasts = target.durable and source.durable
        self._seqs: dict[int, int] = {}  # by place among the letters: the number in the target

    def decide(self, disk: "Disk") -> None:
        """Write what a start needs; it is on disk when this returns.  Raises OSError: nothing is decided."""
        if self._lasts:
            json_file.replace(self._path, {
                "version": VERSION, "number": self._number, "source": self.source.name, "target": self.target.name,
                "letters": [letter.seq for letter in self.letters],
                "placed": [letter.seq for letter in self.letters if letter.placed]}, disk)  # fmt: skip

    def put(self, place: int) -> bool:
        """Put a letter into the target, and hold it there.  False: the target refuses it.  Raises OSError: no space."""
        seq = put(self.target, self.letters[place], self._number, place)
        if seq:
            self.target.set_aside(seq)
            self._seqs[place] = seq
        return seq != 0

    def take_out(self, place: int) -> bool:
        """Take a letter out of its source, if the target has it; else the source has it back."""
        if self.source.deleted:
            return False
        self.source.release(self.letters[place].seq)
        if place not in self._seqs or self.target.deleted:
            return False
        return self.source.remove(self.letters[place].seq) is not None

    def places(self) -> list[int]:
        """Which messages of the target stand before later ones of their groups, for ``note_places``."""
        seqs = [seq for place, seq in self._seqs.items() if self.letters[place].placed]
        return self.target.add_redriven(seqs) if seqs and self._lasts and not self.target.deleted else []

    def note_places(self, seqs: list[int], disk: "Disk") -> None:
        """Write them; they are on disk when this returns.  Raises OSError."""
        if seqs and not self.target.deleted:
            write_redriven(self.target.directory, seqs, disk)

    def let_go(self, place: int) -> None:
        """The message goes to its place, and may go out."""
        seq = self._seqs.get(place)
        if seq is None or self.target.deleted:
            return
        if self.target.groups is not None and self.letters[place].placed:
            self.target.groups.put_back(seq)
        else:
            self.target.release(seq)  # It is ready, behind all that came before it.

    def end(self, disk: "Disk") -> None:
        """All is done.  Raises OSError."""
        if self._lasts:
            disk.unlink(self._path)
            disk.sync_directory(self.vhost.directory)


def put(target: "Queue", letter: Letter, number: int, place: int) -> int:
    """Store a letter as publish ``place`` + 1 of that connection; its number in the target, or 0: it was refused."""
    stored = target.core.put((target,), letter.exchange, letter.routing_key, letter.properties, letter.body,
                             connection=number, publish_seq=place + 1, sync=True, redriven=letter.placed)  # fmt: skip
    return target.next_seq - 1 if stored else 0


# --- at a start


def finish_redrives(vhost: "VHost", start: "Start") -> None:
    """Finish what was decided, in a vhost after the recovery of its queues.  Raises StoreError, OSError."""
    for name in sorted(start.disk.names(vhost.directory)):
        if not name.startswith(REDRIVE_PREFIX):
            continue
        path = os.path.join(vhost.directory, name)
        if name.removeprefix(REDRIVE_PREFIX).isdigit():
            _finish(vhost, path, start)
        elif name.removeprefix(REDRIVE_PREFIX).removesuffix(".tmp").isdigit():
            start.disk.unlink(path)  # It was not decided.


def _finish(vhost: "VHost", path: str, start: "Start") -> None:
    said = _read(path, start.disk)
    source, target = (vhost.queues.get(said[name]) for name in ("source", "target"))
    found: dict[int, int] = {}
    if target is not None:
        found = _complete(target, source, said, start)
        start.sync()
        if source is not None:
            for seq in said["letters"]:
                source.remove(seq)
        start.sync()
        if target.groups is not None:
            placed = [found[letter] for letter in said.get("placed", said["letters"]) if letter in found]
            write_redriven(target.directory, target.add_redriven(placed), start.disk)
            target.put_redriven_back(placed)
    start.disk.unlink(path)
    start.disk.sync_directory(vhost.directory)
    start.report(f"{path}: a redrive was brought to its end: {len(found)} messages in queue '{said['target']}'")


def _read(path: str, disk: "Disk") -> dict[str, Any]:
    """The contents of the file.  Raises StoreError, OSError."""
    said = json_file.read(path, disk)
    if isinstance(said, dict) and isinstance(said.get("version"), int) and said["version"] > VERSION:
        raise StoreError(f"{path} has version {said['version']}: written by a later brokerd; this one knows up to "
                         f"{VERSION}")  # fmt: skip
    if not (isinstance(said, dict) and isinstance(said.get("number"), int) and isinstance(said.get("letters"), list)
            and all(isinstance(seq, int) for seq in said["letters"])
            and isinstance(said.get("placed", []), list) and all(isinstance(seq, int) for seq in said.get("placed", []))
            and all(isinstance(said.get(name), str) for name in ("source", "target"))):  # fmt: skip
        raise StoreError(f"{path}: no broker wrote this")
    return said


def _complete(target: "Queue", source: "Queue | None", said: dict[str, Any], start: "Start") -> dict[int, int]:
    """Put those letters into the target that it lacks; the number there of each that it has."""
    number, placed = said["number"], set(said.get("placed", said["letters"]))
    there = published_in(target.directory, start.disk, {number})
    seqs = {}
    for place, letter in enumerate(said["letters"]):
        seq = there.get((number, 0, place + 1), 0)
        if not seq and source is not None:
            row = next((row for row in source.browse(letter, 1) if row[0] == letter), None)
            if row is not None:
                was = as_it_was(row, target)
                was = was._replace(placed=was.placed and letter in placed)
                seq = put(target, was, number, place)
                if seq and was.placed:
                    target.set_aside(seq)  # As in Redrive.put: the journal tells when it is put back.
        if seq:
            seqs[letter] = seq
    return seqs
