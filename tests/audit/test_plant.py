"""What is wrong in the files of a queue is found, all of it and nothing else; what cannot be judged is not "held"."""

import json
import os
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import pytest
from tests.audit import plant
from tests.audit.runs import VHOST, Run, in_groups, whole
from tests.broker import ROOT, SECONDS
from tests.plane.harness import nack, reject

from brokerd.audit import AuditError
from brokerd.audit.files import open_source
from brokerd.audit.scan import Options
from brokerd.audit.verdicts import audit, exit_status
from brokerd.store import format as layout

FOUND = 5
LIMIT = 3
NEED_EVENTS = ("fifo", "returned_first", "overtaking", "ack_without_delivery", "delivery_after_settle", "unacked")


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """Two queues in which all is in order."""
    root = tmp_path_factory.mktemp("whole") / "data"
    whole(root)
    return root


@pytest.fixture
def copy(clean, tmp_path):
    """A copy of them, to be spoilt."""
    return shutil.copytree(clean, tmp_path / "data")


def judged(root, **options):
    return audit(open_source(str(root)), Options(**options))


def verdicts(judged):
    """(queue, audit) -> row."""
    return {(row["queue"], row["audit"]): row for one in judged for row in one.audits}


def not_held(judged):
    return {key: row["verdict"] for key, row in verdicts(judged).items()
            if row["verdict"] not in ("held", "covers nothing")}


def told(judged, name):
    """Sequence numbers of the findings of an audit."""
    return sorted(row["seq"] for one in judged for row in one.findings if row["audit"] == name)


def folder(root, queue="plain"):
    return f"{root}/{VHOST}/{queue}"


def kept(root, kind, place=2, queue="plain"):
    """The path of a file of a settled segment that has neighbours on both sides."""
    above, _, number = plant.segments(folder(root, queue))[0][place]
    assert above.endswith("/kept")
    return f"{above}/{kind}.{number:010d}"


def live_counters(root, queue):
    counts = np.fromfile(f"{folder(root, queue)}/{layout.ORDER_FILE}", "<u8", len(layout.ORDER_COUNTERS), offset=64)
    return dict(zip(layout.ORDER_COUNTERS, counts.tolist(), strict=True))


def test_of_a_run_in_which_all_is_in_order_every_audit_holds(clean):
    result = judged(clean)
    assert not_held(result) == {}
    assert exit_status(verdicts(result).values()) == 0
    unseen = {(queue, audit) for queue in ("plain", "levels")
              for audit in ("ended_while_out", "early_death", "late_delivery", "chain")}    # No broker made chains.
    assert {key for key, row in verdicts(result).items() if not row["checked"]} == {("levels", "overtaking"), *unseen}
    for one in result:
        assert one.findings == []
        assert one.queue["counters"] == live_counters(clean, one.queue["queue"])
        assert one.queue["counters"]["redelivered_after_restart"] > 0


def found_in(audit):
    """The verdict of an audit that found something."""
    return "effects of use" if audit in ("overtaking", "unacked", "duplicates", "group_fifo") else "violated"


PLACES = [(name, queue, boundary) for name in plant.PLANTS for queue in ("plain", "levels")
          for boundary in (False, True)
          if (name, queue) not in (("priority", "plain"), ("unacked", "levels")) and name != "group_fifo"]


@pytest.mark.parametrize(("name", "queue", "boundary"), PLACES,
                         ids=["-".join((n, q) + ("boundary",) * b) for n, q, b in PLACES])
def test_faults_are_found_where_they_were_put_and_nowhere_else(copy, name, queue, boundary):
    story = plant.Story(folder(copy, queue))
    planted = plant.plant(story, name, 1 if boundary else FOUND, boundary=boundary)
    story.save()
    options = {"delivery_limit": LIMIT} if name in ("delivery_limit", "limit_kept") else {}
    result = judged(copy, **options)
    row = verdicts(result)[queue, name]
    assert (row["verdict"], row["found"]) == (found_in(name), len(planted.seqs))
    assert told(result, name) == sorted(planted.seqs)
    others = {key: verdict for key, verdict in not_held(result).items()
              if key != (queue, name) and not (key[0] == queue and key[1] in planted.touches)}
    assert not {"violated", "effects of use"} & set(others.values())
    assert {key[0] for key in others} <= {queue}
    assert not others or name in ("holes", "damage")       # Of what is not there nothing can be said.
    seen = set(not_held(result).values())
    assert exit_status(verdicts(result).values()) == (1 if "violated" in seen else 3 if others else 0)
    assert exit_status(verdicts(result).values(), name) == 1


