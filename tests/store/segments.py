"""Segments and acks files written octet by octet, for tests of those that read them."""

import os
import struct

from brokerd.store import format as layout

RECORD = struct.Struct("<IIIHBBQqIHHQQQ")


def record(number: int, seq: int, body: bytes, meta: bytes = b"\x00\x03key\x00\x00") -> bytes:
    """One record of segment ``number``, padded."""
    long = len(meta) >= layout.LONG_META
    meta_len = layout.LONG_META if long else len(meta)
    if long:
        meta = len(meta).to_bytes(4, "little") + meta
    octets = bytearray(RECORD.pack(layout.RECORD_MAGIC, layout.HEADER_OCTETS + len(meta) + len(body), 0, meta_len, 0, 0,
                                   seq, 1_000 + seq % (1 << 40), 7, 1, 1, seq, 0, 0) + meta + body)
    octets[8:12] = layout.record_crc(octets, number).to_bytes(4, "little")
    return bytes(octets) + bytes(-len(octets) % 8)


class Files:
    """The directory of one queue; positions of what was written are kept by segment."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.positions: dict[int, list[int]] = {}
        os.makedirs(directory, exist_ok=True)

    def path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def msgs(self, number: int) -> str:
        return self.path(layout.segment_name(number))

    def acks(self, number: int) -> str:
        return self.path(layout.acks_name(number))

    def segment(self, number: int, bodies: list[bytes], *, base_seq: int = 1, sealed: int = layout.SYNCED,
                generation: int = 0, room: int = 0) -> bytes:
        """Write segment ``number`` with ``room`` octets of zeros behind its end."""
        octets, self.positions[number] = b"", []
        for seq, body in enumerate(bodies, base_seq):
            self.positions[number].append(layout.HEADER_OCTETS + len(octets))
            octets += record(number, seq, body)
        header = layout.segment_header(number, base_seq=base_seq, created=1, generation=generation, sealed=sealed,
                                       end=layout.HEADER_OCTETS + len(octets), records=len(bodies))
        self.write(self.msgs(number), header + octets + bytes(room))
        return header + octets

    def ack(self, number: int, entries: list[tuple[int, int, int]], *, generation: int = 0, delivered: int = 0,
            settled: int | None = None, counted: int | None = None, version: int = layout.ACKS_VERSION) -> None:
        """Write the acks of (index of record, kind, count); ``counted`` and ``settled`` override the header's."""
        octets = b"".join(layout.entry(number, self.positions[number][i], kind, count) for i, kind, count in entries)
        done = sum(kind & 15 in layout.SETTLING_TYPES for _, kind, _ in entries) if settled is None else settled
        header = layout.acks_header(number, generation=generation, delivered=delivered, settled=done,
                                    entries=len(entries) if counted is None else counted)
        fixed = layout.ACKS_FIXED.pack(layout.ACKS_MAGIC, version, number, generation)
        header = fixed + layout.crc32c(fixed).to_bytes(4, "little") + header[layout.ACKS_WORDS_AT:]
        self.write(self.acks(number), (header + octets).ljust(4096, b"\0"))

    @staticmethod
    def write(path: str, octets: bytes) -> None:
        with open(path, "wb") as file:
            file.write(octets)

    @staticmethod
    def poke(path: str, position: int, octets: bytes) -> None:
        with open(path, "r+b") as file:
            file.seek(position)
            file.write(octets)

    @staticmethod
    def read(path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()
