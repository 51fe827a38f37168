"""Deduplication: the window of keys seen lately, and where a message's key comes from.

A queue or exchange with ``x-message-deduplication: true`` takes a message whose key is in its window for a duplicate:
it is confirmed and not stored.  The key is the value, of any type, of the header that ``x-deduplication-header`` names
(``x-deduplication-header`` itself where it says nothing), or else of ``MessageDeduplicationId``; messages without one
are never duplicates.  The window holds the last ``x-cache-size`` keys (128), each for ``x-cache-ttl`` milliseconds (as
long as it is among the last) or for what the message's own header x-cache-ttl says.  A duplicate does not make the
key younger.  Names and defaults are LavinMQ's and those of RabbitMQ's plugin; the window on disk is new.

Ask ``is_duplicate``, store the message, tell ``accepted``, in this order: a broker that dies in between, or a queue
that refuses, lets a duplicate through and loses nothing.  ``Window.seen`` does both at once, where nothing can go wrong
in between.

Keys are kept as keyed hashes of 64 bits: of a million, one in 18 million million new ones is taken for a duplicate
wrongly, and nobody who does not know the file can make one.  A million keys take 24 MB.

The file ``dedup`` beside a queue's segments (an exchange's: ``dedup.<SHA-1 of its name>`` in the vhost's folder) is
mapped, so that the window survives kill -9.  All numbers are little endian::

    HEADER, 64 octets
         0 magic "BDUP"    4 version u4      8 capacity u8, keys     16 hash key, 16 octets
        32 crc u4 (CRC32C of octets 0..32)   36 zero
        40 written u8, keys since the file was made      48 safe u8
        56 busy u8: 1 while the index is being changed
    ENTRIES of 16 octets, capacity of them, a ring: key number n is in entry n mod capacity
         0 hash u8         8 lap u2: n div capacity mod 65535, plus 1    10 expires u6, ms since the epoch;
                                                                            2**48-1 = never; lap 0: entry empty
    INDEX of u4, the least power of two that is twice the capacity or more of them: number of the entry + 1, 0 = free;
        linear probing from hash mod size, no holes

The second word of an entry is emptied before the hash is written and written after it, ``written`` last, each by one
store.  An index that was being changed when the broker died is made anew from the entries.  After a power cut the
ring may know keys whose messages were lost: only keys below ``safe`` are believed then, which ``mark_safe`` raises when
a sync has ended, and their lap tells them from later ones.  A file that is damaged is begun anew: duplicates pass,
nothing is lost.  One of another capacity is copied, as many of its newest keys as there is room for.

Knows nothing of messages, queues or the time.
"""

import os
from collections.abc import Callable, Mapping
from mmap import mmap
from struct import Struct
from typing import Any, NamedTuple

from brokerd.errors import StoreError
from brokerd.wire.values import Timestamp, encode_table

FILE_NAME = "dedup"
VERSION = 1
MAGIC = 0x50554442  # "BDUP"
HEADER_OCTETS = 64
ENTRY_OCTETS = 16
NEVER = (1 << 48) - 1
KEYS_MAX = 1 << 24  # in one window

DEFAULT_HEADER = "x-deduplication-header"
OTHER_HEADER = "MessageDeduplicationId"
DEFAULT_SIZE = 128

_FIXED = Struct("<IIQ16s")
_CRC = Struct("<I")
_WRITTEN, _SAFE, _BUSY, _FIRST = 5, 6, 7, 8  # in words of 8 octets
_LAPS = 0xFFFF
_EXPIRES_SHIFT = 16
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
    own = headers.get("x-cache-ttl") if headers else None
    if isinstance(own, int) and not isinstance(own, bool | Timestamp) and own >= 0:
        return own
    return rule.ttl_ms