@pytest.mark.parametrize("boundary", [False, True])
def test_what_goes_out_before_the_one_before_it_in_its_group_is_settled_is_found(tmp_path, boundary):
    story = plant.Story(in_groups(tmp_path / "data"))
    grouped = {"group_by": "routing-key"}
    assert not_held(judged(tmp_path / "data", **grouped)) == {}
    planted = plant.plant(story, "group_fifo", 1 if boundary else FOUND, boundary=boundary)
    story.save()
    result = judged(tmp_path / "data", **grouped)
    wrong = not_held(result)
    assert wrong.pop(("plain", "prefetch")) == "violated"       # Its consumer had a prefetch of one.
    assert wrong == {("plain", "group_fifo"): "effects of use"}
    assert told(result, "group_fifo") == planted.seqs


def test_files_that_were_read_and_written_again_are_the_same(copy):
    path = kept(copy, "journal")
    with open(path, "rb") as file:
        before = file.read()
    story = plant.Story(folder(copy))
    story.parts[2].changed |= {"msgs", "acks", "journal"}
    story.save()
    count = int.from_bytes(before[32:36], "little")
    with open(path, "rb") as file:
        assert file.read() == before[:64 + 32 * count]
    assert not_held(judged(copy)) == {}


@pytest.mark.parametrize(("kind", "at"), [
    ("msgs", 200), ("msgs", 9), ("msgs", 41), ("journal", 64 + 40), ("journal", 64 + 32 * 7 + 26), ("journal", 17),
    ("journal", 34), ("acks", 9), ("acks", 64 + 8 * 3),
], ids=["record", "number", "end", "event", "type", "begun", "events", "acks-number", "entry"])
def test_one_octet_that_is_another_is_damage_and_held_by_no_audit_it_may_have_changed(copy, kind, at):
    plant.flip(kept(copy, kind), at)
    result = judged(copy)
    assert verdicts(result)["plain", "damage"]["found"] >= 1
    rest = not_held(result)
    assert rest.pop(("plain", "damage")) == "violated"
    assert "violated" not in rest.values()
    assert all(queue == "plain" for queue, _ in rest)
    assert rest or kind == "acks"


@pytest.mark.parametrize(("kind", "octets"), [
    (kind, octets) for kind in ("msgs", "journal", "acks") for octets in (0, 63, 64, 1000)
    if (kind, octets) != ("acks", 0)])
def test_a_file_that_is_cut_off_is_damage(copy, kind, octets):
    os.truncate(kept(copy, kind), octets)
    rows = verdicts(judged(copy))
    assert rows["plain", "damage"]["verdict"] == "violated"
    if kind == "journal":
        assert all(rows["plain", name]["verdict"] == "undecidable" for name in NEED_EVENTS)
    assert all(row["verdict"] in ("held", "covers nothing") for (queue, _), row in rows.items() if queue == "levels")


@pytest.mark.parametrize("queue", ["plain", "levels"])
def test_a_segment_that_is_gone_with_all_of_it_is_told_by_its_sequence_numbers(copy, queue):
    above, level, number = plant.segments(folder(copy, queue))[0][1]
    gone = plant.Part(above, level, number).headers["seq"].astype(int).tolist()
    plant.lose(above, number)
    result = judged(copy)
    row = verdicts(result)[queue, "holes"]
    assert (row["verdict"], row["found"]) == ("violated", len(gone))
    rest = not_held(result)
    assert all(key[0] == queue for key in rest)
    assert [key for key, verdict in rest.items() if verdict == "violated"] == [(queue, "holes")]


def test_a_journal_that_is_gone_leaves_its_messages_undecided(copy):
    os.unlink(kept(copy, "journal"))
    rows = verdicts(judged(copy))
    assert {rows["plain", name]["verdict"] for name in NEED_EVENTS} == {"undecidable"}
    assert rows["plain", "publish_order"]["verdict"] == rows["plain", "holes"]["verdict"] == "held"
    assert exit_status(rows.values()) in (1, 3)


@pytest.mark.parametrize("name", ["msgs.0000000099", "journal.0000000099"])
def test_a_file_of_somebody_else_that_is_named_like_ours_is_told(copy, name):
    with open(f"{folder(copy)}/{name}", "wb") as file:
        file.write(b"To whom it may concern. " * 100)
    result = judged(copy)
    assert [row["file"].endswith(name) for one in result for row in one.findings] == [True]
    assert {key for key, verdict in not_held(result).items() if verdict == "violated"} == {("plain", "damage")}


def test_a_lone_file_of_a_segment_does_not_end_the_audit(copy):
    for kind in ("acks", "journal"):
        shutil.copy(kept(copy, kind), f"{folder(copy)}/{kind}.0000000000")
    assert "violated" not in {verdict for key, verdict in not_held(judged(copy)).items() if key[1] != "damage"}


