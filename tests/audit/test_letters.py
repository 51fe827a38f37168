"""A dead letter stands in the queue to which it went; where the files cannot tell, the audit says so."""


import json

import numpy as np
import pytest
from tests.audit import plant, writer

from brokerd.audit.files import open_source
from brokerd.audit.scan import Options
from brokerd.audit.verdicts import audit
from brokerd.store import format as layout
from brokerd.store.format import ACKED, DEAD_LETTERED, DELIVERED

T = 1_780_000_000_000_000_000
SURE = {"dead_letter_exchange": "", "dead_letter_routing_key": "dead", "dead_letter_at_least_once": True}
DIED = (2, 5, 6)
PLAIN = b"\x00\x01q\x10\x00\x02"
MISSING = "of 1 message the dead letter is not there, which more than a fault explains"


def with_header(name, value):
    """Exchange, routing key, and the headers."""
    table = bytes([len(name)]) + name.encode() + b"S" + len(value).to_bytes(4, "big") + value.encode()
    return b"\x00\x04dead\x20\x00" + len(table).to_bytes(4, "big") + table


def source_queue(root, settings, *, died=DIED, reason=layout.REASON_REJECTED, meta=PLAIN, log=(), power_cut=False):
    """Eight messages of 101, 102, … octets, of which some died."""
    rows, removed = [], layout.REASON_REMOVED
    for seq in range(1, 9):
        at = T + 1000 * seq
        rows += [(at + 1, seq, DELIVERED),
                 (at + 2, seq, DEAD_LETTERED, removed if seq == 3 else reason) if seq in died else (at + 2, seq, ACKED)]
    if power_cut:
        rows.append((T + 20_000, T + 19_000, layout.STARTED, layout.POWER_LOST))
    level = writer.Level(writer.messages(range(1, 9), [T + 1000 * seq for seq in range(1, 9)]), writer.events(rows),
                         100 + np.arange(1, 9), [meta] * 8)
    return writer.write_queue(root, level, writer.Options(segment_messages=3, settings=settings, log=list(log)),
                              queue="source", folder=layout.folder_name("source"))


def dead_queue(root, bodies, *, of="source", seqs=None, since=0, name="dead", events=(), **options):
    """A queue with letters of so many octets."""
    seqs = seqs or range(1, len(bodies) + 1)
    times = [T + since + k for k in range(len(bodies))]
    made = writer.messages(seqs, times, connection=0, channel=0, publish_seq=np.zeros(len(bodies)))
    level = writer.Level(made, writer.events(events), np.array(bodies, np.int64),
                         [with_header("x-last-death-queue", of)] * len(bodies))
    return writer.write_queue(root, level, writer.Options(segment_messages=2, **options), queue=name,
                              folder=layout.folder_name(name))


def judged(root):
    (one,) = audit(open_source(str(root)), Options(audits=frozenset({"dead_letters"})), "source")
    rows = {row["audit"]: row for row in one.audits}
    row = rows.get("dead_letters")
    return row and (row["verdict"], row["found"], row["reason"]), [row["seq"] for row in one.findings]


def checked(root):
    """How many dead letters were looked for."""
    (one,) = audit(open_source(str(root)), Options(audits=frozenset({"dead_letters"})), "source")
    return next(row["checked"] for row in one.audits if row["audit"] == "dead_letters")


ALL = (999, 102, 105, 106)          # The first one is of no message here.


def test_letters_that_are_there_are_found_whatever_else_is(tmp_path):
    source_queue(tmp_path, SURE)
    dead_queue(tmp_path, ALL)
    assert judged(tmp_path) == (("held", 0, ""), [])


@pytest.mark.parametrize("lost", [102, 105, 106])
def test_a_letter_that_was_to_be_there_at_least_once_is_missed(tmp_path, lost):
    source_queue(tmp_path, SURE)
    dead_queue(tmp_path, [body for body in ALL if body != lost])
    assert judged(tmp_path) == (("violated", 1, "1 found"), [lost - 100])


def test_one_letter_does_not_stand_for_two_of_the_same_body(tmp_path):
    source_queue(tmp_path, SURE, died=(2, 5))
    story = tmp_path / "vhost" / layout.folder_name("source")
    assert story.is_dir()
    dead_queue(tmp_path, (999, 102, 102))
    assert judged(tmp_path)[1] == [5]


