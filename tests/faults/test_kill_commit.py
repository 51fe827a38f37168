"""kill -9 at every step of a commit: what was published and settled is there whole, or not at all.

The broker kills itself: what its process runs first counts the steps of a commit and ends it at one of them.
"""

import shutil

import pytest
from tests.broker import Broker
from tests.conversations.peer import Peer, publish

from brokerd.wire import methods
from brokerd.wire.frames import FRAME_BODY

KILLER = '''
import os
from brokerd.session import channel, transactions
from brokerd.store.commit_log import CommitLog
from brokerd.store.shared_commit_log import LogFile, SharedCommitLog

def killing(cls, name, after=False):
    original = getattr(cls, name)
    def step(*args, **kwargs):
        result = original(*args, **kwargs) if after else None
        global left
        if armed and os.environ["KILL_AT"].partition(":")[0] == name:
            left -= 1
            if not left:
                os.kill(os.getpid(), int(os.environ.get("KILL_WITH", "9")))
        return result if after else original(*args, **kwargs)
    setattr(cls, name, step)

armed, left = True, int(os.environ["KILL_AT"].partition(":")[2])
killing(LogFile, "write")
killing(SharedCommitLog, "append", after=True)
killing(SharedCommitLog, "mark_applied")
killing(SharedCommitLog, "_release")
killing(SharedCommitLog, "_begin_again", after=True)
killing(transactions.Transaction, "_carry_out")
killing(SharedCommitLog, "mark_stored", after=True)
killing(CommitLog, "mark_stored", after=True)
killing(CommitLog, "decide")
killing(CommitLog, "read", after=True)
killing(CommitLog, "mark_applied")
killing(CommitLog, "remove")
killing(channel.Channel, "settle_claimed")
killing(transactions.Transaction, "_done", after=True)
'''
MESSAGES, MANY = 10, 300
SETTLED = 6


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """The data directory of a stopped broker with the queues, and SETTLED messages in the one that the transaction
    empties."""
    directory = tmp_path_factory.mktemp("prepared") / "data"
    with Broker(directory) as broker, Peer(broker.port).open() as peer:
        for name in ("one", "two", "in"):
            peer.ask(methods.QueueDeclare(queue=name, durable=True))
        for name in ("one", "two"):
            peer.ask(methods.QueueBind(queue=name, exchange="amq.fanout"))
        peer.ask(methods.ConfirmSelect())
        for n in range(SETTLED):
            peer.send(publish("in", b"in %d" % n, delivery_mode=2))
            while peer.read().delivery_tag != n + 1:
                pass
    return directory


@pytest.fixture
def broker(prepared, tmp_path):
    broker = Broker(shutil.copytree(prepared, tmp_path / "data"), first=KILLER)
    yield broker
    if broker.process is not None:
        broker.stop()


def drain(peer, queue):
    bodies = []
    while (got := peer.got(queue)) is not None:
        bodies.append(got.body)
    return bodies


SETTLES = [f"settle_claimed:{n}" for n in (1, 3, SETTLED)]
# Each message that went up is read once to be routed and once to be put.
READS = [f"read:{MESSAGES + n}" for n in (1, 2, 5, MESSAGES)]
MANY_READS = [f"read:{n}" for n in (150, MANY + 1, MANY + 150, 2 * MANY)]
STEPS = [  # how the transaction is kept, and where the broker dies
    *[("kept", step) for step in ("write:1", "append:1", "_carry_out:1", "mark_applied:1", *SETTLES, "_done:1")],
    *[("kept", step) for step in ("_release:1", "_begin_again:1")],
    *[("up", step) for step in ("write:1", "append:1", *READS, "mark_applied:1", *SETTLES, "_done:1")],
    *[("large", step) for step in ("decide:1", "_carry_out:1", "mark_applied:1", *SETTLES, "remove:1", "_done:1")],
    *[("large and up", step) for step in ("decide:1", *READS, "mark_applied:1", *SETTLES, "remove:1", "_done:1")],
    *[("many and up", step) for step in ("append:1", *MANY_READS, "mark_applied:1", *SETTLES, "_done:1")],
]


def messages_of(how):
    """The bodies that the transaction publishes.  600 kB are more than the shared commit log takes."""
    tail = bytes(60_000) if "large" in how else b""
    return [b"%d" % n + tail for n in range(MANY if "many" in how else MESSAGES)]


