"""What a redrive has decided, a start finishes: each letter goes once.  faults/test_kill_redrive kills brokers."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from tests.operations.stand_in import Place

from brokerd.audit import layout
from brokerd.errors import StoreError
from brokerd.queues.dead_letter import read_properties
from brokerd.queues.redriven import read_redriven, write_redriven
from brokerd.store.disk import Disk
from brokerd.store.format import REDRIVEN_EVENT
from brokerd.vhost.commits import Start
from brokerd.vhost.redrives import HISTORY, Letter, Redrive, finish_redrives, put
from brokerd.vhost.redrives import as_it_was as letter_of
from brokerd.wire.properties import Properties, encode_header


@pytest.fixture
def place(tmp_path):
    place = Place(tmp_path / "data")
    place.queue("dead")
    place.queue("work")
    return place


def finish(place):
    lines = []
    finish_redrives(place.vhost, Start(Disk(), False, lines.append, lambda: None, lambda: 99))
    return lines


def decide(place, **fields):
    path = f"{place.vhost.directory}/redrive.7"
    with open(path, "w") as file:
        json.dump({"version": 1, "number": 7, "source": "dead", "target": "work", "letters": [1, 2, 3], **fields}, file)
    return path


@pytest.mark.parametrize("there", range(4))
def test_only_letters_that_the_target_lacks_are_put_into_it(place, there):
    place.publish(3, key="dead")
    dead, work = place.vhost.queues["dead"], place.vhost.queues["work"]
    for k, row in enumerate(dead.browse(1, there)):
        assert put(work, letter_of(row, work), 7, k) == k + 1
    path = decide(place)
    assert finish(place) == [f"{path}: a redrive was brought to its end: 3 messages in queue 'work'"]
    assert (dead.ready, work.ready) == (0, 3)
    assert finish(place) == []


def test_a_letter_that_is_gone_already_is_not_missed(place):
    place.publish(3, key="dead")
    place.vhost.queues["dead"].remove(2)
    decide(place)
    assert "2 messages" in finish(place)[0]
    assert (place.vhost.queues["dead"].ready, place.vhost.queues["work"].ready) == (0, 2)


def test_without_its_queues_the_file_goes(place):
    place.publish(1, key="dead")
    decide(place, target="none")
    assert "0 messages" in finish(place)[0]
    assert place.vhost.queues["dead"].ready == 1


def test_a_file_that_was_not_decided_goes_and_changes_nothing(place):
    place.publish(1, key="dead")
    path = decide(place)
    os.rename(path, f"{path}.tmp")
    assert finish(place) == []
    assert not os.path.exists(f"{path}.tmp")
    assert place.vhost.queues["dead"].ready == 1


@pytest.mark.parametrize("fields", [
    {"version": 2}, {"placed": 1}, {"placed": ["1"]}, {"letters": "1"}, {"letters": ["1"]}, {"source": 1},
    {"number": None}])
def test_a_file_that_no_broker_wrote_stops_the_start(place, fields):
    path = decide(place, **fields)
    with pytest.raises(StoreError, match=r"redrive\.7"):
        finish(place)
    assert Disk().exists(path)


# --- what a letter was


def was(place, target, /, **headers):
    """The letter with these headers, and those that it has then."""
    properties = encode_header(0, Properties(message_id="m", headers=headers or None))[12:]
    queue = place.vhost.queues.get(target) or place.queue(target, message_group="exclusive")
    found = letter_of((9, 1, False, b"now", b"key-now", properties, b"body"), queue)
    assert (found.seq, found.body) == (9, b"body")
    left = read_properties(found.properties)
    assert left.message_id == "m"
    return found, left.headers


def deaths(*keys):
    return [{"queue": "q", "routing-keys": some} for some in keys]


def test_a_letter_gets_back_how_it_came_into_the_queue_where_it_died_first(place):
    found, _ = was(place, "work", **{"x-first-death-exchange": "orders", "x-first-death-queue": "work",
                                     "x-death": deaths(["second"], ["first", "copy"])})
    assert (found.exchange, found.routing_key) == (b"orders", b"first")


@pytest.mark.parametrize("headers", [
    {}, {"x-first-death-exchange": 1, "x-death": 1}, {"x-death": []}, {"x-death": ["first"]}, {"x-death": deaths([])},
    {"x-death": deaths("first")[:0]}, {"x-first-death-exchange": "e" * 256, "x-death": deaths(["k" * 256])},
    {"x-death": deaths([7])}])
def test_what_its_headers_do_not_say_stays_as_it_is(place, headers):
    found, _ = was(place, "work", **headers)
    assert (found.exchange, found.routing_key) == (b"now", b"key-now")


def test_names_of_255_octets_are_taken(place):
    found, _ = was(place, "work", **{"x-first-death-exchange": "e" * 255, "x-death": deaths(["k" * 255])})
    assert (found.exchange, found.routing_key) == (b"e" * 255, b"k" * 255)


def test_the_history_of_its_deaths_goes_and_its_own_headers_stay(place):
    history = dict.fromkeys(HISTORY, "text")
    assert was(place, "work", **history)[1] is None
    assert was(place, "work", **history, mine=1)[1] == {"mine": 1}


@pytest.mark.parametrize(("target", "first", "seq", "placed", "left"), [
    ("grouped", "grouped", 7, True, {"x-group-id": "g", "x-group-seq": 7}),
    ("grouped", "another", 7, False, None),         # It stood there, and not here.
    ("grouped", "grouped", "7", False, None),
    ("work", "work", 7, False, None),               # It has no groups any more.
    ("grouped", None, 7, False, {"x-group-id": "g", "x-group-seq": 7}),     # It is no letter: they are its own.
])
def test_a_letter_has_its_place_only_in_the_queue_with_groups_where_it_died_first(
        place, target, first, seq, placed, left):
    headers = {"x-group-id": "g", "x-group-seq": seq} | ({"x-first-death-queue": first} if first else {})
    found, kept = was(place, target, **headers)
    assert (found.placed, kept) == (placed, left)


# --- step by step


@pytest.fixture
def grouped(place):
    """Queue "grouped": of its three messages, all of one group, the first two are in "dead"."""
    place.queue("grouped", message_group="exclusive", message_group_header="routing-key")
    place.publish(3, key="grouped")
    queue = place.vhost.queues["grouped"]
    for seq, row in enumerate(queue.browse(1, 2), 1):
        headers = {"x-first-death-queue": "grouped", "x-group-seq": seq}
        place.node.core.put((place.vhost.queues["dead"],), b"", b"grouped",
                            encode_header(0, Properties(delivery_mode=2, headers=headers))[12:], row[6])
        queue.remove(seq)
    return queue


def begin(place, target):
    """A redrive of all of "dead", whose letters are set aside there."""
    dead = place.vhost.queues["dead"]
    letters = [letter_of(row, target) for row in dead.browse(1, 10)]
    for letter in letters:
        assert dead.set_aside(letter.seq)
    return dead, Redrive(place.vhost, dead, target, letters, 7)


def stands(queue):
    return queue.ready, queue.aside


def test_each_step_leaves_the_letters_in_one_queue_or_held_in_both(place, grouped):
    dead, work = begin(place, grouped)
    path = f"{place.vhost.directory}/redrive.7"
    work.decide(Disk())
    assert json.loads(Path(path).read_text()) == {
        "version": 1, "number": 7, "source": "dead", "target": "grouped", "letters": [1, 2], "placed": [1, 2]}
    assert work.put(0)
    assert work.put(1)
    assert (stands(dead), stands(grouped)) == ((0, 2), (1, 2))
    assert work.take_out(0)
    assert work.take_out(1)
    assert (stands(dead), stands(grouped)) == ((0, 0), (1, 2))
    assert work.places() == [4, 5]
    work.note_places(work.places(), Disk())
    assert set(read_redriven(grouped.directory)) == {4, 5}
    work.let_go(1)
    work.let_go(0)
    assert [one[0] for one in grouped.groups.messages(b"grouped", 0, 10)] == [1, 2]
    assert os.path.exists(path)
    work.end(Disk())
    assert not os.path.exists(path)
    grouped.check()


def test_a_letter_that_its_target_refuses_is_in_its_queue_again(place):
    place.publish(2, key="dead")
    full = place.queue("full", max_length=1, overflow="reject-publish")
    dead, work = begin(place, full)
    assert work.put(0)
    place.publish(key="full")
    assert not work.put(1)
    assert [work.take_out(0), work.take_out(1)] == [True, False]
    for at in (0, 1):
        work.let_go(at)
    assert (stands(dead), stands(full)) == ((1, 0), (2, 0))
    assert dead.browse(1, 1)[0][0] == 2
    assert work.places() == []


@pytest.mark.parametrize("gone", ["dead", "work"])
def test_a_queue_that_is_deleted_between_two_steps_is_left_alone(place, gone):
    place.publish(1, key="dead")
    _, work = begin(place, place.vhost.queues["work"])
    assert work.put(0)
    place.vhost.delete_queue(place.vhost.queues[gone])
    assert not work.take_out(0)
    work.note_places([1], Disk())
    work.let_go(0)
    left = place.vhost.queues["work" if gone == "dead" else "dead"]
    assert stands(left) == (1, 0)


@pytest.mark.parametrize("durable", [(True, False), (False, True)])
def test_nothing_is_written_for_queues_that_end_with_the_broker(place, durable):
    source, target = (place.queue(name, durable=lasts, message_group="exclusive") for name, lasts in zip(
        ("from", "to"), durable, strict=True))
    place.publish(1, key="from")
    assert source.set_aside(1)
    letter = Letter(1, b"", b"from", b"\0\0", b"", placed=True)
    work = Redrive(place.vhost, source, target, [letter], 7)
    work.decide(Disk())
    assert not [name for name in os.listdir(place.vhost.directory) if name.startswith("redrive.")]
    assert work.put(0)
    assert work.take_out(0)
    assert work.places() == []
    work.end(Disk())


def test_a_start_puts_letters_at_their_places_and_knows_them_at_the_next(place, grouped):
    decide(place, target="grouped", letters=[1, 2])
    finish(place)
    assert [(one[0], one[2][0]) for one in grouped.groups.messages(b"grouped", 0, 10)] == [(1, 4), (2, 5)]
    assert read_redriven(grouped.directory) == [4, 5]
    assert stands(place.vhost.queues["dead"]) == (0, 0)


def test_the_journal_tells_of_each_letter_that_a_start_puts_at_its_place(place, grouped):
    grouped.set_journal(True)
    decide(place, target="grouped", letters=[1, 2])
    finish(place)
    place.node.core.turn()
    octets = b"".join(path.read_bytes()[64:] for path in sorted(Path(grouped.directory).glob("journal.*")))
    events = np.frombuffer(octets[:len(octets) // 32 * 32], layout.EVENT)
    assert events["seq"][events["type"] == REDRIVEN_EVENT].tolist() == [4, 5]
    assert (stands(grouped), [one[2][0] for one in grouped.groups.messages(b"grouped", 0, 10)]) == ((1, 2), [4, 5])


def test_letters_are_on_disk_before_their_source_loses_them_and_that_before_the_file_goes(place):
    place.publish(1, key="dead")
    path, told = decide(place, letters=[1]), []

    def sync():
        told.append((place.vhost.queues["dead"].ready, place.vhost.queues["work"].ready, os.path.exists(path)))

    class Noting(Disk):
        def sync_directory(self, path):
            told.append("folder")
            super().sync_directory(path)

    finish_redrives(place.vhost, Start(Noting(), False, lambda line: None, sync, lambda: 99))
    assert told == [(1, 1, True), (0, 1, True), "folder"]


def test_a_file_of_another_name_stays(place):
    path = f"{place.vhost.directory}/redrive.note"
    Path(path).touch()
    assert finish(place) == []
    assert os.path.exists(path)


def test_letters_without_places_take_none_from_those_that_have_them(place, grouped):
    write_redriven(grouped.directory, [3], Disk())
    work = Redrive(place.vhost, place.vhost.queues["dead"], grouped, [], 7)
    work.note_places(work.places(), Disk())
    assert read_redriven(grouped.directory) == [3]


def test_a_letter_that_did_not_stand_there_is_the_last_of_its_group_whatever_its_headers_say(place, grouped):
    properties = encode_header(0, Properties(headers={"x-group-seq": 1}))[12:]
    letter = Letter(1, b"", b"grouped", properties, b"", placed=False)
    work = Redrive(place.vhost, place.vhost.queues["dead"], grouped, [letter], 7)
    assert work.put(0)
    work.let_go(0)
    grouped.groups.scan(10)
    assert [one[0] for one in grouped.groups.messages(b"grouped", 0, 10)] == [3, 4]


def test_a_start_gives_no_letter_a_place_that_had_none(place, grouped):
    decide(place, target="grouped", letters=[1, 2], placed=[2])
    finish(place)
    grouped.groups.scan(10)
    assert [one[2][0] for one in grouped.groups.messages(b"grouped", 0, 10)] == [5, 3, 4]
    assert read_redriven(grouped.directory) == [5]
