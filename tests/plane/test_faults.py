"""Faults in a client's octets are told in RabbitMQ's words."""

import pytest
from tests.plane.harness import frame


@pytest.fixture
def connection(bench):
    return bench.connection(1)


@pytest.mark.parametrize(("payload", "shown"), [
    (b"a" * 16, 'all octets = <<"aaaaaaaaaaaaaaaa">>'), (b"a" * 17, 'first 16 octets = <<"aaaaaaaaaaaaaaaa">>'),
    (b'say "x"', 'all octets = <<"say \\"x\\"">>'), (b"\x80\0", "all octets = <<128,0>>"), (b"", "all octets = <<>>"),
])
def test_what_came_is_shown_as_rabbitmq_shows_it(connection, payload, shown):
    connection.feed(frame(5, 0, payload))
    assert connection.fault[3] == f"type 5, {shown}: unknown_frame"


@pytest.mark.parametrize("payload", [b"", b"\0", b"\0\x3c\0"])
def test_a_method_frame_without_room_for_its_index_is_a_frame_error(connection, payload):
    connection.feed(frame(1, 1, payload))
    shown = ",".join(map(str, payload))
    assert connection.fault == (1, 501, True, f"type 1, all octets = <<{shown}>>: unknown_frame", 0, 0)
