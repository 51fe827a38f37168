"""What the files alone say of order: sequence numbers never used twice, publishes of a channel in their order."""

import os

import numpy as np

from brokerd.store import format as layout
from brokerd.store import reading


class Audit:
    """Reads all segments under a data directory, again and again; ``records`` counts what it has seen."""

    def __init__(self, directory):
        self.directory = directory
        self.owners = {}            # queue's folder: {seq: (connection, channel, publish_seq)}
        self.highest = {}           # queue's folder: highest seq ever seen
        self.records = 0

    def read(self):
        """Compare what lies there with all that lay there before.  The broker must not be running."""
        for folder, _, names in os.walk(self.directory):
            if "garbage" in folder:
                continue
            numbers = sorted(n for name in names if name.startswith("msgs.")
                             and (n := layout.segment_number(name)) is not None)
            if numbers:
                self.read_queue(folder, numbers)

    def read_queue(self, folder, numbers):
        headers = [self.read_segment(os.path.join(folder, layout.segment_name(number))) for number in numbers]
        rows = np.concatenate(headers)
        seqs = rows["seq"].astype(np.int64)
        assert (np.diff(seqs) > 0).all(), f"{folder}: sequence numbers do not rise"
        assert (np.diff(rows["ts"]) > 0).all(), f"{folder}: times do not rise"
        channels = rows["connection"].astype(np.int64) << 16 | rows["channel"]
        order = np.lexsort((seqs, channels))
        same = np.diff(channels[order]) == 0
        rising = np.diff(rows["publish_seq"][order].astype(np.int64)) > 0
        assert (rising | ~same).all(), f"{folder}: publishes of one channel are not in their order"
        now = dict(zip(seqs.tolist(), zip(channels.tolist(), rows["publish_seq"].tolist(), strict=True), strict=True))
        before, highest = self.owners.get(folder, {}), self.highest.get(folder, 0)
        for seq, owner in now.items():
            assert before.get(seq, owner) == owner, f"{folder}: number {seq} was used twice"
            assert seq > highest or seq in before, f"{folder}: number {seq} was used, gone, and used again"
        self.owners[folder] = now
        self.highest[folder] = max(highest, *now) if now else highest
        self.records += len(now)

    @staticmethod
    def read_segment(path):
        with open(path, "rb") as file:
            octets = file.read()
        header = np.frombuffer(octets.ljust(layout.HEADER_OCTETS, b"\0"), reading.segment_dtype(), 1)[0]
        if int(header["crc"]) != layout.crc32c(octets[:layout.SEGMENT_CRC_END]) or int(header["end"]) == 0:
            assert not any(octets[layout.HEADER_OCTETS:]), path     # Killed while it was being made.
            return np.empty(0, reading.record_dtype())
        assert layout.word_ok(int(header["end"]), int(header["end_complement"])), path
        found = reading.scan_records(octets, int(header["end"]))
        assert not found.gaps, (path, found.gaps)
        assert reading.record_checks(octets, found, int(header["number"])).all(), path
        return found.headers
