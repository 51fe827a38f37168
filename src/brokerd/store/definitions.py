"""The definitions log: what was declared, bound and deleted in one vhost, as AMQP methods, in order.

The layout stands in store/format.  Space is filled with zeros 64 KiB ahead, so that syncing a
definition writes its page and no metadata.

What ``load`` does with an unusable frame: behind it all is zero or missing (a torn
write): it is cut off.  After a power cut, a block of zeros where data should be and
whole frames after: those were never synced, so they were never confirmed; cut
off, and kept in ``definitions.amqp.cut-OFFSET``.  Anything else is damage that the
broker must not guess about: StoreError.  Knows no method: payloads in, payloads out.
"""

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

    __slots__ = ("_disk", "_fd", "_filled", "_salt", "dirty", "frames", "octets", "path")

    def __init__(self, path: str, disk: Disk) -> None:
        self.path = path
        self._disk = disk
        self._fd = -1
        self._salt = 0
        self._filled = 0        # Zeros are written up to here.
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
        frame = b"%b%b\xce" % (FRAME_HEAD.pack(1, 0, len(payload)), payload)
        octets = frame + zlib.crc32(frame, self._salt).to_bytes(4, "little")
        start, end = self.octets, self.octets + len(octets)
        try:
            if end >= self._filled:         # At least one zero stays behind the last frame.
                self._fill(end + FILL_OCTETS & -FILL_OCTETS)
            self._disk.pwrite(self._fd, octets, start)
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
        salt = int.from_bytes(os.urandom(4), "little")
        head = DEFINITIONS_HEADER.pack(DEFINITIONS_MAGIC, DEFINITIONS_VERSION, salt, 0)[:DEFINITIONS_CRC_END]
        parts = [head, zlib.crc32(head).to_bytes(4, "little")]
        for payload in payloads:
            frame = b"%b%b\xce" % (FRAME_HEAD.pack(1, 0, len(payload)), payload)
            parts += frame, zlib.crc32(frame, salt).to_bytes(4, "little")
        used = sum(map(len, parts))
        filled = used + FILL_OCTETS & -FILL_OCTETS
        parts.append(bytes(filled - used))
        temporary = self.path + ".tmp"
        # Opened before it has the name: behind the rename nothing may go into the file that has lost it.
        fd = self._disk.open(temporary, os.O_RDWR | os.O_CREAT)
        try:
            self._disk.pwrite(fd, b"".join(parts), 0)
            self._disk.truncate(fd, filled)
            self._disk.fsync(fd, temporary)
            self._disk.rename(temporary, self.path)
        except OSError:
            self._disk.close(fd)
            raise
        self.close()
        self._fd, self._salt, self._filled = fd, salt, filled
        self.octets, self.frames, self.dirty = used, (len(parts) - 3) // 2, False
        self._disk.sync_directory(os.path.dirname(self.path))

    def fileno(self) -> int:
        """What the group commit syncs; it duplicates it, since ``compact`` changes it."""
        return self._fd

    def close(self) -> None:
        """Close the file.  A group commit that was to sync it passes over it."""
        self.dirty = False
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
