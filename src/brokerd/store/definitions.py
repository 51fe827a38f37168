"""The definitions log: the declarations, bindings and deletions of one vhost, as AMQP methods, in order.

The layout stands in store/format.  Space is filled with zeros 64 KiB ahead, so that syncing a
definition writes its page and no metadata.

If ``load`` finds an unusable frame with only zeros or nothing behind it (a torn
write), it cuts the frame off.  After a power cut there may be a block of zeros with whole
frames behind it: these were never synced, so never confirmed.  ``load`` cuts them off, and
keeps them in ``definitions.amqp.cut-OFFSET``.  Anything else is damage that the broker must
not guess about: StoreError.  Knows no method: payloads in, payloads out.
"""

import contextlib
import os
import zlib
from collections.abc import Callable, Iterable

from brokerd.errors import StoreError
from brokerd.store.disk import Disk
from brokerd.store.format import (
    DEFINITIONS_CRC_END,
    DEFINITIONS_HEADER,
    DEFINITIONS_MAGIC,
    DEFINITIONS_VERSION,
    FRAME_CHECK,
    FRAME_END,
    FRAME_HEAD,
    FRAME_OVERHEAD,
)

FILL_OCTETS = 64 << 10
SECTOR_OCTETS = 512             # The least that a disk writes whole.


