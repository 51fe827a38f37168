"""Class tx: what waits for commit, what rollback undoes, what is refused."""

import pytest
from tests.conversations.peer import OTHER, Peer, eventually, publish, rabbitmq

from brokerd.wire import methods

MANY = 200 if OTHER else 3000  # bindings or queues that end: brokerd works on 3,000 in several turns.


@pytest.fixture
def tx(peer, queue):
    """The peer, its channel 1 transactional."""
    assert peer.ask(methods.TxSelect()) == methods.TxSelectOk()
    return peer


@pytest.fixture
def onlooker(tx):
    """Channel 2 of the same connection, which is in no transaction."""
    tx.open_channel(2)

    def ready(queue):
        return tx.ask(methods.QueueDeclare(queue=queue, passive=True), 2).message_count

    return ready


def commit(peer):
    assert peer.ask(methods.TxCommit()) == methods.TxCommitOk()


def rollback(peer):
    assert peer.ask(methods.TxRollback()) == methods.TxRollbackOk()


def test_select_may_be_said_again(tx):
    assert tx.ask(methods.TxSelect()) == methods.TxSelectOk()


def test_nothing_may_be_committed_or_rolled_back(tx):
    for _ in range(2):
        commit(tx)
        rollback(tx)


@pytest.mark.parametrize("method", [methods.TxCommit(), methods.TxRollback()])
def test_a_channel_is_not_transactional_by_itself(peer, method):
    assert peer.refusal(method) == (406, "PRECONDITION_FAILED - channel is not transactional")


def test_a_channel_that_confirms_has_no_transactions(peer):
    peer.ask(methods.ConfirmSelect())
    assert peer.refusal(methods.TxSelect()) == (
        406, "PRECONDITION_FAILED - cannot switch from confirm to tx mode")


def test_a_transactional_channel_does_not_confirm(tx):
    assert tx.refusal(methods.ConfirmSelect()) == (
        406, "PRECONDITION_FAILED - cannot switch from tx to confirm mode")


def test_publishes_are_there_from_commit_on_and_in_order(tx, queue, onlooker):
    tx.send(*[publish(queue, b"%d" % n) for n in range(50)])
    assert onlooker(queue) == 0
    commit(tx)
    eventually(lambda: onlooker(queue), lambda ready: ready == 50)
    assert tx.bodies(queue) == [b"%d" % n for n in range(50)]


def test_rollback_forgets_publishes(tx, queue, onlooker):
    tx.send(publish(queue, b"forgotten"))
    rollback(tx)
    tx.send(publish(queue, b"kept"))
    commit(tx)
    assert tx.arrived(queue).body == b"kept"
    assert tx.got(queue) is None


def test_the_next_transaction_begins_at_once(tx, queue, onlooker):
    tx.send(publish(queue, b"1"))
    commit(tx)
    tx.send(publish(queue, b"2"))
    rollback(tx)
    assert tx.arrived(queue).body == b"1"
    assert onlooker(queue) == 0


def test_acks_count_from_commit_on(tx, queue):
    tx.send(publish(queue, b"1"))
    commit(tx)
    tx.arrived(queue, no_ack=False)
    tx.send(methods.BasicAck(delivery_tag=1))
    commit(tx)
    assert tx.refusal(methods.BasicAck(delivery_tag=1)) == (406, "PRECONDITION_FAILED - unknown delivery tag 1")
    assert tx.got(queue) is None


def test_rollback_forgets_acks_and_the_messages_stay_with_the_channel(tx, queue):
    tx.send(publish(queue, b"1"))
    commit(tx)
    tx.arrived(queue, no_ack=False)
    tx.send(methods.BasicAck(delivery_tag=1))
    rollback(tx)
    assert tx.got(queue) is None    # not given back either
    tx.send(methods.BasicAck(delivery_tag=1))
    commit(tx)
    assert tx.refusal(methods.BasicAck(delivery_tag=1))[0] == 406


