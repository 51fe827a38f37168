"""The files of a dump against the digests in its manifest: every octet, every file, and files that nobody named."""

import hashlib
import json
import shutil

import pytest
import writer

from brokerd.audit.digests import CHUNK_OCTETS, check
from brokerd.audit.files import open_source
from brokerd.audit.inspect import inspect
from brokerd.audit.verdicts import audit, exit_status

DIFFERS = "is not as it was when the dump was made: the manifest has another digest of it"


def write_manifest(root, *, digests=True, leave_out=()):
    """The manifest of a dump of the queues that are there."""
    entries = []
    for name_file in sorted(root.glob("*/*/.queue")):
        folder = name_file.parent
        files = [each for each in sorted(folder.rglob("*")) if each.is_file()] + [folder.parent / ".vhost"]
        entries.append({
            "vhost": (folder.parent / ".vhost").read_text(), "queue": name_file.read_text(),
            "folder": str(folder.relative_to(root)), "cut": 1 << 61, "settings": {},
            "files": [{"path": str(each.relative_to(root)), "octets": each.stat().st_size} | (
                {"sha256": hashlib.sha256(each.read_bytes()).hexdigest()} if digests else {})
                for each in files if each.name not in leave_out]})
    (root / "manifest.json").write_text(json.dumps({"manifest": 1, "queues": entries}))


@pytest.fixture
def root(tmp_path):
    path = tmp_path / "dump"
    writer.write_queue(path, writer.simple_level(250), writer.Options(segment_messages=100, kept=True))
    (path / "vhost" / "queue" / "order.jsonl").write_text('{"at": 1, "what": "settings", "journal": true}\n')
    write_manifest(path)
    return path


def faults(root):
    (queue,) = open_source(str(root)).queues()
    return [(damage.file, damage.detail) for damage in check(open_source(str(root)), queue)]


def files_of(root):
    return [each for each in sorted(root.rglob("*")) if each.is_file() and each.parent != root]


def test_a_dump_that_nobody_changed_has_no_fault(root):
    assert faults(root) == []
    assert inspect(open_source(str(root)))["damage_total"] == 0


def test_every_octet_of_every_file_counts(root):
    assert len(files_of(root)) > 8
    for path in files_of(root):
        before = path.read_bytes()
        for at in {0, len(before) // 2, len(before) - 1}:
            path.write_bytes(before[:at] + bytes([before[at] ^ 1]) + before[at + 1:])
            if path.name not in (".queue", ".vhost"):
                assert faults(root) == [(str(path.relative_to(root)), DIFFERS)]
            path.write_bytes(before)
    assert faults(root) == []


def test_other_names_of_vhost_and_queue_are_found(root):
    for name in ("vhost/.vhost", "vhost/queue/.queue"):
        before = (root / name).read_text()
        (root / name).write_text("other")
        told = inspect(open_source(str(root)))["queues"]
        assert any("the manifest does not name this queue" in one["detail"] for each in told for one in each["damage"])
        (root / name).write_text(before)


def test_octets_behind_those_that_count_are_a_difference_too(root):
    with open(root / "vhost" / "queue" / "msgs.0000000003", "ab") as file:
        file.write(b"\0" * 8)
    assert faults(root) == [("vhost/queue/msgs.0000000003", DIFFERS)]


def test_a_file_longer_than_a_chunk_is_read_to_its_end(root):
    path = root / "vhost" / "queue" / "order"
    path.write_bytes(bytes(CHUNK_OCTETS + 5))
    write_manifest(root)
    assert faults(root) == []
    path.write_bytes(bytes(CHUNK_OCTETS + 4) + b"\1")
    assert faults(root) == [("vhost/queue/order", DIFFERS)]


@pytest.mark.parametrize(("name", "told_elsewhere"), [
    ("order.jsonl", False), ("kept/journal.0000000001", True), ("msgs.0000000003", True)])
def test_a_file_that_is_missing_is_told_once(root, name, told_elsewhere):
    (root / "vhost" / "queue" / name).unlink()
    (told,) = inspect(open_source(str(root)))["queues"]
    details = [one["detail"] for one in told["damage"] if one["file"] == f"vhost/queue/{name}"]
    assert details == ["the manifest names it, but it is not here"]
    assert (faults(root) == []) is told_elsewhere


def test_files_that_the_manifest_does_not_name_are_told(root):
    shutil.copy(root / "vhost" / "queue" / "kept" / "msgs.0000000001", root / "vhost" / "queue" / "msgs.0000000009")
    (root / "vhost" / "queue" / "notes.txt").write_text("no audit reads this")
    assert faults(root) == [("vhost/queue/msgs.0000000009", "the manifest does not name it")]


def test_a_queue_that_the_manifest_does_not_name_is_told(root):
    writer.write_queue(root, writer.simple_level(20), queue="other", folder="other")
    queues = {each.queue: each for each in open_source(str(root)).queues()}
    assert [each.detail for each in check(open_source(str(root)), queues["other"])] == [
        "the manifest does not name this queue"]


def test_without_digests_there_is_nothing_to_compare(root):
    write_manifest(root, digests=False)
    (root / "vhost" / "queue" / "order.jsonl").write_text('{"at": 2, "what": "settings", "journal": true}\n')
    assert faults(root) == []
    (root / "manifest.json").unlink()
    assert faults(root) == []


def test_a_digest_taken_out_of_the_manifest_is_told(root):
    manifest = json.loads((root / "manifest.json").read_text())
    del manifest["queues"][0]["files"][0]["sha256"]
    (root / "manifest.json").write_text(json.dumps(manifest))
    assert [detail for _, detail in faults(root)] == [
        "the manifest has no digest of it, though it has those of others"]


@pytest.mark.parametrize("path", ["../../secret", "vhost/queue/../../../secret", "/etc/passwd", "vhost/other/order"])
def test_a_manifest_cannot_have_other_files_read(root, path):
    manifest = json.loads((root / "manifest.json").read_text())
    manifest["queues"][0]["files"].append({"path": path, "octets": 1, "sha256": "00"})
    (root / "manifest.json").write_text(json.dumps(manifest))
    assert faults(root) == [("manifest.json", f"names {path!r} as a file of vhost/queue")]


@pytest.mark.parametrize("files", [None, 5, [5, None], [{"sha256": 5}], [{"path": 7, "sha256": "x", "octets": "y"}]])
def test_a_list_of_files_that_makes_no_sense_stops_nothing(root, files):
    manifest = json.loads((root / "manifest.json").read_text())
    manifest["queues"][0]["files"] = files
    (root / "manifest.json").write_text(json.dumps(manifest))
    assert bool(faults(root)) is (isinstance(files, list) and isinstance(files[0], dict))


def test_the_audit_of_damage_names_the_file_that_differs(root):
    (judged,) = audit(open_source(str(root)))
    assert [row["verdict"] for row in judged.audits if row["audit"] == "damage"] == ["held"]
    (root / "vhost" / "queue" / "order.jsonl").write_text('{"at": 2, "what": "settings", "journal": true}\n')
    (judged,) = audit(open_source(str(root)))
    assert [row["verdict"] for row in judged.audits if row["audit"] == "damage"] == ["violated"]
    assert [(row["file"], row["detail"]) for row in judged.findings if row["audit"] == "damage"] == [
        ("vhost/queue/order.jsonl", DIFFERS)]
    assert exit_status(judged.audits, "damage") == 1
