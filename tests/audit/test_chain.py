"""The audit of hash chains: what was changed is found and named, and nobody is accused who lost power, or had none."""

import json
import os

import numpy as np
import pytest
from tests.audit import writer

from brokerd.audit import AuditError, chain
from brokerd.audit.files import open_source
from brokerd.audit.scan import Options
from brokerd.audit.verdicts import audit
from brokerd.spark import by_arrays
from brokerd.store import chain as chains
from brokerd.store import format as layout
from brokerd.store import reading
from brokerd.store.disk import Disk

BLOCK = 4                   # events; 16 entries
SEGMENTS, EACH = 3, 25


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(layout, "BLOCK_OCTETS", BLOCK * layout.EVENT_OCTETS)


@pytest.fixture
def root(tmp_path):
    """A queue of three segments, of which the first two are settled; each message was delivered and acked."""
    count = SEGMENTS * EACH
    seqs = np.arange(1, count + 1)
    rows = [(1_000_000 + 10 * seq, seq, layout.DELIVERED) for seq in seqs.tolist()]
    rows += [(1_000_005 + 10 * seq, seq, layout.ACKED) for seq in seqs.tolist()]
    level = writer.Level(writer.messages(seqs, 10 + seqs), writer.events(rows))
    return writer.write_queue(tmp_path, level, writer.Options(segment_messages=EACH, kept=True))


def folder_of(root, kept=True):
    (triple, *_) = open_source(root).queues()[0].triples
    folder = os.path.dirname(os.path.join(root, triple.msgs))
    assert os.path.basename(folder) == "kept"
    return folder if kept else os.path.dirname(folder)


def chained(root):
    """Chains of the two settled segments, and of the first six blocks of the one in use."""
    for number in (1, 2):
        chains.finish(folder_of(root), number, Disk(), lambda: 1000)
    chains.grow(folder_of(root, kept=False), 3, 6, Disk(), lambda: 1000, 1 << 30)


def row(root, **options):
    """The audit's row, alike by both engines, and its findings."""
    asked = Options(audits=frozenset(["chain"]), **options)
    (one,) = audit(open_source(root), asked)
    assert by_arrays.rows(root, asked, None) == one.audits
    return (one.audits or [None])[0], one.findings


def told(root, **options):
    """(verdict, (segment, details) of all findings)."""
    said, findings = row(root, **options)
    assert said["found"] == len(findings)
    return said["verdict"], [(each["segment"], each["detail"]) for each in findings]


def path(root, kind, number):
    return os.path.join(folder_of(root, kept=number < 3), f"{kind}.{number:010d}")


def change(root, kind, number, at, octets):
    with open(path(root, kind, number), "r+b") as file:
        file.seek(at)
        file.write(octets)


def event_at(root, number, place):
    with open(path(root, "journal", number), "rb") as file:
        file.seek(64 + 32 * place)
        return layout.EVENT.unpack(file.read(28))


def test_what_the_broker_wrote_is_held_and_how_much_is_covered_is_said(root):
    chained(root)
    said, findings = row(root)
    assert (said["verdict"], said["found"], said["checked"], said["events"]) == ("held", 0, 124, 150)
    assert (said["reason"], findings) == ("covers 124 of 150 events", [])


def test_journals_of_an_older_broker_are_nothing_to_judge(root):
    said, _ = row(root)
    assert (said["verdict"], said["reason"]) == ("covers nothing", "nothing to judge: no chain covers the 150 events")


def test_a_queue_without_a_journal_has_no_such_audit(root):
    for number in (1, 2, 3):
        os.unlink(path(root, "journal", number))
    assert row(root) == (None, [])


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("place", [0, 3, 4, 11, 23])
def test_an_event_that_was_changed_with_its_checksum_is_found_in_its_block(root, number, place):
    chained(root)
    seq, ts, consumer, aux, count, type_, reason = event_at(root, number, place)
    forged = layout.event(number, seq, ts, type_, reason, consumer=consumer + 1, aux=aux, count=count)
    change(root, "journal", number, 64 + 32 * place, forged)
    first = place // BLOCK * BLOCK + 1
    verdict, findings = told(root)
    assert (verdict, findings) == ("violated", [
        (number, f"events {first} to {first + 3} are not those that were chained")])
    _, (finding,) = row(root)
    assert finding["file"].endswith(layout.journal_name(number))
    assert (finding["offset"], finding["seq"]) == (64 + 32 * (first - 1), event_at(root, number, first - 1)[0])


def test_what_no_link_covers_yet_can_be_changed_unseen_and_that_much_is_not_claimed(root):
    chained(root)
    seq, ts, *_ = event_at(root, 3, 30)
    change(root, "journal", 3, 64 + 32 * 30, layout.event(3, seq, ts, layout.ACKED))
    said, _ = row(root)
    assert (said["verdict"], said["checked"]) == ("held", 124)


