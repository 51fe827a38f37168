"""What a broker does for its queues in passing: ticks and threads by hand, over the real data plane."""

import errno
import logging
import os
from itertools import groupby

import pytest
from tests.session.harness import Client, Node

from brokerd import pieces, plane
from brokerd.policies import Policy
from brokerd.queues.rules import Rules
from brokerd.store import compaction
from brokerd.store.disk import Disk
from brokerd.store.garbage import Garbage
from brokerd.store.recovery import recover
from brokerd.upkeep import upkeep
from brokerd.upkeep.upkeep import Upkeep
from brokerd.vhost.folder import load_vhost
from brokerd.wire import methods
from brokerd.wire.frames import FRAME_BODY, body_frames, header_frame

SEGMENT_OCTETS = 1 << 16
BODY_OCTETS = 1000
NEVER, ALWAYS = 0, 1 << 62      # idle since: nothing is, everything is


class Thread:
    """Does what was submitted when told; a job is (work, done)."""

    def __init__(self):
        self.jobs = []

    def submit(self, work, done):
        self.jobs.append((work, done))

    def run(self):
        """All that is waiting: its work, then the loop's part."""
        jobs, self.jobs = self.jobs, []
        for work, done in jobs:
            error = None
            try:
                work()
            except OSError as caught:
                error = caught
            done(error)