class DefinitionsLog:
    """One vhost's log.  Call ``load()`` first, which makes a missing file; then ``append()``.

    ``frames`` counts the entries in the file, ``octets`` those used; ``dirty`` is set by
    ``append`` and cleared by the group commit.
    """

    __slots__ = ("_disk", "_fd", "_filled", "_rewrite", "_salt", "dirty", "frames", "octets", "path")

    def __init__(self, path: str, disk: Disk) -> None:
        self.path = path
        self._disk = disk
        self._fd = -1
        self._salt = 0
        self._filled = 0        # Zeros are written up to here.
        self._rewrite: Rewrite | None = None    # the file that is to take the place of this one
        self.octets = DEFINITIONS_HEADER.size
        self.frames = 0
        self.dirty = False

    def load(self, *, suspect: bool = False, report: Callable[[str], None] | None = None) -> list[bytes]:
        """All payloads, in order.  What was cut off is told to ``report``, one line each.

        ``suspect``: power was lost since the file was last known to be whole.  Raises
        StoreError for damage (naming file, offset and what to do), OSError.
        """
        try:
            content = self._disk.read(self.path)
        except FileNotFoundError:
            self.compact(())
            return []
        self._salt = self._check_header(content)
        payloads, end = self._read_frames(content)
        if content.count(0, end) != len(content) - end:
            self._check_cut(content, end, suspect, report or _ignore)
        fd = self._disk.open(self.path, os.O_RDWR)
        self.close()
        self._fd, self.octets, self.frames, self._filled = fd, end, len(payloads), len(content)
        if content.count(0, end) != len(content) - end:
            self._disk.pwrite(fd, bytes(len(content) - end), end)
            self._disk.fsync(fd, self.path)
        return payloads

    def append(self, payload: bytes) -> None:
        """Write one method (payload from class-id on); on disk only after a sync.

        Raises OSError: then it was not written, and the log is as before.
        """
        octets = _frame(payload, self._salt)
        start, end = self.octets, self.octets + len(octets)
        try:
            if end >= self._filled:         # At least one zero stays behind the last frame.
                self._fill(end + FILL_OCTETS & -FILL_OCTETS)
            self._disk.pwrite(self._fd, octets, start)
            if self._rewrite is not None:
                self._rewrite.follow(payload)
        except OSError:
            self._wipe(start, end)
            raise
        self.octets = end
        self.frames += 1
        self.dirty = True

    def compact(self, payloads: Iterable[bytes]) -> None:
        """Put ``payloads`` in place of all that the log holds; on disk when this returns.

        Either the old or the new is found after a crash, whole.  Raises OSError: then the old one is in use, unless the
        new one has its name already.
        """
        rewrite = self.rewrite()
        try:
            for payload in payloads:
                rewrite.add(payload)
            rewrite.begin_sync()()
        finally:
            failed = rewrite.end()
        if failed is not None:
            raise failed

    def rewrite(self) -> "Rewrite":
        """Begin a file that is to take the place of this one.  Raises OSError."""
        self._rewrite = Rewrite(self, self._disk)
        return self._rewrite

    def take(self, rewrite: "Rewrite") -> bool:
        """Go on in the new file.  False: the log was closed, or another file is to take its place."""
        if self._rewrite is not rewrite:
            return False
        dirty = self.dirty
        self.close()
        self._fd, self._salt, self._filled = rewrite.fd, rewrite.salt, rewrite.filled
        self.octets, self.frames, self.dirty = rewrite.octets, rewrite.frames, dirty
        return True

    def forget(self, rewrite: "Rewrite") -> None:
        """Stay in the old file."""
        if self._rewrite is rewrite:
            self._rewrite = None

    def fileno(self) -> int:
        """The descriptor that the group commit syncs; it duplicates it, since ``compact`` changes it."""
        return self._fd

    def close(self) -> None:
        """Close the file.  A group commit that was to sync it passes over it."""
        self.dirty = False
        self._rewrite = None
        if self._fd >= 0:
            self._disk.close(self._fd)
            self._fd = -1

    def _fill(self, to: int) -> None:
        """Write zeros up to ``to``: blocks and length are then there before data is."""
        self._disk.pwrite(self._fd, bytes(to - self._filled), self._filled)
        self._filled = to

    def _wipe(self, start: int, end: int) -> None:
        """Take back a write that failed part-way; if not even this works, the next one goes over it."""
        try:
            if self._disk.size(self._fd) > start:
                self._disk.pwrite(self._fd, bytes(min(end, self._disk.size(self._fd)) - start), start)
        except OSError:
            pass

    # --- reading

    def _check_header(self, content: bytes) -> int:
        """The salt.  Raises StoreError."""
        if len(content) >= DEFINITIONS_HEADER.size:
            magic, version, salt, check = DEFINITIONS_HEADER.unpack_from(content)
            if magic == DEFINITIONS_MAGIC and check == zlib.crc32(content[:DEFINITIONS_CRC_END]):
                if version > DEFINITIONS_VERSION:
                    raise StoreError(f"{self.path} has version {version} at offset 4: written by a later brokerd; this "
                                     f"one knows up to {DEFINITIONS_VERSION}")
                return salt
        raise self._damage(0, "its header is not that of a definitions log")

    def _read_frames(self, content: bytes) -> tuple[list[bytes], int]:
        """The whole frames from the start, and where they end."""
        payloads: list[bytes] = []
        at, salt, octets = DEFINITIONS_HEADER.size, self._salt, len(content)
        crc32, read_head, read_check = zlib.crc32, FRAME_HEAD.unpack_from, FRAME_CHECK.unpack_from
        last = octets - FRAME_OVERHEAD
        while at <= last:
            kind, channel, size = read_head(content, at)
            if kind != 1 or channel or size > last - at:
                break
            check_at = at + 8 + size
            frame = content[at:check_at]
            if frame[-1] != FRAME_END or (crc32(frame, salt),) != read_check(content, check_at):
                break
            payloads.append(frame[7:-1])
            at = check_at + 4
        return payloads, at

    def _frame_follows(self, content: bytes, start: int) -> int:
        """Where the first whole frame behind ``start`` is; -1: no whole frame follows."""
        at = start
        while (at := content.find(b"\x01\x00\x00", at + 1)) >= 0:
            if at + FRAME_OVERHEAD > len(content):
                return -1
            check_at = at + 8 + FRAME_HEAD.unpack_from(content, at)[2]
            if check_at + 4 <= len(content) and content[check_at - 1] == FRAME_END:
                check = int.from_bytes(content[check_at:check_at + 4], "little")
                if zlib.crc32(content[at:check_at], self._salt) == check:
                    return at
        return -1

    def _check_cut(self, content: bytes, at: int, suspect: bool, report: Callable[[str], None]) -> None:
        """Whether what stands at ``at`` may be cut off, with all behind it.  Raises StoreError where not."""
        used = len(content.rstrip(b"\0"))
        follows = self._frame_follows(content, at)
        if suspect and _lost_block(content, at, follows if follows >= 0 else used):
            if follows >= 0:
                cut_file = f"{self.path}.cut-{at}"
                self._disk.replace(cut_file, content[at:used])
                report(f"{self.path}: cut off at {at}: {used - at} octets that a power cut left without what should "
                       f"stand before them; none was ever confirmed; kept in {cut_file}")
                return
        elif follows >= 0:
            raise self._damage(at, f"whole definitions follow at {follows}")
        elif self._was_whole(content, at, used):
            raise self._damage(at, "the last definition was written whole but has changed since")
        report(f"{self.path}: cut off at {at}: {used - at} octets of a definition that was not written to its end")

    def _was_whole(self, content: bytes, at: int, used: int) -> bool:
        """Whether a frame once stood whole at ``at``: no torn write, then, but damage."""
        size = FRAME_HEAD.unpack_from(content.ljust(at + 7, b"\0"), at)[2]
        check_at = at + 8 + size
        if check_at + 4 <= len(content) and content[check_at - 1] == FRAME_END and used <= check_at + 4:
            torn_inside_check = any(edge % SECTOR_OCTETS == 0 and not any(content[edge:check_at + 4])
                                    for edge in range(check_at, check_at + 4))
            return not torn_inside_check
        # Type, channel, size or end mark may be what has changed: does any other size make it right?
        for check_at in range(max(used - 4, at + 8), min(used + 4, len(content) - 4) + 1):
            frame = FRAME_HEAD.pack(1, 0, check_at - at - 8) + content[at + 7:check_at - 1] + b"\xce"
            if zlib.crc32(frame, self._salt) == int.from_bytes(content[check_at:check_at + 4], "little"):
                return True
        return False

    def _damage(self, offset: int, what: str) -> StoreError:
        if offset:
            remedy = f"to go on without what stands from there on, copy it and cut it: truncate -s {offset} {self.path}"
        else:
            remedy = "to begin without definitions, move it away"
        return StoreError(f"{self.path} is damaged at offset {offset}: {what}. Restore it from a backup; or, {remedy}")


