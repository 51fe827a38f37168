"""The node gives the core one turn after the other while there is work, whatever turns others take."""

from tests.server.test_limits import make_node  # noqa: F401 - a fixture


def test_turns_that_others_take_leave_one_turn_to_come(make_node):  # noqa: F811
    """Each turn says that there is work for another one.  If each came, each would call for one more."""
    to_come = []
    node = make_node(later=to_come.append)
    vhost = node.vhosts["/"]
    dead = vhost.add_queue("dead", durable=True, auto_delete=False, arguments={})
    source = vhost.add_queue("source", durable=True, auto_delete=False, arguments={
        "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-message-ttl": 1000})
    node.core.clock = lambda: 2 * 10**18
    node.core.expire()              # It looks at the clock.
    for number in range(5000):
        node.core.put((source,), b"", b"source", b"\0\0", b"%d" % number)
    while to_come:
        to_come.pop(0)()
    node.core.clock = lambda: 2 * 10**18 + 2 * 10**9
    node.core.expire()
    turns = 0
    while to_come:
        for _ in range(3):
            node.core.turn()        # As each client's octets do, and each end of a sync.
        # One turn, and one go_on() that begins a new budget for what turns do.
        assert len(to_come) == len(set(to_come)) <= 2
        to_come.pop(0)()
        turns += 1
    assert turns >= 2
    assert (source.ready, source.aside, dead.ready) == (0, 0, 5000)
