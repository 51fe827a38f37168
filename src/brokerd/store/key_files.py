"""Key files (deduplication): keys of messages that have no record any more, or may soon have none.

    KeyFiles        of one vhost: its hash key, and which key files can be removed
    read, write     one file; layout: store/format
    rows_of_queue   all keys in the folder of a queue: those in its records, and those in the key files beside them

The records of a queue say which keys are in its window.  But a settled message soon loses its record, while its key
counts as long as the window lasts.  So the keys of a segment are written into a file of their own, and synced, before
its records are given up.  Knows nothing of rules, headers or the time.
"""

import contextlib
import mmap
import os
from collections.abc import Callable, Iterator
from struct import Struct, unpack_from
from typing import Any, NamedTuple

from brokerd import plane
from brokerd.errors import StoreError
from brokerd.store import format as layout
from brokerd.store.disk import Disk

SECRET_FILE = "keys.secret"
FORMER_FILE = "dedup"       # of a broker before key files: beside a queue's segments; an exchange's: dedup.<SHA-1>
FORMER_NUMBER = 0           # of the key file that is made of it

Report = Callable[[str], object]


class KeyFile(NamedTuple):
    """The content of one file: rows as store/format describes them."""

    number: int
    hash_key: bytes
    rows: bytes
    synced: int
    whole: int
    open: int

    @property
    def until_ms(self) -> int:
        """No row counts after this time; 0: the file has no row."""
        return max((expires for _, _, expires in layout.KEY_ROW.iter_unpack(self.rows)), default=0)


def read(path: str, disk: Disk, *, log: bool = False) -> KeyFile | None:
    """Read a key file; None: it is damaged.  ``log``: it is an exchange's, in which no CRC covers the rows.

    Raises OSError; StoreError for a later version.
    """
    octets = disk.read(path)
    head = octets[: layout.HEADER_OCTETS]
    if len(head) < layout.HEADER_OCTETS:
        return None
    magic, version, number, hash_key = layout.KEYS_FIXED.unpack_from(head)
    crc, rows_crc = unpack_from("<II", head, layout.KEYS_FIXED.size)
    if magic != layout.KEYS_MAGIC or crc != layout.crc32c(head[: layout.KEYS_FIXED.size]):
        return None
    if version > layout.KEYS_VERSION:
        raise StoreError(f"{path} has version {version} at offset 4: written by a later brokerd; this one knows up to "
                         f"{layout.KEYS_VERSION}")
    count = (len(octets) - layout.HEADER_OCTETS) // layout.KEY_ROW_OCTETS
    rows = octets[layout.HEADER_OCTETS : layout.HEADER_OCTETS + count * layout.KEY_ROW_OCTETS]
    if not log and layout.crc32c(rows) != rows_crc:
        return None
    return KeyFile(number, hash_key, rows, *layout.KEYS_MARKS.unpack_from(head, layout.KEYS_MARKS_AT))


def write(path: str, number: int, hash_key: bytes, rows: bytes, disk: Disk) -> None:
    """Make the file; it is on disk under its name when this returns.  After an OSError the file does not exist."""
    disk.replace(path, layout.keys_header(number, hash_key, rows) + rows)


class Watched(NamedTuple):
    """A key file, and when it can be removed."""

    window: plane.Window
    entered: int  # window.entered when the file was complete
    until_ms: int


