"""Verdicts: what is found, what is held, and what cannot be told for want of a journal or for damage."""

import json
import os
import struct

import numpy as np
import oracle
import pytest
import writer
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from brokerd.audit import moment
from brokerd.audit.files import open_source
from brokerd.audit.scan import AUDITS, Options
from brokerd.audit.verdicts import audit, exit_status, summary, verdict_of, worst
from brokerd.store import format as layout

T = 1_700_000_000_000_000_000
SECOND = 10 ** 9


def meta(key="q", message_id=None, group=None):
    flags, out = 0, b""
    if group is not None:
        flags |= 1 << 13
        table = b"\x01aI\x00\x00\x00\x07\x01gS" + struct.pack(">I", len(group)) + group.encode()
        out += struct.pack(">I", len(table)) + table
    if message_id is not None:
        flags |= 1 << 7
        out += bytes((len(message_id.encode()),)) + message_id.encode()
    return b"\x00" + bytes((len(key),)) + key.encode() + struct.pack(">H", flags) + out


def judged(root, **options):
    (one,) = audit(open_source(str(root)), Options(**options))
    return one, {row["audit"]: row for row in one.audits}


def write(root, level, **options):
    return writer.write_queue(root, level, writer.Options(**options))


IDS = st.lists(st.tuples(st.integers(1, 400), st.none() | st.sampled_from("abcdefgh") | st.text(max_size=30)),
               min_size=1, max_size=40)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(IDS, st.sampled_from((2, 7, 1000)), st.sampled_from((1, 60 * SECOND)), st.booleans())
@example([(1, "À"), (1, "Á")], 2, 1, False)
def test_duplicates_are_those_within_the_window(tmp_path_factory, ids, segment, unit, levels):
    root = tmp_path_factory.mktemp("d")
    now, rows = T, []
    for gap, id_ in ids:
        now += gap * unit
        rows.append((now, id_))
    window = 300 * unit
    parts = {0: list(range(0, len(rows), 2)), 3: list(range(1, len(rows), 2))} if levels and len(rows) > 1 else {
        0: list(range(len(rows)))}
    made = {k: writer.Level(writer.messages([p + 1 for p in part], [rows[p][0] for p in part]), writer.events([]), 5,
                            [meta(message_id=rows[p][1]) for p in part]) for k, part in parts.items()}
    write(root, made, segment_messages=segment)
    one, found = judged(root, duplicate_window_s=window / 1e9)
    assert found["duplicates"]["found"] == oracle.duplicates(rows, window)
    assert found["duplicates"]["found"] == sum(row["audit"] == "duplicates" for row in one.findings)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.sampled_from((None, "g1", "g2", "g3")), st.integers(0, 30), st.integers(0, 9)),
                min_size=2, max_size=40), st.sampled_from((3, 8, 1000)), st.booleans())
def test_groups_are_worked_on_in_turn(tmp_path_factory, rows, segment, header):
    root = tmp_path_factory.mktemp("g")
    messages = [(k + 1, T + k * 1000, 1, 1, k + 1) for k in range(len(rows))]
    events = []
    for k, (_, wait, work) in enumerate(rows):
        events.append((T + k * 1000 + wait * 100 + 1, k + 1, layout.DELIVERED, 0))
        if work:
            events.append((T + k * 1000 + wait * 100 + work * 500 + 2 + k % 97, k + 1, layout.ACKED, 0))
    events = list({ts: (ts, *rest) for ts, *rest in events}.values())
    metas = [meta(group=g) if header else meta(key=g or "none") for g, _, _ in rows]
    level = writer.Level(writer.messages([m[0] for m in messages], [m[1] for m in messages]), writer.events(events), 5,
                         metas)
    write(root, level, segment_messages=segment)
    groups = {k + 1: g if header else g or "none" for k, (g, _, _) in enumerate(rows)}
    wanted = oracle.group_fifo(oracle.Level(messages, events), groups)
    one, found = judged(root, **({"group_header": "g"} if header else {"group_by": "routing-key"}))
    assert found["group_fifo"]["found"] == wanted
    assert wanted == sum(row["audit"] == "group_fifo" for row in one.findings)


def test_without_a_journal_only_records_can_be_judged(tmp_path):
    _, found = judged(write(tmp_path / "data", writer.simple_level(100), journal=False))
    verdicts = {name: row["verdict"] for name, row in found.items()}
    assert {n for n, v in verdicts.items() if v == "held"} == {
        "publish_order", "double_settle", "duplicates", "holes", "damage", "time_order", "wrong_level", "numbers",
        "words"}
    assert set(verdicts.values()) == {"held", "undecidable"}
    assert "the queue has none" in found["fifo"]["reason"]


def test_a_stretch_without_journal_is_told(tmp_path):
    level = writer.simple_level(100)
    level.events = np.concatenate((level.events[:100], writer.events([(T + 10 ** 6, T + 10 ** 5, 9, 2)])))
    _, found = judged(write(tmp_path / "data", level))
    assert found["fifo"]["verdict"] == "undecidable"
    assert "power was lost" in found["fifo"]["reason"]


