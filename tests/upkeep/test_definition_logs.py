"""A definitions log is rewritten while clients go on to define things; the power may go at any step."""

import contextlib
import os
from functools import partial
from random import Random

import pytest
from tests.vhost.test_vhost import durable_part

from brokerd import pieces, plane
from brokerd.errors import PreconditionFailed
from brokerd.store.definitions import DefinitionsLog
from brokerd.store.sync import GroupCommit
from brokerd.testing.disk import ForgetfulDisk
from brokerd.upkeep.definition_logs import LogKeeper
from brokerd.vhost import definitions
from brokerd.vhost.vhost import VHost


class PowerIsGone(BaseException):
    pass


class FailingDisk(ForgetfulDisk):
    """The power goes before a step, or the disk fails at one for the new file."""

    def __init__(self, root):
        super().__init__(root)
        self.left = None  # steps until the power goes
        self.fails = None  # a step, and how many are good

    def step(self, what, path):
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise PowerIsGone
        if self.fails is not None and self.fails[0] == what and path.endswith(".tmp"):
            self.fails = (what, self.fails[1] - 1)
            if self.fails[1] < 0:
                raise OSError(28, "No space left on device")

    def fsync(self, fd, path):
        self.step("fsync", path)
        super().fsync(fd, path)

    def rename(self, old, new):
        self.step("rename", old)
        super().rename(old, new)

    def sync_directory(self, path):
        self.step("sync_directory", path)
        super().sync_directory(path)

    def pwrite(self, fd, octets, position):
        self.step("pwrite", os.readlink(f"/proc/self/fd/{fd}"))
        super().pwrite(fd, octets, position)


class Place:
    """A vhost with its log, a loop and two threads that are worked by hand, and a ledger of what was promised."""

    def __init__(self, tmp_path, chance):
        self.chance = chance
        self.root = tmp_path / "data"
        self.root.mkdir()
        self.disk = FailingDisk(str(self.root))
        core = plane.Core(schedule=lambda: None, request_sync=lambda: None, storage_failed=lambda _: None,
                          damaged=lambda *_: None)
        log = DefinitionsLog(str(self.root / "definitions.amqp"), self.disk)
        log.load()
        self.vhost = VHost("/", str(self.root), core, log)
        self.steps, self.jobs, self.failures = [], [], []
        self.commit = GroupCommit(core, self.disk, submit=lambda *job: self.jobs.append(job), soon=self.steps.append,
                                  fatal=self.failures.append)
        self.keeper = LogKeeper({"/": self.vhost}, self, self.commit, lambda *job: self.jobs.append(job))
        self.states = [durable_part(self.vhost)]  # after each change
        self.promised = 0
        self.meanwhile = None  # what the loop does when a thread's work is done, before it hears of that

    def add_errand(self, step):
        def again():
            if not step():
                self.steps.append(again)

        self.steps.append(again)

    def change(self):
        """A client changes something, and may wait for it."""
        vhost, chance = self.vhost, self.chance
        name, source = f"q{chance.randrange(6)}", f"x{chance.randrange(4)}"
        queue, exchange = vhost.queues.get(name), vhost.exchanges.get(source)
        what = chance.randrange(6)
        if what == 0 and queue is not None:
            vhost.delete_queue(queue)
        elif what == 1 and exchange is not None:
            vhost.delete_exchange(exchange)
        elif queue is None:
            vhost.add_queue(name, durable=chance.random() < 0.9, auto_delete=False,
                            arguments={"x-max-length": chance.randrange(1, 4)})
        elif exchange is None:
            vhost.add_exchange(source, "direct", durable=True, auto_delete=False, internal=False, arguments={})
        else:
            destination = chance.choice([queue, *[other for name, other in vhost.exchanges.items() if name[:1] == "x"]])
            verb = chance.choice([vhost.bind, vhost.bind, vhost.unbind])
            verb(exchange, destination, str(chance.randrange(3)), {})
        self.states.append(durable_part(vhost))
        if chance.random() < 0.5:
            self.wait()

    def wait(self):
        self.commit.wait(partial(self.promise, len(self.states) - 1), self.vhost.log)

    def promise(self, upto):
        self.promised = max(self.promised, upto)

    def go_on(self):
        """One step of the loop or of a thread.  False: nothing is to be done."""
        if self.jobs and (not self.steps or self.chance.random() < 0.5):
            work, done = self.jobs.pop(0)
            error = None
            try:
                work()
            except OSError as caught:
                error = caught
            if self.meanwhile is not None:
                self.meanwhile()
            done(error)
        elif self.steps:
            self.steps.pop(0)()
        else:
            return False
        return True

    def finish(self):
        while self.go_on():
            pass

    def after(self, path):
        """What a start finds."""
        log = DefinitionsLog(str(path), self.disk)
        found = VHost("/", str(path.parent), self.vhost.core, log)
        replayed = definitions.replay(found, log.load(suspect=True))
        log.close()
        return durable_part(found), replayed


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch):
    monkeypatch.setattr(pieces, "PIECE_NS", 0)
    monkeypatch.setattr(definitions, "COMPACT_DELETES_MIN", 5)


def work(place, count):
    for _ in range(count):
        place.change()
        for _ in range(place.chance.randrange(4)):
            place.go_on()
        if place.chance.random() < 0.2:
            place.keeper.tick()


