"""Limits of a queue's length: what is dropped, what is refused, and who hears of it."""

import pytest
from tests.plane.harness import HEADER, PERSISTENT, Connection, ack, consume, frame, nack, publish

from brokerd import plane


@pytest.fixture
def connection(bench):
    return bench.connection(1, 2)


def numbered(first, last):
    return b"".join(publish(1, b"%d" % at) for at in range(first, last + 1))


def drain(bench, queue):
    reader = bench.connection(1)
    consume(reader.channels[1], queue, no_ack=True)
    bench.turns()
    return reader.bodies()


def test_the_oldest_go_when_there_are_too_many(bench, connection):
    queue = bench.queue(max_length=3)
    connection.feed(numbered(1, 10))
    assert (queue.ready, queue.discarded) == (3, 7)
    assert drain(bench, queue) == [b"8", b"9", b"10"]


def test_the_oldest_go_when_there_are_too_many_octets(bench, connection):
    queue = bench.queue(max_octets=25)
    connection.feed(publish(1, b"x" * 10) * 5 + publish(1, b"y" * 24))
    assert drain(bench, queue) == [b"y" * 24]
    connection.feed(publish(1, b"z" * 26))
    assert queue.ready == 0


def test_a_length_of_zero_lets_through_what_a_consumer_takes_at_once(bench, connection):
    queue = bench.queue(max_length=0)
    connection.feed(numbered(1, 2))
    assert queue.ready == 0
    connection.channels[2].prefetch = 1
    consume(connection.channels[2], queue)
    connection.feed(numbered(3, 5))
    assert connection.bodies() == [b"3"]
    assert queue.ready == 0


def test_methods_of_the_same_chunk_see_the_limit_kept(bench):
    queue = bench.queue(max_length=2)
    seen = []

    class Asking(Connection):
        def on_method(self, channel, payload):
            seen.append(queue.ready)

    asking = Asking(bench.core)
    asking.routes = bench.routes
    asking.feed(HEADER)
    plane.Channel(asking, 1)
    asking.feed(numbered(1, 9) + frame(1, 1, b"\0\x32\0\x1e") + numbered(10, 20))
    assert seen == [2]
    assert queue.ready == 2


def test_a_limit_set_later_holds_at_once(bench, connection):
    queue = bench.queue()
    connection.feed(numbered(1, 10))
    queue.set_rules(max_length=4)
    bench.turns()
    assert queue.ready == 4
    queue.set_rules()
    connection.feed(numbered(11, 20))
    assert queue.ready == 14


def test_what_is_over_the_length_is_dead_lettered_in_order(bench, connection):
    queue = bench.queue(max_length=2, dead_letters=True)
    connection.feed(numbered(1, 5))
    assert queue.died == [("maxlen", b"1"), ("maxlen", b"2"), ("maxlen", b"3")]


@pytest.mark.parametrize("overflow", [1, 2])
def test_a_full_queue_refuses_and_the_publisher_is_told_in_order(bench, connection, overflow):
    queue = bench.queue(max_length=2, overflow=overflow, dead_letters=True)
    connection.channels[1].select_confirm()
    connection.feed(numbered(1, 4))
    assert connection.said() == [("ack", 1, 2, 1), ("nack", 1, 3, 0), ("nack", 1, 4, 0)]
    assert (queue.ready, queue.refused) == (2, 2)
    assert queue.died == ([] if overflow == 1 else [("maxlen", b"3"), ("maxlen", b"4")])
    assert drain(bench, queue) == [b"1", b"2"]
    connection.feed(numbered(5, 5))
    assert connection.said() == [("ack", 1, 5, 0)]


def test_a_nack_waits_for_the_confirms_before_it(bench, connection):
    bench.queue(max_length=1, overflow=1)
    connection.channels[1].select_confirm()
    connection.feed(publish(1, b"one", persistent=True) + publish(1, b"two") + publish(1, b"three", b"nowhere"))
    assert connection.said() == []
    bench.sync()
    assert connection.said() == [("ack", 1, 1, 0), ("nack", 1, 2, 0), ("ack", 1, 3, 0)]


def test_one_refusal_is_enough_for_a_nack_and_the_others_keep_theirs(bench, connection):
    full, other = bench.queue(b"full", max_length=0, overflow=1), bench.queue(b"other")
    bench.bound[b"", b"both"] = (b"other", b"full")
    connection.channels[1].select_confirm()
    connection.feed(publish(1, b"x", b"both"))
    assert connection.said() == [("nack", 1, 1, 0)]
    assert (full.ready, other.ready) == (0, 1)


def test_a_full_queue_takes_what_a_consumer_takes_at_once(bench, connection):
    queue = bench.queue(max_length=0, overflow=1)
    connection.channels[1].select_confirm()
    consume(connection.channels[2], queue, no_ack=True)
    connection.feed(numbered(1, 2))
    assert queue.refused == 0
    assert ("ack", 1, 2, 1) in connection.said()