def test_a_damaged_record_is_not_taken_for_a_journal_that_began_later(tmp_path):
    root = write(tmp_path / "data", writer.simple_level(100))
    path = os.path.join(root, "vhost", "queue", "msgs.0000000001")
    with open(path, "r+b") as file:
        file.seek(os.path.getsize(path) // 2)
        octet = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([octet ^ 1]))
    _, found = judged(root)
    assert found["fifo"]["verdict"] == "undecidable"
    assert "files are missing or damaged" in found["fifo"]["reason"]
    assert "began later" not in found["fifo"]["reason"]


def swap(events, one, other):
    events["seq"][[one, other]] = events["seq"][[other, one]]


@pytest.mark.parametrize("segment", [50, 1000])
def test_a_message_that_went_out_too_early_is_found_on_an_edge_too(tmp_path, segment):
    level = writer.simple_level(100)
    swap(level.events, 98, 100)
    one, found = judged(write(tmp_path / "data", level, segment_messages=segment))
    assert found["fifo"]["found"] == 1
    row = next(row for row in one.findings if row["audit"] == "fifo")
    assert (row["seq"], row["priority"], row["file"]) == (51, 0, f"vhost/queue/msgs.{2 if segment == 50 else 1:010d}")


def test_unacked_for_too_long_is_found_and_the_young_are_counted(tmp_path):
    rows = [(T + 10, 1, 8), (T + 5000 * SECOND, 2, 8), (T + 5001 * SECOND, 3, 8), (T + 5002 * SECOND, 3, 1)]
    level = writer.Level(writer.messages((1, 2, 3), (T, T + 1, T + 2)), writer.events(rows))
    one, found = judged(write(tmp_path / "data", level))
    assert (found["unacked"]["found"], found["unacked"]["unacked"]) == (1, 2)
    assert [(r["seq"], r["detail"]) for r in one.findings if r["audit"] == "unacked"] == [(1, "unacked for 5001 s")]


def test_limits_are_those_in_force_in_the_messages_life(tmp_path):
    rows = []
    for seq in (1, 2):
        base = T + seq * 1000
        for k in range(4):
            rows += [(base + 10 * k + 1, seq, 8, k > 0), (base + 10 * k + 2, seq, 3, 1)]
        rows.append((base + 90, seq, *((layout.ACKED, 0) if seq == 1 else (layout.DEAD_LETTERED, layout.REASON_LIMIT))))
    level = writer.Level(writer.messages((1, 2), (T + 1000, T + 2000)), writer.events(rows))
    root = write(tmp_path / "data", level, settings={"delivery_limit": 2})
    _, found = judged(root)
    assert (found["delivery_limit"]["found"], found["limit_kept"]["found"]) == (2, 1)
    _, found = judged(root, delivery_limit=9)
    assert found["delivery_limit"]["verdict"] == found["limit_kept"]["verdict"] == "held"
    root = write(tmp_path / "data", level, settings={"delivery_limit": 2}, log=[
        {"at": T + 500, "what": "settings", "journal": True, "delivery_limit": 9}])
    assert judged(root)[1]["delivery_limit"]["found"] == 0
    assert "delivery_limit" not in judged(write(tmp_path / "data", level))[1]


def test_a_missing_segment_spoils_what_stands_on_it(tmp_path):
    root = write(tmp_path / "data", writer.simple_level(100), segment_messages=20)
    os.unlink(root + "/vhost/queue/msgs.0000000003")
    _, found = judged(root)
    verdicts = {name: row["verdict"] for name, row in found.items()}
    assert {n for n, v in verdicts.items() if v == "violated"} == {"holes", "damage"}
    assert verdicts["fifo"] == verdicts["publish_order"] == "undecidable"


def test_only_what_is_asked_for_is_judged(tmp_path):
    root = write(tmp_path / "data", writer.simple_level(100))
    _, found = judged(root, audits=frozenset({"fifo"}))
    assert list(found) == ["fifo"]
    _, found = judged(root, from_ns=T + 40_000, to_ns=T + 80_000)
    assert (found["fifo"]["checked"], found["holes"]["checked"], found["damage"]["verdict"]) == (10, 10, "held")


def test_counters_are_named_as_the_brokers(tmp_path):
    rows = [(T + 10, 1, 8), (T + 11, 2, 8), (T + 12, 1, 3, 4), (T + 13, 1, 8, 1), (T + 14, 1, 4, 1), (T + 15, 2, 2)]
    level = writer.Level(writer.messages((1, 2), (T, T + 1)), writer.events(rows))
    one, found = judged(write(tmp_path / "data", level))
    assert {k: v for k, v in one.queue["counters"].items() if v} == {
        "returned_channel_closed": 1, "redelivered": 1, "out_of_sequence": 1, "overtakings": 1,
        "dead_lettered_rejected": 1, "rejected": 1}
    assert list(one.queue["counters"]) == list(layout.ORDER_COUNTERS)
    assert found["overtaking"]["overtakings"] == 1