class Deduplication:
    """A rule and its window: what one queue or exchange asks of each message.

    A file that fails makes nothing fail: duplicates pass then, and it is told once.
    """

    __slots__ = ("_failed", "_report", "duplicates", "rule", "window")

    def __init__(
        self, rule: Rule, path: str | None, *, suspect: bool = False, report: Callable[[str], object] | None = None
    ) -> None:
        """As Window's; ``path`` None: in memory only."""
        self.rule = rule
        self.duplicates = 0  # that were dropped, since start
        self.window = Window(rule.size, rule.ttl_ms, path=path, suspect=suspect, report=report)
        self._report = report
        self._failed = False

    def is_duplicate(self, headers: Mapping[str, Any] | None, now_ms: int) -> bool:
        """Whether a message with these headers was accepted before."""
        key = key_of(self.rule, headers)
        try:
            return key is not None and self.window.knows(key, now_ms)
        except (OSError, StoreError) as error:
            self._fail(error)
            return False

    def accepted(self, headers: Mapping[str, Any] | None, now_ms: int) -> None:
        """A message with these headers was stored: the next one with its key is a duplicate."""
        key = key_of(self.rule, headers)
        try:
            if key is not None:
                self.window.record(key, now_ms, ttl_of(self.rule, headers))
        except (OSError, StoreError) as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if self._report is not None and not self._failed:
            self._report(f"{self.window.path}: {error}; duplicates may pass")
        self._failed = True


def distrust(path: str, report: Callable[[str], object]) -> None:
    """After a power cut: forget the keys in the file that are not safe; it may not be there, or may be damaged."""
    try:
        with open(path, "rb") as file:
            capacity = _capacity(file.read(HEADER_OCTETS), path)
        window = Window(capacity or 1, path=path, suspect=True, report=report)
        if capacity is None:
            report(f"{path}: damaged; duplicates of what came before may pass")
            os.unlink(path)
        else:
            window.knows(b"", 0)
            window.close()
    except FileNotFoundError:
        return
    except (OSError, StoreError) as error:
        report(f"{path}: {error}; duplicates may pass")