@pytest.mark.parametrize("bound", [(b"q",), (b"other", b"q"), (b"q", b"other")])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_full_queue_takes_no_more_of_a_chunk_than_consumers_have(bench, connection, bound, persistent):
    queue, other = bench.queue(max_length=2, overflow=1), bench.queue(b"other")
    bench.bound[b"", b"all"] = bound
    connection.channels[1].select_confirm()
    connection.feed(publish(1, b"0", b"other", persistent=True))
    bench.sync()                        # From here on records of that queue are staged.
    connection.frames()
    connection.channels[2].prefetch = 1
    consume(connection.channels[2], queue)
    connection.feed(b"".join(publish(1, b"%d" % n, b"all", persistent=persistent) for n in range(1, 11)))
    bench.sync()
    assert (queue.ready, queue.unacked, queue.refused) == (2, 1, 7)
    assert other.ready == 1 + 10 * (b"other" in bound)
    assert connection.said()[-1] == ("nack", 1, 11, 0)
    assert drain(bench, queue) == [b"2", b"3"]
    assert drain(bench, other) == [b"%d" % n for n in range(other.published)]


def test_a_message_that_returns_counts_again(bench, connection):
    queue = bench.queue(max_length=2)
    connection.channels[2].prefetch = 1
    consume(connection.channels[2], queue)
    connection.feed(numbered(1, 3))
    connection.channels[2].prefetch = 0
    connection.channels[2].cancel(connection.channels[2].consumers[b"c"])
    connection.feed(nack(2, 1))
    assert (queue.ready, queue.discarded) == (2, 1)
    connection.frames()
    assert drain(bench, queue) == [b"2", b"3"]


def test_immediate_returns_what_no_consumer_takes_at_once(bench, connection):
    from tests.plane.harness import content_header, publish_method

    queue = bench.queue()

    def immediate(body):
        return (frame(1, 1, publish_method(b"q", bits=2)) + frame(2, 1, content_header(len(body), PERSISTENT))
                + frame(3, 1, body))

    connection.channels[1].select_confirm()
    connection.feed(immediate(b"nobody"))
    returned, confirmed = connection.said()
    assert (returned.reply, returned.reply_text, returned.body) == (313, b"NO_CONSUMERS", b"nobody")
    assert confirmed == ("ack", 1, 1, 0)
    assert queue.ready == 0
    connection.channels[2].prefetch = 1
    consume(connection.channels[2], queue)
    connection.feed(immediate(b"somebody"))
    assert [one.body for one in connection.delivered()] == [b"somebody"]
    connection.feed(immediate(b"without credit"))
    assert connection.delivered()[0].reply == 313
    connection.feed(ack(2, 1) + immediate(b"again"))
    assert connection.delivered()[0].body == b"again"


def test_put_stores_by_the_rules_and_tells_which_queues_took_it(bench):
    full, other = bench.queue(b"full", max_length=0, overflow=1), bench.queue(b"other", max_length=1)
    assert bench.core.put((full, other), b"x", b"k", PERSISTENT, b"one") == (other,)
    assert bench.core.put((other,), b"x", b"k", PERSISTENT, b"two", connection=7, channel=3, publish_seq=9) == (other,)
    bench.turns()
    assert drain(bench, other) == [b"two"]
    with pytest.raises(ValueError, match="properties"):
        bench.core.put((other,), b"x", b"k", b"\xff", b"")


def test_put_can_be_waited_for(bench):
    queue = bench.queue()
    bench.core.put((queue,), b"", b"q", PERSISTENT, b"one")
    assert bench.begin_sync() == []
    bench.core.put((queue,), b"", b"q", PERSISTENT, b"two", sync=True)
    assert any(path.endswith("msgs.0000000001") for path in bench.begin_sync())


def test_a_refusal_may_make_every_route_be_forgotten_while_its_publish_goes_on(bench, connection):
    full, other = bench.queue(b"full", max_length=0, overflow=2, dead_letters=True), bench.queue(b"other")
    bench.bound[b"ex", b"both"] = (b"full", b"other")
    bench.tallies[b"ex"] = tally = plane.Tally()
    made = []

    def forget(*message):
        made.append(bench.queue(b"made%d" % len(made)))
        bench.routes.clear()
        bench.core.put((made[-1],), *message)

    full.after_death = forget
    connection.channels[1].select_confirm()
    connection.feed(publish(1, b"x", b"both", exchange=b"ex", mandatory=True) * 3)
    assert connection.said() == [("nack", 1, 1, 0), ("nack", 1, 2, 0), ("nack", 1, 3, 0)]
    assert (tally.published, tally.routed, other.ready) == (3, 6, 3)
    assert [queue.ready for queue in made] == [1, 1, 1]