@pytest.mark.parametrize("method", [
    methods.BasicReject(delivery_tag=1, requeue=True), methods.BasicNack(delivery_tag=1, requeue=True),
])
def test_what_is_given_back_returns_at_commit(tx, queue, method, onlooker):
    tx.send(publish(queue, b"1"))
    commit(tx)
    tx.arrived(queue, no_ack=False)
    tx.send(method)
    assert tx.got(queue) is None
    commit(tx)
    message = tx.arrived(queue)
    assert (message.method.redelivered, message.body) == (True, b"1")


@pytest.mark.parametrize("after", [methods.BasicAck(delivery_tag=1), methods.BasicReject(delivery_tag=1)])
def test_a_tag_is_settled_once_in_a_transaction_too(tx, queue, after):
    tx.send(publish(queue, b"1"))
    commit(tx)
    tx.arrived(queue, no_ack=False)
    tx.send(methods.BasicAck(delivery_tag=1))
    assert tx.refusal(after) == (406, "PRECONDITION_FAILED - unknown delivery tag 1")


def test_an_unknown_tag_is_refused_at_once(tx):
    assert tx.refusal(methods.BasicAck(delivery_tag=9)) == (406, "PRECONDITION_FAILED - unknown delivery tag 9")


def test_an_exchange_that_is_not_there_is_refused_at_once(tx):
    tx.send(publish("k", exchange="missing"))
    assert tx.channel_close() == (404, "NOT_FOUND - no exchange 'missing' in vhost '/'")


def test_what_goes_nowhere_comes_back_at_commit_before_commit_ok(tx):
    tx.send(publish("nowhere", b"1", mandatory=True), publish("nowhere", b"2", mandatory=True))
    tx.send(methods.BasicQos())
    assert tx.read() == methods.BasicQosOk()
    tx.send(methods.TxCommit())
    for body in (b"1", b"2"):
        assert tx.read() == methods.BasicReturn(
            reply_code=312, reply_text="NO_ROUTE", exchange="", routing_key="nowhere")
        assert tx.message()[1] == body
    assert tx.read() == methods.TxCommitOk()


def test_closing_the_channel_rolls_back(tx, queue):
    tx.send(publish(queue, b"acked"))
    commit(tx)
    tx.arrived(queue, no_ack=False)
    tx.send(methods.BasicAck(delivery_tag=1), publish(queue, b"never"))
    assert tx.ask(methods.ChannelClose(reply_code=200)) == methods.ChannelCloseOk()
    tx.open_channel(1)
    message = tx.arrived(queue)
    assert (message.method.redelivered, message.body) == (True, b"acked")
    assert tx.got(queue) is None


def test_a_lost_connection_rolls_back(port, peer, name):
    peer.declare(queue=name, exclusive=False)
    with Peer(port).open() as other:
        other.ask(methods.TxSelect())
        other.send(publish(name, b"never"), methods.BasicQos())
        assert other.read() == methods.BasicQosOk()
    peer.confirming().put(name, b"fence")
    assert peer.arrived(name).body == b"fence"
    assert peer.got(name) is None


def test_deliveries_do_not_wait_for_commit(tx, queue):
    tx.consume(queue)
    tx.open_channel(2)
    tx.send(publish(queue, b"1", channel=2))
    assert tx.delivered().body == b"1"


def test_prefetch_is_freed_at_commit(tx, queue):
    tx.send(publish(queue, b"1"), publish(queue, b"2"))
    commit(tx)
    tx.prefetch(1)
    tx.consume(queue)
    assert tx.delivered().body == b"1"
    tx.send(methods.BasicAck(delivery_tag=1))
    assert tx.ask(methods.BasicQos(prefetch_count=1)) == methods.BasicQosOk()
    tx.send(methods.TxCommit())
    came = {type(method): tx.message()[1] if isinstance(method, methods.BasicDeliver) else None
            for method in (tx.read(), tx.read())}       # in either order
    assert came == {methods.TxCommitOk: None, methods.BasicDeliver: b"2"}


def test_transactions_of_channels_do_not_mix(tx, queue):
    tx.open_channel(2)
    tx.ask(methods.TxSelect(), 2)
    tx.send(publish(queue, b"one"), publish(queue, b"two", channel=2))
    assert tx.ask(methods.TxRollback(), 2) == methods.TxRollbackOk()
    commit(tx)
    assert tx.arrived(queue).body == b"one"
    assert tx.got(queue) is None


