"""What hostile and broken brokers say ends the connection, in words, and in a time that has an end."""

import asyncio
import os

import pytest
from tests.client.stranger import delivery, start, stranger

from brokerd.client import connection as connections
from brokerd.client._relay import Relay
from brokerd.client.address import Address
from brokerd.client.connection import ClientError, Connection
from brokerd.wire import methods
from brokerd.wire.frames import body_frames, header_frame, method_frame
from brokerd.wire.properties import encode_header

LARGE = 1 << 63


def against(work, answers=(), first=None, query=""):
    """What ``work(connection)`` returns."""
    async def main():
        async with stranger(answers, first) as port:
            connection = await Connection.open(Address.parse(f"amqp://127.0.0.1:{port}/{query}"), "test")
            try:
                return await work(connection)
            finally:
                connection.abort()

    return asyncio.run(main())


def declare():
    return methods.QueueDeclare(queue="q", arguments={})


def end_of(answer, role=None):
    """Why a connection ends that gets these octets behind the answer to its consumer; ``role``: of its relay."""
    async def work(connection):
        if role is not None:
            connection.give(Relay("on-confirm", b"", b"q"), source=role == "source")
        await connection.request(methods.BasicConsume(queue="q", arguments={}))
        return str(await connection.closed)

    return against(work, {"basic.consume": b"+" + answer})


def test_a_server_that_ends_the_handshake_with_nothing_or_with_little_at_a_time_is_left_in_time():
    async def main(first):
        async with stranger(first=first) as port:
            await Connection.open(Address.parse(f"amqp://127.0.0.1:{port}/?connection_timeout=50"), "test")

    for first in (b"", start()[:20], b"\x01"):
        with pytest.raises(ClientError, match=r"^no answer in 0.05 s$"):
            asyncio.run(main(first))


@pytest.mark.parametrize(("first", "text"), [
    (b"\x7f" * 64, r"a frame of 2139062151 octets; at most \d+ are agreed"),
    (method_frame(0, b"\x00\x0a\x00\x0a"), "the broker sent what is not understood: "),
    (method_frame(0, b"\x00\x0a"), "the broker sent what is not understood: "),
    (start()[:-1] + b"\0", "a frame without its end octet"),
])
def test_what_is_no_connection_start_is_told(first, text):
    async def work(connection):
        raise AssertionError

    with pytest.raises(ClientError, match=text):
        against(work, first=first)


@pytest.mark.parametrize("frame_max", [1, 8, 20, 4095])
def test_a_server_that_takes_only_frames_that_are_too_small_is_refused(frame_max):
    async def work(connection):
        raise AssertionError

    tune = methods.ConnectionTune(channel_max=10, frame_max=frame_max, heartbeat=0).frame(0)
    with pytest.raises(ClientError, match=f"the broker takes frames of {frame_max} octets; AMQP asks for 4096"):
        against(work, {"connection.start-ok": tune})


def test_a_heartbeat_of_more_seconds_than_amqp_can_say_is_the_longest_there_is():
    async def work(connection):
        return await connection.request(declare())

    assert against(work, query="?heartbeat=999999999").queue == "q"


def test_a_question_that_is_not_answered_ends_the_connection(monkeypatch):
    async def work(connection):
        with pytest.raises(ClientError, match=r"no answer to queue.declare in 0.05 s"):
            await connection.request(declare(), 0.05)
        return str(await connection.closed)

    assert against(work, {"queue.declare": b""}) == "no answer to queue.declare in 0.05 s"


def test_the_answer_to_a_question_that_was_given_up_is_not_taken_for_that_to_the_next_one():
    async def work(connection):
        given_up = asyncio.ensure_future(connection.request(declare(), None))
        await asyncio.sleep(0)
        given_up.cancel()
        return await connection.request(methods.BasicQos(prefetch_count=1), 5)

    answer = methods.QueueDeclareOk(queue="late", message_count=0, consumer_count=0).frame(1)
    assert isinstance(against(work, {"queue.declare": b"", "basic.qos": answer + b"" + methods.BasicQosOk().frame(1)}),
                      methods.BasicQosOk)


TOO_LARGE = f"a message of {LARGE} octets; links carry 536870912 at most"
HEADER = header_frame(1, encode_header(1))


@pytest.mark.parametrize(("role", "answer", "text"), [
    ("source", delivery(LARGE), TOO_LARGE),
    (None, delivery(LARGE), TOO_LARGE),
    ("destination", delivery(LARGE, channel=2), TOO_LARGE),
    ("source", delivery(5, HEADER), "a content header without its method"),
    ("source", HEADER, "a content header without its method"),
    ("source", delivery(1, *[body_frames(1, b"x", 4096)] * 2), "more of a body than its content header said"),
    ("source", methods.BasicDeliver(consumer_tag="c", delivery_tag=1).frame(1) + body_frames(1, b"x", 4096),
     "more of a body than its content header said"),
    ("source", methods.BasicDeliver(consumer_tag="c", delivery_tag=1).frame(1) + b"\x03\0\1\0\0\0\0\xce",
     "more of a body than its content header said"),
    ("destination", methods.BasicAck(delivery_tag=1).frame(1), "a confirm of a message that was not sent (1)"),
    ("destination", methods.BasicNack(delivery_tag=LARGE, multiple=True).frame(1),
     f"a confirm of a message that was not sent ({LARGE})"),
])
def test_messages_and_confirms_that_cannot_be_end_the_connection(role, answer, text):
    assert end_of(answer, role) == text


def test_a_fault_of_a_callback_ends_the_connection_and_says_so():
    def rewrite(*_):
        raise RuntimeError("inside")

    async def work(connection):
        connection.give(Relay("on-confirm", b"", b"q", rewrite=rewrite), source=True)
        await connection.request(methods.BasicConsume(queue="q", arguments={}))
        return str(await connection.closed)

    assert against(work, {"basic.consume": b"+" + delivery(0)}) == "a fault of brokerd: RuntimeError('inside')"


@pytest.mark.parametrize("host", ["a..b", "a" * 64, "." * 5])
def test_a_host_that_can_be_no_name_is_told(host):
    with pytest.raises(ClientError):
        asyncio.run(Connection.open(Address.parse(f"amqp://{host}"), "test"))


@pytest.mark.parametrize("query", ["cacertfile={}", "certfile={}", "certfile={empty}&keyfile={}"])
def test_a_certificate_that_is_a_device_or_a_pipe_is_refused_and_not_read(tmp_path, query):
    pipe, large, empty = tmp_path / "pipe", tmp_path / "large", tmp_path / "empty"
    empty.touch()
    os.mkfifo(pipe)
    with large.open("wb") as file:
        file.truncate(connections.FILE_OCTETS_MAX + 1)
    for path, why in (("/dev/zero", "it is no regular file"), (pipe, "it is no regular file"),
                      (tmp_path, "it is no regular file"), (large, "File too large")):
        address = Address.parse(f"amqps://127.0.0.1:1?{query.format(path, empty=empty)}")
        with pytest.raises(ClientError) as caught:
            asyncio.run(Connection.open(address, "test"))
        assert str(caught.value).endswith(f"'{path}': {why}")
