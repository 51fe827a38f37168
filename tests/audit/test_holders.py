"""Who holds messages: one consumer at a time, no more than its prefetch, and only while it is there."""

import json
from pathlib import Path

import pytest
import writer
from tests.audit.runs import Run

from brokerd.audit import holders
from brokerd.audit._journal import read_journal
from brokerd.audit.files import open_source
from brokerd.audit.scan import Options, scan
from brokerd.audit.stitch import read_again
from brokerd.audit.verdicts import audit
from brokerd.store.format import ACKED, DEAD_LETTERED, DELIVERED, POWER_LOST, REDELIVERED, RESTARTED, RETURNED, STARTED

T = 1_780_000_000_000_000_000
SECOND = 10 ** 9
ONE, OTHER = 11, 12


def line(what, at, **more):
    return {"at": T + at, "what": what, **more}


def write(root, steps, *, segment=2, settings=None, log=()):
    """``steps``: (seq, type, consumer[, reason]), a microsecond apart; type STARTED: the broker starts."""
    seqs = sorted({step[0] for step in steps} - {0})
    rows = [(T + 1000 * k, step[0] or T, step[1], step[3] if len(step) > 3 else 0, step[2], 0)
            for k, step in enumerate(steps, 1)]
    level = writer.Level(writer.messages(seqs, [T - 1000 + seq for seq in seqs]), writer.events(rows))
    return writer.write_queue(root, level, writer.Options(segment_messages=segment, settings=settings or {}, log=log))


def found_in(root):
    (one,) = audit(open_source(str(root)))
    rows = {row["audit"]: row for row in one.audits}
    return {name: (rows[name]["verdict"], rows[name]["found"], rows[name]["reason"],
                   [row["seq"] for row in one.findings if row["audit"] == name])
            for name in holders.AUDITS if name in rows}


SINGLE = {"single_active_consumer": True}
TAKES = [(1, DELIVERED, ONE), (2, DELIVERED, ONE), (3, DELIVERED, ONE)]


@pytest.mark.parametrize(("steps", "wrong"), [
    ([*TAKES, (1, ACKED, ONE), (2, ACKED, ONE), (3, ACKED, ONE), (4, DELIVERED, OTHER)], []),
    ([*TAKES, (1, ACKED, ONE), (4, DELIVERED, OTHER), (2, ACKED, ONE), (5, DELIVERED, OTHER), (3, ACKED, ONE),
      (6, DELIVERED, OTHER)], [4, 5]),
    ([*TAKES, (0, STARTED, 0, RESTARTED), (1, DELIVERED, OTHER, REDELIVERED | 4)], []),
    ([(1, DELIVERED, ONE), (1, RETURNED, ONE, 1), (1, DELIVERED, OTHER, REDELIVERED)], []),
    ([(1, DELIVERED, ONE), (2, DELIVERED, ONE, 2), (3, DELIVERED, ONE, 8), (1, ACKED, ONE), (4, DELIVERED, OTHER)], []),
], ids=["handed over", "served beside", "restart", "returned", "got, or without acks"])
def test_one_consumer_is_served_while_the_other_holds_nothing(tmp_path, steps, wrong):
    found = found_in(write(tmp_path / "data", steps, settings=SINGLE))
    assert found["single_active"][3] == wrong
    assert found["single_active"][0] == ("violated" if wrong else "held")
    assert "single_active" not in found_in(write(tmp_path / "other", steps))


def test_a_reject_whose_dead_letter_is_stored_later_holds_nothing(tmp_path):
    steps = [(1, DELIVERED, ONE), (2, DELIVERED, OTHER), (1, DEAD_LETTERED, 0, 1), (3, DELIVERED, OTHER)]
    settings = SINGLE | {"dead_letter_exchange": "dlx"}
    log = [line("consumer", -1, number=ONE, prefetch=1), line("consumer", -1, number=OTHER, prefetch=1)]
    found = found_in(write(tmp_path / "data", steps, settings=settings, log=log))
    assert found["single_active"][:2] == found["prefetch"][:2] == ("held", 0)


@pytest.mark.parametrize(("prefetch", "wrong"), [(0, []), (3, []), (2, [3, 5]), (1, [2, 3, 5])])
def test_a_consumer_holds_no_more_than_its_prefetch(tmp_path, prefetch, wrong):
    steps = [*TAKES, (4, DELIVERED, OTHER), (1, ACKED, ONE), (5, DELIVERED, ONE), (2, RETURNED, ONE, 1)]
    log = [line("consumer", -1, number=ONE, prefetch=prefetch)]
    found = found_in(write(tmp_path / "data", steps, log=log))
    assert found["prefetch"][3] == wrong


def test_a_consumer_that_is_gone_gets_nothing(tmp_path):
    gone = line("consumer_gone", 3000, number=ONE)
    assert found_in(write(tmp_path / "sound", TAKES, log=[gone]))["consumers"][:2] == ("held", 0)
    root = write(tmp_path / "data", TAKES, log=[gone | {"at": T - 2 * SECOND}])
    assert found_in(root)["consumers"][:2] == ("violated", 3)


def test_what_goes_out_in_the_second_after_its_consumer_was_gone_is_a_doubt(tmp_path):
    root = write(tmp_path / "data", TAKES, log=[line("consumer_gone", 1500, number=ONE)])
    assert found_in(root)["consumers"][:3] == (
        "undecidable", 0, "2 went out in the second after their consumers were gone")