@pytest.mark.parametrize("place", [0, 15, 16, 24])
def test_an_acks_entry_that_was_changed_is_found(root, place):
    chained(root)
    change(root, "acks", 2, 64 + 8 * place, layout.entry(2, 64, layout.PURGED))
    first = place // 16 * 16 + 1
    assert told(root) == ("violated", [
        (2, f"entries {first} to {min(first + 15, 25)} are not those that were chained")])


def test_events_that_are_cut_off_or_added_are_found(root):
    chained(root)
    os.truncate(path(root, "journal", 1), 64 + 32 * 40)
    size = os.path.getsize(path(root, "journal", 2))
    change(root, "journal", 2, size, layout.event(2, 30, 1 << 40, layout.ACKED))
    change(root, "journal", 2, 32, b"".join(each.to_bytes(4, "little") for each in layout.word((size - 32) // 32)))
    verdict, findings = told(root)
    assert verdict == "violated"
    assert findings == [
        (1, "events 41 to 44 were chained, and are not all here"),
        (1, "events 45 to 48 were chained, and are not all here"),
        (1, "events 49 to 50 were chained, and are not all here"),
        (2, "has events behind those that its chain says are the last")]


def test_a_missing_acks_file_or_journal_is_found(root):
    chained(root)
    os.unlink(path(root, "acks", 1))
    os.unlink(path(root, "journal", 2))
    assert told(root) == ("violated", [
        (1, "its acks file is missing"), (2, "its journal is missing")])


@pytest.mark.parametrize("kind", ["acks", "journal", "chain"])
def test_a_file_that_the_broker_removes_while_it_is_read_accuses_nobody(root, kind):
    chained(root)
    source = open_source(root)
    (triple, *_) = source.queues()[0].triples
    os.unlink(path(root, kind, 1))
    assert chain.read(source, triple).faults == ()


def test_a_journal_in_the_place_of_another_is_found(root):
    chained(root)
    with open(path(root, "journal", 1), "rb") as file:
        count = int.from_bytes(file.read(36)[32:], "little")
    change(root, "journal", 1, 0, layout.journal_header(1, begun=3, events=count, synced=(1 << 63) - 1))
    verdict, ((segment, detail),) = told(root)
    assert (verdict, segment) == ("violated", 1)
    assert detail.startswith("is not the journal that its chain was made for: it began at 3 ns")


def test_a_link_that_was_taken_out_is_found(root):
    chained(root)
    with open(path(root, "chain", 1), "rb") as file:
        octets = file.read()
    with open(path(root, "chain", 1), "wb") as file:
        file.write(octets[:64 + 64] + octets[64 + 128:])
    assert told(root) == ("violated", [(1, "link 2 does not go on where those before it end")])


def test_a_digest_that_was_changed_is_found_at_its_link_and_the_next(root):
    chained(root)
    with open(path(root, "chain", 1), "rb") as file:
        links = reading.read_chain(file.read(), 1).links
    change(root, "chain", 1, 64, reading.encode_link(links[0]._replace(digest=bytes(32)), 1))
    verdict, findings = told(root)
    assert (verdict, [detail.split(" are")[0] for _, detail in findings]) == ("violated", [
        "events 1 to 4", "events 5 to 8"])


@pytest.mark.parametrize("cut", [0, 1, 63, 64, 100, 64 * 5, 64 * 5 + 30])
@pytest.mark.parametrize("rest", [b"", bytes(64), bytes(4096)])
def test_what_a_loss_of_power_leaves_of_a_chain_accuses_nobody(root, cut, rest):
    chained(root)
    with open(path(root, "chain", 3), "rb") as file:
        octets = file.read()
    with open(path(root, "chain", 3), "wb") as file:
        file.write(octets[:cut] + rest)
    verdict, findings = told(root)
    assert (verdict in ("held", "undecidable"), findings) == (True, [])
    if cut % 64 == 0:
        assert verdict == "held"


def test_a_chain_that_cannot_be_read_is_undecidable(root):
    chained(root)
    change(root, "chain", 1, 10, b"\1")
    change(root, "chain", 3, 64 + 64 * 2 + 30, b"something")
    said, findings = row(root)
    assert (said["verdict"], findings) == ("undecidable", [])
    assert f"the header of {os.path.relpath(path(root, 'chain', 1), root)} is damaged" in said["reason"]
    assert "is damaged behind link 2" in said["reason"]
    assert said["checked"] == 50 + 2 * BLOCK


def test_a_chain_of_a_later_version_is_undecidable(root):
    chained(root)
    fixed = layout.CHAIN_FIXED.pack(layout.CHAIN_MAGIC, 9, 1, 1, layout.BLOCK_OCTETS)
    change(root, "chain", 1, 0, fixed + layout.crc32c(fixed).to_bytes(4, "little"))
    said, _ = row(root)
    assert said["verdict"] == "undecidable"
    assert "has version 9: written by a later brokerd; this one knows up to 1" in said["reason"]


def test_a_chain_that_is_missing_between_others_is_not_passed_over(root):
    chained(root)
    chains.finish(folder_of(root, kept=False), 3, Disk(), lambda: 1000)
    for number in (1, 2, 3):
        change(root, "journal", number, 48, np.array([(1 << 63) - 1, ~((1 << 63) - 1)], "<i8").tobytes())
    assert told(root) == ("held", [])
    os.unlink(path(root, "chain", 2))
    said, _ = row(root)
    assert said["verdict"] == "undecidable"
    assert said["reason"].startswith("no chain of 1 journal, though those before and behind have theirs (segment 2)")
    os.unlink(path(root, "chain", 1))           # Now it looks as if an older broker had written both.
    assert told(root) == ("held", [])


# --- heads that were told


def manifest(root):
    """Make the folder a dump that names the heads of all chains."""
    queue = open_source(root).queues()[0]
    known = [chain.read(open_source(root), triple) for triple in queue.triples]
    lines = [{"path": each.triple.chain, "blocks": each.blocks, "head": each.head(each.blocks)} for each in known]
    document = {"manifest": 1, "queues": [{
        "vhost": "/", "queue": "q", "folder": queue.folder, "settings": {}, "chains": lines}]}
    with open(os.path.join(root, "manifest.json"), "w") as file:
        json.dump(document, file)
    return lines


def forge(root, number):
    """Change an event, and make the chain anew."""
    chained(root)
    os.unlink(path(root, "chain", number))
    seq, ts, *_ = event_at(root, number, 5)
    change(root, "journal", number, 64 + 32 * 5, layout.event(number, seq, ts, layout.ACKED, consumer=99))
    chained(root)


def test_a_forged_chain_does_not_lead_to_the_head_in_the_manifest(root):
    chained(root)
    manifest(root)
    assert told(root) == ("held", [])
    forge(root, 1)
    assert told(root) == ("violated", [(1, "its chain does not lead to the head that the manifest names for 15 links")])


def test_a_chain_that_the_manifest_names_is_here_and_whole(root):
    chained(root)
    manifest(root)
    os.unlink(path(root, "chain", 1))
    os.truncate(path(root, "chain", 3), 64 + 2 * 64)
    verdict, findings = told(root)
    assert (verdict, findings) == ("violated", [
        (0, "the manifest names this chain, but it is not here"),
        (3, "the manifest names 6 links of its chain, and 2 are here")])


def log_of(root, path_, **other):
    """A log of heads, as the broker would have written it while the chains grew."""
    queue = open_source(root).queues()[0]
    with open(path_, "w") as file:
        file.write("torn {\n")
        for triple in queue.triples:
            each = chain.read(open_source(root), triple)
            for blocks in (1, each.blocks):
                file.write(json.dumps({
                    "at": 900, "vhost": "/", "queue": "q", "level": 0, "segment": triple.number, "begun": each.begun,
                    "blocks": blocks, "head": each.head(blocks)} | other) + "\n")
        file.write('{"at": 9')
    return chain.read_log(path_)


def test_a_forged_chain_does_not_lead_to_the_heads_in_a_log(root, tmp_path_factory):
    chained(root)
    log = log_of(root, tmp_path_factory.mktemp("elsewhere") / "log")
    assert len(log) == 6
    assert told(root, chain_log=log) == ("held", [])
    forge(root, 2)
    assert told(root) == ("held", [])
    verdict, ((segment, detail),) = told(root, chain_log=log)
    assert (verdict, segment) == ("violated", 2)
    assert detail == "its chain does not lead to the head that the log of heads names for 15 links"
    os.unlink(path(root, "chain", 2))
    assert told(root, chain_log=log)[1] == [(2, "the log of heads names 1 link of its chain, and 0 are here")]


def test_a_chain_that_a_log_should_name_is_undecidable(root, tmp_path_factory):
    chained(root)
    log = log_of(root, tmp_path_factory.mktemp("elsewhere") / "log")
    said, _ = row(root, chain_log=tuple(head for head in log if head.segment != 2))
    assert said["verdict"] == "undecidable"
    assert "the log of heads does not name the chain of segment 2" in said["reason"]
    later = tuple(head._replace(at=2000) for head in log if head.segment != 2)
    assert told(root, chain_log=later) == ("held", [])      # It was not kept yet.


def test_a_log_of_another_queue_of_that_name_or_of_others_accuses_nobody(root, tmp_path_factory):
    chained(root)
    for other in ({"begun": 12345, "at": 2000}, {"queue": "another"}, {"vhost": "another"}):
        log = log_of(root, tmp_path_factory.mktemp("elsewhere") / "log", head="00", **other)
        assert told(root, chain_log=log) == ("held", [])


def test_what_is_no_log_of_heads_is_refused(tmp_path):
    with pytest.raises(AuditError, match="No such file or directory"):
        chain.read_log(tmp_path / "none")
    (tmp_path / "log").write_text('{"at": 1}\n[]\nnothing\n')
    with pytest.raises(AuditError, match="is no log of heads of hash chains: not one line of it names one"):
        chain.read_log(tmp_path / "log")
