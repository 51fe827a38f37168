"""What a vhost is given: all of it from the start, and nothing imported or made before it is needed."""

import subprocess
import sys

import pytest
from tests.session.harness import Log, Node
from tests.vhost.stand_in import Clock, Commit

from brokerd import plane
from brokerd.vhost import events
from brokerd.vhost.features import Services, make_null, make_on_demand
from brokerd.vhost.vhost import VHost


@pytest.fixture
def given(tmp_path):
    """A vhost as a broker makes it."""
    clock = Clock()
    core = plane.Core(schedule=lambda: None, request_sync=lambda: None, storage_failed=print, damaged=print)
    told = events.Events(clock, "brokerd@here")
    make = make_on_demand(Services(clock, Commit().wait, clock.call_at), told, "brokerd@here")
    vhost = VHost("/", str(tmp_path), core, Log(), give_features=make)
    assert vhost.events is told
    return vhost


def test_what_an_empty_vhost_does_not_need_is_not_imported():
    code = ("import sys; from brokerd.vhost import features, folder, vhost; "
            "print([n for n in ('dead_letters', 'delays', 'duplicates') if 'brokerd.vhost.' + n in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_nothing_is_made_for_a_vhost_that_is_opened_and_closed(given):
    given.take_up_features()
    given.apply_rules()
    given.add_queue("q", durable=False, auto_delete=False, arguments={})
    given.close()
    assert [given.dead_letters._made, given.delays._made, given.duplicates._made] == [None, None, None]


def test_a_dead_letter_finds_its_way_at_the_first_use(given):
    given.add_queue("dead", durable=False, auto_delete=False, arguments={})
    source = given.add_queue("q", durable=False, auto_delete=False, arguments={
        "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    assert source.on_dead("rejected", 0, b"", b"q", b"\0\0", b"body", 0)
    given.core.turn()
    assert given.queues["dead"].ready == 1


def test_a_delayed_exchange_is_held_and_let_go(given):
    delayed = given.add_exchange("x", "x-delayed-message", durable=False, auto_delete=False, internal=False,
                                 arguments={"x-delayed-type": "fanout"})
    assert delayed.holder is given.delays.get()
    given.delete_exchange(delayed)
    assert delayed.holder is None


def test_an_exchange_that_asks_for_keys_is_known_until_it_is_deleted(given):
    exchange = given.add_exchange("x", "fanout", durable=False, auto_delete=False, internal=False,
                                  arguments={"x-message-deduplication": True})
    assert given.duplicates.asks(exchange)
    assert not given.duplicates.asks(given.exchanges["amq.fanout"])
    given.delete_exchange(exchange)
    assert not given.duplicates.asks(exchange)


def test_a_vhost_that_stands_alone_has_all_features_and_none_does_anything(tmp_path):
    vhost = Node(tmp_path).vhost
    features = make_null(vhost)
    assert features.dead_letters.handle_dead(None, "rejected", 1, b"", b"", b"", b"") is True
    assert features.duplicates.check(None, (), dict) is None
    assert not features.duplicates.asks(vhost.exchanges["amq.fanout"])
    assert (features.events.wanted, features.firehose.on) == (False, False)
    features.events.publish("queue.created", {})
    delayed = vhost.add_exchange("x", "x-delayed-message", durable=False, auto_delete=False, internal=False,
                                 arguments={"x-delayed-type": "fanout"})
    assert delayed.holder is None
    vhost.delete_exchange(delayed)
    vhost.take_up_features()
    vhost.close()


def test_dead_letters_end_with_their_vhost(given):
    ended = []

    class Made:
        def close(self):
            ended.append(self)

    given.dead_letters._made = Made()
    given.close()
    assert ended == [given.dead_letters._made]