def rewrite(root, *lines):
    """The side file has the settings, and these lines."""
    text = [json.dumps(each) + "\n" for each in (line("settings", -SECOND, journal=True), *lines)]
    Path(f"{root}/vhost/queue/order.jsonl").write_text("".join(text))
    return found_in(root)["consumers"]


@pytest.mark.parametrize(("at", "found"), [(-1, []), (SECOND, []), (SECOND + 1500, [1]), (2 * SECOND, [1, 2, 3])])
def test_a_consumer_gets_nothing_before_it_comes(tmp_path, at, found):
    """They go out a microsecond apart.  A line may be a second younger than its consumer."""
    said = rewrite(write(tmp_path / "data", TAKES), line("consumer", at, number=ONE))
    assert (said[0], said[3]) == ("violated" if found else "held", found)


def test_the_first_line_of_a_consumer_says_when_it_came(tmp_path):
    twice = [line("consumer", at, number=ONE) for at in (-1, 9 * SECOND)]
    assert rewrite(write(tmp_path / "data", TAKES), *twice)[:2] == ("held", 0)


def test_when_consumers_came_is_not_known_where_the_journal_was_switched_off(tmp_path):
    off, on = line("settings", 2 * SECOND, journal=False), line("settings", 3 * SECOND, journal=True)
    root = write(tmp_path / "data", TAKES)
    assert rewrite(root, off, on, line("consumer", 3 * SECOND, number=ONE))[:2] == ("held", 0)
    assert rewrite(root, off, on, line("consumer", 3 * SECOND, number=OTHER))[:2] == ("undecidable", 0)


LATER = 3 * SECOND


@pytest.mark.parametrize(("lines", "found"), [
    ([], 0),                                                    # Its line may have been about to be written.
    ([line("consumer", LATER, number=OTHER)], 3),               # That came later, and would have been written later.
    ([line("consumer", LATER, number=ONE - 1)], 3),             # That has a lower number, and came later.
    ([line("settings", LATER, journal=True)], 3),
    ([line("settings", SECOND, journal=True)], 0),              # Within a second.
    ([line("removed", LATER, level=0, first_seq=1, last_seq=1)], 0),        # Another hand writes these.
    ([line("lost", 1), line("settings", LATER, journal=True)], 0),
    ([line("lost", 1), line("consumer", LATER, number=ONE - 1)], 3),
    ([line("consumer", -1, number=OTHER + k, tag="x" * 1000) for k in range(200)]
     + [line("settings", LATER, journal=True)], 0),             # So long a file may have been written anew.
])
def test_a_consumer_that_must_have_a_line_and_has_none_is_found(tmp_path, lines, found):
    said = rewrite(write(tmp_path / "data", TAKES), *lines)
    assert said[:2] == ("violated" if found else "undecidable", found)


def test_a_loss_of_power_takes_lines_in_no_order(tmp_path):
    root = write(tmp_path / "data", [(0, STARTED, 0, POWER_LOST), *TAKES])
    assert rewrite(root, line("consumer", LATER, number=OTHER))[:2] == ("undecidable", 0)


def test_a_side_file_tells_nothing_of_what_was_before_it(tmp_path):
    root = write(tmp_path / "data", TAKES)
    lines = [line("settings", LATER, journal=True), line("consumer", 2 * LATER, number=OTHER)]
    Path(f"{root}/vhost/queue/order.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    assert found_in(root)["consumers"][:2] == ("undecidable", 0)


@pytest.mark.parametrize(("reason", "number", "found"), [
    (RESTARTED, OTHER, 0), (RESTARTED, ONE - 1, 3), (POWER_LOST, OTHER, 0)])
def test_the_end_of_the_broker_may_take_a_line_that_was_not_written_yet(tmp_path, reason, number, found):
    root = write(tmp_path / "data", [*TAKES, (0, STARTED, 0, reason)])
    said = rewrite(root, line("consumer", LATER, number=number))
    assert said[1] == found


def test_a_consumer_of_which_no_line_is_left_is_a_doubt(tmp_path):
    root = write(tmp_path / "data", [*TAKES, (4, DELIVERED, OTHER)])
    side = tmp_path / "data/vhost/queue/order.jsonl"
    lines = [text for text in side.read_text().splitlines() if f'"number": {OTHER}' not in text]
    side.write_text("\n".join(lines) + "\n")
    verdict, found, reason, _ = found_in(root)["consumers"]
    assert (verdict, found, reason) == ("undecidable", 0, "order.jsonl does not know 1 consumer")


def test_the_journals_alone_say_the_same_as_the_whole_lives(tmp_path):
    run = Run(tmp_path / "scratch", max_priority=1, seed=3)
    run.steps(60)
    run.crash()
    run.steps(60)
    run.finish(tmp_path / "data")
    source, options = open_source(str(tmp_path / "data")), Options()
    (queue,) = source.queues()
    compared = 0
    for number, triple in enumerate(queue.triples):
        whole = holders.held_of(read_again(source, scan(source, triple), options), number)
        alone = holders.held_by_journal(read_journal(source, triple, []), number, may_be_dying=False)
        for one, other in zip(whole, alone, strict=True):
            assert one.tolist() == other.tolist()
        compared += whole.ts.size
    assert compared > 100