class FullDisk(Disk):
    def pwrite(self, fd, octets, position):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Place:
    """A vhost from its folder, small segments, its upkeep, and one client."""

    def __init__(self, path):
        self.path = path
        self.disk = Disk()
        self.reopen()

    def reopen(self):
        self.thread = Thread()
        self.node = Node(self.path)
        self.node.core = plane.Core(schedule=lambda: None, request_sync=lambda: None, storage_failed=print,
                                    damaged=print, segment_octets=SEGMENT_OCTETS, go_on=lambda: None)
        self.vhosts = {}
        self.upkeep = Upkeep(self.vhosts, self.node.core, self.disk, str(self.path), self.thread.submit)
        self.vhost = self.vhosts["/"] = self.node.vhost = load_vhost(
            "/", str(self.path), self.node.core, self.disk, self.upkeep.garbage, suspect=False, report=print,
            recover=lambda queue: recover(queue, self.disk, False, print), listen=self.upkeep.listen,
            remove_files=self.upkeep.remove_files)
        self.client = Client(self.node).open()
        self.vhost.accesses["guest"] = self.client.connection.access

    def queue(self, name="q"):
        return self.vhost.queues.get(name) or self.vhost.add_queue(name, durable=True, auto_delete=False, arguments={})

    def publish(self, *numbers, key="q"):
        octets = b""
        for number in numbers:
            body = number.to_bytes(4) * (BODY_OCTETS // 4)
            header = b"\0\x3c\0\0" + len(body).to_bytes(8) + b"\x10\0\x02"
            octets += methods.BasicPublish(routing_key=key).frame(1) + header_frame(1, header)
            octets += body_frames(1, body, 4096)
        return self.client.raw(octets)

    def held(self):
        """Names of this directory's files that the process holds open or mapped, each once."""
        names = set()
        for fd in os.listdir("/proc/self/fd"):
            try:
                names.add(os.readlink(f"/proc/self/fd/{fd}"))
            except FileNotFoundError:
                pass
        with open("/proc/self/maps") as file:
            names |= {line.split(maxsplit=5)[-1].rstrip("\n") for line in file}
        return {os.path.basename(name) for name in names if name.startswith(str(self.path))} - {"definitions.amqp"}

    def ticks(self, count, idle_since_ns=NEVER):
        for _ in range(count):
            self.upkeep.tick(idle_since_ns)

    def close(self):
        self.client.connection.lost()
        while self.node.core.has_errands:
            self.node.core.go_on()
        for queue in self.vhost.queues.values():
            queue.close()
        self.vhost.log.close()


def delivered(out):
    """(number, delivery tag, redelivered) of each message in what came."""
    method, messages = None, []
    for frame in out:
        if isinstance(frame, tuple):
            method = frame[1]
        elif getattr(frame, "kind", None) == FRAME_BODY:
            number = int.from_bytes(frame.payload[:4])
            assert frame.payload == number.to_bytes(4) * (BODY_OCTETS // 4)
            messages.append((number, method.delivery_tag, method.redelivered))
    return messages


@pytest.fixture
def place(tmp_path):
    place = Place(tmp_path)
    yield place
    place.close()


# --- idle queues

def test_an_idle_queue_gives_maps_and_descriptors_back_and_goes_on_when_wanted(place):
    queue = place.queue()
    place.publish(1, 2)
    assert place.held() == {"msgs.0000000001", "acks.0000000001"}
    place.ticks(2, ALWAYS)
    assert place.held() == set()
    place.publish(3)
    place.ticks(2, ALWAYS)
    assert place.held() == set()
    assert [number for number, *_ in delivered(place.client.send((1, methods.BasicConsume(queue="q"))))] == [1, 2, 3]
    place.ticks(2, ALWAYS)
    assert place.held() == set()
    assert place.client.send((1, methods.BasicAck(delivery_tag=3, multiple=True))) == []
    assert (queue.ready, queue.unacked) == (0, 0)


def test_a_queue_touched_since_is_not_idle(place):
    queue = place.queue()
    place.node.core.clock = lambda: 5_000
    place.publish(1)
    place.client.send((1, methods.BasicGet(queue="q")))
    place.ticks(4, queue.touched)
    assert place.held()
    place.ticks(2, queue.touched + 1)
    assert not place.held()


class Idle:
    """Stands for a queue."""

    next_seq, touched = 2, 0
    deleted = copying = journaled = False
    stream = None

    def __init__(self):
        self.rests = 0

    def rest(self):
        self.rests += 1

    def segments(self):
        return []


def test_a_tick_looks_at_a_bounded_number_of_queues_and_all_get_their_turn(place):
    queues = [Idle() for _ in range(upkeep.QUEUES_PER_TICK + 500)]
    place.vhost.queues.update(enumerate(queues))
    rested = []
    for _ in range(5):
        before = sum(queue.rests for queue in queues)
        place.ticks(1, ALWAYS)
        rested.append(sum(queue.rests for queue in queues) - before)
    place.vhost.queues.clear()
    assert rested == [0, upkeep.QUEUES_PER_TICK, 500, upkeep.QUEUES_PER_TICK, 500]
    assert {queue.rests for queue in queues} == {2}


def test_queues_that_never_held_a_message_are_not_looked_at(place):
    queue = Idle()
    queue.next_seq = 1
    place.vhost.queues["q"] = queue
    place.ticks(4, ALWAYS)
    place.vhost.queues.clear()
    assert queue.rests == 0


# --- sparse segments

def test_the_search_for_sparse_segments_reaches_every_queue_before_it_begins_again(place, monkeypatch):
    examined = []
    monkeypatch.setattr(compaction, "find_sparse", lambda queue, keep: examined.append(queue))
    queues = [Idle() for _ in range((upkeep.COMPACT_EVERY_TICKS + 5) * upkeep.COMPACT_QUEUES_PER_TICK)]
    place.vhost.queues.update(enumerate(queues))
    place.ticks(4 * upkeep.COMPACT_EVERY_TICKS)
    place.vhost.queues.clear()
    rounds = [examined.count(queues[0]), examined.count(queues[-1])]
    assert rounds == [2, 1]


def test_a_tick_skips_a_bounded_number_of_queues_without_messages(place, monkeypatch):
    examined = []
    monkeypatch.setattr(compaction, "find_sparse", lambda queue, keep: examined.append(queue))
    queues = [Idle() for _ in range(upkeep.QUEUES_PER_TICK + 1)]
    for queue in queues[:-1]:
        queue.next_seq = 1
    place.vhost.queues.update(enumerate(queues))
    place.ticks(upkeep.COMPACT_EVERY_TICKS + 1)
    assert examined == []
    place.ticks(1)
    place.vhost.queues.clear()
    assert examined == queues[-1:]


@pytest.fixture
def sparse(place):
    """200 messages in several segments, all handed out; of the first segment's only 3 and 40 are not acked."""
    queue = place.queue()
    place.publish(*range(1, 201))
    out = delivered(place.client.send((1, methods.BasicConsume(queue="q", consumer_tag="t"))))
    assert [(number, tag) for number, tag, _ in out] == [(number, number) for number in range(1, 201)]
    place.first = first = queue.segments()[0]["records"]
    assert 45 < first < 70
    place.client.send(*((1, methods.BasicAck(delivery_tag=n)) for n in range(1, first + 1) if n not in (3, 40)))
    assert queue.segments()[0]["records"] - queue.segments()[0]["settled"] == 2
    return queue


def until_copied(place):
    """Ticks until the thread has been asked to copy."""
    for _ in range(2 * upkeep.COMPACT_EVERY_TICKS):
        place.ticks(1)
        if place.thread.jobs:
            return
    raise AssertionError("nothing was submitted")


def first_octets(queue):
    return os.path.getsize(os.path.join(queue.directory, "msgs.0000000001"))


def test_a_sparse_segment_is_rewritten_by_the_thread_while_messages_are_out(place, sparse):
    assert first_octets(sparse) == SEGMENT_OCTETS
    until_copied(place)
    assert first_octets(sparse) == SEGMENT_OCTETS               # Not on the loop.
    place.thread.run()
    assert first_octets(sparse) < 3 * BODY_OCTETS
    assert (sparse.segments()[0]["generation"], sparse.segments()[0]["records"]) == (1, 2)
    assert sparse.unacked == 200 - place.first + 2
    assert not [name for name in os.listdir(sparse.directory) if name.endswith(".new")]


def test_what_was_out_when_its_segment_was_rewritten_is_settled_and_comes_again_in_its_place(place, sparse):
    until_copied(place)
    place.thread.run()
    place.client.send((1, methods.BasicAck(delivery_tag=3)))
    assert delivered(place.client.send((1, methods.BasicNack(delivery_tag=40, requeue=True)))) == [(40, 201, True)]
    out = delivered(place.client.send((1, methods.BasicRecover(requeue=True))))
    assert [number for number, _, _ in out] == [40, *range(place.first + 1, 201)]
    assert all(redelivered for _, _, redelivered in out)
    place.client.send((1, methods.BasicAck(delivery_tag=0, multiple=True)))
    assert (sparse.ready, sparse.unacked, len(sparse.segments())) == (0, 0, 1)


def test_the_next_start_finds_what_was_not_settled_before_or_after_a_rewrite(place, sparse, tmp_path):
    until_copied(place)
    place.thread.run()
    place.client.send((1, methods.BasicAck(delivery_tag=3)))
    place.close()
    place.reopen()
    assert place.vhost.queue("q").segments()[0]["generation"] == 1
    out = delivered(place.client.send((1, methods.BasicConsume(queue="q"))))
    assert [number for number, _, _ in out] == [40, *range(place.first + 1, 201)]
    assert all(redelivered for _, _, redelivered in out)


@pytest.mark.parametrize("settle", [methods.BasicAck(delivery_tag=3), methods.BasicReject(delivery_tag=40)], ids=repr)
def test_a_message_settled_while_its_segment_is_copied_stays_settled(place, sparse, settle):
    until_copied(place)
    (work, done), = place.thread.jobs
    place.thread.jobs.clear()
    work()
    place.client.send((1, settle))
    done(None)
    assert first_octets(sparse) == SEGMENT_OCTETS               # The copy was thrown away ...
    assert not [name for name in os.listdir(sparse.directory) if name.endswith(".new")]
    left = {3, 40} - {settle.delivery_tag}
    until_copied(place)
    place.thread.run()                                          # ... and made anew.
    assert sparse.segments()[0]["records"] == 1
    out = delivered(place.client.send((1, methods.BasicRecover(requeue=True))))
    assert {number for number, _, _ in out if number <= 40} == left


def test_a_queue_deleted_while_it_is_copied_leaves_nothing(place, sparse):
    directory = sparse.directory
    until_copied(place)
    (work, done), = place.thread.jobs
    place.thread.jobs.clear()
    work()
    place.vhost.delete_queue(sparse)
    done(None)
    place.upkeep.close()
    place.thread.run()
    assert not os.path.exists(directory)
    assert os.listdir(place.path / "garbage") == []


def test_a_queue_deleted_before_it_is_copied_is_no_fault(place, sparse, caplog):
    caplog.set_level(logging.WARNING, logger="brokerd")
    until_copied(place)
    place.vhost.delete_queue(sparse)
    place.thread.run()
    assert caplog.records == []


def test_a_copy_that_finds_no_room_is_told_changes_nothing_and_is_tried_again(place, sparse, caplog):
    caplog.set_level(logging.WARNING, logger="brokerd")
    place.upkeep._disk = FullDisk()
    until_copied(place)
    place.thread.run()
    assert [record.getMessage() for record in caplog.records] == [
        "queue 'q' in vhost '/': segment 1 could not be compacted: [Errno 28] No space left on device"]
    assert first_octets(sparse) == SEGMENT_OCTETS
    assert not [name for name in os.listdir(sparse.directory) if name.endswith(".new")]
    place.upkeep._disk = place.disk
    until_copied(place)
    place.thread.run()
    assert sparse.segments()[0]["records"] == 2


def test_one_segment_is_copied_at_a_time(place, sparse):
    until_copied(place)
    place.ticks(3 * upkeep.COMPACT_EVERY_TICKS)
    assert len(place.thread.jobs) == 1


# --- definitions and garbage

def test_the_folder_of_a_deleted_queue_is_out_of_the_way_at_once_and_removed_by_the_thread(place):
    queue = place.queue()
    place.publish(1)
    place.vhost.delete_queue(queue)
    assert not os.path.exists(queue.directory)
    assert os.listdir(place.path / "garbage") == ["1"]
    place.publish(1)
    again = place.queue()
    place.publish(2)
    place.ticks(1)
    place.thread.run()
    assert os.listdir(place.path / "garbage") == []
    assert (again.ready, os.path.exists(again.directory)) == (1, True)


def test_segments_that_are_all_settled_are_removed_by_the_thread(place):
    queue = place.queue()
    place.publish(*range(1, 201))
    place.client.send((1, methods.BasicConsume(queue="q")))
    place.client.send((1, methods.BasicAck(delivery_tag=200, multiple=True)))
    place.ticks(1)
    place.thread.run()
    kept = queue.segments()[-1]["number"]
    names = set(os.listdir(queue.directory))
    assert names - {"spare.msgs"} == {".queue", f"msgs.{kept:010d}", f"acks.{kept:010d}"}


@pytest.fixture
def moved(monkeypatch):
    """What is moved away, as it goes; others have their turn after each file."""
    paths, discard = [], Garbage.discard
    monkeypatch.setattr(pieces, "PIECE_NS", 0)
    monkeypatch.setattr(Garbage, "discard", lambda garbage, path: paths.append(path) or discard(garbage, path))
    return paths


def settle_segments(place):
    """The queue, of which the data plane does not need some files any more."""
    queue = place.queue()
    place.publish(*range(1, 201))
    place.client.send((1, methods.BasicConsume(queue="q")))
    place.client.send((1, methods.BasicAck(delivery_tag=200, multiple=True)))
    return queue


def finish_errands(place):
    while place.node.core.has_errands:
        place.node.core.go_on()


def test_files_that_go_are_moved_away_in_pieces_and_a_second_tick_begins_nothing_new(place, moved):
    settle_segments(place)
    place.ticks(1)
    assert len(moved) == 1
    place.ticks(1)
    assert len(moved) == 1
    finish_errands(place)
    assert len(moved) > 2
    place.thread.run()
    assert os.listdir(place.path / "garbage") == []
    before = len(moved)
    place.publish(*range(1, 201))
    place.client.send((1, methods.BasicAck(delivery_tag=400, multiple=True)))
    place.ticks(1)
    finish_errands(place)
    assert len(moved) > before + 2


def test_files_of_a_deleted_queue_that_had_yet_to_go_cost_a_later_queue_of_its_name_nothing(place, moved):
    queue = settle_segments(place)
    place.ticks(1)
    place.vhost.delete_queue(queue)
    again = place.queue()
    place.publish(*range(1, 201))
    place.client.send((1, methods.BasicConsume(queue="q")))
    for tag in range(201, 401, 2):
        place.client.send((1, methods.BasicAck(delivery_tag=tag)))
    names = set(os.listdir(again.directory))
    place.ticks(1)
    finish_errands(place)
    place.thread.run()
    assert (again.unacked, set(os.listdir(again.directory))) == (100, names)


def test_at_the_end_nothing_is_left_for_the_next_start_to_remove(place):
    queue = place.queue()
    place.publish(1)
    place.vhost.delete_queue(queue)
    place.upkeep.close()
    place.thread.run()
    assert os.listdir(place.path / "garbage") == []


def test_each_minute_retention_looks_at_the_age_of_what_streams_keep(place):
    minute = 60_000_000_000
    now = 1000 * minute
    place.node.core.clock = lambda: now
    queue = place.vhost.add_queue("q", durable=True, auto_delete=False,
                                  arguments={"x-queue-type": "stream", "x-max-age": "10m"})
    place.publish(*range(300))
    now += 9 * minute
    place.publish(*range(40))
    before = len(queue.segments())
    assert before > 4
    place.ticks(upkeep.RETAIN_EVERY_TICKS)
    assert len(queue.segments()) == before          # Nothing is as old as that yet.
    now += minute + 1
    place.ticks(upkeep.RETAIN_EVERY_TICKS - 1)
    assert len(queue.segments()) == before
    place.ticks(1)
    assert queue.stream.removed_segments >= before - 3
    assert queue.stream.first_offset > 200
    now += 100 * minute
    place.ticks(upkeep.RETAIN_EVERY_TICKS)
    assert len(queue.segments()) == 1               # The last one stays, however old it is.


def test_others_have_their_turn_while_retention_takes_very_many_segments(place, monkeypatch):
    monkeypatch.setattr(pieces, "PIECE_NS", 0)
    queue = place.vhost.add_queue("q", durable=True, auto_delete=False, arguments={"x-queue-type": "stream"})
    place.publish(*range(1500))
    segments = len(queue.segments())
    assert segments > 20
    place.vhost.policies.put(Policy("p", "q", {"max-length": 0}))
    place.vhost.apply_rules()
    assert queue.stream.removed_segments == 8       # at once
    place.ticks(upkeep.RETAIN_EVERY_TICKS)
    assert queue.stream.removed_segments == 9
    place.node.core.go_on()
    assert queue.stream.removed_segments == 10
    while place.node.core.has_errands:
        place.node.core.go_on()
    assert len(queue.segments()) == 1


class SpareCore:
    """What upkeep asks of the data plane about segments kept for later."""

    def __init__(self):
        self.spares_used = self.released = 0

    def release_spares(self):
        self.released += 1

    def enforce_retention(self, most):
        return 0

    def take_unwritten_keys(self):
        return []

    def take_unindexed(self):
        return []

    def take_garbage(self):
        return []


def test_spare_segments_go_when_no_queue_took_one_for_a_while_and_not_before(tmp_path):
    core = SpareCore()
    keeper = Upkeep({}, core, Disk(), str(tmp_path), Thread().submit)
    for _ in range(3):
        core.spares_used += 1
        for _ in range(upkeep.COMPACT_EVERY_TICKS):
            keeper.tick(NEVER)
    assert core.released == 0
    for _ in range(upkeep.COMPACT_EVERY_TICKS):
        keeper.tick(NEVER)
    assert core.released == 1


# --- unused queues

class Unused:
    """Stands for a queue that expires, and has never held a message."""

    next_seq = 1

    def __init__(self, name, vhost_name="/", expires_ms=500):
        self.name, self.vhost_name = name, vhost_name
        self.rules = Rules(expires_ms=expires_ms)
        self.deleted = False
        self.unused_since = self.consumer_count = 0

    def __str__(self):
        return f"queue '{self.name}' in vhost '{self.vhost_name}'"

    def touch(self):
        pass


class Vhost:
    """Stands for a vhost: deletes queues, or refuses to."""

    def __init__(self, *queues):
        self.queues = {queue.name: queue for queue in queues}
        self.commit_log = None
        self.full = False

    def delete_unused_queue(self, queue):
        yield
        if self.full:
            return
        del self.queues[queue.name]
        queue.deleted = True


class Turns:
    """What of the data plane is asked then."""

    spares_used = turns = 0

    def __init__(self):
        self.errands = []

    def add_errand(self, step):
        self.errands.append(step)

    def turn(self):
        self.turns += 1

    def enforce_retention(self, most):
        return 0

    def take_unwritten_keys(self):
        return []

    def take_unindexed(self):
        return []

    def take_garbage(self):
        return []


@pytest.fixture
def unused(tmp_path):
    """Upkeep with a clock by hand, its core, and the vhosts by name."""
    vhosts, core, now = {}, Turns(), [10**18]
    keeper = Upkeep(vhosts, core, Disk(), str(tmp_path), Thread().submit, now=lambda: now[0])
    return keeper, core, vhosts, now


def test_a_tick_has_each_vhost_s_commit_log_give_up_what_is_stored(unused):
    keeper, _, vhosts, _ = unused

    class Log:
        rotated = 0

        def rotate(self):
            self.rotated += 1

    vhosts.update({"/": Vhost(Unused("q")), "other": Vhost(Unused("q"))})
    vhosts["/"].commit_log = Log()
    for _ in range(3):
        keeper.tick(NEVER)
    assert vhosts["/"].commit_log.rotated == 3


def test_a_queue_that_nobody_uses_goes_at_a_tick_and_others_stay(unused):
    keeper, core, vhosts, now = unused
    queue, other = Unused("q"), Unused("q", "other", 900)
    vhosts.update({"/": Vhost(queue), "other": Vhost(other)})
    for each in (queue, other):
        keeper.expires.watch(each)
    keeper.tick(NEVER)
    assert not queue.deleted
    now[0] += 500_000_000
    keeper.tick(NEVER)
    assert (queue.deleted, other.deleted, vhosts["/"].queues) == (True, False, {})
    assert core.turns == 1


def test_an_unused_queue_that_takes_long_to_delete_goes_in_pieces(unused, monkeypatch):
    monkeypatch.setattr(pieces, "PIECE_NS", 0)
    keeper, core, vhosts, now = unused
    vhosts["/"] = Vhost(queue := Unused("q"))
    keeper.expires.watch(queue)
    now[0] += 500_000_000
    keeper.tick(NEVER)
    assert (queue.deleted, core.turns) == (False, 0)
    (step,) = core.errands
    assert step()
    assert (queue.deleted, core.turns) == (True, 1)


def test_a_queue_that_the_full_disk_does_not_let_go_stays_and_goes_later(unused):
    keeper, _, vhosts, now = unused
    queue = Unused("q")
    vhosts["/"] = Vhost(queue)
    vhosts["/"].full = True
    keeper.expires.watch(queue)
    now[0] += 500_000_000
    keeper.tick(NEVER)
    assert not queue.deleted
    vhosts["/"].full = False
    now[0] += 500_000_000
    queue.unused_since = 0
    keeper.tick(NEVER)
    assert queue.deleted


def test_a_queue_whose_vhost_or_name_is_anothers_is_only_forgotten(unused):
    keeper, core, vhosts, now = unused
    gone, replaced = Unused("q", "gone"), Unused("q")
    vhosts["/"] = Vhost(other := Unused("q"))
    for queue in (gone, replaced):
        keeper.expires.watch(queue)
    now[0] += 500_000_000
    keeper.tick(NEVER)
    assert (len(keeper.expires), vhosts["/"].queues, core.turns) == (0, {"q": other}, 0)


# --- policies

class Told:
    """Stands for a queue: counts how often its rules were asked for."""

    rules = Rules()
    deleted = False
    kind = "classic_queues"

    def __init__(self, name="q"):
        self.name, self.policies = name, []

    def apply_rules(self, policies):
        self.policies.append([policy.name for policy in policies])


@pytest.fixture
def policed(place):
    """The place with a stand-in queue in its vhost."""
    told = Told()
    place.vhost.queues["q"] = told
    yield told
    place.vhost.queues.clear()


def test_policies_are_put_in_force_on_every_queue_and_routes_are_forgotten(place, policed, monkeypatch):
    cleared = []
    monkeypatch.setattr(type(place.vhost), "forget_routes", lambda vhost: cleared.append(vhost))
    place.vhost.policies.put(Policy("p", "", {"max-length": 1}))
    place.upkeep.apply_policies(place.vhost)
    assert (policed.policies, cleared) == ([["p"]], [place.vhost])
    assert place.vhost.policies.on_expires == place.upkeep.expires.watch


def test_policies_are_put_in_force_a_queue_at_a_time_and_not_on_those_that_go_meanwhile(place, policed):
    others = [Told(name) for name in ("r", "s")]
    place.vhost.queues.update((each.name, each) for each in others)
    place.vhost.policies.put(Policy("p", "", {"max-length": 1}))
    counts = []
    for _ in place.upkeep.put_policies_in_force(place.vhost):
        counts.append([len(each.policies) for each in (policed, *others)])
        others[-1].deleted = True
        revision = place.vhost.revision
    assert place.vhost.revision > revision  # behind the last queue: who looks for links looks again
    assert [next(same) for _, same in groupby(counts)] == [[0, 0, 0], [1, 0, 0], [1, 1, 0]]


def test_a_queue_whose_rules_came_from_disk_expires_too(place):
    place.vhost.add_queue("q", durable=True, auto_delete=False, arguments={"x-expires": 60_000})
    place.close()
    place.reopen()
    queue = place.vhost.queues["q"]
    place.upkeep.apply_policies(place.vhost)
    assert (len(place.upkeep.expires), queue in place.upkeep.expires) == (1, True)


@pytest.mark.parametrize("enough", [True, False])
def test_room_is_made_by_order_journals_where_there_are_any(place, enough):
    assert not place.upkeep.make_room(5, 9)
    asked = []

    class Journals:
        def make_room(self, free, limit):
            asked.append((free, limit))
            return enough

    place.upkeep._journals = Journals()
    assert place.upkeep.make_room(5, 9) is enough
    assert asked == [(5, 9)]
    place.upkeep._journals = None
