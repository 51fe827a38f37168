"""No request of one client holds up another, whatever it asks for: the other one's messages go in and out meanwhile.

benchmarks/starvation.py measures how long they take.  Here they are counted: a broker that worked on a request in one
go would let through only those that came before it and after it.
"""

import threading
import time

import pytest
from tests.conversations.peer import Peer, octets_of, publish

from brokerd.wire import methods

ROUNDS = 4              # of the other client at least, while a request is worked on
ROUNDS_OF_ONE_METHOD = 8
ROUNDS_OF_MANY_READS = 15   # A broker that works on 8 MiB in one go lets others through 4 to 10 times in 50 MB.
ATTEMPTS = 20           # A busy machine may not run the other client meanwhile.
NAMES = [f"turns.{number}" for number in range(2000)]
END = methods.BasicQos(prefetch_count=1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    from tests.broker import Broker

    broker = Broker(tmp_path_factory.mktemp("turns") / "data", "--no-sync").start()
    yield broker
    broker.stop()


class Abuser(Peer):
    """The client that asks for much."""

    def do(self, *what):
        """Ask, and wait until all of it is answered."""
        self.send(*what, END)
        self.wait()

    def wait(self, wanted=methods.BasicQosOk, count=1):
        while count:
            frame = self.frame()
            assert frame is not None
            count -= frame.kind == 1 and isinstance(methods.decode(frame.payload), wanted)

    def declare(self, names, **arguments):
        self.do(*(methods.QueueDeclare(queue=name, no_wait=True, **arguments) for name in names))

    def exchange(self, kind, **arguments):
        self.do(methods.ExchangeDelete(exchange="turns", no_wait=True),
                methods.ExchangeDeclare(exchange="turns", type=kind, no_wait=True, **arguments))

    def bind(self, names, keys=("",), arguments=None):
        self.do(*(methods.QueueBind(queue=name, exchange="turns", routing_key=key, arguments=arguments or {},
                                    no_wait=True) for name in names for key in keys))


def message(key="", exchange="turns", **properties):
    """The octets of a message without a body."""
    return publish(key, b"", exchange, **properties)


# What each abuse makes ready; what it returns is the request.

def methods_in_python(peer):
    return lambda: peer.send(END.frame(1) * 30_000) or peer.wait(count=30_000)


def declares_and_deletes(peer):
    octets = octets_of(*(methods.QueueDeclare(queue=name, no_wait=True) for name in NAMES),
                       *(methods.QueueDelete(queue=name, no_wait=True) for name in NAMES))
    return lambda: peer.do(octets)


def a_commit(peer):
    peer.declare(NAMES[:1])
    peer.ask(methods.TxSelect())
    octets = message(NAMES[0], "") * 200_000
    return lambda: peer.do(octets, methods.TxCommit(), methods.QueuePurge(queue=NAMES[0]))


def a_first_publish_to_many_queues(peer):
    peer.declare(NAMES[:500])
    peer.exchange("fanout")
    peer.bind(NAMES[:500])
    return lambda: peer.do(methods.QueueBind(queue=NAMES[0], exchange="turns", routing_key=str(time.monotonic_ns())),
                           message())


def a_message_in_every_level(peer):
    peer.declare(NAMES[:3], arguments={"x-max-priority": 255})
    octets = b"".join(message(name, "", priority=number) for name in NAMES[:3] for number in range(256))
    return lambda: peer.do(octets)


def exclusive_queues_that_end(peer, port):
    def work():
        with Abuser(port).open() as other:
            other.declare(NAMES, exclusive=True)
            other.close()

    return work


def a_hash_ring_made_anew(peer):
    peer.declare(NAMES[:200])
    peer.exchange("x-consistent-hash")
    peer.bind(NAMES[:200], ["50"])
    return lambda: peer.do(*(octets_of(methods.QueueBind(queue=name, exchange="turns", routing_key="60"))
                             + message("a") for name in NAMES[:20]))


def bindings_whose_exchange_goes(peer):
    peer.declare(NAMES[:100])

    def work():
        peer.exchange("direct")
        peer.bind(NAMES[:100], [str(number) for number in range(30)])
        peer.do(methods.ExchangeDelete(exchange="turns"))

    return work


def a_queue_whose_bindings_go(peer):
    peer.declare(NAMES[:1])
    peer.exchange("topic")
    peer.bind(NAMES[:1], [f"a.{number}.#.*" for number in range(30_000)])
    return lambda: peer.do(methods.QueueDelete(queue=NAMES[0]))


def an_exchange_whose_bindings_go(peer):
    peer.declare(NAMES[:1])
    peer.exchange("topic")
    peer.bind(NAMES[:1], [f"a.{number}.#.*" for number in range(30_000)])
    return lambda: peer.do(methods.ExchangeDelete(exchange="turns"))


def a_queue_whose_consumers_go(peer):
    peer.declare(NAMES[:1])
    peer.do(*(methods.BasicConsume(queue=NAMES[0], consumer_tag=str(number), no_wait=True)
              for number in range(30_000)))
    return lambda: peer.do(methods.QueueDelete(queue=NAMES[0]))


def headers_of_many_shapes(peer):
    peer.declare(NAMES[:1])
    peer.exchange("headers")
    peer.do(*(methods.QueueBind(queue=NAMES[0], exchange="turns", arguments={"x-match": "any", f"h{number}": number},
                                no_wait=True) for number in range(5000)))
    octets = b"".join(message(headers={f"h{number}": number}) for number in range(20_000))
    return lambda: peer.do(octets)


def patterns_of_many_paths(peer):
    peer.declare(NAMES[:1])
    peer.exchange("topic")
    peer.bind(NAMES[:1], [".".join("#*a"[number // 3 ** at % 3] for at in range(6)) for number in range(3 ** 6)])
    octets = b"".join(message(".".join(["a"] * 60 + [str(number)])) for number in range(500))
    return lambda: peer.do(methods.QueueBind(queue=NAMES[0], exchange="turns", routing_key=str(time.monotonic_ns())),
                           octets)


def deduplication_keys(peer):
    peer.declare(NAMES[:1], arguments={"x-message-deduplication": True, "x-cache-size": 500_000})
    before, after = message(NAMES[0], "", headers={"x-deduplication-header": "number"}).split(b"number")
    octets = b"".join(b"%b%06d%b" % (before, number, after) for number in range(500_000))
    return lambda: peer.do(octets)


def messages_that_become_due_at_once(peer):
    peer.declare(NAMES[:1])
    peer.exchange("x-delayed-message", arguments={"x-delayed-type": "fanout"})
    peer.bind(NAMES[:1])
    octets = message(headers={"x-delay": 300}) * 20_000

    def work():
        peer.do(octets)
        while peer.ask(methods.QueueDeclare(queue=NAMES[0], passive=True)).message_count < 20_000:
            time.sleep(0.01)
        peer.ask(methods.QueuePurge(queue=NAMES[0]))

    return work


def consumers_whose_channel_ends(peer):
    peer.declare(NAMES[:1])
    octets = octets_of(*((2, methods.BasicConsume(queue=NAMES[0], consumer_tag=str(number), no_wait=True))
                         for number in range(5000)))

    def work():
        peer.send((2, methods.ChannelOpen()), octets, (2, methods.ChannelClose(reply_code=200, reply_text="",
                                                                              class_id=0, method_id=0)))
        peer.wait(methods.ChannelCloseOk)

    return work


def auto_delete_queues_whose_consumers_channel_ends(peer):
    peer.do((2, methods.ChannelOpen()),
            *((2, method) for number in range(5000) for method in (
                methods.QueueDeclare(queue=f"turns.auto.{number}", auto_delete=True, no_wait=True),
                methods.BasicConsume(queue=f"turns.auto.{number}", consumer_tag=str(number), no_wait=True))))
    peer.send((2, methods.BasicQos(prefetch_count=1)))
    peer.wait()

    def work():
        peer.send((2, methods.ChannelClose(reply_code=200, reply_text="", class_id=0, method_id=0)))
        peer.wait(methods.ChannelCloseOk)

    return work


def a_purge(peer):
    peer.declare(NAMES[:1])
    octets = message(NAMES[0], "") * 500_000
    return lambda: peer.do(octets, methods.QueuePurge(queue=NAMES[0]))


def a_purge_of_a_stream(peer):
    arguments = {"x-queue-type": "stream", "x-stream-max-segment-size-bytes": 4096}
    peer.declare(NAMES[:1], durable=True, arguments=arguments)
    peer.do(publish(NAMES[0], bytes(3000)) * 3000)      # A segment has room for one of them.
    return lambda: peer.do(methods.QueuePurge(queue=NAMES[0]))


def a_history_for_a_new_binding(peer):
    peer.declare(NAMES[:2])
    peer.exchange("x-recent-history", arguments={"x-recent-history-length": 50_000})
    peer.bind(NAMES[1:2])
    peer.do(message() * 50_000)
    return lambda: peer.do(methods.QueueBind(queue=NAMES[0], exchange="turns"))


def what_leads_to_an_exchange_that_loses_its_last_binding(peer):
    peer.declare(NAMES[:1])
    peer.exchange("fanout", auto_delete=True)
    peer.bind(NAMES[:1])
    peer.do(*(methods.ExchangeBind(destination="turns", source="amq.topic", routing_key=f"turns.{number}", no_wait=True)
              for number in range(30_000)))
    return lambda: peer.do(methods.QueueUnbind(queue=NAMES[0], exchange="turns"))


def long_work_behind_a_commit(peer):
    peer.declare(NAMES[:2])
    peer.exchange("topic")
    peer.bind(NAMES[:1], [f"a.{number}.#.*" for number in range(30_000)])
    peer.ask(methods.TxSelect())
    return lambda: peer.do(message(NAMES[1], "", delivery_mode=2), methods.TxCommit(),
                           methods.QueueDelete(queue=NAMES[0]))


def many_deliveries(peer, port):
    """400,000 unacked deliveries.  A fast machine recovers 100,000 in 5 ms."""
    count = 400_000
    peer.declare(NAMES[:1])
    with Abuser(port).open() as publisher:
        publisher.do(message(NAMES[0], "") * count)
        publisher.close()
    peer.send(methods.BasicQos(prefetch_count=0), methods.BasicConsume(queue=NAMES[0], consumer_tag="turns"))
    peer.wait(methods.BasicDeliver, count)


def deliveries_that_a_client_recovers(peer, port):
    many_deliveries(peer, port)
    peer.send(methods.BasicCancel(consumer_tag="turns"))
    peer.wait(methods.BasicCancelOk)
    return lambda: peer.do(methods.BasicRecover(requeue=True))


def deliveries_that_a_commit_rejects(peer, port):
    peer.ask(methods.TxSelect())
    many_deliveries(peer, port)
    return lambda: peer.do(methods.BasicNack(delivery_tag=0, multiple=True, requeue=False), methods.TxCommit())


def readers_that_share_a_stream_and_leave(peer, port, count=100_000):
    peer.ask(methods.QueueDeclare(queue=NAMES[0], durable=True, arguments={"x-queue-type": "stream"}))
    asked = {"x-stream-reader": "all", "x-stream-partitions": "hash", "x-stream-offset": "first"}
    peer.do((2, methods.ChannelOpen()), (2, methods.BasicQos(prefetch_count=0xFFFF)),
            *((2, methods.BasicConsume(queue=NAMES[0], consumer_tag=f"{number}", arguments=asked))
              for number in range(16)))
    with Abuser(port).open() as publisher:
        publisher.do(message(NAMES[0], "") * count)
        publisher.close()
    peer.wait(methods.BasicDeliver, count)

    def work():
        peer.send((2, methods.ChannelClose(reply_code=200, reply_text="", class_id=0, method_id=0)))
        peer.wait(methods.ChannelCloseOk)

    return work


ABUSES = [methods_in_python, declares_and_deletes, a_commit, a_first_publish_to_many_queues, a_message_in_every_level,
          exclusive_queues_that_end, a_hash_ring_made_anew, bindings_whose_exchange_goes, a_queue_whose_bindings_go,
          an_exchange_whose_bindings_go, a_queue_whose_consumers_go, headers_of_many_shapes, patterns_of_many_paths,
          deduplication_keys, messages_that_become_due_at_once, consumers_whose_channel_ends, a_purge,
          a_purge_of_a_stream, auto_delete_queues_whose_consumers_channel_ends, a_history_for_a_new_binding,
          what_leads_to_an_exchange_that_loses_its_last_binding, long_work_behind_a_commit,
          deliveries_that_a_client_recovers, deliveries_that_a_commit_rejects, readers_that_share_a_stream_and_leave]


# A single method: nothing but its own pieces lets others through.
ONE_METHOD = (a_purge_of_a_stream, a_queue_whose_bindings_go, an_exchange_whose_bindings_go, a_queue_whose_consumers_go,
              auto_delete_queues_whose_consumers_channel_ends, a_history_for_a_new_binding,
              what_leads_to_an_exchange_that_loses_its_last_binding, long_work_behind_a_commit,
              deliveries_that_a_commit_rejects)

# More octets than the loop reads at once: others get through between two reads, too.
MANY_READS = (deduplication_keys,)

# What needs the broker's port.
OF_TWO_CLIENTS = (exclusive_queues_that_end, deliveries_that_a_client_recovers, deliveries_that_a_commit_rejects,
                  readers_that_share_a_stream_and_leave)


class Other:
    """The well-behaved client."""

    def __init__(self, peer):
        self.peer = peer
        peer.ask(methods.ConfirmSelect())
        self.queue = peer.ask(methods.QueueDeclare(exclusive=True)).queue
        peer.ask(methods.BasicConsume(queue=self.queue, consumer_tag="other", no_ack=True))
        self.octets = publish(self.queue, b"x")

    def round(self):
        """A message: published, confirmed and delivered."""
        self.peer.raw(self.octets)
        came = set()
        while len(came) < 2:
            method = self.peer.read()
            came.add(type(method))
            if isinstance(method, methods.BasicDeliver):
                self.peer.message()
        assert came == {methods.BasicAck, methods.BasicDeliver}


def rounds_beside(work, other):
    """How many messages of the other client went in and out while ``work`` was done."""
    failed = []

    def run():
        try:
            work()
        except BaseException as error:
            failed.append(error)

    count, thread = 0, threading.Thread(target=run)
    thread.start()
    while thread.is_alive():
        other.round()
        count += 1
    thread.join()
    assert not failed
    return count


def rounds_wanted(abuse):
    if abuse in ONE_METHOD:
        return ROUNDS_OF_ONE_METHOD
    return ROUNDS_OF_MANY_READS if abuse in MANY_READS else ROUNDS


@pytest.mark.parametrize("abuse", ABUSES, ids=lambda abuse: abuse.__name__)
def test_messages_of_others_go_in_and_out_beside(broker, abuse):
    given = (broker.port,) if abuse in OF_TWO_CLIENTS else ()
    counts, wanted = [], rounds_wanted(abuse)
    while len(counts) < ATTEMPTS and max(counts, default=0) < wanted:
        # Nobody tells the abuser that a queue of its consumers is gone: it would read that long after the request.
        with Abuser(broker.port).open(capabilities={}) as peer, Peer(broker.port).open() as well_behaved:
            work, other = abuse(peer, *given), Other(well_behaved)
            counts.append(rounds_beside(work, other))
            peer.close()
            well_behaved.close()
        with Abuser(broker.port).open() as peer:
            peer.do(methods.ExchangeDelete(exchange="turns", no_wait=True),
                    *(methods.QueueDelete(queue=name, no_wait=True) for name in NAMES))
            peer.close()
    assert max(counts) >= wanted, counts
