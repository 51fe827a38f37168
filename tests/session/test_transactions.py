"""Transactions over stand-ins for the data plane: what happens when, and in which order."""

import os
import struct

import pytest
from tests.session.harness import Commit

from brokerd import pieces, plane
from brokerd.errors import (
    AccessRefused,
    ChannelError,
    ChannelStateError,
    NotFound,
    PreconditionFailed,
    SyntaxError_,
)
from brokerd.hoarders import MUCH_OCTETS, TransactionMemory
from brokerd.session import transactions, tx
from brokerd.store import commit_log as journal
from brokerd.store.disk import Disk, Room
from brokerd.store.shared_commit_log import load
from brokerd.vhost.deletions import finish
from brokerd.wire import methods
from brokerd.wire.frames import FrameScanner

RETURNED_BY = {1: "back by nack", 2: "back by reject", 3: "back by recover"}    # by CAUSE_* of store/format


class Queue:
    def __init__(self, name, durable=True):
        self.name = name
        self.durable = durable
        self.deleted = False
        self.consumer_count = 0


class Full(Disk):
    """A disk with as much room as is said, whose journals cannot be written when ``broken``."""

    free = 1 << 40
    broken = False

    def __init__(self):
        self.synced = []

    def fsync(self, fd, path):
        super().fsync(fd, path)
        self.synced.append(path)

    def sync_directory(self, path):
        super().sync_directory(path)
        self.synced.append(path)

    def free_octets(self, path):
        return self.free

    def pwrite(self, fd, octets, position):
        if self.broken:
            raise OSError(28, "No space left on device")
        super().pwrite(fd, octets, position)


class Node:
    class settings:
        sync = True
        segment_octets = 1 << 20

    def __init__(self):
        self.disk = Full()
        self.room = Room(self.disk)
        self.blocked = set()
        self.transaction_memory = TransactionMemory()
        self.alarms = []
        self.commit = Commit()
        self.commit.at_once = False
        self.commit.sync_directory = self.alarms.append

    def storage_failed(self, number):
        self.alarms.append(number)


class Access:
    def __init__(self, directory):
        self.vhost = self
        self.directory = str(directory)
        self.replies = None
        self.commit_log = None
        self.routes = {}
        self.refusal = None

    def resolve(self, exchange, key, header, channel):
        if self.refusal is not None:
            raise self.refusal
        if exchange == b"missing":
            raise NotFound("no exchange 'missing' in vhost '/'")
        return plane.Answer(self.routes.get(key, ()))


class Connection:
    """A connection with channel 1, its own core."""

    def __init__(self, directory):
        self.node = Node()
        self.access = Access(directory)
        self.node.core = self
        self.number, self.frame_max = 7, 4096
        self.log = []  # what happened, in order
        self.full = False
        self.refuses = 0
        self.errands = []  # steps of commits that are done in pieces
        self.rests = 0
        self.scanner = FrameScanner()
        self.channel = Channel(self)
        self.channels = {1: self.channel}

    def put(self, queues, exchange, key, properties, body, *, connection, channel, publish_seq, sync, keys=None,
            returns=None, staged=False):
        if self.full:
            raise OSError(28, "No space left on device")
        self.on_put()
        self.log.append((*[queue.name for queue in queues], body, publish_seq))
        return queues[self.refuses:]

    def on_put(self):
        pass

    def write_stages(self):
        pass

    def add_errand(self, step):
        self.errands.append(step)

    def rest(self):
        self.rests += 1

    is_crowded = False

    def count_work(self, ns):
        pass

    def go_on(self):
        self.rests -= 1

    def sync_next(self, queues):
        pass

    def write(self, octets):
        for frame in self.scanner.feed(octets):
            self.log.append(methods.decode(frame.payload).NAME if frame.kind == 1 else frame.payload[-1:])

    def on_method(self, channel, payload):
        opened = self.channels.get(channel)
        if opened.transaction is not None and opened.transaction.under_way:
            opened.transaction.defer(payload)
            return
        method = methods.decode(payload)
        handler = tx.HANDLERS.get(method.NAME)
        if handler is None:
            self.log.append(method.NAME)
            return
        reply = handler(self, opened, method)
        if reply is not None:
            self.write(reply.frame(channel))

    def on_error(self, channel, error, class_id, method_id):
        self.log.append((error.reply_code, error.args[0]))
        self.channel.closing = True
        finish(self.channel.transaction.leave())


class Channel:
    def __init__(self, connection):
        self.number = 1
        self.connection = connection
        self.publishes = 0
        self.confirm = self.closing = self.tx = False
        self.transaction = None
        self.keeps = False
        self.kept = None
        self.unacked = {}
        self.claims = {}

    def claim(self, tag, multiple, outcome):
        tags = [tag for tag, _, _ in self.deliveries(tag, multiple)]
        if not (multiple and not tag) and (not tags or tag in self.claims):
            raise LookupError(tag)
        fresh = [tag for tag in tags if tag not in self.claims]
        self.claims.update(dict.fromkeys(fresh, outcome))
        return min(tags, default=0), max(tags, default=0), len(fresh)

    def claimed(self, first, last, outcome):
        return [self.unacked[tag] for tag in range(first, last + 1) if self.claims.get(tag) == outcome]

    def settle_claimed(self, first, last, upto, outcome, *, requeue=0, reject=False):
        for tag in range(first, last + 1):
            if self.claims.get(tag) == outcome:
                self.settle(tag, False, requeue=requeue, reject=reject)

    left = False

    @property
    def outstanding(self):
        return min(self.unacked, default=1), max(self.unacked, default=0)

    def return_unclaimed(self, first, last, upto, cause):
        for tag in list(self.unacked):
            if first <= tag <= last and tag not in self.claims:
                self.settle(tag, False, requeue=cause)

    def disclaim(self):
        self.claims = {}

    def take_kept(self):
        kept, self.kept = self.kept, None
        return kept

    def count_publish(self):
        self.publishes += 1
        return self.publishes

    def deliveries(self, tag, multiple):
        if multiple and (not tag or tag in self.unacked):
            return [(t, *where) for t, where in self.unacked.items() if not tag or t <= tag]
        return [(tag, *self.unacked[tag])] if tag in self.unacked else []

    def settle(self, tag, multiple, *, requeue=0, reject=False):
        if tag not in self.unacked:
            return False
        queue, seq = self.unacked.pop(tag)
        self.connection.log.append((RETURNED_BY.get(requeue, "reject" if reject else "ack"), queue.name, seq))
        return True


