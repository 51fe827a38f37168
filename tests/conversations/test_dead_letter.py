"""Dead letters: where they go, what they say of themselves, and when they go round."""

import pytest
from tests.conversations.peer import eventually

from brokerd.wire import methods
from brokerd.wire.values import DEPTH_MAX


@pytest.fixture
def sure(peer):
    """The peer, its channel 1 confirming."""
    return peer.confirming()


@pytest.fixture
def source(sure, queue):
    """A queue whose dead letters come to ``queue``."""
    return sure.declare({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue})


def reject(peer, queue, count=1):
    """Take as many messages and reject them for good."""
    for _ in range(count):
        message = peer.arrived(queue, no_ack=False)
        peer.send(methods.BasicReject(delivery_tag=message.method.delivery_tag, requeue=False))


def deaths(message):
    """x-death without the times."""
    return [{name: value for name, value in death.items() if name != "time"} for death in message.headers["x-death"]]


@pytest.mark.parametrize("way", [
    lambda tag: methods.BasicReject(delivery_tag=tag, requeue=False),
    lambda tag: methods.BasicNack(delivery_tag=tag, requeue=False),
    lambda tag: methods.BasicNack(delivery_tag=tag, multiple=True, requeue=False),
], ids=["reject", "nack", "nack multiple"])
def test_what_is_rejected_for_good_is_a_dead_letter(sure, source, queue, way):
    sure.put(source, b"dead", message_id="7", headers={"mine": 1}, delivery_mode=2)
    sure.send(way(sure.got(source, no_ack=False).method.delivery_tag))
    letter = sure.arrived(queue)
    assert (letter.body, letter.properties.message_id, letter.properties.delivery_mode) == (b"dead", "7", 2)
    assert letter.method.redelivered is False
    assert (letter.method.exchange, letter.method.routing_key) == ("", queue)
    assert letter.headers["mine"] == 1
    assert deaths(letter) == [
        {"count": 1, "exchange": "", "queue": source, "reason": "rejected", "routing-keys": [source]}]
    assert {name: value for name, value in letter.headers.items() if name.startswith("x-first-death")} == {
        "x-first-death-reason": "rejected", "x-first-death-queue": source, "x-first-death-exchange": ""}
    assert sure.count(source) == (0, 0)


def test_the_time_of_death_is_a_timestamp(sure, source, queue):
    sure.put(source)
    reject(sure, source)
    (death,) = sure.arrived(queue).headers["x-death"]
    assert int(getattr(death["time"], "timestamp", lambda: death["time"])()) > 1_600_000_000


def test_given_back_is_not_dead(sure, source, queue):
    sure.put(source, b"alive")
    sure.got(source, no_ack=False)
    sure.send(methods.BasicReject(delivery_tag=1, requeue=True))
    assert sure.arrived(source).body == b"alive"
    assert sure.got(queue) is None


def test_letters_come_in_the_order_of_their_messages(sure, source, queue):
    for n in range(20):
        sure.put(source, b"%d" % n)
        sure.got(source, no_ack=False)
    sure.send(methods.BasicNack(delivery_tag=0, multiple=True, requeue=False))
    assert [sure.arrived(queue).body for _ in range(20)] == [b"%d" % n for n in range(20)]


def test_an_expired_message_keeps_its_expiration_in_its_death(sure, source, queue):
    sure.put(source, b"short", expiration="1")
    letter = sure.arrived(queue)
    assert letter.properties.expiration is None
    assert deaths(letter) == [{"count": 1, "exchange": "", "queue": source, "reason": "expired",
                               "routing-keys": [source], "original-expiration": "1"}]


def test_a_rejected_message_loses_its_expiration_too(sure, source, queue):
    sure.put(source, b"long", expiration="60000")
    reject(sure, source)
    letter = sure.arrived(queue)
    assert letter.properties.expiration is None
    assert deaths(letter)[0]["original-expiration"] == "60000"


def test_without_a_key_of_its_own_the_queue_keeps_the_messages(sure, queue):
    exchange = sure.exchange("topic")
    sure.bind(queue, exchange, "a.#")
    source = sure.declare({"x-dead-letter-exchange": exchange})
    sure.bind(source, "amq.topic", "a.b")
    sure.put("a.b", b"m", exchange="amq.topic")
    reject(sure, source)
    letter = sure.arrived(queue)
    assert (letter.method.exchange, letter.method.routing_key) == (exchange, "a.b")
    assert deaths(letter) == [{"count": 1, "exchange": "amq.topic", "queue": source, "reason": "rejected",
                               "routing-keys": ["a.b"]}]


def test_a_letter_goes_to_every_queue_that_is_bound(sure):
    exchange = sure.exchange("fanout")
    queues = [sure.declare() for _ in range(3)]
    for each in queues:
        sure.bind(each, exchange)
    source = sure.declare({"x-dead-letter-exchange": exchange})
    sure.put(source, b"m")
    reject(sure, source)
    assert [sure.arrived(each).body for each in queues] == [b"m"] * 3


