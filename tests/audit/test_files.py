"""What is found under a path, and what is said of what should not be there."""

import json
import os
import pickle
import shutil
import tracemalloc

import pytest
import writer

from brokerd.audit import AuditError
from brokerd.audit.files import Rule, Source, file_number, open_source
from brokerd.audit.verdicts import audit


@pytest.fixture
def root(tmp_path):
    return writer.write_queue(tmp_path / "data", {0: writer.simple_level(250), 4: writer.simple_level(
        100, first_seq=251)}, writer.Options(segment_messages=100, kept=True))


def only(root, glob=None):
    (queue,) = open_source(root).queues(glob)
    return queue


def details(queue):
    return [d.detail for d in queue.damage]


def test_segments_are_found_by_level_and_number_in_kept_or_out_of_it(root):
    queue = only(root)
    assert [(t.priority, t.number, t.kept) for t in queue.triples] == [
        (0, 1, True), (0, 2, True), (0, 3, False), (4, 1, False)]
    assert {t.levels for t in queue.triples} == {2}
    assert queue.damage == queue.foreign == []
    assert pickle.loads(pickle.dumps(queue)) == queue


@pytest.mark.parametrize("rest", ["", "/vhost", "/vhost/queue"])
def test_a_vhost_or_a_queue_is_a_source_too(root, rest):
    queue = only(root + rest)
    assert (queue.vhost, queue.queue, len(queue.triples)) == ("/", "q", 4)
    assert open_source(root + rest).read(queue.triples[0].msgs, 0, 4) == b"BSEG"


@pytest.mark.parametrize(("glob", "count"), [("q", 1), ("//q", 1), ("*", 1), ("p*", 0), ("other/q", 0)])
def test_queues_are_chosen_by_name_or_vhost_and_name(root, glob, count):
    assert len(open_source(root).queues(glob)) == count