class KeyFiles:
    """The hash key of one vhost, and its key files."""

    __slots__ = ("_directory", "_epoch_ns", "_hasher", "_secret", "_secret_is_kept", "_secret_version",
                 "_watched", "disk", "report")

    def __init__(self, directory: str, disk: Disk, report: Report, epoch_ns: Callable[[], int]) -> None:
        """``report(line)`` is called for each file that cannot be used."""
        self._directory = directory
        self._epoch_ns = epoch_ns
        self._watched: dict[str, Watched] = {}
        self._secret = b""
        self._secret_is_kept = False
        self._secret_version = layout.SECRET_VERSION
        self._hasher: plane.HashKey | None = None
        self.disk = disk
        self.report = report

    @property
    def now_ms(self) -> int:
        """The time since the epoch."""
        return self._epoch_ns() // 1_000_000

    # --- hashes

    @property
    def hash_key(self) -> bytes:
        """The first call reads it from disk, or makes it.  Nothing that outlasts the broker may be hashed with it
        before keep_hash_key().  Raises OSError, StoreError."""
        if not self._secret:
            self._secret = self._read_secret()
            self._secret_is_kept = bool(self._secret)
            self._secret = self._secret or os.urandom(16)
        return self._secret

    def keep_hash_key(self) -> None:
        """Have the hash key on disk: without it, a start knows none of the keys.  Raises OSError, StoreError."""
        secret = self.hash_key
        if not self._secret_is_kept:
            self._write_secret(secret)
            self._secret_is_kept = True

    @property
    def plane_key(self) -> plane.HashKey:
        """The hash key as the data plane uses it; it is on disk.  Raises OSError, StoreError."""
        self.keep_hash_key()
        return self._make_hasher()

    def _make_hasher(self) -> plane.HashKey:
        secret = self.hash_key
        if self._hasher is None:
            self._hasher = plane.HashKey(secret, is_blake2b=self._secret_version == layout.SECRET_BLAKE2B)
        return self._hasher

    def hash_of(self, key: bytes, hash_key: bytes | None = None) -> int:
        """The hash of a key, never 0.  ``hash_key``: that of an earlier release, in place of the vhost's own.

        Raises OSError, StoreError."""
        if hash_key is not None:
            return _hash(key, hash_key)
        return self._make_hasher().hash(key)

    def _read_secret(self) -> bytes:
        path = f"{self._directory}/{SECRET_FILE}"
        try:
            octets = self.disk.read(path)
        except FileNotFoundError:
            return b""
        if len(octets) == layout.SECRET.size:
            magic, version, secret, crc = layout.SECRET.unpack(octets)
            if magic == layout.SECRET_MAGIC and crc == layout.crc32c(octets[:-4]):
                if version > layout.SECRET_VERSION:
                    raise StoreError(f"{path} has version {version} at offset 4: written by a later brokerd; this one "
                                     f"knows up to {layout.SECRET_VERSION}")
                self._secret_version = version
                return bytes(secret)
        self.report(f"{path}: damaged; duplicates of what came before may pass")
        return b""

    def _write_secret(self, secret: bytes) -> None:
        octets = layout.SECRET.pack(layout.SECRET_MAGIC, layout.SECRET_VERSION, secret, 0)[:-4]
        os.makedirs(self._directory, exist_ok=True)
        self.disk.replace(f"{self._directory}/{SECRET_FILE}", octets + layout.crc32c(octets).to_bytes(4, "little"))

    # --- files

    def watch(self, path: str, window: plane.Window, until_ms: int) -> None:
        """Have the file removed as soon as its keys have expired, or have fallen out of the window."""
        self._watched[path] = Watched(window, window.entered, until_ms)

    def watched_in(self, directory: str) -> list[str]:
        """The watched files in a folder, or below it."""
        return [path for path in self._watched if path.startswith(directory + "/")]

    def sweep(self) -> None:
        """Remove the files in which no key counts any more."""
        now_ms = self.now_ms
        for path, file in list(self._watched.items()):
            if file.until_ms <= now_ms or file.window.entered - file.entered >= file.window.size:
                self.remove(path)
            elif not self.disk.exists(path):
                del self._watched[path]  # Gone with its queue.

    def remove(self, path: str) -> None:
        """Remove the file, if it is there."""
        self._watched.pop(path, None)
        with contextlib.suppress(FileNotFoundError):
            self.disk.unlink(path)

    def read(self, path: str, *, log: bool = False) -> KeyFile | None:
        """Read the file.  None: it is damaged, and is put aside.  Raises OSError, StoreError."""
        found = read(path, self.disk, log=log)
        if found is None:
            self.disk.rename(path, path + ".damaged")
            self.report(f"{path}: damaged; put aside as {path}.damaged; duplicates of what came before may pass")
        return found

    def take_over(self, former: str, path: str, *, suspect: bool) -> None:
        """Turn the keys of an earlier release, if it left any, into a key file."""
        if self.disk.exists(former):
            found = read_former(self.disk.read(former), suspect=suspect)
            if found is None:
                self.report(f"{former}: damaged; duplicates of what came before may pass")
            elif found.rows:
                write(path, FORMER_NUMBER, found.hash_key, found.rows, self.disk)
            self.disk.unlink(former)


def _hash(key: bytes, secret: bytes) -> int:
    return int.from_bytes(_blake2b()(key, digest_size=8, key=secret).digest(), "little") or 1


def _blake2b() -> Callable[..., Any]:
    from hashlib import blake2b  # Only brokers that deduplicate pay for it.

    return blake2b


# --- a queue's folder