def test_the_summary_is_json_of_schema_1(tmp_path):
    root = write(tmp_path / "data", writer.simple_level(100))
    one, _ = judged(root)
    document = json.loads(json.dumps(summary(root, [one], options=Options(), made=7)))
    assert (document["schema"], document["made"], document["exit"], document["verdict"]) == (1, 7, 0, "held")
    assert document["inputs"]["messages"] == 100
    assert {row["audit"] for row in document["audits"]} <= set(AUDITS)
    assert document["queues"][0]["throughput"][0]["published"] == 100
    assert document["findings_total"] == 0


def test_the_exit_status_knows_what_to_fail_on():
    held, wrong, unknown = ({"audit": a, "verdict": v} for a, v in (
        ("fifo", "held"), ("holes", "violated"), ("unacked", "undecidable")))
    assert exit_status([held]) == exit_status([]) == 0
    assert exit_status([held, wrong, unknown]) == 1
    assert exit_status([held, unknown]) == 3
    assert exit_status([held, wrong], "fifo,damage") == 0
    assert exit_status([wrong, unknown], "none") == 0


def test_effects_of_use_are_no_broken_promise_unless_they_are_named():
    held, effect, wrong, unknown = ({"audit": a, "verdict": v} for a, v in (
        ("fifo", "held"), ("overtaking", "effects of use"), ("holes", "violated"), ("priority", "undecidable")))
    assert exit_status([held, effect]) == exit_status([effect], "fifo") == exit_status([effect], "none") == 0
    assert exit_status([effect, unknown]) == 3
    assert exit_status([effect, wrong]) == 1
    assert exit_status([held, effect], "overtaking") == 1
    assert [worst(rows) for rows in ([], [held, effect], [effect, unknown], [unknown, wrong])] == [
        "held", "effects of use", "undecidable", "violated"]


def test_a_chain_that_covers_nothing_counts_only_where_nothing_else_was_judged():
    bare, held = {"audit": "chain", "verdict": "covers nothing"}, {"audit": "fifo", "verdict": "held"}
    assert exit_status([bare, bare]) == exit_status([bare], "chain") == exit_status([bare, held], "chain") == 3
    assert exit_status([bare, held]) == exit_status([bare], "none") == exit_status([bare], "fifo") == 0
    assert (worst([bare, held]), worst([bare])) == ("held", "covers nothing")


@pytest.mark.parametrize("audit", AUDITS)
def test_what_an_audit_finds_breaks_a_promise_or_is_an_effect_of_use(audit):
    of_use = audit in ("overtaking", "unacked", "duplicates", "group_fifo")
    assert verdict_of(audit, 3, True) == verdict_of(audit, 3, False) == ("effects of use" if of_use else "violated")
    assert (verdict_of(audit, 0, True), verdict_of(audit, 0, False)) == ("undecidable", "held")


def test_a_finding_says_times_that_people_can_read(tmp_path):
    level = writer.Level(writer.messages((1, 2), (T, T + 1)), writer.events([(T + 1_500_000_000, 2, 8),
                                                                             (T + 2_500_000_000, 1, 8)]))
    one, found = judged(write(tmp_path / "data", level))
    assert found["fifo"]["verdict"] == "violated"
    (told,) = (row["detail"] for row in one.findings if row["audit"] == "fifo")
    assert told == f"first delivered at {moment(T + 1_500_000_000)} UTC, before an earlier one, at " \
                   f"{moment(T + 2_500_000_000)} UTC"
    assert moment(T).startswith("2023-")


@pytest.mark.parametrize("hole_behind", [False, True])
def test_what_a_loss_of_power_may_have_done_is_neither_held_nor_violated(tmp_path, hole_behind):
    level = writer.after_a_loss_of_power(hole_behind=hole_behind)
    root = writer.write_queue(tmp_path / "data", level, writer.Options(segment_messages=400))
    (one,) = audit(open_source(str(root)))
    rows = {row["audit"]: row for row in one.audits}
    for name in ("double_settle", "delivery_after_settle", "overtaking", "ack_without_delivery"):
        assert (rows[name]["verdict"], rows[name]["found"]) == ("undecidable", 0), rows[name]
        assert "power was lost" in rows[name]["reason"]
    assert (rows["publish_order"]["verdict"], rows["damage"]["verdict"]) == ("held", "held")
    if hole_behind:
        assert (rows["holes"]["verdict"], rows["holes"]["found"]) == ("violated", 1)
    else:
        assert (rows["holes"]["verdict"], rows["holes"]["found"]) == ("undecidable", 0)
    assert "3 numbers are absent of messages that were published before power was lost" in rows["holes"]["reason"]


def test_what_a_queue_without_a_journal_went_through_is_not_counted_as_nothing(tmp_path):
    for name, journal in (("with", True), ("without", False)):
        writer.write_queue(tmp_path / "data", writer.simple_level(10), writer.Options(journal=journal), queue=name,
                           folder=name)
    with_journal, without = (one.queue for one in audit(open_source(str(tmp_path / "data"))))
    assert (with_journal["journaled"], with_journal["counters"]["redelivered"]) == (True, 0)
    assert (without["journaled"], without["counters"]) == (False, None)