class Peer:
    """What the client does, and what is to be seen of it."""

    def __init__(self, directory):
        self.directory = directory
        self.connection = Connection(directory)
        self.channel = self.connection.channel
        self.node = self.connection.node
        self.queue = Queue("q")
        self.connection.access.routes = {b"q": (self.queue,), b"t": (Queue("t", durable=False),),
                                         b"qt": (self.queue, Queue("t", durable=False))}
        self.say(methods.TxSelect())
        self.seen()

    def say(self, method):
        self.connection.on_method(1, method.encode())

    def publish(self, key="q", body=b"x", exchange="", **bits):
        header = b"\0\x3c\0\0" + len(body).to_bytes(8) + b"\0\0"
        method = methods.BasicPublish(exchange=exchange, routing_key=key, **bits).encode()
        transactions.publish(self.connection, 1, method, header, body)

    def delivered(self, *tags):
        for tag in tags:
            self.channel.unacked[tag] = (self.queue, 100 + tag)

    def seen(self):
        seen, self.connection.log[:] = list(self.connection.log), []
        return seen

    def synced(self):
        """One sync ends; what was seen since the last look."""
        self.node.commit.end()
        return self.seen()

    def pieces(self, most=1000):
        """Do so many pieces of errands; how many there were."""
        for count in range(most):
            if not self.connection.errands:
                return count
            step = self.connection.errands.pop(0)
            if not step():
                self.connection.errands.append(step)
        return most

    @property
    def files(self):
        return os.listdir(self.directory)


@pytest.fixture
def peer(tmp_path):
    return Peer(tmp_path)


def test_nothing_is_published_before_commit(peer):
    peer.publish()
    assert peer.seen() == []


def test_a_commit_is_stored_and_answered_after_one_sync(peer):
    peer.publish(body=b"1")
    peer.publish(body=b"2")
    peer.say(methods.TxCommit())
    assert peer.seen() == []
    assert peer.files == ["tx.shared.7.0"]
    assert peer.synced() == [("q", b"1", 1), ("q", b"2", 2), "tx.commit-ok"]


def test_a_large_commit_is_stored_after_one_sync_and_answered_after_another(peer):
    peer.publish(body=b"1")
    peer.publish(body=bytes(600_000))
    peer.say(methods.TxCommit())
    peer.pieces()
    assert peer.seen() == []
    assert peer.files == ["tx.7.1"]
    assert peer.synced() == [("q", b"1", 1), ("q", bytes(600_000), 2)]
    assert peer.synced() == ["tx.commit-ok"]
    assert peer.files == []


def test_one_message_for_one_durable_queue_needs_no_journal(peer):
    peer.publish()
    peer.publish("t", b"t")
    peer.say(methods.TxCommit())
    assert peer.files == []
    assert peer.seen() == [("q", b"x", 1), ("t", b"t", 2)]
    assert peer.synced() == ["tx.commit-ok"]


def test_what_is_not_durable_waits_for_no_disk(peer):
    peer.publish("t", b"1")
    peer.publish("t", b"2")
    peer.say(methods.TxCommit())
    assert peer.seen() == [("t", b"1", 1), ("t", b"2", 2), "tx.commit-ok"]


def test_an_empty_commit_is_answered_at_once(peer):
    peer.say(methods.TxCommit())
    assert peer.seen() == ["tx.commit-ok"]


def test_rollback_forgets_publishes_and_leaves_deliveries_outstanding(peer):
    peer.delivered(1)
    peer.publish()
    peer.say(methods.BasicAck(delivery_tag=1))
    peer.say(methods.TxRollback())
    peer.say(methods.TxCommit())
    assert peer.seen() == ["tx.rollback-ok", "tx.commit-ok"]
    peer.say(methods.BasicAck(delivery_tag=1))
    peer.say(methods.TxCommit())
    assert ("ack", "q", 101) in peer.seen()


def test_settlements_are_done_after_publishes_each_as_it_was_asked(peer):
    peer.delivered(1, 2, 3, 4, 5)
    peer.say(methods.BasicNack(delivery_tag=2, requeue=True))
    peer.say(methods.BasicReject(delivery_tag=5, requeue=True))
    peer.say(methods.BasicReject(delivery_tag=4))
    peer.say(methods.BasicAck(delivery_tag=3, multiple=True))
    peer.publish()
    peer.say(methods.TxCommit())
    assert peer.synced() == [
        ("q", b"x", 1), ("back by nack", "q", 102), ("back by reject", "q", 105), ("reject", "q", 104),
        ("ack", "q", 101), ("ack", "q", 103), "tx.commit-ok"]


