"""Chosen messages change their queue all at once: over kill -9 at each step none is lost, none is there twice.

The broker kills itself: ``sitecustomize`` in its path counts the steps of a change and ends it at one of them.
"""

import os
import shutil

import pytest
from tests.broker import ROOT, Broker
from tests.conversations.peer import Peer, publish

from brokerd.cli.ctl_client import Client
from brokerd.errors import BrokerError
from brokerd.wire import methods

MESSAGES = 300
KILLER = '''
import os
from brokerd.operations import transfer
from brokerd.store.commit_log import CommitLog

def killing(cls, name, after=False):
    original = getattr(cls, name)
    def step(*args, **kwargs):
        result = original(*args, **kwargs) if after else None
        global left
        if os.environ["KILL_AT"].partition(":")[0] == name:
            left -= 1
            if not left:
                os.kill(os.getpid(), 9)
        return result if after else original(*args, **kwargs)
    setattr(cls, name, step)

left = int(os.environ["KILL_AT"].partition(":")[2])
killing(CommitLog, "decide")
killing(CommitLog, "mark_applied")
killing(CommitLog, "remove")
killing(transfer.Change, "_apply")
killing(transfer.Change, "_do")
killing(transfer.Change, "_settle_down")
killing(transfer.Change, "_keep_undo")
'''
BODIES = [b"%d" % number for number in range(MESSAGES)]
CHOSEN = BODIES[9:210]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """The data directory of a stopped broker: MESSAGES in "from", one in "to"."""
    directory = tmp_path_factory.mktemp("prepared") / "data"
    with Broker(directory) as broker, Peer(broker.port).open() as peer:
        fill(peer)
    return directory


def fill(peer):
    for name in ("from", "to"):
        peer.ask(methods.QueueDeclare(queue=name, durable=True))
        peer.ask(methods.QueuePurge(queue=name))
    peer.confirming()
    peer.put_all([publish("from", body, delivery_mode=2) for body in BODIES])
    peer.put_all([publish("to", b"there", delivery_mode=2)])


@pytest.fixture
def killed(prepared, tmp_path):
    killer = tmp_path / "killer"
    killer.mkdir()
    (killer / "sitecustomize.py").write_text(KILLER)
    broker = Broker(shutil.copytree(prepared, tmp_path / "data"),
                    env={"PYTHONPATH": os.pathsep.join([str(killer), str(ROOT / "src")])})
    yield broker
    if broker.process is not None:
        broker.stop()


@pytest.fixture(scope="module")
def running(prepared, tmp_path_factory):
    with Broker(shutil.copytree(prepared, tmp_path_factory.mktemp("running") / "data")) as broker:
        yield broker
    broker.check_log()


@pytest.fixture
def peer(running):
    with Peer(running.port).open() as peer:
        fill(peer)
        yield peer


def ask(broker, verb, **fields):
    with Client(str(broker.directory)) as client:
        return client.ask(f"message {verb}", fields)


def first_of(broker):
    return ask(broker, "browse", queue="from", count=1)["items"][0]["seq"]


def chosen(broker):
    first = first_of(broker)
    return {"queue": "from", "seqs": f"{first + 9}-{first + 209}", "count": 1000}


def both(peer):
    return peer.bodies("from"), peer.bodies("to")


NOTHING = BODIES, [b"there"]
MOVED = BODIES[:9] + BODIES[210:], [b"there", *CHOSEN]
DELETED = BODIES[:9] + BODIES[210:], [b"there"]
COPIED = BODIES, [b"there", *CHOSEN]
STEPS = ("decide:1", "_apply:1", "_do:1", "_do:2", "_do:150", "_do:201", "mark_applied:1", "_settle_down:1", "remove:1",
         "_keep_undo:1")  # fmt: skip


@pytest.mark.parametrize(("verb", "whole", "step"), [
    *[("move", MOVED, step) for step in STEPS],
    *[("delete", DELETED, step) for step in ("decide:1", "_do:150", "remove:1")],
    *[("copy", COPIED, step) for step in ("_do:150", "mark_applied:1")],
])
def test_a_change_is_whole_or_it_never_was(killed, verb, whole, step):
    killed.env["KILL_AT"] = step
    killed.start()
    with pytest.raises((BrokerError, OSError)):
        ask(killed, verb, **chosen(killed), **({} if verb == "delete" else {"to": "to"}))
    assert killed.wait() == -9
    killed.env["KILL_AT"] = "never:0"
    killed.start()
    with Peer(killed.port).open() as peer:
        assert both(peer) == (NOTHING if step == "decide:1" else whole)
    if step == "_do:150":
        killed.stop()
        killed.start()  # What a start has finished, no later one does again.
        with Peer(killed.port).open() as peer:
            assert both(peer) == ([], [])


