"""A client that makes much work holds up no other."""

from tests.broker import readable
from tests.conversations.peer import Peer, octets_of, publish

from brokerd.wire import methods

QUEUES, PUBLISHES = 1000, 400


def test_others_are_answered_while_a_fast_publisher_fills_many_queues(peer, port):
    """One read of the socket brings hundreds of publishes, and each is a thousand records."""
    names = [f"turns.{number}" for number in range(QUEUES)]
    peer.ask(methods.ExchangeDeclare(exchange="turns", type="fanout", auto_delete=True))
    peer.raw(b"".join(octets_of(methods.QueueDeclare(queue=name, exclusive=True, no_wait=True),
                                methods.QueueBind(queue=name, exchange="turns", no_wait=True)) for name in names))
    peer.ask(methods.QueueDeclare(queue=names[0], passive=True))
    with Peer(port).open() as other:
        mine = other.ask(methods.QueueDeclare(exclusive=True)).queue
        peer.send(publish("", b"x", exchange="turns") * PUBLISHES, methods.QueueDeclare(queue=names[-1], passive=True))
        answered = 0
        while not readable(peer.socket, 0):
            assert other.ask(methods.QueueDeclare(queue=mine, passive=True)).message_count == 0
            answered += 1
        assert answered >= 3
        assert peer.read().message_count == PUBLISHES
        other.close()