def send_transaction(peer, how):
    """Settle all, publish and commit; read no answer.  A publish with a user-id goes up, and those before it."""
    bodies = messages_of(how)
    properties = {"user_id": "guest"} if "up" in how else {}
    peer.ask(methods.TxSelect())
    for _ in range(SETTLED):
        peer.got("in", no_ack=False)
    peer.send(*[publish("", body, exchange="amq.fanout", delivery_mode=2,
                        **(properties if n == len(bodies) // 2 else {})) for n, body in enumerate(bodies)])
    # The broker carries out the acks of one method in one go.
    peer.send(*[methods.BasicAck(delivery_tag=tag + 1) for tag in range(SETTLED)], methods.TxCommit())


def left(broker):
    """What a start finds in the queues, after it has carried out what was decided."""
    broker.env["KILL_AT"] = "never:0"
    broker.start()
    with Peer(broker.port).open() as peer:
        return [drain(peer, name) for name in ("one", "two", "in")]


def whole(how):
    return [messages_of(how), messages_of(how), []]


NOTHING = [[], [], [b"in %d" % n for n in range(SETTLED)]]


@pytest.mark.parametrize(("how", "step"), STEPS)
def test_a_commit_is_whole_or_it_never_was(broker, how, step):
    broker.env["KILL_AT"] = step
    broker.start()
    with Peer(broker.port).open() as peer:
        send_transaction(peer, how)
        answered = isinstance(peer.read(), methods.TxCommitOk)
    assert broker.wait() == -9
    lost = step in ("decide:1", "write:1", "read:150") and not answered
    assert left(broker) == (NOTHING if lost else whole(how))


@pytest.mark.parametrize("step", ["read:10", "read:150", "append:1", f"read:{MANY + 150}"])
def test_a_commit_is_whole_or_it_never_was_if_its_client_goes_and_the_broker_is_stopped_meanwhile(broker, step):
    broker.env |= {"KILL_AT": step, "KILL_WITH": "15"}
    broker.start()
    with Peer(broker.port).open() as peer:
        send_transaction(peer, "many and up")
    assert broker.wait() == 0
    assert left(broker) in (NOTHING, whole("many and up"))


def taken(peer, queue, most=1 << 30):
    """The bodies of what a consumer without acks is given, until there are ``most`` or the broker dies."""
    peer.ask(methods.BasicConsume(queue=queue, no_ack=True))
    bodies = []
    while len(bodies) < most and (frame := peer.frame()) is not None:
        if frame.kind == FRAME_BODY:
            bodies.append(frame.payload)
    return bodies


@pytest.mark.parametrize(("how", "step"), [("kept", 1), ("kept", 6), ("up", 1), ("up", 20)])
def test_what_is_stored_delivered_and_gone_before_a_kill_is_not_stored_again(broker, how, step):
    """The broker stores a large commit in pieces, and its files are small: those of the first pieces are gone."""
    bodies = [b"%d" % n + bytes(1000) for n in range(7_500)]
    broker.env |= {"KILL_AT": f"mark_stored:{step}", "BROKERD_SEGMENT_OCTETS": str(1 << 20)}
    broker.start()
    with Peer(broker.port).open() as taker, Peer(broker.port).open() as peer:
        peer.ask(methods.TxSelect())
        for n in range(0, len(bodies), 1000):
            peer.send(*[publish("", body, exchange="amq.fanout", delivery_mode=2,
                                **({"user_id": "guest"} if how == "up" and not n else {}))
                        for body in bodies[n:n + 1000]])  # fmt: skip
        peer.send(methods.TxCommit())
        given = taken(taker, "one")
    assert broker.wait() == -9
    broker.env["KILL_AT"] = "never:0"
    broker.start()
    with Peer(broker.port).open() as peer, Peer(broker.port).open() as other:
        ready = peer.ask(methods.QueueDeclare(queue="one", passive=True)).message_count
        one, two = taken(peer, "one", ready), taken(other, "two", len(bodies))
    assert two == bodies
    assert one == bodies[len(bodies) - len(one):]
    assert given == bodies[:len(given)]
    assert len(given) + len(one) <= len(bodies)
