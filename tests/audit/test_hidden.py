"""Missing numbers around segments whose headers are damaged."""

import pytest
import writer

from brokerd.audit.files import open_source
from brokerd.audit.verdicts import audit

T = 1_700_000_000_000_000_000


def write(tmp_path, *, journal, missing=(), start=1):
    """40 messages, ten in a segment."""
    seqs = [seq for seq in range(start, start + 40 + len(missing)) if seq not in missing]
    level = writer.Level(writer.messages(seqs, [T + 10 * seq for seq in seqs]), writer.events([]))
    return writer.write_queue(tmp_path / "data", level, writer.Options(segment_messages=10, journal=journal))


def judged(root):
    (one,) = audit(open_source(root))
    row = next(row for row in one.audits if row["audit"] == "holes")
    return row["verdict"], row["found"], row["reason"]


def spoil(root, number):
    with open(f"{root}/vhost/queue/msgs.{number:010d}", "r+b") as file:
        file.seek(36)
        file.write(b"\0\0\0\0")


@pytest.mark.parametrize("missing", [(14, 15), (11,), (21,)])
def test_numbers_missing_around_a_spoiled_header_are_doubts(tmp_path, missing):
    """Inside it, before its first record and behind its last one; it may have been compacted."""
    root = write(tmp_path, journal=True, missing=missing)
    assert judged(root)[:2] == ("violated", len(missing))
    spoil(root, 2)
    verdict, found, why = judged(root)
    assert (verdict, found) == ("undecidable", 0)
    assert "around segments whose headers are damaged" in why


def test_numbers_missing_elsewhere_are_holes_beside_a_spoiled_header(tmp_path):
    root = write(tmp_path, journal=True, missing=(35,))
    spoil(root, 2)
    assert judged(root)[:2] == ("violated", 1)
