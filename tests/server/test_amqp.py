"""The protocol of accepted sockets, on the loop that the broker uses."""

import asyncio
import socket

import pytest
import uvloop
from tests.session.harness import Node

from brokerd.server.amqp import address, factory


async def accept_one(node):
    """TCP_NODELAY of the broker's side of a connection."""
    loop = asyncio.get_running_loop()
    accepted = loop.create_future()
    loop.set_exception_handler(lambda _, fault: accepted.set_exception(fault["exception"]))
    node.connected = lambda connection: accepted.set_result(connection.transport)
    node.disconnected = lambda connection: None
    server = await loop.create_server(factory(node), "127.0.0.1", 0)
    _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    transport = await accepted
    value = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    transport.abort()
    writer.close()
    server.close()
    return value


@pytest.mark.parametrize("nodelay", [True, False])
def test_the_option_says_whether_small_segments_wait(tmp_path, nodelay):
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(accept_one(Node(tmp_path, tcp_nodelay=nodelay))) == nodelay


class Transport:
    def __init__(self, family, peername):
        self.family, self.peername = family, peername

    def get_extra_info(self, name):
        return self.peername if name == "peername" else self


@pytest.mark.parametrize(("family", "peername", "shown"), [
    (socket.AF_INET, ("127.0.0.1", 1), ("127.0.0.1:1", True)),
    (socket.AF_INET, ("10.0.0.1", 1), ("10.0.0.1:1", False)),
    (socket.AF_INET6, ("::1", 1, 0, 0), ("[::1]:1", True)),
    (socket.AF_INET6, ("::ffff:127.0.0.9", 1, 0, 0), ("[::ffff:127.0.0.9]:1", True)),
    (socket.AF_UNIX, "", ("unix socket", True)),
    (socket.AF_INET, None, ("unknown address", False)),
])
def test_an_address_is_shown_with_its_port_and_is_loopback_or_not(family, peername, shown):
    assert address(Transport(family, peername)) == shown