def test_what_is_not_there_is_an_error_of_one_line(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    for name in ("nothing", "file", "empty"):
        with pytest.raises(AuditError) as caught:
            open_source(str(tmp_path / name))
        assert str(tmp_path / name) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_files_that_only_look_like_ours_are_told(root):
    folder = root + "/vhost/queue"
    for name in ("msgs.1", "msgs.abc", "journal.0000000007.damaged", "acks.0000000003.new", "spare.0", "notes"):
        open(f"{folder}/{name}", "w").close()
    queue = only(root)
    assert sorted(p.rpartition("/")[2] for p in queue.foreign) == ["journal.0000000007.damaged", "msgs.1", "msgs.abc"]
    assert len(queue.damage) == 3


def test_a_segment_that_is_missing_beside_its_journal_is_told(root):
    os.unlink(root + "/vhost/queue/kept/msgs.0000000002")
    queue = only(root)
    assert [t.number for t in queue.triples if not t.priority] == [1, 3]
    assert details(queue) == ["msgs.0000000002, to which it belongs, is missing"]


@pytest.mark.parametrize(("make", "damaged"), [(os.link, 0), (shutil.copy, 3)])
def test_a_segment_that_is_there_twice_is_read_once_and_is_damage_unless_its_names_are_of_one_file(root, make, damaged):
    folder = root + "/vhost/queue"
    for kind in ("msgs", "acks", "journal"):
        make(f"{folder}/kept/{kind}.0000000001", f"{folder}/{kind}.0000000001")
    queue = only(root)
    assert len(queue.triples) == 4
    assert len(queue.damage) == damaged
    assert not queue.triples[0].kept


def test_a_segment_that_moves_while_the_names_are_read_is_not_there_twice(root, monkeypatch):
    """A broker keeps settled segments; the names in its folder are read before those of the kept ones."""
    folder, names = f"{root}/vhost/queue", Source.names

    def listed(self, rel):
        if rel == "vhost/queue/kept" and os.path.exists(f"{folder}/msgs.0000000003"):
            for kind in ("msgs", "acks", "journal"):
                os.rename(f"{folder}/{kind}.0000000003", f"{folder}/kept/{kind}.0000000003")
        return names(self, rel)

    monkeypatch.setattr(Source, "names", listed)
    queue = only(root)
    assert details(queue) == []
    assert [triple.number for triple in queue.triples] == [1, 2, 3, 1]
    assert {row["verdict"] for judged in audit(open_source(root)) for row in judged.audits if row["audit"] == "damage"
            } == {"held"}


def test_of_a_journal_that_is_there_twice_the_one_beside_its_records_is_read(root):
    folder = root + "/vhost/queue"
    for kind in ("acks", "journal"):
        shutil.copy(f"{folder}/kept/{kind}.0000000001", f"{folder}/{kind}.0000000001")
    queue = only(root)
    assert [queue.triples[0].acks, queue.triples[0].journal] == [
        f"vhost/queue/kept/{kind}.0000000001" for kind in ("acks", "journal")]
    assert details(queue) == [f"is here twice: vhost/queue/kept/{kind}.0000000001 is what is read"
                              for kind in ("acks", "journal")]
    assert sorted(queue.foreign) == [f"vhost/queue/{kind}.0000000001" for kind in ("acks", "journal")]


def test_a_segment_half_moved_is_whole(root):
    folder = root + "/vhost/queue"
    for kind in ("acks", "journal"):
        os.rename(f"{folder}/kept/{kind}.0000000001", f"{folder}/{kind}.0000000001")
    queue = only(root)
    assert queue.damage == []
    assert queue.triples[0].acks == "vhost/queue/acks.0000000001"


def test_the_order_log_tells_settings_consumers_and_what_was_removed(root):
    with open(root + "/vhost/queue/order.jsonl", "a") as file:
        for line in ({"at": 5, "what": "settings", "journal": True, "delivery_limit": 3},
                     {"at": 6, "what": "consumer", "number": 7, "tag": "t"},
                     {"at": 8, "what": "consumer_gone", "number": 7},
                     {"at": 9, "what": "removed", "level": 0, "first_seq": 1, "last_seq": 9, "why": "age"}):
            file.write(json.dumps(line) + "\n")
        file.write('{"at": 10, "what"')
    queue = only(root)
    assert queue.settings["delivery_limit"] == 3
    assert [rule[:3] for rule in queue.rules] == [(1, True, None), (5, True, 3)]
    assert queue.rules[0] == Rule(1, True, None, max_priority=4)
    assert queue.consumers[7]["tag"] == "t"
    assert queue.consumers[7]["gone"] == 8
    assert queue.removed[0]["last_seq"] == 9
    assert queue.damage == []


def test_lines_of_the_order_log_that_make_no_sense_are_told(root):
    path = root + "/vhost/queue/order.jsonl"
    with open(path, "w") as file:
        file.write('garbage\n[]\n{"at": "x", "what": "settings"}\n{"what": 1}\n\n')
    assert details(only(root)) == [f"line {n} cannot be understood" for n in (1, 2, 3, 4)]


def manifest(root, **more):
    files = [{"path": t.msgs, "octets": os.path.getsize(f"{root}/{t.msgs}")} for t in only(root).triples]
    document = {"manifest": 1, "cut": 5, "queues": [
        {"vhost": "/", "queue": "q", "folder": "vhost/queue", "cut": 5, "files": files}]} | more
    with open(root + "/manifest.json", "w") as file:
        json.dump(document, file)


def test_a_dump_is_held_against_its_manifest(root):
    manifest(root)
    assert only(root).manifest["cut"] == 5
    assert only(root).damage == []
    os.truncate(root + "/vhost/queue/msgs.0000000003", 1000)
    os.unlink(root + "/vhost/queue/kept/journal.0000000001")
    os.unlink(root + "/vhost/queue/kept/acks.0000000001")
    os.unlink(root + "/vhost/queue/kept/msgs.0000000001")
    assert sorted(d.partition(":")[0] for d in details(only(root))) == [
        "half copied", "the manifest names it, but it is not here"]


def test_a_queue_that_only_the_manifest_knows_is_missing(root):
    manifest(root, queues=[{"vhost": "/", "queue": "lost", "folder": "x", "files": [{"path": "x/msgs.0000000001"}]}])
    lost, there = open_source(root).queues()
    assert (lost.queue, len(lost.damage), there.queue) == ("lost", 1, "q")


@pytest.mark.parametrize("text", ["", "[]", '{"manifest": 2}', '{"manifest": 1, "queues": [1]}'])
def test_a_manifest_that_cannot_be_read_is_an_error(root, text):
    with open(root + "/manifest.json", "w") as file:
        file.write(text)
    with pytest.raises(AuditError):
        open_source(root).queues()


def test_files_that_may_not_be_read_are_damage(root, monkeypatch):
    names = Source.names

    def refuse(self, rel):
        if rel.endswith("kept"):
            raise PermissionError(13, "Permission denied")
        return names(self, rel)

    monkeypatch.setattr(Source, "names", refuse)
    queue = only(root)
    assert details(queue) == ["the folder cannot be read: Permission denied"]
    assert queue.damage[0].matters


def test_names_of_files_are_told_from_others():
    assert file_number("journal.0000000012") == ("journal", 12)
    for name in ("msgs.12", "msgs.0000000001.new", "spare.0000000001", "msgs.00000000x1", "msgs." + "1" * 30):
        assert file_number(name) is None


@pytest.mark.parametrize("said", ["9", "0", "", "one"])
@pytest.mark.parametrize("rest", ["", "/vhost", "/vhost/queue"])
def test_a_data_directory_of_another_version_is_refused(root, said, rest):
    with open(f"{root}/schema_version", "w") as file:
        file.write(f"{said}\n")
    with pytest.raises(AuditError, match=f"schema_version: a data directory of version {said!r}; this one reads ver"):
        open_source(f"{root}{rest}")


def violated(root):
    (judged,) = audit(open_source(root))
    return {row["audit"] for row in judged.audits if row["verdict"] == "violated"}


@pytest.mark.parametrize("number", ["1" + 30 * "0", "9223372036854775808", "-1e300", "Infinity", "NaN"])
@pytest.mark.parametrize("line", [
    '"what":"settings","at":1,"journal":true,"delivery_limit":{}', '"what":"settings","at":{},"journal":true',
    '"what":"settings","at":1,"journal":true,"groups":{{"by":"user-id","headers":[],"most":{}}}',
    '"what":"removed","at":1,"level":0,"first_seq":{},"last_seq":3'], ids=("limit", "time", "groups", "removed"))
def test_a_number_that_64_bits_cannot_hold_is_damage_of_its_line_and_nothing_else(root, line, number):
    before = violated(root)
    with open(root + "/vhost/queue/order.jsonl", "a") as file:
        file.write("{" + line.format(number) + "}\n")
    assert violated(root) == before | {"damage"}
    assert details(only(root)) == ["line 3 cannot be understood"]


def test_reading_takes_no_more_memory_than_the_file_has_octets(root):
    source = open_source(root)
    (triple, *_) = only(root).triples
    tracemalloc.start()
    assert len(source.read(triple.msgs, 0, 1 << 30)) == os.path.getsize(source.path(triple.msgs))
    assert source.read(triple.msgs, 1 << 40, 1 << 30) == b""
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
