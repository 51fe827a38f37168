"""Hash chains of journals in a broker: behind each sync, finished with their segment, told to a file elsewhere."""

import json
import logging
import os

import pytest
from tests.upkeep.journaled import Journaled, kept_names, kept_numbers

from brokerd.audit import chain
from brokerd.audit.files import open_source
from brokerd.audit.scan import Options
from brokerd.audit.verdicts import audit
from brokerd.store import format as layout
from brokerd.store import reading
from brokerd.store.disk import Disk
from brokerd.upkeep import chains

BLOCK = 8                   # events


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(layout, "BLOCK_OCTETS", BLOCK * layout.EVENT_OCTETS)


@pytest.fixture
def place(tmp_path):
    (tmp_path / "data").mkdir()
    place = Journaled(tmp_path / "data")
    yield place
    place.close()


def links(queue, number, kept=False):
    """How many links the chain of a segment has; -1: it has no chain."""
    folder = f"{queue.directory}/kept" if kept else queue.directory
    try:
        with open(f"{folder}/{layout.chain_name(number)}", "rb") as file:
            return len(reading.read_chain(file.read(), number).links)
    except FileNotFoundError:
        return -1


def row(place, log=()):
    """What the audit says of the chains of all files."""
    (one,) = audit(open_source(str(place.path)), Options(audits=frozenset(["chain"]), chain_log=log))
    return one.audits[0]


def test_a_second_later_all_full_blocks_have_links(place):
    queue = place.queue()
    place.pass_on(1, 10)                        # 20 events
    assert links(queue, 1) == -1
    place.second()
    assert links(queue, 1) == 2
    place.second()
    place.pass_on(11, 14)
    place.second()
    assert links(queue, 1) == 3
    assert (row(place)["verdict"], row(place)["checked"]) == ("held", 24)


def test_less_than_a_block_has_no_chain(place):
    queue = place.queue()
    place.pass_on(1, 3)
    place.second(3)
    assert links(queue, 1) == -1