def test_a_letter_of_another_queue_is_none(tmp_path):
    source_queue(tmp_path, SURE)
    dead_queue(tmp_path, ALL, of="another")
    assert judged(tmp_path)[1] == [2, 5, 6]


def test_at_most_once_a_letter_may_have_been_dropped(tmp_path):
    source_queue(tmp_path, SURE | {"dead_letter_at_least_once": False})
    dead_queue(tmp_path, ALL[:3])
    assert judged(tmp_path) == (("undecidable", 0, MISSING), [])


@pytest.mark.parametrize("settings", [
    {"dead_letter_exchange": "dlx"}, {"dead_letter_routing_key": None}, {"dead_letter_routing_key": "source"}])
def test_letters_are_not_looked_for_if_the_settings_do_not_say_where_they_go(tmp_path, settings):
    source_queue(tmp_path, SURE | settings)
    dead_queue(tmp_path, ALL[:3])
    assert judged(tmp_path) == (("held", 0, "nothing to judge"), [])


@pytest.mark.parametrize("header", ["x-last-death-queue", "x-dead-letter-exchange", "x-dead-letter-routing-key"])
def test_a_message_with_a_way_of_its_own_is_not_looked_for(tmp_path, header):
    source_queue(tmp_path, SURE, meta=with_header(header, "elsewhere"))
    dead_queue(tmp_path, ALL[:3])
    assert judged(tmp_path) == (("held", 0, "nothing to judge"), [])


@pytest.mark.parametrize("options", [
    {"journal": False}, {"generation": 1}, {"seqs": (1, 2, 4)}, {"seqs": (2, 3, 4)}, {"since": 10_000},
    {"log": [{"at": T, "what": "removed", "level": 0, "first_seq": 0, "last_seq": 0}]},
    {"log": [{"at": T, "what": "settings", "journal": False}]}, {"name": "elsewhere"},
    {"settings": {"arguments": {"x-message-deduplication": True}}},
    {"events": [(T + 20_000, T + 19_000, layout.STARTED, layout.POWER_LOST)]}])
def test_a_queue_that_is_not_whole_does_not_say_what_it_never_had(tmp_path, options):
    source_queue(tmp_path, SURE)
    dead_queue(tmp_path, ALL[:3], **options)
    verdict, found, _ = judged(tmp_path)[0]
    assert (verdict, found) == ("undecidable", 0)


@pytest.mark.parametrize(("until", "expected"), [
    (T + 2002, "undecidable"), (T + 2003, "violated"), (T + 9999, "violated")])
def test_a_queue_that_was_copied_before_the_death_cannot_have_the_letter(tmp_path, until, expected):
    """A dump has a cut for each queue, and copies one after the other."""
    root = source_queue(tmp_path, SURE, died=(2,))
    dead_queue(tmp_path, (999,))
    said = plant.manifest(str(root), {("/", f"vhost/{layout.folder_name(name)}"): {"journal": True}
                                      for name in ("source", "dead")}, T + 20_000)
    for entry in said["queues"]:
        if entry["queue"] == "dead":
            entry["cut"] = until
    (tmp_path / "manifest.json").write_text(json.dumps(said))
    assert judged(tmp_path)[0][0] == expected


def test_a_loss_of_power_may_have_taken_a_letter(tmp_path):
    source_queue(tmp_path, SURE, power_cut=True)
    dead_queue(tmp_path, ALL[:3])
    assert judged(tmp_path)[0][:2] == ("undecidable", 0)


def test_the_settings_in_force_at_the_death_count(tmp_path):
    other = {"at": T + 5500, "what": "settings", "journal": True} | SURE | {"dead_letter_routing_key": "elsewhere"}
    source_queue(tmp_path, SURE, log=[other])
    dead_queue(tmp_path, (999, 102))
    dead_queue(tmp_path, (999, 106), name="elsewhere")
    # The line may be written a moment after the change: so where numbers 5 and 6 went is not known.
    assert judged(tmp_path)[0] == ("held", 0, "")
    assert checked(tmp_path) == 1


def test_a_message_that_an_operator_took_out_is_not_looked_for(tmp_path):
    """That is number 3, which stands in one segment with number 2."""
    source_queue(tmp_path, SURE, died=(2, 3))
    dead_queue(tmp_path, ALL[:2])
    assert judged(tmp_path)[0] == ("held", 0, "")


def test_a_queue_without_dead_letters_is_not_judged(tmp_path):
    source_queue(tmp_path, {}, died=())
    assert judged(tmp_path)[0] is None