@pytest.mark.parametrize(("first", "second", "tag"), [
    (None, methods.BasicAck(delivery_tag=9), 9),
    (None, methods.BasicAck(delivery_tag=9, multiple=True), 9),
    (None, methods.BasicNack(delivery_tag=0), 0),
    (methods.BasicAck(delivery_tag=2), methods.BasicAck(delivery_tag=2), 2),
    (methods.BasicAck(delivery_tag=2), methods.BasicAck(delivery_tag=2, multiple=True), 2),
    (methods.BasicAck(delivery_tag=3, multiple=True), methods.BasicReject(delivery_tag=2), 2),
])
def test_a_tag_that_is_not_outstanding_is_refused_at_once(peer, first, second, tag):
    peer.delivered(1, 2, 3)
    if first is not None:
        peer.say(first)
    with pytest.raises(PreconditionFailed, match=f"^unknown delivery tag {tag}$"):
        peer.say(second)


def test_all_of_nothing_may_be_acked(peer):
    peer.say(methods.BasicAck(delivery_tag=0, multiple=True))
    peer.say(methods.TxCommit())
    assert peer.seen() == ["tx.commit-ok"]


def test_recover_returns_only_what_the_transaction_has_not_settled(peer):
    peer.delivered(1, 2)
    peer.say(methods.BasicAck(delivery_tag=1))
    finish(peer.channel.transaction.recover())
    assert peer.seen() == [("back by recover", "q", 102)]
    peer.say(methods.TxCommit())
    assert peer.seen()[:1] == [("ack", "q", 101)]


def test_a_publish_that_may_not_be_is_refused_at_once(peer):
    with pytest.raises(NotFound, match="^no exchange 'missing' in vhost '/'$"):
        peer.publish(exchange="missing")


@pytest.mark.parametrize("tail", [b"x", b"x" * 300])
def test_a_publish_that_does_not_end_where_its_fields_do_is_refused(peer, tail):
    payload = methods.BasicPublish(routing_key="q").encode()
    for wrong in (payload + tail, payload[:-1], payload[:-3]):
        with pytest.raises(SyntaxError_, match=r"^basic\.publish: "):
            transactions.publish(peer.connection, 1, wrong, bytes(14), b"")


def test_a_commit_that_may_not_be_any_more_does_nothing(peer):
    peer.publish()
    peer.publish()
    peer.connection.access.refusal = AccessRefused("no")
    with pytest.raises(AccessRefused):
        peer.say(methods.TxCommit())
    assert peer.seen() == []
    finish(peer.channel.transaction.leave())
    assert peer.seen() == []


@pytest.mark.parametrize("fault", ["free", "broken"])
def test_a_commit_without_space_does_nothing(peer, fault):
    peer.publish()
    peer.publish()
    setattr(peer.node.disk, fault, {"free": 1000, "broken": True}[fault])
    with pytest.raises(PreconditionFailed, match="^the transaction cannot be stored: No space left on device$"):
        peer.say(methods.TxCommit())
    finish(peer.channel.transaction.leave())
    assert peer.seen() == []
    assert peer.files == []


def test_a_disk_that_fills_up_after_all_is_waited_for(peer):
    peer.publish(body=b"1")
    peer.publish(body=b"2")
    peer.say(methods.TxCommit())
    peer.connection.full = True
    assert peer.synced() == []
    assert 28 in peer.node.alarms
    peer.connection.full = False
    for blocked in list(peer.node.blocked):
        blocked.unblock()
    assert peer.seen() == [("q", b"1", 1), ("q", b"2", 2), "tx.commit-ok"]
    assert not peer.node.blocked


def test_what_a_transaction_holds_is_counted_and_given_back_at_its_end(peer):
    memory = peer.node.transaction_memory
    for end in (methods.TxRollback(), methods.TxCommit()):
        peer.delivered(1, 2)
        peer.publish(body=bytes(1000))
        published = memory.octets
        assert published > 1000
        peer.say(methods.BasicAck(delivery_tag=2, multiple=True))
        assert memory.octets >= published + 2 * 100
        peer.say(end)
        while peer.synced():
            pass
        assert memory.octets == 0