def test_an_exchange_that_is_not_there_takes_nothing(sure):
    source = sure.declare({"x-dead-letter-exchange": "nowhere"})
    sure.put(source)
    reject(sure, source)
    assert sure.put(source, b"goes on")
    assert sure.got(source).body == b"goes on"


def test_the_exchange_may_be_declared_later(sure, queue, name):
    source = sure.declare({"x-dead-letter-exchange": name})
    sure.put(source, b"later")
    exchange = sure.exchange("fanout", exchange=name)
    sure.bind(queue, exchange)
    reject(sure, source)
    assert sure.arrived(queue).body == b"later"


def test_a_second_death_elsewhere_stands_first(sure, queue):
    second = sure.declare({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue, "x-max-length": 0})
    first = sure.declare({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": second})
    sure.put(first)
    reject(sure, first)
    letter = sure.arrived(queue)
    assert [(death["queue"], death["reason"], death["count"]) for death in deaths(letter)] == [
        (second, "maxlen", 1), (first, "rejected", 1)]
    assert letter.headers["x-first-death-queue"] == first
    assert letter.headers["x-first-death-reason"] == "rejected"


def test_the_same_death_again_is_counted(sure, name):
    sure.declare({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": name}, name, exclusive=False)
    sure.put(name)
    for count in (1, 2, 3):
        reject(sure, name)
        letter = sure.arrived(name, no_ack=False)
        assert [death["count"] for death in deaths(letter)] == [count]
        sure.send(methods.BasicReject(delivery_tag=letter.method.delivery_tag, requeue=True))


def test_a_retry_over_a_waiting_queue_comes_back_with_both_deaths(sure, name):
    """Reject to a queue whose messages expire back: the way retries with delay are made."""
    waiting = sure.declare({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": name, "x-message-ttl": 20})
    sure.declare({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": waiting}, name, exclusive=False)
    sure.put(name, b"retry")
    for count in (1, 2, 3):
        reject(sure, name)
        letter = sure.arrived(name, no_ack=False)
        assert [(death["queue"], death["reason"], death["count"]) for death in deaths(letter)] == [
            (waiting, "expired", count), (name, "rejected", count)]
        sure.send(methods.BasicReject(delivery_tag=letter.method.delivery_tag, requeue=True))


def test_a_circle_in_which_nobody_rejects_ends(sure, queue, name):
    """A message that expired on all of its way would come back to its first queue by itself: it is not sent there."""
    second = f"{name}.second"
    there, back = sure.exchange("fanout"), sure.exchange("fanout")
    sure.declare({"x-dead-letter-exchange": there}, name, exclusive=False)
    sure.declare({"x-dead-letter-exchange": back, "x-message-ttl": 30}, second)
    for target, exchange in ((second, there), (name, back), (queue, back)):
        sure.bind(target, exchange)
    sure.put(name, b"once round", expiration="30")
    letter = sure.arrived(queue)        # What came back would be stored with it, and stay: its expiration is gone.
    assert [(death["queue"], death["reason"], death["count"]) for death in deaths(letter)] == [
        (second, "expired", 1), (name, "expired", 1)]
    sure.put(name, b"fence")
    assert sure.bodies(name) == [b"fence"]
    assert (sure.count(second)[0], sure.bodies(queue)) == (0, [])


def test_a_queue_that_is_its_own_target_does_not_get_back_what_expired_in_it(sure, queue, name):
    exchange = sure.exchange("fanout")
    sure.declare({"x-dead-letter-exchange": exchange}, name, exclusive=False)
    sure.bind(name, exchange)
    sure.bind(queue, exchange)
    sure.put(name, b"m", expiration="30")
    assert deaths(sure.arrived(queue))[0]["count"] == 1
    sure.put(name, b"fence")
    assert sure.bodies(name) == [b"fence"]
    assert sure.bodies(queue) == []


def test_what_is_purged_or_deleted_is_no_dead_letter(sure, source, queue):
    sure.put(source)
    assert sure.ask(methods.QueuePurge(queue=source)) == methods.QueuePurgeOk(message_count=1)
    sure.put(source)
    assert sure.ask(methods.QueueDelete(queue=source)) == methods.QueueDeleteOk(message_count=1)
    sure.put(queue, b"fence")
    assert sure.bodies(queue) == [b"fence"]


def test_letters_nobody_is_bound_for_go_to_the_alternate_exchange(sure, queue):
    alternate = sure.exchange("fanout")
    sure.bind(queue, alternate)
    exchange = sure.exchange("direct", {"alternate-exchange": alternate}, auto_delete=False)
    source = sure.declare({"x-dead-letter-exchange": exchange})
    sure.put(source, b"m")
    reject(sure, source)
    assert sure.arrived(queue).body == b"m"
    sure.ask(methods.ExchangeDelete(exchange=exchange))


def test_headers_of_carbon_copies_lead_letters_too(sure, queue):
    exchange = sure.exchange("direct")
    sure.bind(queue, exchange, "copy")
    source = sure.declare({"x-dead-letter-exchange": exchange})
    sure.put(source, b"m", headers={"CC": ["copy"]})
    reject(sure, source)
    letter = sure.arrived(queue)
    assert deaths(letter)[0]["routing-keys"] == [source, "copy"]
    assert letter.headers["CC"] == ["copy"]


def test_headers_as_deep_as_any_may_be_stay_and_lead_the_letter_on(sure, queue):
    deep = {"k": 1}
    for _ in range(DEPTH_MAX - 1):
        deep = {"k": deep}
    exchange = sure.exchange("headers")
    sure.ask(methods.QueueBind(queue=queue, exchange=exchange, arguments={"kind": "deep"}))
    source = sure.declare({"x-dead-letter-exchange": exchange})
    sure.put(source, b"m", headers={"deep": deep, "kind": "deep"})
    reject(sure, source)
    letter = sure.arrived(queue)
    assert letter.headers["deep"] == deep
    assert deaths(letter)[0]["queue"] == source


def test_a_key_of_the_queues_own_takes_the_carbon_copies_away(sure, source, queue):
    sure.put(source, b"m", headers={"CC": ["nowhere"]})
    reject(sure, source)
    letter = sure.arrived(queue)
    assert "CC" not in letter.headers
    assert deaths(letter)[0]["routing-keys"] == [source, "nowhere"]


def test_consumers_get_letters_at_once(sure, source, queue):
    sure.open_channel(2)
    sure.consume(queue, channel=2, no_ack=True)
    sure.put(source, b"m")
    reject(sure, source)
    assert sure.delivered().body == b"m"


def test_a_persistent_letter_from_a_durable_queue_to_another_stays_persistent(sure, name):
    sure.declare({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{name}.dead"}, name, durable=True,
                 exclusive=False)
    sure.declare(queue=f"{name}.dead", durable=True, exclusive=False)
    sure.put(name, b"m", delivery_mode=2)
    reject(sure, name)
    letter = sure.arrived(f"{name}.dead")
    assert (letter.body, letter.properties.delivery_mode) == (b"m", 2)
    sure.ask(methods.QueueDelete(queue=f"{name}.dead"))


@pytest.mark.parametrize(("arguments", "text"), [
    ({"x-dead-letter-exchange": 5},
     "invalid type 'signedint' for arg 'x-dead-letter-exchange' in queue 'q' in vhost '/'"),
    ({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": 5},
     "invalid arg 'x-dead-letter-routing-key' for queue 'q' in vhost '/': {unacceptable_type,signedint}"),
    ({"x-dead-letter-routing-key": "k"},
     "invalid arg 'x-dead-letter-routing-key' for queue 'q' in vhost '/': routing_key_but_no_dlx_defined"),
])
def test_where_to_is_said_in_words(peer, arguments, text):
    method = methods.QueueDeclare(queue="q", exclusive=True, arguments=arguments)
    assert peer.refusal(method) == (406, f"PRECONDITION_FAILED - {text}")


def test_rejected_without_an_exchange_for_it_is_gone(sure, queue):
    sure.put(queue)
    reject(sure, queue)
    assert sure.got(queue) is None


def test_letters_sent_at_least_once_arrive_in_order(sure, queue, name):
    arguments = {"x-queue-type": "quorum", "x-dead-letter-exchange": name, "x-dead-letter-strategy": "at-least-once",
                 "x-overflow": "reject-publish"}
    sure.declare(arguments, name, durable=True, exclusive=False)
    exchange = sure.exchange("fanout", exchange=name)
    sure.bind(queue, exchange)
    for n in range(3):
        sure.put(name, b"%d" % n, delivery_mode=2)
    reject(sure, name, 3)
    letters = [sure.arrived(queue) for _ in range(3)]
    assert [letter.body for letter in letters] == [b"0", b"1", b"2"]
    assert {letter.headers["x-death"][0]["reason"] for letter in letters} == {"rejected"}
    assert eventually(lambda: sure.count(name), lambda count: count == (0, 0))


def test_rejects_of_a_transaction_are_letters_from_commit_on(peer, queue):
    source = peer.declare({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue})
    peer.confirming().put(source, b"m")
    peer.open_channel(2)
    assert peer.ask(methods.TxSelect(), 2) == methods.TxSelectOk()
    assert isinstance(peer.ask(methods.BasicGet(queue=source), 2), methods.BasicGetOk)
    peer.message()
    peer.send((2, methods.BasicReject(delivery_tag=1, requeue=False)))
    assert peer.ask(methods.BasicQos(), 2) == methods.BasicQosOk()
    assert peer.got(queue) is None
    assert peer.ask(methods.TxCommit(), 2) == methods.TxCommitOk()
    assert peer.arrived(queue).body == b"m"
