"""Features that take part in a publish: who is asked and told what, and what the plane does with their word."""

import errno

import pytest
from tests.plane.harness import PERSISTENT, content_header, frame, publish, publish_method
from tests.plane.test_publish import read
from tests.plane.test_store import no_larger_than

from brokerd import plane


class Feature:
    """Takes part in publishes: leaves what ``leaves`` says of the queues, keeps what it is told."""

    refuses = False

    def __init__(self, leaves=lambda queues: queues, *, counts_as_routed=False):
        self.leaves = leaves
        self.counts_as_routed = counts_as_routed
        self.asked, self.told = [], []

    def before_storing(self, queues):
        self.asked.append(queues)
        return self.leaves(queues)

    def after_storing(self, message, channel, stored):
        self.told.append((message.exchange, message.routing_key, message.properties, message.body, channel, stored))


@pytest.fixture
def connection(bench):
    return bench.connection(1)


@pytest.fixture
def queues(bench):
    bench.bound[b"x", b"k"] = (b"a", b"b")
    return bench.queue(b"a"), bench.queue(b"b")


def bodies(bench, queues):
    return [[one.body for one in read(bench, queue)] for queue in queues]


def all_but(*gone):
    return lambda queues: tuple(queue for queue in queues if queue not in gone)


@pytest.mark.parametrize("cacheable", [True, False])
def test_a_participant_is_asked_before_and_told_after_each_message(bench, connection, queues, cacheable):
    bench.cacheable = cacheable
    bench.participants = (feature := Feature(),)
    connection.feed(publish(1, b"one", b"k", exchange=b"x", properties=PERSISTENT))
    connection.feed(publish(1, b"", b"k", exchange=b"x"))
    assert feature.asked == [queues, queues]
    channel = connection.channels[1]
    assert feature.told == [
        (b"x", b"k", PERSISTENT, b"one", channel, queues), (b"x", b"k", b"\0\0", b"", channel, queues)]
    assert len(bench.resolved) == (1 if cacheable else 2)
    assert bodies(bench, queues) == [[b"one", b""]] * 2


def test_each_participant_leaves_fewer_queues_to_the_next_and_what_is_left_is_counted(bench, connection, queues):
    first, second = Feature(all_but(queues[0])), Feature()
    bench.participants = first, second
    bench.tallies[b"x"] = tally = plane.Tally()
    connection.feed(publish(1, b"m", b"k", exchange=b"x") * 2)
    assert second.asked == [queues[1:]] * 2
    assert [told[-1] for told in first.told + second.told] == [queues[1:]] * 4
    assert bodies(bench, queues) == [[], [b"m", b"m"]]
    assert (tally.published, tally.routed) == (2, 2)


def test_none_ends_the_way_of_a_message_and_those_behind_hear_nothing_of_it(bench, connection, queues):
    first, second, third = Feature(), Feature(lambda queues: None, counts_as_routed=True), Feature()
    bench.participants = first, second, third
    connection.channels[1].select_confirm()
    connection.feed(publish(1, b"m", b"k", exchange=b"x", mandatory=True))
    assert (len(first.told), len(second.told), third.asked, third.told) == (1, 1, [], [])
    assert first.told[0][-1] == ()
    assert bodies(bench, queues) == [[], []]
    assert connection.said() == [("ack", 1, 1, 0)]


@pytest.mark.parametrize("counts", [True, False])
def test_a_mandatory_message_without_queue_is_returned_unless_a_participant_takes_it(bench, connection, counts):
    bench.participants = (feature := Feature(counts_as_routed=counts),)
    connection.feed(publish(1, b"m", b"nowhere", mandatory=True))
    assert bool(connection.delivered()) is not counts
    assert [told[-1] for told in feature.told] == [()]


def test_a_queue_that_refuses_is_not_among_those_that_have_it(bench, connection):
    bench.bound[b"x", b"k"] = (b"full", b"a")
    full, other = bench.queue(b"full", max_length=0, overflow=1), bench.queue(b"a")
    bench.participants = (feature := Feature(),)
    connection.channels[1].select_confirm()
    connection.feed(publish(1, b"m", b"k", exchange=b"x"))
    assert [told[-1] for told in feature.told] == [(other,)]
    assert (full.refused, connection.said()) == (1, [("nack", 1, 1, 0)])


def test_an_immediate_message_that_nobody_can_have_at_once_is_stored_nowhere(bench, connection, queues):
    bench.participants = (feature := Feature(),)
    connection.feed(frame(1, 1, publish_method(b"k", b"x", bits=2)) + frame(2, 1, content_header(0)))
    assert connection.delivered()[0].reply == 313
    assert [told[-1] for told in feature.told] == [()]