def test_a_transaction_gets_no_more_memory_than_there_is_for_all_and_its_channel_gives_all_back(peer):
    peer.node.transaction_memory.most = 2 * MUCH_OCTETS
    with pytest.raises(PreconditionFailed, match="cannot be kept: open transactions have too much memory$"):
        for _ in range(2 * MUCH_OCTETS // 100):
            peer.publish()
    assert peer.node.transaction_memory.octets <= 2 * MUCH_OCTETS
    finish(peer.channel.transaction.leave())
    assert peer.node.transaction_memory.octets == 0


def test_a_small_transaction_finds_memory_although_others_have_all_of_it(peer):
    peer.node.transaction_memory.most = peer.node.transaction_memory.octets = 10 * MUCH_OCTETS
    peer.publish()
    peer.say(methods.TxCommit())
    assert peer.synced() == [("q", b"x", 1), "tx.commit-ok"]


def test_what_goes_nowhere_comes_back_before_commit_ok(peer):
    peer.publish("nowhere", b"1", mandatory=True)
    peer.publish("nowhere", b"2")
    peer.publish("q", b"3", immediate=True)
    peer.say(methods.TxCommit())
    assert peer.seen() == ["basic.return", b"\0", b"1", "basic.return", b"\0", b"3", "tx.commit-ok"]


def test_a_queue_that_refuses_makes_it_no_commit(peer):
    peer.publish()
    peer.connection.refuses = 1
    peer.say(methods.TxCommit())
    peer.seen()
    assert peer.synced() == [(406, "partial tx completion")]


def test_a_queue_deleted_meanwhile_gets_nothing(peer):
    peer.publish()
    peer.publish()
    peer.say(methods.TxCommit())
    peer.queue.deleted = True
    assert peer.synced() == ["tx.commit-ok"]


def test_what_comes_before_the_answer_waits_for_it_in_its_order(peer):
    peer.publish(body=b"1")
    peer.publish(body=b"2")
    peer.say(methods.TxCommit())
    peer.publish("t", b"3")
    peer.say(methods.TxCommit())
    peer.say(methods.BasicQos())
    peer.publish("t", b"4")
    peer.say(methods.TxRollback())
    peer.say(methods.BasicCancel())
    assert peer.synced() == [
        ("q", b"1", 1), ("q", b"2", 2), "tx.commit-ok", ("t", b"3", 3), "tx.commit-ok", "basic.qos", "tx.rollback-ok",
        "basic.cancel"]


def test_what_waits_for_a_second_commit_comes_too(peer):
    for body in (b"1", b"3"):
        peer.publish(body=body)
        peer.publish(body=body)
        peer.say(methods.TxCommit())
        peer.say(methods.BasicQos())
        assert peer.synced()[-2:] == ["tx.commit-ok", "basic.qos"]


def test_what_waits_for_the_answer_is_dropped_where_the_connection_closes(peer):
    peer.delivered(1)
    peer.publish(body=b"1")
    peer.publish(body=b"2")
    peer.say(methods.TxCommit())
    peer.publish("t", b"3")
    peer.say(methods.BasicAck(delivery_tag=1))
    peer.say(methods.TxCommit())
    peer.say(methods.ChannelClose())
    finish(peer.channel.transaction.leave(connection_closes=True))
    assert peer.synced() == [("q", b"1", 1), ("q", b"2", 2)]
    assert 1 in peer.channel.unacked


def test_what_is_settled_in_a_transaction_cannot_time_out_until_it_is_rolled_back(peer):
    peer.delivered(1, 2, 3)
    peer.say(methods.BasicAck(delivery_tag=2, multiple=True))
    assert set(peer.channel.claims) == {1, 2}
    peer.say(methods.TxRollback())
    assert not peer.channel.claims


@pytest.mark.parametrize("channels", [None, {}])
def test_a_publish_behind_the_end_of_its_channel_is_refused(peer, channels):
    peer.connection.channels = channels
    with pytest.raises(ChannelStateError) as refused:
        peer.publish()
    assert refused.value.args[0] == "basic.publish behind the end of its transactional channel"


def test_outside_a_transaction_a_delivery_is_settled_at_once_and_an_unknown_one_refused(peer):
    peer.channel.transaction = None
    peer.delivered(1)
    peer.say(methods.BasicAck(delivery_tag=1))
    assert peer.seen() == [("ack", "q", 101)]
    with pytest.raises(PreconditionFailed) as refused:
        peer.say(methods.BasicAck(delivery_tag=1))
    assert refused.value.args[0] == "unknown delivery tag 1"


def test_what_comes_back_says_why(peer):
    written = []
    peer.connection.write = written.append
    peer.publish("nowhere", mandatory=True)
    peer.publish("q", immediate=True)
    peer.say(methods.TxCommit())
    found = [methods.decode(frame.payload) for octets in written for frame in FrameScanner().feed(octets)
             if frame.kind == 1]
    assert [(method.reply_code, method.reply_text) for method in found[:-1]] == [
        (312, "NO_ROUTE"), (313, "NO_CONSUMERS")]


def test_a_thousand_commits_may_wait_for_one(peer):
    peer.publish()
    peer.publish()
    peer.say(methods.TxCommit())
    for _ in range(3000):
        peer.publish("t", b"t")
        peer.say(methods.TxCommit())
    assert peer.synced().count("tx.commit-ok") == 3001
    assert peer.connection.rests == 0


def test_a_client_rests_that_sends_much_while_a_commit_is_not_answered(peer):
    peer.publish()
    peer.publish()
    peer.say(methods.TxCommit())
    for count in range(1, 300):
        peer.publish("t", b"t")
        assert peer.connection.rests == (count >= transactions.DEFERRED_MOST)
    peer.synced()
    assert peer.connection.rests == 0
    peer.say(methods.TxCommit())
    peer.pieces()
    assert peer.synced().count(("t", b"t", 3)) == 1


def test_a_channel_that_goes_lets_its_client_go_on(peer):
    peer.publish()
    peer.publish()
    peer.say(methods.TxCommit())
    for _ in range(300):
        peer.publish("t", b"t")
    finish(peer.channel.transaction.leave())
    assert peer.connection.rests == 0


@pytest.fixture
def short_pieces(monkeypatch):
    monkeypatch.setattr(pieces, "PIECE_NS", 0)


def commit_of(peer, count):
    """A commit of so many publishes is decided: it stands in the shared log, which waits for its sync."""
    for n in range(count):
        peer.publish(body=b"%d" % n)
    peer.say(methods.TxCommit())
    peer.pieces()


def stored_of(peer, name="tx.shared.7.0"):
    """How many messages the commit log says are stored."""
    path = str(peer.directory / name)
    decision, = load(path, Disk()).decisions if "shared" in name else [journal.load(path, Disk())]
    return decision.stored


MANY = transactions.ONE_PIECE_MOST + 1


def test_a_commit_of_many_is_decided_and_stored_in_pieces_while_its_client_rests(peer, short_pieces):
    for n in range(MANY):
        peer.publish(body=b"%d" % n)
    peer.say(methods.TxCommit())
    assert (peer.files, peer.connection.rests) == ([], 1)
    assert peer.pieces() > 2 * MANY    # Each is routed in one piece, and encoded in another.
    assert (peer.files, peer.connection.rests) == (["tx.shared.7.0"], 0)
    assert (peer.synced(), peer.connection.rests) == ([("q", b"0", 1)], 1)
    assert peer.pieces() == MANY - 1
    assert peer.seen() == [*[("q", b"%d" % n, n + 1) for n in range(1, MANY)], "tx.commit-ok"]
    assert (peer.connection.errands, peer.connection.rests) == ([], 0)


def test_a_commit_log_says_how_much_is_stored_before_others_have_their_turn(peer, short_pieces):
    commit_of(peer, MANY)
    assert stored_of(peer) == 0
    peer.synced()
    for n in range(1, MANY):
        assert stored_of(peer) == n
        peer.pieces(1)
    decision, = load(str(peer.directory / "tx.shared.7.0"), Disk()).decisions
    assert (decision.applied, decision.first) == (True, 1)


def test_a_commit_log_of_a_large_commit_says_how_much_is_stored_too(peer, short_pieces):
    for n in range(40):
        peer.publish(body=bytes(30_000) + b"%d" % n)
    peer.say(methods.TxCommit())
    peer.pieces()
    assert len(peer.synced()) == 1
    peer.pieces(30)
    assert (stored_of(peer, "tx.7.1"), len(peer.seen())) == (31, 30)
    peer.pieces()
    assert (len(peer.seen()), peer.synced(), peer.files) == (9, ["tx.commit-ok"], [])


def test_a_channel_that_goes_while_its_commit_is_stored_has_the_rest_stored_once_and_nothing_returned(
    peer, short_pieces
):
    for n in range(MANY):
        peer.publish(body=b"%d" % n)
    peer.publish(key="nowhere", body=b"back", mandatory=True)
    peer.delivered(1)
    peer.say(methods.BasicAck(delivery_tag=1))
    peer.say(methods.TxCommit())
    peer.pieces()
    assert len(peer.synced()) == 1
    finish(peer.channel.transaction.leave())
    assert peer.seen() == [*[("q", b"%d" % n, n + 1) for n in range(1, MANY)], ("ack", "q", 101)]
    peer.pieces()
    assert (peer.synced(), peer.connection.rests, peer.connection.errands) == ([], 0, [])


def test_a_disk_that_fills_up_while_a_commit_is_stored_is_waited_for_and_the_rest_stored_behind(peer, short_pieces):
    commit_of(peer, MANY)
    peer.synced()
    peer.pieces(10)
    peer.connection.full = True
    peer.pieces()
    assert (len(peer.seen()), stored_of(peer), peer.connection.rests) == (10, 11, 0)
    peer.connection.full = False
    for blocked in list(peer.node.blocked):
        blocked.unblock()
    peer.pieces()
    assert peer.seen() == [*[("q", b"%d" % n, n + 1) for n in range(11, MANY)], "tx.commit-ok"]


def test_what_was_stored_before_the_disk_was_full_and_the_channel_went_is_not_left_to_the_next_start(
    peer, short_pieces
):
    commit_of(peer, MANY)
    peer.synced()
    peer.pieces(10)
    peer.connection.full = True
    finish(peer.channel.transaction.leave())
    peer.pieces()
    assert (stored_of(peer), peer.connection.rests) == (11, 0)


def test_a_large_transaction_whose_channel_went_while_the_disk_was_full_is_stored_when_there_is_room(
    peer, short_pieces
):
    for n in range(40):
        peer.publish(body=bytes(30_000) + b"%d" % n)
    peer.say(methods.TxCommit())
    peer.pieces()
    peer.connection.full = True
    finish(peer.channel.transaction.leave())
    assert (peer.files, stored_of(peer, "tx.7.1")) == (["tx.7.1"], 0)
    peer.connection.full = False
    for blocked in list(peer.node.blocked):
        blocked.unblock()
    peer.pieces()
    assert [seq for _, _, seq in peer.seen()] == list(range(1, 41))
    assert (peer.synced(), peer.files, peer.node.blocked) == ([], [], set())


@pytest.mark.parametrize("count", [2, MANY])
def test_a_decided_transaction_whose_channel_went_while_the_disk_was_full_is_stored_when_there_is_room(
    peer, short_pieces, count
):
    commit_of(peer, count)
    peer.connection.full = True
    finish(peer.channel.transaction.leave())
    for blocked in list(peer.node.blocked):     # There is room, but not enough.
        blocked.unblock()
    peer.pieces()
    peer.seen()
    peer.connection.full = False
    for blocked in list(peer.node.blocked):
        blocked.unblock()
    peer.pieces()
    assert peer.seen() == [("q", b"%d" % n, n + 1) for n in range(count)]
    assert (peer.node.blocked, peer.connection.errands) == (set(), [])
    assert (peer.synced(), peer.files) == ([], [])


@pytest.fixture
def settling(peer, short_pieces, monkeypatch):
    """A commit that settles six deliveries is on disk, and two of them are settled."""
    monkeypatch.setattr(transactions, "SETTLED_AT_ONCE", 2)
    peer.delivered(1, 2, 3, 4, 5, 6)
    peer.publish(body=b"1")
    peer.say(methods.BasicAck(delivery_tag=6, multiple=True))
    peer.say(methods.TxCommit())
    assert peer.synced() == [("q", b"1", 1), ("ack", "q", 101), ("ack", "q", 102)]
    assert peer.connection.rests == 1
    return peer


def test_very_many_settlements_of_a_commit_are_done_in_pieces_and_answered_behind_the_last(settling):
    settling.say(methods.QueuePurge(queue="q"))
    assert settling.pieces(1) == 1
    assert settling.seen() == [("ack", "q", 103), ("ack", "q", 104)]
    settling.pieces()
    assert settling.seen() == [("ack", "q", 105), ("ack", "q", 106), "tx.commit-ok", "queue.purge"]
    assert settling.connection.rests == 0


def test_a_channel_that_goes_while_its_commit_is_settling_finishes_that_once_before_it_gives_back_the_rest(settling):
    finish(settling.channel.transaction.leave())
    assert settling.seen() == [("ack", "q", 100 + tag) for tag in (3, 4, 5, 6)]
    settling.pieces()
    assert (settling.synced(), settling.connection.rests, settling.connection.errands) == ([], 0, [])


class Kept:
    """Stands for plane.Kept: messages of this many octets for one queue."""

    refused = False
    at_once = 1 << 30    # of the messages that a call of put() stores

    def __init__(self, queue, count, octets):
        self.stored = 0
        self.queues, self.count, self.stores = [queue], count, count
        self.bodies = [n.to_bytes(octets) for n in range(count)]
        self.messages = [journal._encode_message(journal.Message(n + 1, b"", b"q", b"\0\0", body))
                         for n, body in enumerate(self.bodies)]  # fmt: skip
        self.octets = sum(map(len, self.messages))

    def route(self, channel):
        return True

    def copy_large(self):
        return True

    def log_messages(self, begin=0, most=-1):
        octets = b"".join(self.messages)[begin:]
        return octets if most < 0 else octets[:most]

    def log_places(self, begin):
        places, size = b"", len(self.messages[0])
        for n in range(self.count):
            places += struct.pack("<QII", begin + n * size, 1, 0)
        return struct.pack("<I", self.count) + places

    def put(self, core, connection, channel, *, sync, returns=None):
        some = min(self.at_once, self.count - self.stored)
        core.log.append(("put", some, sync))
        self.stored += some
        return self.stored == self.count


@pytest.mark.parametrize(("count", "octets"), [(50, 80_000), (40_000, 20)])
def test_a_commit_of_many_octets_that_the_plane_kept_is_done_in_pieces(peer, short_pieces, monkeypatch, count, octets):
    written = []
    pwrite = peer.node.disk.pwrite
    monkeypatch.setattr(
        peer.node.disk, "pwrite", lambda fd, part, at: (written.append(len(part)), pwrite(fd, part, at)))
    peer.channel.kept = kept = Kept(peer.queue, count, octets)
    peer.say(methods.TxCommit())
    assert (peer.seen(), peer.connection.rests) == ([], 1)
    assert peer.pieces() > kept.octets >> 20
    assert peer.connection.rests == 0
    assert max(written) <= 1 << 20
    decision = journal.load(str(peer.directory / "tx.7.1"), Disk())
    assert [message.body for message, names in decision.messages if names == ["q"]] == kept.bodies
    assert peer.synced() == [("put", count, True)]
    assert peer.synced() == ["tx.commit-ok"]
    assert peer.files == []


def test_a_commit_that_the_shared_log_takes_is_decided_in_pieces_if_it_is_not_small(peer, short_pieces):
    peer.channel.kept = Kept(peer.queue, 3, 90_000)
    peer.say(methods.TxCommit())
    assert (peer.files, peer.connection.rests) == ([], 1)
    peer.pieces()
    assert (peer.files, peer.connection.rests) == (["tx.shared.7.0"], 0)
    assert peer.synced() == [("put", 3, False), "tx.commit-ok"]


def test_what_the_plane_stores_in_pieces_is_noted_after_each_of_them(peer, short_pieces):
    peer.channel.kept = kept = Kept(peer.queue, 10, 30_000)
    kept.at_once = 4
    peer.say(methods.TxCommit())
    peer.pieces()
    assert (peer.synced(), stored_of(peer)) == ([("put", 4, False)], 4)
    peer.pieces(1)
    assert (peer.seen(), stored_of(peer)) == ([("put", 4, False)], 8)
    peer.pieces()
    assert peer.seen() == [("put", 2, False), "tx.commit-ok"]


def test_what_the_plane_stores_of_a_small_commit_is_stored_in_one_piece(peer, short_pieces):
    peer.channel.kept = kept = Kept(peer.queue, 10, 100)
    kept.at_once = 4
    peer.say(methods.TxCommit())
    assert peer.synced() == [("put", 4, False), ("put", 4, False), ("put", 2, False), "tx.commit-ok"]


@pytest.mark.parametrize("done", [0, 1, 2, 3])
@pytest.mark.parametrize("end", ["leave", "full"])
def test_a_commit_of_many_octets_that_ends_between_two_pieces_leaves_nothing(peer, short_pieces, done, end):
    peer.channel.kept = Kept(peer.queue, 50, 80_000)
    peer.say(methods.TxCommit())
    peer.pieces(done)
    if end == "leave":
        finish(peer.channel.transaction.leave())
    else:
        peer.node.disk.broken = True
    peer.pieces()
    said = [] if end == "leave" else [(406, "the transaction cannot be stored: No space left on device")]
    assert (peer.synced(), peer.files, peer.connection.rests) == (said, [], 0)


def test_a_commit_of_few_octets_that_the_plane_kept_is_one_piece(peer, short_pieces):
    peer.channel.kept = Kept(peer.queue, 10, 100)
    peer.say(methods.TxCommit())
    assert (peer.files, peer.connection.errands) == (["tx.shared.7.0"], [])
    assert peer.synced() == [("put", 10, False), "tx.commit-ok"]


@pytest.mark.parametrize("queues", [100, 10_000])
def test_a_commit_to_many_queues_needs_room_for_their_growth_and_no_whole_segments(peer, queues):
    peer.channel.kept = Kept(peer.queue, 10, 100)
    peer.channel.kept.queues = [Queue(f"q{n}") for n in range(queues)]
    peer.node.disk.free = queues * transactions.QUEUE_OCTETS + peer.channel.kept.octets
    peer.say(methods.TxCommit())
    assert peer.synced()[-1] == "tx.commit-ok"
    peer.node.room.measure_again()
    peer.channel.kept = Kept(peer.queue, 10, 100)
    peer.channel.kept.queues = [Queue(f"q{n}") for n in range(queues)]
    peer.node.disk.free -= 1
    with pytest.raises(PreconditionFailed, match="^the transaction cannot be stored: No space left on device$"):
        peer.say(methods.TxCommit())


def test_a_commit_of_few_is_one_piece(peer, short_pieces):
    for n in range(transactions.ONE_PIECE_MOST):
        peer.publish(body=b"%d" % n)
    peer.say(methods.TxCommit())
    assert (peer.files, peer.connection.errands) == (["tx.shared.7.0"], [])
    assert len(peer.synced()) == transactions.ONE_PIECE_MOST + 1


def test_what_comes_on_a_channel_that_was_closed_is_not_kept_for_the_answer_of_its_commit(peer):
    peer.publish()
    peer.publish()
    peer.say(methods.TxCommit())
    peer.say(methods.ChannelClose(reply_code=200, reply_text="", class_id=0, method_id=0))
    finish(peer.channel.transaction.leave())
    peer.channel.closing = True
    for _ in range(300):
        peer.say(methods.ChannelCloseOk())
    assert peer.connection.rests == 0
    seen = [one for one in peer.seen() if isinstance(one, str)]
    peer.synced()
    peer.synced()
    assert (seen.count("channel.close-ok"), peer.seen()) == (300, [])


def test_a_channel_that_goes_while_its_commit_is_decided_takes_it_with_it(peer, short_pieces):
    for n in range(200):
        peer.publish(body=b"%d" % n)
    peer.say(methods.TxCommit())
    peer.pieces(150)
    finish(peer.channel.transaction.leave())
    peer.pieces()
    assert (peer.synced(), peer.files, peer.connection.rests) == ([], [], 0)


def test_an_error_in_a_piece_ends_the_channel_and_nothing_has_happened(peer, short_pieces):
    for n in range(200):
        peer.publish(body=b"%d" % n)
    peer.say(methods.TxCommit())
    peer.pieces(150)
    peer.connection.access.refusal = AccessRefused("no")
    peer.pieces()
    assert peer.seen() == [(403, "no")]
    assert (peer.files, peer.connection.rests) == ([], 0)


@pytest.mark.parametrize("fault", ["free", "broken"])
def test_many_publishes_without_space_end_the_channel(peer, short_pieces, fault):
    for n in range(200):
        peer.publish(body=b"%d" % n)
    setattr(peer.node.disk, fault, {"free": 1000, "broken": True}[fault])
    peer.say(methods.TxCommit())
    peer.pieces()
    assert peer.seen() == [(406, "the transaction cannot be stored: No space left on device")]
    assert peer.files == []


def test_an_error_in_what_waited_ends_the_channel(peer):
    peer.publish()
    peer.publish()
    peer.say(methods.TxCommit())
    peer.say(methods.BasicAck(delivery_tag=9))
    peer.say(methods.TxCommit())
    assert peer.synced()[-2:] == ["tx.commit-ok", (406, "unknown delivery tag 9")]


def test_a_channel_that_goes_takes_what_is_open_with_it_and_completes_what_is_decided(peer):
    peer.publish(body=b"1")
    peer.publish(body=b"2")
    peer.say(methods.TxCommit())
    peer.publish(body=b"3")
    finish(peer.channel.transaction.leave())
    assert peer.seen() == [("q", b"1", 1), ("q", b"2", 2)]
    peer.synced()
    assert peer.synced() == []


def test_a_channel_that_goes_between_the_decision_and_its_sync_has_it_on_disk_before_anything_is_stored(peer):
    peer.publish(body=b"1")
    peer.publish(body=b"2")
    peer.say(methods.TxCommit())
    assert peer.node.disk.synced == []
    decision = {str(peer.directory / "tx.shared.7.0"), str(peer.directory)}
    peer.connection.on_put = lambda: peer.connection.log.append(decision <= set(peer.node.disk.synced))
    finish(peer.channel.transaction.leave())
    assert peer.seen() == [True, ("q", b"1", 1), True, ("q", b"2", 2)]


def test_a_channel_that_goes_while_the_sync_of_its_decision_is_under_way_waits_for_the_disk(peer):
    peer.publish(body=b"1")
    peer.publish(body=b"2")
    peer.say(methods.TxCommit())
    decision = str(peer.directory / "tx.shared.7.0")
    peer.channel.transaction._entry.file.dirty = False      # The group commit has begun, and not ended.
    peer.connection.on_put = lambda: peer.connection.log.append(decision in peer.node.disk.synced)
    finish(peer.channel.transaction.leave())
    assert peer.seen() == [True, ("q", b"1", 1), True, ("q", b"2", 2)]


def test_one_sync_on_the_loop_is_enough_for_decisions_that_stand_in_the_log_together(peer):
    for body in (b"1", b"2"):
        peer.publish(body=body)
        peer.publish(body=body)
        peer.say(methods.TxCommit())
        entry = peer.channel.transaction._entry
        assert entry.at >= entry.file.synced        # Not on disk, as far as the log knows.
        peer.synced()
    peer.publish(body=b"3")
    peer.publish(body=b"3")
    peer.say(methods.TxCommit())
    entry.file.sync()                               # Another channel of the connection went.
    peer.node.disk.synced.clear()
    finish(peer.channel.transaction.leave())
    assert (peer.seen(), peer.node.disk.synced) == ([("q", b"3", 5), ("q", b"3", 6)], [])
    entry.file.begin(9)
    assert entry.file.synced == 0


def test_a_decision_that_begins_where_the_last_sync_ended_is_not_on_disk(peer):
    for body in (b"1", b"2"):
        peer.publish(body=body)
        peer.publish(body=body)
        peer.say(methods.TxCommit())
        entry = peer.channel.transaction._entry
        if body == b"1":
            peer.synced()
            entry.file.sync()                       # Another channel of the connection went.
    assert entry.at == entry.file.synced
    peer.node.disk.synced.clear()
    peer.connection.on_put = lambda: peer.connection.log.append(entry.file.path in peer.node.disk.synced)
    finish(peer.channel.transaction.leave())
    assert peer.seen() == [True, ("q", b"2", 3), True, ("q", b"2", 4)]


def test_a_channel_that_goes_has_the_decision_of_a_large_commit_on_disk_before_anything_is_stored(peer):
    peer.publish(body=b"1")
    peer.publish(body=bytes(600_000))
    peer.say(methods.TxCommit())
    peer.pieces()
    decision = {str(peer.directory / "tx.7.1"), str(peer.directory)}
    peer.node.disk.synced.clear()
    peer.connection.on_put = lambda: peer.connection.log.append(decision <= set(peer.node.disk.synced))
    finish(peer.channel.transaction.leave())
    assert peer.seen() == [True, ("q", b"1", 1), True, ("q", bytes(600_000), 2)]


def test_a_message_and_a_settlement_are_decided_together(peer):
    peer.delivered(1)
    peer.publish()
    peer.say(methods.BasicAck(delivery_tag=1))
    peer.say(methods.TxCommit())
    assert peer.files == ["tx.shared.7.0"]
    assert peer.seen() == []
    assert peer.synced() == [("q", b"x", 1), ("ack", "q", 101), "tx.commit-ok"]


def test_one_large_commit_after_the_other_is_stored_and_answered(peer):
    for round_ in range(3):
        peer.publish(body=b"%d" % round_)
        peer.publish(body=bytes(600_000))
        peer.say(methods.TxCommit())
        peer.pieces()
        decision = journal.load(str(peer.directory / "tx.7.1"), Disk())
        assert [message.body for message, _ in decision.messages] == [b"%d" % round_, bytes(600_000)]
        assert [one[1] for one in peer.synced()] == [b"%d" % round_, bytes(600_000)]
        assert peer.synced() == ["tx.commit-ok"]
    assert peer.files == []


def test_a_channel_that_goes_syncs_no_decision_where_nothing_is_synced(peer, monkeypatch):
    monkeypatch.setattr(peer.node.settings, "sync", False)
    peer.publish(body=b"1")
    peer.publish(body=b"2")
    peer.say(methods.TxCommit())
    finish(peer.channel.transaction.leave())
    assert str(peer.directory / "tx.shared.7.0") not in peer.node.disk.synced


def test_a_decided_transaction_that_finds_no_room_when_its_channel_goes_is_there_for_the_next_start(peer):
    peer.publish(body=b"1")
    peer.publish(body=b"2")
    peer.say(methods.TxCommit())
    peer.connection.full = True
    finish(peer.channel.transaction.leave())
    peer.connection.access.vhost.commit_log.close(remove=True)  # as a clean stop does
    decision, = load(str(peer.directory / "tx.shared.7.0"), Disk()).decisions
    assert ([message.body for message, _ in decision.messages], decision.applied) == ([b"1", b"2"], False)


def test_large_transactions_are_in_a_file_before_commit(peer):
    for n in range(40):
        peer.publish(body=bytes([n]) * 100_000)
    assert peer.files == ["tx.7.1"]
    assert journal.load(str(peer.directory / "tx.7.1"), Disk()) is None
    peer.say(methods.TxCommit())
    peer.pieces()
    assert [row[1] for row in peer.synced()] == [bytes([n]) * 100_000 for n in range(40)]
    assert peer.synced() == ["tx.commit-ok"]
    assert peer.files == []


def test_numbers_of_publishes_are_never_used_twice(peer):
    peer.publish("t")
    peer.say(methods.TxRollback())
    peer.publish("t", b"2")
    peer.say(methods.TxCommit())
    assert ("t", b"2", 2) in peer.seen()


@pytest.mark.parametrize("method", [methods.TxCommit(), methods.TxRollback()])
def test_a_channel_without_select_is_not_transactional(tmp_path, method):
    connection = Connection(tmp_path)
    with pytest.raises(ChannelError, match="^channel is not transactional$"):
        connection.on_method(1, method.encode())


def test_a_confirming_channel_cannot_switch(tmp_path):
    connection = Connection(tmp_path)
    connection.channel.confirm = True
    with pytest.raises(PreconditionFailed, match="^cannot switch from confirm to tx mode$"):
        connection.on_method(1, methods.TxSelect().encode())


def test_select_may_come_again(peer):
    peer.publish("t", b"kept")
    peer.say(methods.TxSelect())
    peer.say(methods.TxCommit())
    assert peer.seen() == ["tx.select-ok", ("t", b"kept", 1), "tx.commit-ok"]
