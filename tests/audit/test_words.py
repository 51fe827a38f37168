"""The words in the headers of settled segments say what is in them."""

import json
import os

import plant
import pytest
import writer
from writer import put_word

from brokerd.audit import words
from brokerd.audit.files import open_source
from brokerd.audit.segment import read_triple
from brokerd.audit.verdicts import audit
from brokerd.store import format as layout


def queue(tmp_path):
    """40 messages in two segments, the first one kept."""
    options = writer.Options(segment_messages=20, kept=True)
    return writer.write_queue(tmp_path / "data", writer.simple_level(40), options)


def judged(root):
    (one,) = audit(open_source(str(root)))
    row = next(row for row in one.audits if row["audit"] == "words")
    return row, [(told["file"].rpartition("/")[2], told["offset"], told["detail"]) for told in one.findings
                 if told["audit"] == "words"]


def test_words_that_are_true_are_held_and_those_of_a_segment_in_use_wait_for_the_stop(tmp_path):
    root = queue(tmp_path)
    marker = tmp_path / "data" / layout.RUNNING_FILE
    marker.write_text("boot\n")
    row, told = judged(root)
    assert (row["verdict"], row["checked"], told) == ("held", 1, [])
    put_word(f"{root}/vhost/queue/msgs.0000000002", words.RECORDS_AT, 3)
    assert judged(root)[0]["verdict"] == "held"
    marker.unlink()
    row, told = judged(root)
    assert (row["verdict"], row["checked"]) == ("violated", 2)
    assert told == [("msgs.0000000002", words.RECORDS_AT, "says that it has 3 records, and has 20")]


def test_after_a_loss_of_power_the_words_of_a_segment_in_use_are_not_judged(tmp_path):
    level = writer.after_a_loss_of_power()
    root = writer.write_queue(tmp_path / "data", level, writer.Options(segment_messages=100, kept=True))
    put_word(f"{root}/vhost/queue/acks.0000000003", words.SETTLED_AT, 19)
    row, told = judged(root)
    assert (row["verdict"], row["checked"], told) == ("held", 2, [])


FOLDER = layout.folder_name("q")


def in_a_data_directory(tmp_path, level, options, folder=FOLDER):
    root = writer.write_queue(tmp_path / "data", level, options, folder=folder)
    (tmp_path / "data/vhosts.json").write_text('[{"name": "/"}]')
    return root, f"{root}/vhost/{folder}"


def test_after_a_loss_of_power_and_a_clean_stop_the_words_of_a_segment_in_use_are_judged(tmp_path):
    root, path = in_a_data_directory(
        tmp_path, writer.after_a_loss_of_power(), writer.Options(segment_messages=100, kept=True))
    put_word(f"{path}/acks.0000000003", words.SETTLED_AT, 19)
    row, told = judged(root)
    assert (row["checked"], [at[:2] for at in told]) == (3, [("acks.0000000003", words.SETTLED_AT)])


@pytest.mark.parametrize("kind", ["msgs", "acks"])
def test_the_words_of_a_segment_without_a_journal_are_judged_where_a_clean_stop_has_left_them(tmp_path, kind):
    options, at = writer.Options(journal=False), words.RECORDS_AT if kind == "msgs" else words.SETTLED_AT
    root, path = in_a_data_directory(tmp_path, writer.simple_level(20), options)
    assert (judged(root)[0]["verdict"], judged(root)[0]["checked"]) == ("held", 1)
    put_word(f"{path}/{kind}.0000000001", at, 19)
    row, told = judged(root)
    assert (row["verdict"], [one[:2] for one in told]) == ("violated", [(f"{kind}.0000000001", at)])
    (tmp_path / "data" / layout.RUNNING_FILE).write_text("boot whole\n")      # At work, or killed.
    assert judged(root)[0]["checked"] == 0


@pytest.mark.parametrize("name", ["schema_version", "vhosts.json"])
def test_the_words_of_a_segment_without_a_journal_are_not_judged_in_a_copy_of_a_part(tmp_path, name):
    root, path = in_a_data_directory(tmp_path, writer.simple_level(20), writer.Options(journal=False))
    put_word(f"{path}/acks.0000000001", words.SETTLED_AT, 19)
    os.unlink(f"{root}/{name}")
    assert judged(root)[0]["checked"] == 0