class Window:
    """The last keys of one queue or exchange.  Times are milliseconds since the epoch."""

    __slots__ = ("_digest", "_hash_key", "_map", "_mask", "_report", "_slots", "_suspect", "_words", "capacity", "hits",
                 "path", "ttl_ms")

    def __init__(
        self,
        capacity: int,
        ttl_ms: int | None = None,
        *,
        path: str | None = None,
        suspect: bool = False,
        report: Callable[[str], object] | None = None,
    ) -> None:
        """``path``: the file, made at the first key; its folder must be there then.  None: in memory only.
        ``suspect``: the power was cut since it was written.  ``report`` hears of a file that is damaged."""
        assert 0 < capacity <= KEYS_MAX
        self.capacity = capacity
        self.ttl_ms = ttl_ms
        self.path = path
        self.hits = 0  # duplicates since start
        self._suspect = suspect
        self._report = report
        self._hash_key = b""
        self._digest: Callable[..., Any] | None = None
        self._map: mmap | None = None
        self._words = _NO_VIEW  # header and entries, 8 octets each
        self._slots = _NO_VIEW  # the index
        self._mask = _slot_count(capacity) - 1

    # --- the verbs

    def seen(self, key: bytes, now_ms: int, ttl_ms: int | None = None) -> bool:
        """Whether the key is in the window; it is afterwards.  Raises OSError, StoreError."""
        if self.knows(key, now_ms):
            return True
        self.record(key, now_ms, ttl_ms)
        return False

    def knows(self, key: bytes, now_ms: int) -> bool:
        """Whether the key is in the window.  Raises OSError, StoreError: the file cannot be read."""
        if self._digest is None:
            if self.path is None or not os.path.exists(self.path):
                return False
            self._open()
        at = self._find(self._hash(key))
        if at < 0 or self._words[at + 1] >> _EXPIRES_SHIFT <= now_ms:
            return False
        self.hits += 1
        return True

    def record(self, key: bytes, now_ms: int, ttl_ms: int | None = None) -> None:
        """A message with the key was stored; ``ttl_ms`` instead of the window's own.

        Raises OSError (no disk space: nothing is recorded), StoreError.
        """
        if self._digest is None:
            self._open()
        ttl_ms = self.ttl_ms if ttl_ms is None else ttl_ms
        expires = NEVER if ttl_ms is None else min(max(now_ms + ttl_ms, 0), NEVER - 1)
        self._append(self._hash(key), expires)

    def forget(self, key: bytes) -> None:
        """The message with the key came to nothing after all: the next one is no duplicate of it."""
        if self._digest is None:
            return
        at = self._find(self._hash(key))
        if at >= 0:
            self._words[_BUSY] = 1
            self._remove(self._words[at], (at - _FIRST) // 2)
            self._words[at + 1] = 0
            self._words[_BUSY] = 0

    @property
    def written(self) -> int:
        """Keys recorded since the file was made: what ``mark_safe`` takes."""
        return 0 if self._digest is None else self._words[_WRITTEN]

    def mark_safe(self, written: int) -> None:
        """All messages whose keys had been recorded when ``written`` was read are on disk."""
        if self._digest is not None:
            self._words[_SAFE] = max(written, self._words[_SAFE])

    def rest(self) -> None:
        """Give back memory and file until the next key; what is in memory only stays."""
        if self.path is not None:
            self.close()

    def close(self) -> None:
        """The broker stops, or the queue is deleted; the file is the caller's to remove."""
        self._digest = None
        self._words.release()
        self._slots.release()
        self._words = self._slots = _NO_VIEW
        if self._map is not None:
            self._map.close()
            self._map = None

    # --- the file

    def _open(self) -> None:
        """Take up the file, or make it.  Raises OSError, StoreError."""
        from hashlib import blake2b  # Only brokers that deduplicate pay for it.

        kept: list[tuple[int, int]] | None = None
        if self.path is None:
            self._view(bytearray(self._header(os.urandom(16)).ljust(_file_octets(self.capacity), b"\0")))
        else:
            kept = self._take_up(self.path)
            if kept is None:
                self._make(self.path, os.urandom(16))
        self._digest = blake2b
        for hashed, expires in kept or ():
            self._append(hashed, expires)

    def _view(self, octets: mmap | bytearray) -> None:
        view = memoryview(octets)
        at = HEADER_OCTETS + ENTRY_OCTETS * self.capacity
        self._words = view[:at].cast("Q")
        self._slots = view[at:].cast("I")

    def _take_up(self, path: str) -> list[tuple[int, int]] | None:
        """Map the file; where its capacity is another, make it anew: then what is to be copied into it.

        None: there is none that can be used.
        """
        try:
            with open(path, "rb") as file:
                header = file.read(HEADER_OCTETS)
                octets = os.fstat(file.fileno()).st_size
        except FileNotFoundError:
            return None
        capacity = _capacity(header, path)
        if capacity is None or octets != _file_octets(capacity):
            if self._report is not None:
                self._report(f"{path}: damaged; duplicates of what came before may pass")
            return None
        self._hash_key = header[16:32]
        wanted, self.capacity = self.capacity, capacity
        self._map_file(path)
        if self._suspect:
            _distrust(self._words, capacity)
        if capacity != wanted:
            entries = _newest(self._words, capacity, wanted)
            self.close()
            self.capacity = wanted
            self._make(path, self._hash_key)
            self._suspect = False
            return entries
        if self._suspect or self._words[_BUSY]:
            self._index()
        self._suspect = False
        return []

    def _make(self, path: str, hash_key: bytes) -> None:
        """A new file under the name, whole or not at all."""
        new = path + ".new"
        with open(new, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, _file_octets(self.capacity))  # A full disk is met here or never.
            file.write(self._header(hash_key))
        os.rename(new, path)
        self._map_file(path)

    def _map_file(self, path: str) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._map = mmap(fd, 0)
        finally:
            os.close(fd)
        self._view(self._map)

    def _header(self, hash_key: bytes) -> bytes:
        from brokerd.store.format import crc32c

        self._hash_key = hash_key
        fixed = _FIXED.pack(MAGIC, VERSION, self.capacity, hash_key)
        return (fixed + _CRC.pack(crc32c(fixed))).ljust(HEADER_OCTETS, b"\0")

    # --- entries and index

    def _hash(self, key: bytes) -> int:
        assert self._digest is not None
        return int.from_bytes(self._digest(key, digest_size=8, key=self._hash_key).digest(), "little")

    def _append(self, hashed: int, expires: int) -> None:
        """The newest entry takes the place of the oldest, and of an older one of the same key."""
        words = self._words
        lap, entry = divmod(words[_WRITTEN], self.capacity)
        at = _FIRST + 2 * entry
        words[_BUSY] = 1
        known = self._find(hashed)
        if known >= 0:
            self._remove(hashed, (known - _FIRST) // 2)
            words[known + 1] = 0
        if words[at + 1]:
            self._remove(words[at], entry)
        words[at + 1] = 0
        words[at] = hashed
        words[at + 1] = expires << _EXPIRES_SHIFT | lap % _LAPS + 1
        words[_WRITTEN] += 1
        self._insert(hashed, entry)
        words[_BUSY] = 0

    def _index(self) -> None:
        """Make the index anew from the entries."""
        words, slots = self._words, self._slots
        words[_BUSY] = 1
        slots[:] = memoryview(bytes(4 * len(slots))).cast("I")
        written = words[_WRITTEN]
        for number in range(written, written + self.capacity):  # Oldest first: of equal ones the newest counts.
            entry = number % self.capacity
            at = _FIRST + 2 * entry
            if words[at + 1]:
                known = self._find(words[at])
                if known >= 0:
                    self._remove(words[known], (known - _FIRST) // 2)
                    words[known + 1] = 0
                self._insert(words[at], entry)
        words[_BUSY] = 0

    def _find(self, hashed: int) -> int:
        """Where in the words the entry with this hash is; -1: nowhere."""
        slots, mask, words = self._slots, self._mask, self._words
        at = hashed & mask
        while entry := slots[at]:
            word = _FIRST - 2 + 2 * entry
            if words[word] == hashed:
                return word
            at = at + 1 & mask
        return -1

    def _insert(self, hashed: int, entry: int) -> None:
        slots, mask = self._slots, self._mask
        at = hashed & mask
        while slots[at]:
            at = at + 1 & mask
        slots[at] = entry + 1

    def _remove(self, hashed: int, entry: int) -> None:
        """Take an entry, which is there, out of the index; those that it kept from their place move up."""
        slots, mask, words = self._slots, self._mask, self._words
        hole = hashed & mask
        while slots[hole] != entry + 1:
            hole = hole + 1 & mask
        at = hole
        while other := slots[at := at + 1 & mask]:
            home = words[_FIRST - 2 + 2 * other] & mask
            if (at - home & mask) >= (at - hole & mask):
                slots[hole] = other
                hole = at
        slots[hole] = 0


_NO_VIEW = memoryview(b"").cast("Q")


def _slot_count(capacity: int) -> int:
    return 1 << (2 * capacity - 1).bit_length()


def _file_octets(capacity: int) -> int:
    return HEADER_OCTETS + ENTRY_OCTETS * capacity + 4 * _slot_count(capacity)


def _capacity(header: bytes, path: str) -> int | None:
    """Of a file with this header; None: damaged.  Raises StoreError for one of a later version."""
    from brokerd.store.format import crc32c

    if len(header) < HEADER_OCTETS:
        return None
    magic, version, capacity, _ = _FIXED.unpack_from(header)
    if magic != MAGIC or crc32c(header[: _FIXED.size]) != _CRC.unpack_from(header, _FIXED.size)[0]:
        return None
    if version > VERSION:
        raise StoreError(f"{path}: version {version} is of a later release; this one reads up to {VERSION}")
    return int(capacity) if 0 < capacity <= KEYS_MAX else None


def _number(lap: int, entry: int, written: int, capacity: int) -> int:
    """The number of the key in an entry, from the lap in it and a count that is not 32,767 laps off."""
    about = written // capacity
    behind = (about - (lap - 1)) % _LAPS
    return (about - behind + (_LAPS if behind > _LAPS // 2 else 0)) * capacity + entry


def _distrust(words: memoryview, capacity: int) -> None:
    """After a power cut: empty what is not known to be safe, and count on from the last that was there."""
    written, safe = words[_WRITTEN], words[_SAFE]
    last = max(written, safe)
    for entry in range(capacity):
        at = _FIRST + 2 * entry + 1
        lap = words[at] & 0xFFFF
        if lap:
            number = _number(lap, entry, written, capacity)
            last = max(last, number + 1)
            if number >= safe:
                words[at] = 0
    words[_WRITTEN] = last


def _newest(words: memoryview, capacity: int, count: int) -> list[tuple[int, int]]:
    """(hash, expires) of the newest ``count`` entries of a ring, the oldest of them first."""
    written = words[_WRITTEN]
    places = [_FIRST + 2 * (number % capacity) for number in range(written, written + capacity)]
    return [(words[at], words[at + 1] >> _EXPIRES_SHIFT) for at in places if words[at + 1]][-count:]
