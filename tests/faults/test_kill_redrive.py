"""kill -9 at every step of a redrive: each letter is at its place again, or where it was; and none is there twice.

The broker kills itself: ``sitecustomize`` in its path counts the steps of a redrive and ends it at one of them.
"""

import os
import shutil

import pytest
from tests.broker import ROOT, Broker
from tests.conversations.peer import Peer, publish

from brokerd.cli.ctl_client import Client
from brokerd.errors import BrokerError
from brokerd.wire import methods

KILLER = '''
import os
from brokerd.queues.queue import Queue
from brokerd.vhost.redrives import Redrive

def killing(cls, name):
    original = getattr(cls, name)
    def step(*args, **kwargs):
        global left
        wanted, when, _ = os.environ["KILL_AT"].split(":")
        if wanted == name and when == "before":
            count()
        result = original(*args, **kwargs)
        if wanted == name and when == "after":
            count()
        return result
    setattr(cls, name, step)

def count():
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), 9)

left = int(os.environ["KILL_AT"].rpartition(":")[2])
for name in ("decide", "put", "take_out", "note_places", "let_go", "end"):
    killing(Redrive, name)
killing(Queue, "add_redriven")
'''
MESSAGES, DEAD = 8, 4
STEPS = [
    "decide:before:1", "decide:after:1", "put:before:1", "note_places:before:1", "note_places:after:1", "end:before:1",
    "end:after:1", *[f"{step}:after:{n}" for step in ("put", "take_out", "let_go") for n in (1, 2, DEAD)],
]  # fmt: skip


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """The data directory of a stopped broker: of the messages of two groups the first DEAD are dead."""
    directory = tmp_path_factory.mktemp("prepared") / "data"
    with Broker(directory) as broker, Peer(broker.port).open() as peer:
        peer.ask(methods.QueueDeclare(queue="dead", durable=True))
        peer.ask(methods.QueueDeclare(queue="work", durable=True, arguments={
            "x-message-group": "exclusive", "x-message-group-header": "customer", "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "dead", "x-order-journal": True}))
        peer.ask(methods.ConfirmSelect())
        for n in range(MESSAGES):
            peer.send(publish("work", b"%d" % n, delivery_mode=2, headers={"customer": f"c{n % 2}"}))
            while peer.read().delivery_tag != n + 1:
                pass
        for _ in range(DEAD):
            got = peer.got("work", no_ack=False)
            peer.send(methods.BasicReject(delivery_tag=got.method.delivery_tag, requeue=False))
            peer.ask(methods.QueueDeclare(queue="work", passive=True))
    return directory


@pytest.fixture
def broker(prepared, tmp_path):
    killer = tmp_path / "killer"
    killer.mkdir()
    (killer / "sitecustomize.py").write_text(KILLER)
    broker = Broker(shutil.copytree(prepared, tmp_path / "data"),
                    env={"PYTHONPATH": os.pathsep.join([str(killer), str(ROOT / "src")])})
    yield broker
    if broker.process is not None:
        broker.stop()


def worked_off(peer, queue):
    bodies = []
    while (got := peer.got(queue, no_ack=False)) is not None:
        bodies.append(int(got.body))
        peer.send(methods.BasicAck(delivery_tag=got.method.delivery_tag))
    return bodies


@pytest.mark.parametrize("step", STEPS)
def test_a_redrive_is_whole_or_it_never_was(broker, step):
    broker.env["KILL_AT"] = step
    broker.start()
    with pytest.raises((BrokerError, OSError)), Client(str(broker.directory)) as client:
        client.ask("message redrive", {"queue": "dead"})
    assert broker.wait() == -9
    broker.env["KILL_AT"] = "never:before:0"
    broker.start()
    with Peer(broker.port).open() as peer:
        dead, work = worked_off(peer, "dead"), worked_off(peer, "work")
    decided = step != "decide:before:1"
    assert sorted(dead) == ([] if decided else list(range(DEAD)))
    for group in range(2):
        assert [n for n in work if n % 2 == group] == [n for n in range(group, MESSAGES, 2) if decided or n >= DEAD]
    assert not list(broker.directory.glob("*/redrive.*"))