def test_the_words_of_a_queue_that_no_definition_explains_are_as_they_were_once(tmp_path):
    root, path = in_a_data_directory(
        tmp_path, writer.simple_level(20), writer.Options(journal=False), FOLDER + layout.ORPHAN)
    put_word(f"{path}/acks.0000000001", words.SETTLED_AT, 19)
    assert judged(root)[0]["checked"] == 0


@pytest.mark.parametrize("left", [1, 20, 55])
def test_a_segment_that_was_settled_while_the_audit_was_reading_is_not_judged(tmp_path, left):
    source = open_source(queue(tmp_path))
    triple = source.queues()[0].triples[0]
    whole = read_triple(source, triple)
    times = sorted([*whole.headers["ts"].tolist(), *whole.events["ts"].tolist()])
    data = read_triple(source, triple._replace(cut=times[-left]))
    assert words.wrong(source, data) == []
    assert (words.is_judged(data), data.late) == (left == 1, left > 1)


@pytest.mark.parametrize(("kind", "at", "value", "detail"), [
    ("msgs", words.RECORDS_AT, 21, "says that it has 21 records, and has 20"),
    ("msgs", words.SEALED_AT, 0, "says 0 of whether it is full, which cannot be"),
    ("msgs", words.SEALED_AT, 3, "says 3 of whether it is full, which cannot be"),
    ("acks", words.SETTLED_AT, 19, "says that 19 records are settled, and has 20"),
    ("acks", words.ENTRIES_AT, 19, "says that it has 19 entries, and has 20")])
def test_each_word_that_is_not_true_is_found(tmp_path, kind, at, value, detail):
    root = queue(tmp_path)
    path = f"{root}/vhost/queue/kept/{kind}.0000000001"
    put_word(path, at, value)
    row, told = judged(root)
    assert (row["verdict"], row["found"]) == ("violated", 1)
    assert told == [(f"{kind}.0000000001", at, detail)]
    put_word(path, at, 0, whole=False)
    assert "-1" in judged(root)[1][0][2]


def test_a_record_and_an_event_that_are_not_counted_are_found(tmp_path):
    root = queue(tmp_path)
    path = f"{root}/vhost/queue/kept"
    last = int(plant.Story(f"{root}/vhost/queue").parts[0].positions[-1])
    put_word(f"{path}/msgs.0000000001", words.END_AT, last)
    put_word(f"{path}/msgs.0000000001", words.RECORDS_AT, 19)
    told = judged(root)[1]
    assert ("msgs.0000000001", words.END_AT, "has a whole record behind the end of its records") in told
    plant.flip(f"{path}/msgs.0000000001", last + 100)       # An old record of a recycled file has a wrong CRC, too.
    assert not any("whole record" in detail for _, _, detail in judged(root)[1])
    put_word(f"{path}/journal.0000000001", words.EVENTS_AT, 39)
    assert judged(root)[1][-1] == ("journal.0000000001", words.EVENTS_AT,
                                   "has a whole event behind those that it counts")
    plant.flip(f"{path}/journal.0000000001", 64 + 39 * 32)
    assert not any("whole event" in detail for _, _, detail in judged(root)[1])


def test_a_cursor_before_a_record_that_went_out_is_found(tmp_path):
    root = queue(tmp_path)
    path = f"{root}/vhost/queue/kept/acks.0000000001"
    last = int(plant.Story(f"{root}/vhost/queue").parts[0].positions[-1])
    put_word(path, words.PASSED_AT, last)
    assert judged(root)[1] == [("acks.0000000001", words.PASSED_AT,
                                "has entries of records that went out, which the cursor has not passed")]
    put_word(path, words.PASSED_AT, last + 8)
    assert judged(root)[1] == []
    put_word(path, words.PASSED_AT, last)
    put_word(path, 48, last + 8)            # The cursor may have been there: a loss of power put it back.
    assert judged(root)[1] == []