class Rewrite:
    """A log that is written beside the one in use, until it takes its place.

        add()…   sync(), in a thread   begin_sync()   what that returns, in a thread   end()

    All but those two are called on the loop.  What the log in use gets meanwhile is kept until ``begin_sync``, and from
    then on written into both files.  It is a follower of the group commit: no other sync begins before ``end``.  So an
    entry that came behind ``begin_sync`` is not yet promised to anybody when the new file takes the place of the old
    one, and one that came before is in both.
    """

    __slots__ = ("_at", "_disk", "_failed", "_late", "_log", "_parts", "_path", "fd", "filled", "frames",
                 "is_begun", "octets", "salt")  # fmt: skip

    def __init__(self, log: DefinitionsLog, disk: Disk) -> None:
        """Raises OSError."""
        self._log = log
        self._disk = disk
        self._path = log.path + ".tmp"
        self._late: list[bytes] = []            # what the log has got since
        self.is_begun = False                   # begin_sync() was called
        self._failed: OSError | None = None
        self.salt = int.from_bytes(os.urandom(4), "little")
        self.frames = 0
        # Opened before it has the name: behind the rename nothing may go into the file that has lost it.
        self.fd = disk.open(self._path, os.O_RDWR | os.O_CREAT)
        head = DEFINITIONS_HEADER.pack(DEFINITIONS_MAGIC, DEFINITIONS_VERSION, self.salt, 0)[:DEFINITIONS_CRC_END]
        self._parts = [head, zlib.crc32(head).to_bytes(4, "little")]
        self._at = 0                            # so much is written
        self.octets = DEFINITIONS_HEADER.size   # ... and so much with the parts
        self.filled = 0

    def add(self, payload: bytes) -> None:
        """Write one entry.  Raises OSError."""
        octets = _frame(payload, self.salt)
        self._parts.append(octets)
        self.octets += len(octets)
        self.frames += 1
        if self.octets - self._at >= FILL_OCTETS:
            self._write()

    def follow(self, payload: bytes) -> None:
        """The log in use has got this entry.  Raises OSError: then it is not in this file."""
        if not self.is_begun:
            self._late.append(payload)
        elif self._failed is None:
            before, frames = self.octets, self.frames
            try:
                self.add(payload)  # which writes at once what is large
                self._fill()
            except OSError:
                self._parts, self._at, self.octets, self.frames = [], before, before, frames
                raise

    def sync(self) -> None:
        """Have on disk what was added.  Raises OSError."""
        self._disk.fsync(self.fd, self._path)

    def begin_sync(self) -> Callable[[], None]:
        """Write what is left.  The function that this returns puts the file into the place of the log."""
        late, self._late = self._late, []
        try:
            for payload in late:
                self.add(payload)
            self._fill()
            self._disk.truncate(self.fd, self.filled)
        except OSError as error:
            self._failed = error
        self.is_begun = True
        return self._put_in_place

    def end(self) -> OSError | None:
        """Let the log go on in the new file, or in its own where that is not to be: why not."""
        if self.is_begun and self._failed is None and self._log.take(self):
            return None
        self._log.forget(self)
        self._disk.close(self.fd)
        with contextlib.suppress(OSError):
            self._disk.unlink(self._path)
        return self._failed

    def _put_in_place(self) -> None:
        """Raises OSError: whether the new name is on disk is not known."""
        if self._failed is not None:
            return
        try:
            self.sync()
            self._disk.rename(self._path, self._log.path)
        except OSError as error:
            self._failed = error
            return
        with contextlib.suppress(FileNotFoundError):    # Its vhost was deleted meanwhile.
            self._disk.sync_directory(os.path.dirname(self._path))

    def _write(self) -> None:
        self._disk.pwrite(self.fd, b"".join(self._parts), self._at)
        self._parts.clear()
        self._at = self.octets

    def _fill(self) -> None:
        """Write all, with zeros behind it."""
        if self.octets >= self.filled:
            self.filled = self.octets + FILL_OCTETS & -FILL_OCTETS
            self._parts.append(bytes(self.filled - self.octets))
        self._write()


def _frame(payload: bytes, salt: int) -> bytes:
    frame = b"%b%b\xce" % (FRAME_HEAD.pack(1, 0, len(payload)), payload)
    return frame + zlib.crc32(frame, salt).to_bytes(4, "little")


def _lost_block(content: bytes, at: int, until: int) -> bool:
    """Whether a block that was never written (zeros) explains why there is no whole frame at ``at``.

    Blocks before ``at`` held what was synced; the lost one is zero from ``at`` on, or a
    whole one further on.
    """
    edge = (at // SECTOR_OCTETS + 1) * SECTOR_OCTETS
    if not any(content[at:edge]):
        return True
    while edge < until:
        if not any(content[edge:edge + SECTOR_OCTETS]):
            return True
        edge += SECTOR_OCTETS
    return False


def _ignore(_: str) -> None:
    pass