def test_participants_are_told_once_though_the_message_waited_for_room(bench, connection, queues):
    bench.participants = (feature := Feature(),)
    with no_larger_than(1000):
        connection.feed(publish(1, b"m", b"k", exchange=b"x"))
        assert (len(feature.asked), feature.told) == (1, [])
    connection.unblock()
    assert (len(feature.asked), len(feature.told)) == (2, 1)
    assert bodies(bench, queues) == [[b"m"], [b"m"]]


def test_a_publish_waits_while_a_participant_has_no_room(bench, connection, queues):
    def refuse(queues):
        raise OSError(errno.ENOSPC, "No space left on device")

    bench.participants = (feature := Feature(refuse),)
    connection.feed(publish(1, b"m", b"k", exchange=b"x"))
    assert (connection.stopped, feature.told, bodies(bench, queues)) == (True, [], [[], []])
    feature.leaves = lambda queues: queues
    connection.unblock()
    assert (connection.stopped, len(feature.told), bodies(bench, queues)) == (False, 1, [[b"m"], [b"m"]])


@pytest.mark.parametrize("wrong", [lambda queues: 1 / 0, lambda queues: ("no queue",)])
def test_a_participant_that_fails_loses_no_message(bench, connection, queues, wrong, monkeypatch):
    unraisable = []
    monkeypatch.setattr("sys.unraisablehook", lambda failure: unraisable.append(failure.exc_type))
    bench.participants = (Feature(wrong),)
    connection.feed(publish(1, b"m", b"k", exchange=b"x"))
    assert len(unraisable) == 1
    assert bodies(bench, queues) == [[b"m"], [b"m"]]


def test_a_route_that_is_forgotten_by_a_participant_does_its_publish_to_the_end(bench, connection, queues):
    def forget(queues):
        bench.routes.clear()
        return queues

    bench.participants = (feature := Feature(forget),)
    connection.feed(publish(1, b"m", b"k", exchange=b"x") * 3)
    assert len(feature.told) == len(bench.resolved) == 3
    assert bodies(bench, queues) == [[b"m"] * 3] * 2


def test_those_that_store_a_message_themselves_ask_and_tell_by_the_answer(bench, queues):
    first, last = Feature(all_but(queues[0]), counts_as_routed=True), Feature(lambda queues: None)
    answer = plane.Answer(queues, participants=(first, last, Feature()))
    assert not answer.counts_as_routed  # Nobody has been asked.
    assert answer.before_storing() == ()
    assert answer.counts_as_routed
    message = plane.Message(b"x", b"k", b"\0\0", b"body")
    answer.after_storing(message, None, ())
    assert [(told[3], told[4]) for told in first.told + last.told] == [(b"body", None)] * 2
    assert answer.participants[2].told == []


def test_an_answer_without_participants_is_its_queues(queues):
    answer = plane.Answer(queues)
    assert answer.before_storing() is queues
    assert (answer.tally, answer.cacheable, answer.properties, answer.participants) == (None, False, None, ())
    assert not answer.counts_as_routed


def test_what_is_no_answer_closes_the_channel_and_nothing_else(bench, queues):
    connection = bench.connection(1)
    connection.routes = plane.Routes(bench.core, lambda *_: (queues, None, True))
    connection.feed(publish(1, b"m", b"k", exchange=b"x"))
    assert isinstance(connection.errors[-1][1], TypeError)


def test_stored_properties_are_those_of_the_answer(bench, connection, queues):
    connection.routes = plane.Routes(bench.core, lambda *_: plane.Answer(
        queues, cacheable=True, properties=PERSISTENT, participants=(feature,)))
    feature = Feature()
    connection.feed(publish(1, b"m", b"k", exchange=b"x") * 2)
    assert [told[2] for told in feature.told] == [PERSISTENT] * 2
    assert [one.properties for one in read(bench, queues[0])] == [PERSISTENT] * 2


def test_each_message_of_a_remembered_route_ends_where_it_ends(bench, connection, queues):
    first, second = Feature(lambda queues: None, counts_as_routed=True), Feature()
    bench.participants = first, second
    connection.feed(publish(1, b"m", b"k", exchange=b"x") * 3)
    assert len(bench.resolved) == 1
    assert (len(first.told), second.asked, second.told) == (3, [], [])


@pytest.mark.parametrize(("persistent", "counts", "waits"), [
    (True, True, True), (False, True, False), (True, False, False)])
def test_the_confirm_of_a_duplicate_waits_for_the_message_that_it_repeats(bench, queues, persistent, counts, waits):
    """That message may not be on disk yet; a transient one never is."""
    connection = bench.connection(1)
    feature = Feature(lambda queues: None, counts_as_routed=counts)
    connection.routes = plane.Routes(bench.core, lambda exchange, key, header, channel: plane.Answer(
        queues, participants=(feature,), keys=plane.Keys({}, 77)))
    connection.channels[1].select_confirm()
    connection.feed(publish(1, b"m", b"k", exchange=b"x", persistent=persistent))
    assert (connection.said() == []) == waits
    bench.sync()
    assert len(connection.said()) == int(waits)