def test_as_many_octets_as_the_limit_says_stay_and_then_no_more_is_taken(bench, connection):
    queue = bench.queue(max_octets=25)
    connection.feed(publish(1, b"x" * 10) + publish(1, b"y" * 15))
    assert (queue.ready, queue.ready_octets) == (2, 25)
    queue.set_rules(max_octets=25, overflow=1)
    connection.feed(publish(1, b"z"))
    assert (queue.ready, queue.refused) == (2, 1)
    assert connection.channels[2].get(queue, True)
    connection.feed(publish(1, b"z"))
    assert (queue.ready, queue.ready_octets) == (2, 16)


def test_a_limit_is_kept_though_far_more_is_there_than_goes_at_a_time(bench, connection):
    queue = bench.queue()
    for _ in range(10):
        connection.feed(publish(1, b"x") * 1000)
    queue.set_rules(max_length=1)
    bench.turns()
    assert (queue.ready, queue.discarded) == (1, 9999)


def test_a_consumer_that_waits_has_a_message_before_the_limit_does_also_between_methods(bench, connection):
    queue = bench.queue(max_length=0)
    consume(connection.channels[2], queue)
    connection.feed(publish(1, b"x") + frame(1, 1, b"\0\x3c\0\x0a") + publish(1, b"y"))
    assert connection.bodies() == [b"x", b"y"]
    assert queue.discarded == 0


def test_immediate_returns_what_would_wait_behind_others_of_its_chunk(bench, connection):
    from tests.plane.harness import content_header, publish_method

    queue = bench.queue()
    connection.channels[2].prefetch = 1
    consume(connection.channels[2], queue)
    connection.feed(publish(1, b"first") + frame(1, 1, publish_method(b"q", bits=2))
                    + frame(2, 1, content_header(6, PERSISTENT)) + frame(3, 1, b"second"))
    said = {one.body: one.reply for one in connection.delivered()}
    assert said == {b"first": None, b"second": 313}
    assert (queue.ready, queue.unacked) == (0, 1)


def test_only_the_queues_that_refused_a_message_dead_letter_it(bench, connection):
    full = bench.queue(b"full", max_length=0, overflow=2, dead_letters=True)
    roomy = bench.queue(b"roomy", max_length=5, overflow=2, dead_letters=True)
    bench.bound[b"ex", b"both"] = (b"full", b"roomy")
    connection.feed(publish(1, b"x", b"both", exchange=b"ex"))
    assert ([body for _, body in full.died], roomy.died, roomy.ready) == ([b"x"], [], 1)


def test_a_delivery_that_was_one_too_many_counts_as_returned_and_as_limited(bench, connection):
    queue = bench.queue(delivery_limit=1)
    connection.feed(publish(1, b"x"))
    assert connection.channels[2].get(queue, False)
    connection.feed(nack(2, 1))
    assert (queue.returned, queue.limited, queue.ready) == (1, 1, 0)


@pytest.mark.parametrize("rules", [{}, {"max_length": 5}])
def test_a_rejected_message_that_is_not_dead_lettered_is_settled_as_rejected(bench, connection, rules):
    from brokerd.store import format as layout
    from brokerd.store import reading

    queue = bench.queue(**rules)
    connection.feed(publish(1, b"x"))
    assert connection.channels[2].get(queue, False)
    connection.feed(nack(2, 1, requeue=False))
    with open(f"{queue.directory}/acks.0000000001", "rb") as file:
        entries = reading.read_entries(file.read(), 1).entries
    assert entries["kind"].tolist() == [layout.REJECTED]


def test_a_queue_that_goes_before_its_limit_is_kept_takes_no_other_along(bench, connection):
    names = [b"one", b"two", b"three"]
    for name in names:
        bench.queue(name)
    connection.feed(b"".join(publish(1, b"x", key=name) * 5 for name in names))
    for name in names:
        bench.queues[name].set_rules(max_length=1)      # Kept in the next turn.
    bench.queues[b"two"].drop()
    bench.turns()
    assert [bench.queues[name].ready for name in names] == [1, 0, 1]


def test_many_refusals_that_wait_for_a_sync_are_told_in_order(bench, connection):
    bench.queue(max_length=0, overflow=1)
    bench.queue(b"stored")
    connection.channels[1].select_confirm()
    connection.feed((publish(1, b"x", b"stored", persistent=True) * 3 + publish(1, b"y") * 2) * 20)
    assert connection.said() == []
    bench.sync()
    expected = []
    for last in range(5, 101, 5):
        expected += [("ack", 1, last - 2, 1), ("nack", 1, last - 1, 0), ("nack", 1, last, 0)]
    assert connection.said() == expected
    connection.feed(publish(1, b"y"))
    assert connection.said() == [("nack", 1, 101, 0)]
