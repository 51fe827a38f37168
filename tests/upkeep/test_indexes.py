"""Indexes of streams' full segments are written in the thread, once each, and a fault costs no message."""

import errno
import os
from pathlib import Path

import pytest
from tests.upkeep.test_upkeep import Place

from brokerd.store.disk import Disk
from brokerd.upkeep import indexes
from brokerd.wire import methods


class StreamPlace(Place):
    def queue(self, name="q"):
        return self.vhost.queues.get(name) or self.vhost.add_queue(
            name, durable=True, auto_delete=False, arguments={"x-queue-type": "stream"})

    def fill(self, messages=300):
        queue = self.queue()
        arguments = {"x-stream-filter": "nobody's"}
        self.client.send((1, methods.BasicQos(prefetch_count=1)), (1, methods.BasicConsume(queue="q",
                                                                                           arguments=arguments)))
        self.publish(*range(messages))
        assert len(queue.segments()) > 3
        return [segment["number"] for segment in queue.segments()[:-1]]

    def files(self):
        return sorted(int(path.name[6:]) for path in Path(self.queue().directory).glob("index.*"))


@pytest.fixture
def place(tmp_path):
    place = StreamPlace(tmp_path)
    yield place
    place.close()


def test_each_full_segment_gets_its_index_and_the_last_one_none(place):
    full = place.fill()
    place.ticks(1)
    assert place.files() == []
    place.thread.run()
    assert place.files() == full
    place.ticks(3)
    assert place.thread.jobs == []


def test_a_tick_writes_a_bounded_number(place, monkeypatch):
    monkeypatch.setattr(indexes, "SEGMENTS_PER_TICK", 2)
    full = place.fill()
    place.ticks(1)
    place.thread.run()
    assert place.files() == full[:2]
    place.ticks(len(full))
    place.thread.run()
    assert place.files() == full


def test_an_index_that_comes_after_retention_goes_with_the_garbage(place):
    full = place.fill()
    place.ticks(1)
    queue = place.queue()
    queue.stream.set_limits(max_length=0)
    links = {number: Path(queue.directory, f"msgs.{number:010d}") for number in full}
    for number, path in links.items():
        os.link(path, place.path / f"copy.{number}")
    queue.stream.retain(100)
    for number, path in links.items():      # The thread had opened it before.
        if not path.exists():
            os.link(place.path / f"copy.{number}", path)
    place.thread.run()
    assert place.files() == []


def test_a_full_disk_is_told_once_and_readers_go_on(place, monkeypatch):
    told = []
    monkeypatch.setattr(indexes.log, "warning", lambda *line: told.append(line))

    class Full(Disk):
        def pwrite(self, fd, octets, position):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    place.upkeep._indexes._disk = Full()
    place.fill()
    place.ticks(1)
    place.thread.run()
    assert len(told) == 1
    assert "cannot be written" in told[0][0]
    place.ticks(2)
    assert place.thread.jobs == []


def test_the_index_of_a_queue_that_was_deleted_is_nobodys(place, monkeypatch):
    monkeypatch.setattr(indexes.log, "warning", pytest.fail)
    place.fill()
    place.ticks(1)
    place.client.send((1, methods.QueueDelete(queue="q")))
    assert "q" not in place.vhost.queues
    place.thread.run()
    assert not any(path.name.startswith("index.") for path in place.path.rglob("index.*")
                   if "garbage" not in path.parts)