# --- dumps


@pytest.fixture
def dump(copy):
    """The copy as a dump."""
    cut = max(int(plant.Story(folder(copy, name)).times[-1]) for name in ("plain", "levels")) + 1
    made = plant.manifest(str(copy), {("/", f"{VHOST}/{name}"): {"journal": True} for name in ("plain", "levels")}, cut)
    with open(copy / "manifest.json", "w", encoding="utf-8") as file:
        json.dump(made, file)
    return copy


def test_a_dump_holds_as_what_it_was_made_of(dump):
    assert not_held(judged(dump)) == {}


@pytest.mark.parametrize("kind", ["msgs", "journal", "acks"])
def test_of_a_half_copied_dump_what_is_missing_is_told(dump, kind):
    path = kept(dump, kind)
    os.truncate(path, os.path.getsize(path) // 2)
    rows = verdicts(judged(dump))
    assert rows["plain", "damage"]["verdict"] == "violated"
    assert rows["plain", "fifo"]["verdict"] == "undecidable" or kind == "acks"
    assert exit_status(rows.values()) == 1


@pytest.mark.parametrize("kind", ["msgs", "journal", "acks"])
def test_a_file_that_the_manifest_names_and_that_is_not_there_is_told(dump, kind):
    os.unlink(kept(dump, kind))
    result = judged(dump)
    assert verdicts(result)["plain", "damage"]["verdict"] == "violated"
    assert exit_status(verdicts(result).values()) == 1


def test_a_queue_that_the_manifest_names_and_that_is_not_there_is_told(dump):
    shutil.rmtree(folder(dump))
    assert verdicts(judged(dump))["plain", "damage"]["verdict"] == "violated"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"manifest": 99}', '{"manifest": 1, "queues": 3}', "\0\0"])
def test_a_manifest_that_is_none_is_an_error_of_one_line(dump, text):
    (dump / "manifest.json").write_text(text)
    with pytest.raises(AuditError) as error:
        judged(dump)
    assert "\n" not in str(error.value)
    assert "manifest.json" in str(error.value)


# --- no source


@pytest.mark.parametrize("name", ["", "nowhere", "file"])
def test_what_is_no_folder_of_ours_is_an_error_of_one_line(tmp_path, name):
    (tmp_path / "file").write_text("x")
    with pytest.raises(AuditError) as error:
        open_source(str(tmp_path / name))
    assert "\n" not in str(error.value)
    assert str(tmp_path) in str(error.value)


UNPRIVILEGED = """
import os, sys
from brokerd.audit import AuditError
from brokerd.audit.files import open_source
from brokerd.audit.verdicts import audit

def say():
    try:
        print(sorted({(row["queue"], row["verdict"]) for one in audit(open_source(sys.argv[1])) for row in one.audits
                      if row["audit"] == "damage"}))
    except AuditError as error:
        print("AuditError", error)

if os.geteuid() == 0:
    out, sys.stdout = sys.stdout, open(os.devnull, "w")
    say()                                   # All that is imported must be, before this user may read it no more.
    sys.stdout = out
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
say()
"""


def as_nobody(path):
    """What an audit says to a user who has no privileges."""
    env = {**os.environ, "PYTHONPATH": f"{ROOT}/src"}
    done = subprocess.run([sys.executable, "-c", UNPRIVILEGED, str(path)], env=env, cwd="/", capture_output=True,
                          text=True, timeout=SECONDS)
    assert done.stderr == ""
    return done.stdout.strip()


