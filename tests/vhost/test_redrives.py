"""What a redrive has decided, a start finishes: each letter goes once.  faults/test_kill_redrive kills brokers."""

import json
import os

import pytest
from tests.operations.stand_in import Place

from brokerd.errors import StoreError
from brokerd.store.disk import Disk
from brokerd.vhost.commits import Start
from brokerd.vhost.redrives import as_it_was as letter_of
from brokerd.vhost.redrives import finish_redrives, put


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
    finish(place)
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
    {"version": 2}, {"letters": "1"}, {"letters": ["1"]}, {"source": 1}, {"number": None}])
def test_a_file_that_no_broker_wrote_stops_the_start(place, fields):
    path = decide(place, **fields)
    with pytest.raises(StoreError, match=r"redrive\.7"):
        finish(place)
    assert Disk().exists(path)
