"""Deduplication: what is a duplicate in one queue or exchange, and where a message's key comes from.

A queue or exchange with ``x-message-deduplication: true`` takes a message whose key is in its window for a duplicate:
it is confirmed and not stored.  The key is the value, of any type, of the header that ``x-deduplication-header`` names
(``x-deduplication-header`` itself where it says nothing), or else of ``MessageDeduplicationId``; messages without one
are never duplicates.  The window holds the last ``x-cache-size`` keys (128), each for ``x-cache-ttl`` milliseconds (as
long as it is among the last) or for what the message's own header x-cache-ttl says.  A duplicate does not make the
key younger.  Names and defaults are LavinMQ's and those of RabbitMQ's plugin; a window that lasts is new.

A queue's window is what the records of its messages say: the data plane writes a key's hash into the record and enters
it into the window in one step, so that a key is known if and only if its message was stored, also after kill -9 and a
power cut.  Keys of records that are gone are in key files (store/key_files).

Keys are known by keyed hashes of 64 bits: of a million, one in 18 million million new ones is taken for a duplicate
wrongly, and only a reader of the vhost's hash key can make one.

Knows nothing of messages, of how publishes go, or of the time.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from brokerd import plane
from brokerd.errors import StoreError
from brokerd.queues.dead_letter import read_properties
from brokerd.store.format import KEY_ROW, keys_name, priority_folder
from brokerd.store.key_files import FORMER_FILE, FORMER_NUMBER, KeyFiles, rows_of_queue
from brokerd.store.key_files import write as write_keys
from brokerd.wire.values import Timestamp, encode_table

KEYS_MAX = 1 << 24  # in one window

DEFAULT_HEADER = "x-deduplication-header"
OTHER_HEADER = "MessageDeduplicationId"
DEFAULT_SIZE = 128

_ANY_KEY = "key"


class Rule(NamedTuple):
    """What is a duplicate in one queue or exchange."""

    header: str = DEFAULT_HEADER
    size: int = DEFAULT_SIZE
    ttl_ms: int | None = None  # None: as long as it is among the last


def rule_of(arguments: Mapping[str, Any]) -> Rule | None:
    """The rule in arguments that were checked; None: nothing is a duplicate."""
    if arguments.get("x-message-deduplication") is not True or arguments.get("x-cache-size") == 0:
        return None
    return Rule(
        arguments.get("x-deduplication-header", DEFAULT_HEADER),
        min(arguments.get("x-cache-size", DEFAULT_SIZE), KEYS_MAX),
        arguments.get("x-cache-ttl"),
    )


def key_of(rule: Rule, headers: Mapping[str, Any] | None) -> bytes | None:
    """What of a message must differ from those before, as octets; None: it has nothing of the kind.

    Numbers are the same whatever their width; a number, a text and a truth value never are.
    """
    if not headers:
        return None
    value = headers.get(rule.header)
    if value is None:
        value = headers.get(OTHER_HEADER)
        if value is None:
            return None
    if isinstance(value, str):
        return b"S" + value.encode("utf-8", "surrogateescape")
    if isinstance(value, int) and not isinstance(value, bool | Timestamp):
        return b"I%d" % value
    if isinstance(value, float):
        return b"d" + repr(float(value)).encode()
    return b"F" + encode_table({_ANY_KEY: value})


def ttl_of(rule: Rule, headers: Mapping[str, Any] | None) -> int | None:
    """How long the message's key is remembered, in ms; None: as long as it is among the last."""
    own = own_ttl_of(headers)
    return own if own >= 0 else rule.ttl_ms