def test_a_settled_segment_is_covered_whole_with_its_acks(place):
    queue = place.queue()
    place.pass_on(1, 300)
    place.second()
    assert kept_numbers(queue) == [1, 2, 3, 4]
    assert all(layout.chain_name(number) in kept_names(queue) for number in (1, 2, 3, 4))
    assert links(queue, 1, kept=True) == -(-122 // BLOCK) + -(-61 // 32)
    said = row(place)
    assert (said["verdict"], said["reason"]) == ("held", "")
    assert said["checked"] == said["events"] == 600 - 600 % BLOCK


def test_a_chain_goes_on_after_a_restart(place):
    queue = place.queue()
    place.pass_on(1, 10)
    place.second()
    queue = place.restart()
    place.pass_on(11, 300)
    place.second()
    assert kept_numbers(queue) == [1, 2, 3, 4]
    assert (row(place)["verdict"], links(queue, 1, kept=True) > 2) == ("held", True)


def test_what_was_settled_just_before_a_restart_is_finished_after_it_if_older_ones_are(place):
    queue = place.queue()
    place.pass_on(1, 70)
    place.second()
    place.pass_on(71, 300)
    queue = place.restart()
    assert layout.chain_name(4) not in kept_names(queue)
    place.second()
    assert layout.chain_name(4) in kept_names(queue)
    assert row(place)["verdict"] == "held"


def test_what_an_older_broker_has_settled_gets_no_chain(place):
    queue = place.queue()
    place.pass_on(1, 300)
    place.second()
    for name in kept_names(queue):
        if name.startswith("chain."):
            os.unlink(f"{queue.directory}/kept/{name}")
    queue = place.restart()
    place.second()
    assert [name for name in kept_names(queue) if name.startswith("chain.")] == []


def test_without_syncs_there_are_no_chains(place):
    place.journals._sync = False
    queue = place.queue()
    place.pass_on(1, 300)
    place.second(2)
    assert kept_numbers(queue) == [1, 2, 3, 4]
    assert not [name for name in (*kept_names(queue), *os.listdir(queue.directory)) if name.startswith("chain.")]


def test_after_a_sync_that_failed_nothing_is_covered_any_more(place):
    class Failing(Disk):
        def sync_all(self, files):
            raise OSError(5, "Input/output error")

    place.disk = Failing()
    place.restart()
    queue = place.queue()
    place.pass_on(1, 300)
    place.second(2)
    assert links(queue, 5) == -1
    place.pass_on(301, 400)
    place.second()
    assert layout.chain_name(6) not in kept_names(queue)


def test_long_journals_are_hashed_in_steps_between_which_others_have_their_turn(place, monkeypatch):
    monkeypatch.setattr(chains, "STEP_OCTETS", layout.BLOCK_OCTETS)
    queue = place.queue()
    place.pass_on(1, 20)                        # 5 blocks
    place.now += 10**9
    place.upkeep.tick(0)
    seen = []
    while place.thread.jobs:
        place.thread.run()
        seen.append(links(queue, 1))
    assert [count for count in seen if count > 0] == sorted({1, 2, 3, 4, 5} & set(seen)) == [1, 2, 3, 4, 5]


def test_a_chain_that_is_not_the_journal_s_is_told_of_once_and_left_alone(place, caplog):
    queue = place.queue()
    place.pass_on(1, 10)
    other = reading.chain_start(1, 12345)
    with open(f"{queue.directory}/{layout.chain_name(1)}", "wb") as file:
        file.write(other)
    with caplog.at_level(logging.WARNING, "brokerd"):
        place.second(3)
    assert caplog.text.count("it is not the chain of the journal beside it; no links are added to it") == 1
    with open(f"{queue.directory}/{layout.chain_name(1)}", "rb") as file:
        assert file.read() == other
    assert row(place)["verdict"] == "violated"


# --- the log of heads


def heads(path):
    return [(line["queue"], line["level"], line["segment"], line["blocks"])
            for line in map(json.loads, path.read_text().splitlines())]


def test_the_log_of_heads_has_a_line_for_each_chain_that_grew(place, tmp_path):
    log = tmp_path / "heads.jsonl"
    place.upkeep.chain_log = str(log)
    place.queue()
    place.pass_on(1, 10)
    place.second(3)
    assert heads(log) == [("q", 0, 1, 2)]
    place.pass_on(11, 130)
    place.second(2)
    assert sorted(heads(log)[1:]) == [("q", 0, 1, 18), ("q", 0, 2, 18), ("q", 0, 3, 2)]
    assert row(place, chain.read_log(log)) == row(place)
    assert row(place)["verdict"] == "held"
    (line, *_) = map(json.loads, log.read_text().splitlines())
    assert line.keys() == {"at", "vhost", "queue", "level", "segment", "begun", "blocks", "head"}


def test_a_log_of_heads_that_cannot_be_written_gets_its_lines_later(place, tmp_path, caplog):
    log = tmp_path / "mount" / "heads.jsonl"
    place.upkeep.chain_log = str(log)
    place.queue()
    place.pass_on(1, 10)
    with caplog.at_level(logging.ERROR, "brokerd"):
        place.second(3)
    assert caplog.text.count(f"{log}: heads of hash chains are not written for now: No such file or directory") == 1
    log.parent.mkdir()
    place.second()
    assert heads(log) == [("q", 0, 1, 2)]
    place.pass_on(11, 20)
    place.second()
    assert heads(log) == [("q", 0, 1, 2), ("q", 0, 1, 5)]


def test_a_line_that_a_full_disk_tore_does_not_spoil_the_next(place, tmp_path):
    log = tmp_path / "heads.jsonl"

    class Full(Disk):
        full = True

        def pwrite(self, fd, octets, position):
            if self.full and b'"head"' in octets:
                super().pwrite(fd, octets[:20], position)
                raise OSError(28, "No space left on device")
            super().pwrite(fd, octets, position)

    place.disk = Full()
    place.restart()
    place.upkeep.chain_log = str(log)
    place.queue()
    place.pass_on(1, 10)
    place.second()
    place.disk.full = False
    place.second()
    torn, whole = log.read_text().splitlines()
    assert len(torn) == 20
    assert json.loads(whole)["blocks"] == 2
    assert len(chain.read_log(log)) == 1