@rabbitmq("closes without an answer to commits under way")
def test_connection_close_comes_behind_the_commits_that_were_sent_before_it(tx, port, name):
    tx.declare(queue=name, durable=True, exclusive=False)
    tx.open_channel(2)
    each = [[publish(name, b"%d" % n, delivery_mode=2), methods.TxCommit()] for n in range(20)]
    tx.send(*[part for parts in each for part in parts],
            (0, methods.ConnectionClose(reply_code=200, reply_text="bye", class_id=0, method_id=0)))
    answers = [tx.read() for _ in range(21)]
    assert answers == [methods.TxCommitOk()] * 20 + [methods.ConnectionCloseOk()]
    with Peer(port).open() as other:
        assert other.bodies(name) == [b"%d" % n for n in range(20)]
        other.ask(methods.QueueDelete(queue=name))


@rabbitmq("closes without an answer to commits under way")
def test_connection_close_comes_behind_the_commits_of_all_channels(tx, port, name):
    tx.declare(queue=name, durable=True, exclusive=False)
    tx.open_channel(2)
    tx.ask(methods.TxSelect(), 2)
    each = [[publish(name, b"%d" % n, channel=channel, delivery_mode=2), (channel, methods.TxCommit())]
            for n in range(20) for channel in (1, 2)]
    tx.send(*[part for parts in each for part in parts],
            (0, methods.ConnectionClose(reply_code=200, reply_text="bye", class_id=0, method_id=0)))
    assert [tx.read() for _ in range(41)] == [methods.TxCommitOk()] * 40 + [methods.ConnectionCloseOk()]
    with Peer(port).open() as other:
        assert sorted(other.bodies(name)) == sorted([b"%d" % n for n in range(20)] * 2)
        other.ask(methods.QueueDelete(queue=name))


@rabbitmq("never answers a commit whose queue is deleted before the message is on disk")
def test_what_takes_long_behind_a_commit_is_answered_before_what_comes_behind_it(tx, name):
    tx.declare(queue=name, durable=True, exclusive=False)
    for n in range(MANY):
        tx.send(methods.QueueBind(queue=name, exchange="amq.topic", routing_key=f"{n}.*.#", no_wait=True))
    tx.send(publish(name, b"m", delivery_mode=2), methods.TxCommit(), methods.QueueDelete(queue=name),
            methods.BasicQos(prefetch_count=1))
    assert [tx.read() for _ in range(3)] == [
        methods.TxCommitOk(), methods.QueueDeleteOk(message_count=1), methods.BasicQosOk()]


@rabbitmq("never answers a commit whose queue is deleted before the message is on disk")
def test_a_channel_that_takes_long_to_close_behind_a_commit_is_closed_before_it_is_opened_again(tx, name):
    tx.declare(queue=name, durable=True, exclusive=False)
    for n in range(MANY):
        tx.send(methods.QueueDeclare(queue=f"{name}.{n}", auto_delete=True, no_wait=True),
                methods.BasicConsume(queue=f"{name}.{n}", no_wait=True, consumer_tag=f"{n}"))
    tx.send(publish(name, b"m", delivery_mode=2), methods.TxCommit(),
            methods.ChannelClose(reply_code=200, reply_text="bye", class_id=0, method_id=0), methods.ChannelOpen(),
            methods.QueueDelete(queue=name))
    assert [tx.read() for _ in range(4)] == [
        methods.TxCommitOk(), methods.ChannelCloseOk(), methods.ChannelOpenOk(), methods.QueueDeleteOk(message_count=1)]


def test_durable_queues_and_persistent_messages_are_committed_too(tx, name):
    tx.declare(queue=name, durable=True, exclusive=False)
    tx.send(*[publish(name, b"%d" % n, delivery_mode=2) for n in range(20)])
    commit(tx)
    assert [tx.arrived(name).body for _ in range(20)] == [b"%d" % n for n in range(20)]