class Deduplication:
    """A rule and its window: what one queue or exchange asks of each message.

    A disk that fails makes nothing fail: duplicates pass then, and it is told once.
    """

    __slots__ = ("_failed", "_files", "_former", "duplicates", "rule", "window")

    def __init__(self, rule: Rule, files: KeyFiles) -> None:
        self.rule = rule
        self.duplicates = 0  # that were dropped, since start
        self.window = plane.Window(rule.size, _or_none(rule.ttl_ms))
        self._files = files
        self._former = b""  # the hash key of keys that an earlier release knew
        self._failed = False

    def hash_of(self, headers: Mapping[str, Any] | None) -> int:
        """Of the key of a message with these headers; 0: it has none."""
        key = key_of(self.rule, headers)
        if key is None:
            return 0
        try:
            return self._files.hash_of(key)
        except (OSError, StoreError) as error:
            self.report_once(error)
            return 0

    def is_duplicate(self, headers: Mapping[str, Any] | None) -> bool:
        """Whether a message with these headers was accepted before."""
        hashed, now_ms = self.hash_of(headers), self._files.now_ms
        if not hashed:
            return False
        if self.window.knows(hashed, now_ms):
            return True
        key = key_of(self.rule, headers) if self._former else None
        return key is not None and self.window.knows(self._files.hash_of(key, self._former), now_ms)

    def change(self, rule: Rule) -> None:
        """Another rule is in force; as many of the newest keys stay as there is room for."""
        self.rule = rule
        self.window.set_bounds(rule.size, _or_none(rule.ttl_ms))

    def load(self, directory: str, levels: Iterable[int], *, suspect: bool) -> list[tuple[int, int]]:
        """Enter the keys that a queue's folder knows; (level, segment) of those whose keys are in a file of their own.

        ``suspect``: the power was cut since they were written.
        """
        rows: list[bytes] = []
        beside: list[tuple[str, int]] = []
        kept: list[tuple[int, int]] = []
        try:
            made = f"{directory}/{keys_name(FORMER_NUMBER)}"
            self._files.take_over(f"{directory}/{FORMER_FILE}", made, suspect=suspect)
            for level in levels:
                folder = f"{directory}/{priority_folder(level)}" if level else directory
                for number, path, found, file in rows_of_queue(
                    self._files, folder, self.rule.size, _or_none(self.rule.ttl_ms), self._own_ttl
                ):
                    rows.append(found)
                    if file is not None:
                        rows.append(file.rows)
                        beside.append((path, file.until_ms))
                        kept.append((level, number))
                        if number == FORMER_NUMBER:
                            self._former = file.hash_key
        except (OSError, StoreError) as error:
            self.report_once(error)
        self.window.load(b"".join(rows), self._files.now_ms)
        for path, until_ms in beside:
            self._files.watch(path, self.window, until_ms)
        return kept

    def write(self, path: str, number: int, rows: bytes) -> None:
        """Write a key file of the queue, in a thread.  Raises OSError, StoreError."""
        write_keys(path, number, self._files.hash_key, rows, self._files.disk)

    def watch_file(self, path: str, rows: bytes) -> None:
        """That file is on disk."""
        until_ms = max(expires for _, _, expires in KEY_ROW.iter_unpack(rows))
        self._files.watch(path, self.window, until_ms)

    def forget(self, directory: str) -> None:
        """The queue of that folder has no rule any more."""
        for path in self._files.watched_in(directory):
            self._files.remove(path)

    def report_once(self, error: Exception) -> None:
        """Something about its files went wrong: told once."""
        if not self._failed:
            self._files.report(f"{error}; duplicates may pass")
        self._failed = True

    def _own_ttl(self, properties: bytes) -> int | None:
        return ttl_of(self.rule, read_properties(properties).headers)


def own_ttl_of(headers: Mapping[str, Any] | None) -> int:
    """How long a message says that its key counts, in ms; -1: it does not say."""
    own = headers.get("x-cache-ttl") if headers else None
    return own if isinstance(own, int) and not isinstance(own, bool | Timestamp) and own >= 0 else -1


def _or_none(ttl_ms: int | None) -> int:
    """As the data plane has it."""
    return -1 if ttl_ms is None else ttl_ms