@pytest.mark.parametrize(("kind", "found"), [
    (layout.PURGED, 0), (layout.EXPIRED, 0), (layout.DROPPED | layout.REASON_LENGTH << 4, 0),
    (layout.DEAD_LETTERED | layout.REASON_EXPIRED << 4, 0), (layout.ACKED, 1), (layout.REJECTED, 1)])
def test_a_message_that_leaves_without_going_out_needs_no_cursor(tmp_path, kind, found):
    root = writer.write_queue(tmp_path / "data", writer.simple_level(20, settle=False), writer.Options(journal=False))
    story = plant.Story(f"{root}/vhost/queue")
    for row in range(20):
        story.parts[0].forget(row)
        story.tell(row, kind)
    story.save()
    os.makedirs(f"{root}/vhost/queue/kept")
    for name in ("msgs", "acks"):
        os.rename(f"{root}/vhost/queue/{name}.0000000001", f"{root}/vhost/queue/kept/{name}.0000000001")
    put_word(f"{root}/vhost/queue/kept/acks.0000000001", words.PASSED_AT, 64)
    assert judged(root)[0]["found"] == found


def test_a_segment_of_a_dump_that_others_follow_is_full(tmp_path):
    root = writer.write_queue(tmp_path / "data", writer.simple_level(40), writer.Options(segment_messages=20))
    said = plant.manifest(str(root), {("/", "vhost/queue"): {"journal": True}}, 1 << 62)
    (tmp_path / "data/manifest.json").write_text(json.dumps(said))
    for number in (1, 2):
        put_word(f"{root}/vhost/queue/msgs.{number:010d}", words.SEALED_AT, 0)
    assert judged(root)[1] == [
        ("msgs.0000000001", words.SEALED_AT, "says 0 of whether it is full, which cannot be")]


def test_the_last_segment_of_a_deleted_queue_is_open_in_the_archive(tmp_path):
    root = queue(tmp_path)
    path = f"{root}/vhost/queue"
    for kind in ("msgs", "acks", "journal"):
        os.rename(f"{path}/{kind}.0000000002", f"{path}/kept/{kind}.0000000002")
    put_word(f"{path}/kept/msgs.0000000002", words.SEALED_AT, 0)
    row, told = judged(root)
    assert (row["verdict"], row["checked"], told) == ("held", 2, [])


@pytest.mark.parametrize(("synced", "found"), [(0, 0), (words.ALL_SYNCED, 1)])
def test_before_the_next_start_only_what_was_on_disk_is_judged(tmp_path, synced, found):
    """A kept segment of a broker that may have lost its power: its acks may be newer than their count."""
    root = writer.write_queue(tmp_path / "data", writer.simple_level(40),
                              writer.Options(segment_messages=20, kept=True, synced=synced))
    (tmp_path / "data" / layout.RUNNING_FILE).write_text("boot\n")
    put_word(f"{root}/vhost/queue/kept/acks.0000000001", words.ENTRIES_AT, 19)
    assert judged(root)[0]["found"] == found


def test_a_loss_of_power_excuses_a_count_that_is_old(tmp_path):
    level = writer.simple_level(40)
    starts = [(int(level.events["ts"][-1]) + 10, int(level.events["ts"][-1]), layout.STARTED, layout.POWER_LOST)]
    rows = [(int(e["ts"]), int(e["seq"]), int(e["type"])) for e in level.events]
    level = writer.Level(level.messages, writer.events([*rows, *starts]))
    root = writer.write_queue(tmp_path / "data", level, writer.Options(segment_messages=20, kept=True))
    put_word(f"{root}/vhost/queue/kept/acks.0000000001", words.ENTRIES_AT, 19)
    assert judged(root)[0]["verdict"] == "held"


def test_the_words_are_read_from_both_headers(tmp_path):
    source = open_source(queue(tmp_path))
    (found,) = source.queues()
    assert [words.words_of(source, read_triple(source, triple)) for triple in found.triples] == [
        words.Words(20, 2, 20, 20), words.Words(20, 2, 20, 20)]
    marked = [triple._replace(cut=1 << 62) for triple in found.triples]     # A broker may be at work.
    assert words.words_of(source, read_triple(source, marked[1])) == words.Words(20, 2, 20)