@pytest.mark.parametrize("seed", range(150))
def test_no_promised_definition_is_lost_with_the_power_and_what_is_there_was_there_once(tmp_path, seed):
    chance = Random(seed)
    place = Place(tmp_path, chance)
    work(place, 20)
    place.disk.left = chance.randrange(60)
    place.meanwhile = lambda: chance.random() < 0.5 and place.change()
    try:
        work(place, 200)
    except PowerIsGone:
        pass
    place.disk.left = None
    assert not place.failures
    place.disk.lose_power(str(tmp_path / "after"), chance)
    found, _ = place.after(tmp_path / "after/definitions.amqp")
    assert found in place.states[place.promised:]
    place.disk.release()


@pytest.mark.parametrize("seed", range(40))
def test_a_rewritten_log_is_short_and_says_the_same(tmp_path, seed):
    place = Place(tmp_path, Random(seed))
    work(place, 300)
    place.finish()
    while not definitions.is_worth_rewriting(place.vhost):
        place.change()
    place.finish()
    frames = place.vhost.log.frames
    place.keeper.tick()
    place.finish()
    assert place.vhost.log.frames < frames
    assert not definitions.is_worth_rewriting(place.vhost)
    found, replayed = place.after(tmp_path / "data/definitions.amqp")
    assert (found, replayed.failed) == (durable_part(place.vhost), [])
    assert sorted(os.listdir(place.root)) == ["definitions.amqp"]
    place.disk.release()


@pytest.mark.parametrize("step", ["pwrite", "fsync", "rename"])
@pytest.mark.parametrize("good", range(3))
def test_a_disk_that_fails_the_new_file_leaves_the_old_one_in_use(tmp_path, step, good):
    place = Place(tmp_path, Random(good))
    work(place, 100)
    place.finish()
    place.disk.fails = (step, good)
    with contextlib.suppress(PreconditionFailed):  # A client is told that its definition cannot be stored.
        work(place, 300)
    place.finish()
    found, _ = place.after(tmp_path / "data/definitions.amqp")
    assert found == durable_part(place.vhost)
    place.disk.fails = None
    work(place, 100)
    place.finish()
    found, _ = place.after(tmp_path / "data/definitions.amqp")
    assert found == durable_part(place.vhost)
    assert not place.failures
    place.disk.release()


def test_a_log_is_not_rewritten_while_a_queue_loses_its_many_bindings_and_is_tried_again(tmp_path):
    from brokerd.vhost import deletions

    place = Place(tmp_path, Random(1))
    vhost = place.vhost
    work(place, 60)
    place.finish()
    exchange = vhost.exchange("amq.direct")
    queue = vhost.add_queue("many", durable=True, auto_delete=False, arguments={})
    for number in range(deletions.BINDINGS_AT_ONCE + 10):
        vhost.bind(exchange, queue, str(number), {})
    vhost.deletes = 10_000
    before = durable_part(vhost)
    place.keeper.tick()
    place.go_on()
    deletion = deletions.delete_queue(vhost, queue)
    for _ in range(5):
        next(deletion)
    place.finish()
    assert place.after(tmp_path / "data/definitions.amqp")[0] == before
    assert vhost.deletes == 10_000
    place.keeper.tick()
    place.finish()
    assert vhost.deletes == 10_000
    deletions.finish(deletion)
    place.keeper.tick()
    place.finish()
    assert vhost.deletes == 0
    place.disk.release()


def test_a_definition_that_came_while_the_new_file_took_its_place_is_on_disk_there_when_it_is_promised(tmp_path):
    place = Place(tmp_path, Random(2))
    work(place, 60)
    place.finish()
    place.vhost.deletes = 10_000
    place.keeper.tick()

    def define():
        rewrite = place.vhost.log._rewrite
        if rewrite is not None and rewrite.is_begun:
            place.vhost.add_queue("late", durable=True, auto_delete=False, arguments={})
            place.states.append(durable_part(place.vhost))
            place.wait()
            place.meanwhile = None

    place.meanwhile = define
    place.finish()
    assert place.promised == len(place.states) - 1
    assert place.vhost.deletes == 0
    for seed in range(20):
        place.disk.lose_power(str(tmp_path / f"after{seed}"), Random(seed))
        assert place.after(tmp_path / f"after{seed}/definitions.amqp")[0] == place.states[-1]
    place.disk.release()


@pytest.mark.parametrize("octets", [10, 100_000])
def test_a_definition_that_the_new_file_has_no_room_for_is_refused_and_in_neither_file(tmp_path, octets):
    """It comes when the new file is about to take the place of the old one.  The next one is in the new file again."""
    place = Place(tmp_path, Random(3))
    work(place, 60)
    place.finish()
    place.vhost.deletes = 10_000
    place.keeper.tick()
    while place.vhost.log._rewrite is None or not place.vhost.log._rewrite.is_begun:
        assert place.go_on()
    place.disk.fails = ("pwrite", 0)
    with pytest.raises(OSError, match="No space left"):
        place.vhost.log.append(bytes(octets))
    place.disk.fails = None
    place.vhost.add_queue("after", durable=True, auto_delete=False, arguments={})
    place.finish()
    assert place.vhost.deletes == 0
    found, replayed = place.after(tmp_path / "data/definitions.amqp")
    assert (found, replayed.failed) == (durable_part(place.vhost), [])
    place.disk.release()
