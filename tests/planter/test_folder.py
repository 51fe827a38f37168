"""Trees are read, changed, and written elsewhere; what they were read from stays as it was."""

import json

from tests.planter.folder import Tree

KNOWN = ("msgs", "acks", "journal", "order", "manifest", "")


def octets_of(path):
    return {each.relative_to(path): each.read_bytes() for each in path.rglob("*") if each.is_file()}


def test_a_tree_that_nobody_changed_is_written_as_it_was(sample, tmp_path):
    written = octets_of(Tree(sample.dump).write(tmp_path / "copy"))
    read = octets_of(sample.dump)
    assert {path for path in read if path.name.partition(".")[0] in KNOWN} <= set(written) <= set(read)
    assert all(octets == read[path] for path, octets in written.items() if path.name != "manifest.json")


def test_a_change_reaches_the_copy_alone(sample, tmp_path):
    before = octets_of(sample.dump)
    tree = Tree(sample.dump, only={"plain"})
    part = tree.queues["plain"].parts[0]
    part.records()[0].touch(publish_seq=99)
    written = octets_of(tree.write(tmp_path / "copy"))
    changed = [path for path, octets in written.items() if path.name != "manifest.json" and octets != before[path]]
    assert [path.name for path in changed] == ["msgs.0000000001"]
    assert octets_of(sample.dump) == before


def test_the_manifest_tells_of_the_files_as_they_are(sample, tmp_path):
    tree = Tree(sample.dump, only={"plain"})
    queue = tree.queues["plain"]
    del queue.parts[0].journal.events[-1]
    queue.count()
    target = tree.write(tmp_path / "copy")
    (entry,) = json.loads((target / "manifest.json").read_text())["queues"]
    for each in entry["files"]:
        assert (target / each["path"]).stat().st_size == each["octets"]


def test_a_removed_record_leaves_the_cursor_before_the_same_message(sample):
    queue = Tree(sample.dump, only={"plain"}).queues["plain"]
    part = next(part for part in queue.parts if 64 < part.acks.delivered < part.msgs.end)
    following = next(record for record in part.records() if record.position >= part.acks.delivered)
    gone = part.msgs.records.pop(0)
    part.acks.entries = [entry for entry in part.acks.entries if entry.record is not gone]
    part.count()
    assert part.acks.delivered == following.position


def test_a_free_time_is_one_that_nothing_has(sample):
    queue = Tree(sample.dump, only={"plain"}).queues["plain"]
    times = queue.times()
    for ts in times[::97]:
        after, before = queue.free_time(ts), queue.free_time_before(ts)
        assert after > ts > before
        assert not {after, before} & set(times)