@pytest.fixture
def readable(clean):
    """A copy in a folder that everybody may enter."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as above:
        os.chmod(above, 0o755)
        root = f"{above}/data"
        shutil.copytree(clean, root)
        for where, _, names in os.walk(root):
            os.chmod(where, 0o755)
            for name in names:
                os.chmod(f"{where}/{name}", 0o644)
        yield root
        for where, _, _ in os.walk(root):
            os.chmod(where, 0o755)


def test_a_file_that_may_not_be_read_is_told_and_the_rest_audited(readable):
    os.chmod(kept(readable, "msgs"), 0)
    assert as_nobody(readable) == "[('levels', 'held'), ('plain', 'violated')]"


def test_a_folder_that_may_not_be_read_is_told(readable):
    assert as_nobody(readable) == "[('levels', 'held'), ('plain', 'held')]"
    os.chmod(folder(readable), 0)
    assert "'violated'" in as_nobody(readable)
    os.chmod(folder(readable), 0o755)
    os.chmod(readable, 0)
    said = as_nobody(readable)
    assert said.startswith("AuditError")
    assert "permission" in said.lower()


# --- what the journal does not know


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path / "scratch")


def events_judged(result, queue="plain"):
    return {verdicts(result)[queue, name]["verdict"] for name in NEED_EVENTS}


def test_without_a_journal_nothing_that_needs_events_is_called_held(tmp_path):
    run = Run(tmp_path / "scratch", journal=False)
    run.steps(200)
    run.finish(tmp_path / "data")
    result = judged(tmp_path / "data")
    assert "held" not in events_judged(result)
    assert "violated" not in {row["verdict"] for row in verdicts(result).values()}
    assert exit_status(verdicts(result).values()) == 3


def test_a_journal_that_began_later_leaves_what_was_before_undecided(tmp_path):
    run = Run(tmp_path / "scratch", journal=False)
    run.steps(100)
    run.queue.set_journal(True)
    run.steps(100)
    run.finish(tmp_path / "data")
    result = judged(tmp_path / "data")
    assert "held" not in events_judged(result)
    assert "violated" not in {row["verdict"] for row in verdicts(result).values()}


def test_a_loss_of_power_leaves_the_time_before_it_undecided(tmp_path, run):
    run.steps(300)
    run.crash(suspect=True)
    run.steps(300)
    run.finish(tmp_path / "data")
    result = judged(tmp_path / "data")
    rows = verdicts(result)
    assert {rows["plain", name]["verdict"] for name in NEED_EVENTS if name != "fifo"} == {"undecidable"}
    assert "power" in rows["plain", "overtaking"]["reason"]
    assert "violated" not in {row["verdict"] for row in rows.values()}
    assert rows["plain", "publish_order"]["verdict"] == "held"


def test_a_fault_beside_a_loss_of_power_is_found_all_the_same(tmp_path, run):
    run.steps(300)
    run.crash(suspect=True)
    run.steps(300)
    story = plant.Story(run.finish(tmp_path / "data"))
    planted = plant.plant(story, "double_settle", 3)
    story.save()
    row = verdicts(judged(tmp_path / "data"))["plain", "double_settle"]
    assert (row["verdict"], row["found"]) == ("violated", len(planted.seqs))


def test_what_a_switched_off_journal_did_not_see_is_undecided(tmp_path, run):
    run.steps(200)
    run.queue.set_journal(False)
    run.steps(50)
    run.queue.set_journal(True)
    run.steps(200)
    run.finish(tmp_path / "data")
    result = judged(tmp_path / "data")
    assert events_judged(result) == {"undecidable"}
    assert "violated" not in {row["verdict"] for row in verdicts(result).values()}


def test_a_journal_that_stays_switched_off_leaves_the_rest_undecided(tmp_path, run):
    run.steps(200)
    run.queue.set_journal(False)
    run.steps(50)
    run.finish(tmp_path / "data")
    result = judged(tmp_path / "data")
    assert events_judged(result) == {"undecidable"}
    assert "violated" not in {row["verdict"] for row in verdicts(result).values()}


def test_many_crashes_in_a_row_disturb_nothing(tmp_path, run):
    for _ in range(6):
        run.steps(30)
        run.crash()
        run.crash()
    run.finish(tmp_path / "data")
    result = judged(tmp_path / "data")
    assert not_held(result) == {}
    assert result[0].queue["counters"] == live_counters(tmp_path / "data", "plain")


# --- and the model of it


@pytest.mark.parametrize("seed", range(4))
def test_what_disorderly_consumers_do_is_counted_as_the_broker_counts_it(tmp_path, seed):
    run = Run(tmp_path / "scratch", max_priority=seed % 3, seed=seed,
              rules={"delivery_limit": 2, "dead_letters": bool(seed & 1)})
    for _ in range(3):
        for _ in range(150):
            run.publish(run.random.randrange(6))
            run.turn()
            for _ in range(run.random.randrange(4)):
                if run.out:
                    tag = run.out.pop(run.random.randrange(len(run.out)))
                    run.consumer.feed(run.random.choice((nack, reject))(1, tag, requeue=run.random.random() < 0.7))
            if run.random.random() < 0.05:
                run.consumer.detach()
                run.consume()
            run.ack(run.random.randrange(1, 20))
            run.turn()
        run.crash()
    run.finish(tmp_path / "data")
    result = judged(tmp_path / "data")
    counters = live_counters(tmp_path / "data", "plain")
    assert result[0].queue["counters"] == counters
    assert counters["overtakings"] > counters["out_of_sequence"] > 0
    assert set(not_held(result).items()) <= {(("plain", "overtaking"), "effects of use")}
