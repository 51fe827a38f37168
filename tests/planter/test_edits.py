"""Random edits with corrected checksums: each is found, or contradicts no promise.

``python -m tests.planter.edits`` tries 10,000.
"""

from random import Random

import pytest
from tests.planter.asking import ask, ask_within
from tests.planter.edits import SECONDS, change_octet, try_many
from tests.planter.files import AcksFile, JournalFile, MessageFile, word
from tests.planter.folder import Tree

EDITS = 30
SEEDS = range(5)
READERS = {"msgs": lambda octets, records: MessageFile.read(octets), "acks": AcksFile.read,
           "journal": lambda octets, records: JournalFile.read(octets)}


@pytest.mark.parametrize("seed", SEEDS)
def test_an_edit_is_found_or_contradicts_no_promise(sample, tmp_path, seed):
    missed = [(name, what, text) for name, what, verdict, text in try_many(sample.dump, EDITS, seed, tmp_path)
              if verdict == "missed"]
    assert not missed


def test_the_audit_of_a_number_far_away_ends(sample, tmp_path):
    """One octet of a record's number is another, and its CRC is right."""
    tree = Tree(sample.dump, only={"bare"})
    record = tree.queues["bare"].parts[0].records()[5]
    record.touch(seq=record.seq | 1 << 56)
    said = ask_within(tree.write(tmp_path / "edited"), SECONDS)
    assert said["bare", "holes"].verdict == "violated"


@pytest.mark.parametrize("name", ["bare", "events"])
def test_a_count_of_records_without_a_journal_is_judged_where_a_clean_stop_has_left_it(sample, tmp_path, name):
    tree = Tree(sample.stopped, only={name})
    target, part = tree.link(tmp_path / "edited"), tree.queues[name].parts[-1]
    assert ask(target)[name, "words"].verdict == "held"
    path = target / tree.queues[name].folder / part.folder / f"msgs.{part.number:010d}"
    octets = path.read_bytes()
    path.unlink()                           # A second name of the sample's own file.
    path.write_bytes(octets[:48] + word(len(part.records()) + 1) + octets[56:])
    assert ask(target)[name, "words"].verdict == "violated"


@pytest.mark.parametrize(("kind", "thing"), [("msgs", "record"), ("acks", "entry"), ("journal", "event")])
def test_the_checksums_of_an_edit_are_right(sample, kind, thing):
    """One octet of a record, an entry or an event is another, and the file is still one of right checksums."""
    random, queue = Random(kind), Tree(sample.dump, only={"plain"}).queues["plain"]
    path = next(path for path in queue.files if f"/{kind}." in path)
    tried = 0
    for _ in range(200):
        what, octets = change_octet(kind, queue.files[path], random) or ("", b"")
        if not what.startswith(f"{thing}.") or what in ("record.magic", "record.length", "record.meta_len"):
            continue
        tried += 1
        file = READERS[kind](octets, queue.parts[0].records())
        things = {"msgs": "records", "acks": "entries", "journal": "events"}[kind]
        for before, after in zip(getattr(getattr(queue.parts[0], kind), things), getattr(file, things), strict=True):
            if before.octets(file.number) != after.octets(file.number):
                assert after.octets(file.number) == after.copy().octets(file.number), what
    assert tried > 50