def test_a_start_moves_a_message_that_its_queue_would_take_for_a_duplicate(killed):
    killed.env["KILL_AT"] = "_do:1"
    killed.start()
    with Peer(killed.port).open() as peer:
        peer.ask(methods.QueueDeclare(queue="once", durable=True, arguments={"x-message-deduplication": True}))
        peer.ask(methods.QueueDeclare(queue="plain", durable=True))
        peer.confirming()
        peer.put_all([publish(name, b"same", delivery_mode=2, headers={"x-deduplication-header": "k"})
                      for name in ("once", "plain")])  # fmt: skip
        assert peer.bodies("once") == [b"same"]
        with pytest.raises((BrokerError, OSError)):
            ask(killed, "move", queue="plain", to="once")
    assert killed.wait() == -9
    killed.env["KILL_AT"] = "never:0"
    killed.start()
    with Peer(killed.port).open() as peer:
        assert (peer.bodies("plain"), peer.bodies("once")) == ([], [b"same"])


@pytest.mark.parametrize(("verb", "whole"), [("move", MOVED), ("delete", DELETED), ("copy", COPIED)])
def test_an_undo_takes_back_what_is_still_there_and_is_done_once(running, peer, verb, whole):
    fields = {**chosen(running), **({} if verb == "delete" else {"to": "to"})}
    assert ask(running, verb, **fields, dry_run=True)["messages"] == len(CHOSEN)
    answer = ask(running, verb, **fields)
    assert answer["messages"] == len(answer["seqs"]) == len(CHOSEN)
    number = answer["undo"]
    assert ask(running, "undo", number=number, dry_run=True) == {"messages": len(CHOSEN), "left": 0}
    assert [each["payload"] for each in ask(running, "browse", queue="from", count=1000)["items"]] == \
        [body.decode() for body in whole[0]]
    assert ask(running, "undo", number=number) == {"messages": len(CHOSEN), "left": 0}
    at_end = BODIES if verb == "copy" else [*DELETED[0], *CHOSEN]
    assert both(peer) == (at_end, [b"there"])
    with pytest.raises(BrokerError, match=f"no change {number} to undo"):
        ask(running, "undo", number=number)


def test_an_undo_leaves_what_a_consumer_has_and_what_was_taken(running, peer):
    number = ask(running, "move", **chosen(running), to="to")["undo"]
    peer.got("to")
    peer.got("to")
    peer.got("to", no_ack=False)
    assert ask(running, "undo", number=number) == {"messages": len(CHOSEN) - 2, "left": 2}
    assert peer.bodies("from") == [*DELETED[0], *CHOSEN[2:]]


def test_messages_that_are_out_stay_with_their_consumer(running, peer):
    for _ in range(12):
        peer.got("from", no_ack=False)
    with pytest.raises(BrokerError, match="no queue 'none'"):
        ask(running, "move", queue="from", to="none")
    answer = ask(running, "move", queue="from", to="to", count=1000)
    assert answer["messages"] == MESSAGES - 12
    assert peer.bodies("to") == [b"there", *BODIES[12:]]


def test_what_the_target_refuses_stays_in_its_place(running, peer):
    peer.ask(methods.QueueDeclare(queue="narrow", durable=True, arguments={
        "x-max-length": 5, "x-overflow": "reject-publish"}))
    assert ask(running, "move", queue="from", to="narrow", count=20)["messages"] == 5
    assert peer.bodies("narrow") == BODIES[:5]
    assert peer.bodies("from") == BODIES[5:]


def test_a_limit_of_the_source_drops_nothing_for_what_leaves_it(running, peer):
    peer.ask(methods.QueueDeclare(queue="full", durable=True, arguments={"x-max-length": 10}))
    peer.put_all([publish("full", body, delivery_mode=2) for body in BODIES[:10]])
    assert ask(running, "move", queue="full", to="to", seqs="3-5", count=10)["messages"] == 3
    assert peer.bodies("full") == BODIES[:2] + BODIES[5:10]


def test_a_consumer_of_the_target_gets_all_in_order(running, peer):
    peer.consume("to", no_ack=True)
    assert peer.delivered().body == b"there"
    ask(running, "move", **chosen(running), to="to")
    assert [peer.delivered().body for _ in CHOSEN] == CHOSEN


def test_a_vhost_keeps_its_last_changes_alone(running, peer):
    numbers = [ask(running, "delete", queue="from", count=1)["undo"] for _ in range(18)]
    with pytest.raises(BrokerError, match="no change"):
        ask(running, "undo", number=numbers[0])
    assert ask(running, "undo", number=numbers[2]) == {"messages": 1, "left": 0}
