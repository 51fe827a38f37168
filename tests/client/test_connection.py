import asyncio
import ssl

import pytest
from tests.broker import reserved_port

from brokerd.client.address import Address
from brokerd.client.connection import ClientError, Connection, Refused, reason
from brokerd.wire import methods


def run(broker, work, **changes):
    async def main():
        address = Address.parse(f"amqp://guest:guest@127.0.0.1:{broker.port}/?heartbeat=1")
        connection = await Connection.open(address, "test")
        try:
            return await work(connection)
        finally:
            await connection.close()

    return asyncio.run(main())


def test_a_message_comes_back_whole(broker):
    async def work(connection):
        came = asyncio.get_running_loop().create_future()
        connection.on_delivery = came.set_result
        made = await connection.request(methods.QueueDeclare(queue="", exclusive=True, arguments={}))
        await connection.request(methods.BasicConsume(queue=made.queue, arguments={}))
        body = b"x" * 200_000
        connection.write(methods.BasicPublish(exchange="", routing_key=made.queue).frame(1))
        from brokerd.wire.frames import body_frames, header_frame
        from brokerd.wire.properties import encode_header

        connection.write(header_frame(1, encode_header(len(body))) + body_frames(1, body, connection.frame_max))
        delivery = await came
        return delivery.body == body, delivery.routing_key == made.queue

    assert run(broker, work) == (True, True)


def test_a_refusal_closes_the_channel_which_opens_again(broker):
    async def work(connection):
        with pytest.raises(Refused, match="404 .*no queue 'none' in vhost '/'"):
            await connection.request(methods.QueueDeclare(queue="none", passive=True, arguments={}))
        await connection.open_channel()
        return (await connection.request(methods.QueueDeclare(queue="some", arguments={}))).queue

    assert run(broker, work) == "some"


def test_a_wrong_password_is_told_and_not_shown(broker):
    async def main():
        await Connection.open(Address.parse(f"amqp://guest:secret@127.0.0.1:{broker.port}"), "test")

    with pytest.raises(Refused, match="403 .*Login was refused") as caught:
        asyncio.run(main())
    assert "secret" not in str(caught.value)


def test_nobody_logs_in_as_the_process_of_links(broker):
    async def main(path):
        from brokerd.client.connection import Identity

        await Connection.open(Address.parse("amqp://"), "test", Identity(path, "BROKERD-LINK", ""))

    with pytest.raises(ClientError):
        asyncio.run(main(str(broker.directory)))


def test_why_there_is_no_connection_is_told_in_words():
    port, _held = reserved_port()

    async def main():
        await Connection.open(Address.parse(f"amqp://127.0.0.1:{port}"), "test")

    with pytest.raises(ClientError, match="Connection refused"):
        asyncio.run(main())
    error = ssl.SSLCertVerificationError()
    error.verify_message = "self-signed certificate"
    assert reason(error) == "the broker's certificate is not trusted: self-signed certificate"


def test_the_end_of_a_broker_ends_the_connection(broker):
    async def work(connection):
        broker.kill()
        return str(await connection.closed)

    assert run(broker, work) in ("the broker closed the socket", "Connection reset by peer")
