"""kill -9 at every step of a commit: what was published and settled is there whole, or not at all.

The broker kills itself: ``sitecustomize`` in its path counts the steps of a commit and ends it at one of them.
"""

import os

import pytest
from tests.broker import ROOT, Broker
from tests.conversations.peer import Peer, publish

from brokerd.wire import methods

KILLER = '''
import os
from brokerd.session import channel, transactions
from brokerd.store.commit_log import CommitLog

def killing(cls, name, after=False):
    original = getattr(cls, name)
    def step(*args, **kwargs):
        result = original(*args, **kwargs) if after else None
        global left
        if armed and os.environ["KILL_AT"].partition(":")[0] == name:
            left -= 1
            if not left:
                os.kill(os.getpid(), 9)
        return result if after else original(*args, **kwargs)
    setattr(cls, name, step)

armed, left = True, int(os.environ["KILL_AT"].partition(":")[2])
killing(CommitLog, "decide")
killing(CommitLog, "read", after=True)
killing(CommitLog, "mark_applied")
killing(CommitLog, "remove")
killing(channel.Channel, "settle")
killing(transactions.Transaction, "_done", after=True)
'''
MESSAGES = 10
SETTLED = 6


@pytest.fixture
def broker(tmp_path):
    killer = tmp_path / "killer"
    killer.mkdir()
    (killer / "sitecustomize.py").write_text(KILLER)
    broker = Broker(tmp_path / "data", env={"PYTHONPATH": os.pathsep.join([str(killer), str(ROOT / "src")])})
    yield broker
    if broker.process is not None:
        broker.stop()


def drain(peer, queue):
    bodies = []
    while (got := peer.got(queue)) is not None:
        bodies.append(got.body)
    return bodies


# Each message is read once to be routed and once to be put.
@pytest.mark.parametrize("step", [
    "decide:1", *[f"read:{MESSAGES + n}" for n in (1, 2, 5, MESSAGES)], "mark_applied:1",
    *[f"settle:{n}" for n in (1, 3, SETTLED)], "remove:1", "_done:1",
])
def test_a_commit_is_whole_or_it_never_was(broker, step):
    broker.env["KILL_AT"] = "never:0"
    broker.start()
    with Peer(broker.port).open() as peer:
        for name in ("one", "two", "in"):
            peer.ask(methods.QueueDeclare(queue=name, durable=True))
        for name in ("one", "two"):
            peer.ask(methods.QueueBind(queue=name, exchange="amq.fanout"))
        peer.ask(methods.ConfirmSelect())
        for n in range(SETTLED):
            peer.send(publish("in", b"in %d" % n, delivery_mode=2))
            while peer.read().delivery_tag != n + 1:
                pass
    broker.stop()
    broker.env["KILL_AT"] = step
    broker.start()
    with Peer(broker.port).open() as peer:
        peer.ask(methods.TxSelect())
        for _ in range(SETTLED):
            peer.got("in", no_ack=False)
        peer.send(*[publish("", b"%d" % n, exchange="amq.fanout", delivery_mode=2) for n in range(MESSAGES)])
        peer.send(methods.BasicAck(delivery_tag=0, multiple=True), methods.TxCommit())
        answered = isinstance(peer.read(), methods.TxCommitOk)
    assert broker.wait() == -9
    broker.env["KILL_AT"] = "never:0"
    broker.start()
    with Peer(broker.port).open() as peer:
        found = [drain(peer, name) for name in ("one", "two", "in")]
    published = [b"%d" % n for n in range(MESSAGES)]
    whole = [published, published, []]
    nothing = [[], [], [b"in %d" % n for n in range(SETTLED)]]
    assert found == whole if answered or step != "decide:1" else found == nothing
    assert not [name for name in os.listdir(broker.directory) if name.startswith("tx.")]