def rows_of_queue(
    files: KeyFiles, directory: str, size: int, ttl_ms: int, own_ttl: Callable[[bytes], int | None]
) -> Iterator[tuple[int, str, bytes, KeyFile | None]]:
    """Yield (number, path of the key file, rows of the records, the key file) for each segment of a folder.

    The newest segment comes first.  When ``size`` keys are found, the key files of older segments are removed.
    ``ttl_ms``: for messages that set no time themselves; -1: none.  ``own_ttl(properties)``: the time that a message
    sets.  Raises OSError, StoreError.
    """
    disk, count = files.disk, 0
    try:
        names = disk.names(directory)
    except FileNotFoundError:
        return
    segments = {number for name in names if name.startswith("msgs.")
                and (number := layout.segment_number(name)) is not None}
    for name in names:
        if name.startswith("keys.") and name.endswith(".tmp"):  # The broker before died while it wrote it.
            with contextlib.suppress(IsADirectoryError):  # The records stay then: see upkeep/keys.
                disk.unlink(f"{directory}/{name}")
    beside = {number for name in names if (number := layout.keys_number(name)) is not None}
    for number in sorted(segments | beside, reverse=True):
        path = f"{directory}/{layout.keys_name(number)}"
        if count >= size:
            if number in beside:
                files.remove(path)
            continue
        rows = b""
        if number in segments:
            rows = _rows_of_segment(f"{directory}/{layout.segment_name(number)}", number, disk, ttl_ms, own_ttl)
        file = files.read(path) if number in beside else None
        count += max(len(rows), len(file.rows) if file is not None else 0) // layout.KEY_ROW_OCTETS
        yield number, path, rows, file


def _rows_of_segment(
    path: str, number: int, disk: Disk, ttl_ms: int, own_ttl: Callable[[bytes], int | None]
) -> bytes:
    with open_segment(path, disk) as octets:
        rows, own, _ = plane.keys_in_segment(octets, number, ttl_ms)
    if not own:
        return rows
    changed = bytearray(rows)
    for index, came_ms, properties in own:
        ttl = own_ttl(properties)
        if ttl is not None:
            at = index * layout.KEY_ROW_OCTETS + 16
            changed[at : at + 8] = min(came_ms + ttl, layout.FOR_EVER).to_bytes(8, "little")
    return bytes(changed)


@contextlib.contextmanager
def open_segment(path: str, disk: Disk) -> Iterator[memoryview]:
    """The octets of a segment up to its end, or all of them if its header is not usable."""
    fd = disk.open(path)
    try:
        size = disk.size(fd)
        if size < layout.HEADER_OCTETS:
            yield memoryview(b"")
            return
        with mmap.mmap(fd, size, access=mmap.ACCESS_READ) as octets:
            end, complement = unpack_from("<II", octets, layout.SEGMENT_WORDS_AT)
            end = end if layout.word_ok(end, complement) and layout.HEADER_OCTETS <= end <= size else size
            with memoryview(octets)[:end] as view:
                yield view
    finally:
        disk.close(fd)


# --- what earlier releases wrote


def read_former(octets: bytes, *, suspect: bool) -> KeyFile | None:
    """The keys in a window file of an earlier release, the oldest first; None: the file is damaged.

    ``suspect``: after a power cut only the keys below ``safe`` count.
    """
    if len(octets) < layout.FORMER_KEYS.size:
        return None
    magic, _, capacity, hash_key, crc, written, safe, _ = layout.FORMER_KEYS.unpack_from(octets)
    if magic != layout.FORMER_KEYS_MAGIC or crc != layout.crc32c(octets[:32]) or not 0 < capacity <= 1 << 24 \
            or len(octets) < layout.HEADER_OCTETS + 16 * capacity:
        return None
    found = []
    for entry, (hashed, word) in enumerate(Struct("<QQ").iter_unpack(octets[64 : 64 + 16 * capacity])):
        lap = word & 0xFFFF
        if not lap or not hashed:
            continue
        behind = (written // capacity - (lap - 1)) % 65535
        number = (written // capacity - behind + (65535 if behind > 32767 else 0)) * capacity + entry
        if number < safe or not suspect:
            expires = word >> 16
            found.append((number, hashed, layout.FOR_EVER if expires == layout.FORMER_KEYS_NEVER else expires))
    found.sort()
    rows = b"".join(layout.KEY_ROW.pack(order, *row[1:]) for order, row in enumerate(found, 1))
    return KeyFile(FORMER_NUMBER, hash_key, rows, len(found), len(found), 0)
