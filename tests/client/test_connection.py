import asyncio
import ssl
import subprocess

import pytest
from tests.broker import reserved_port
from tests.server.certificates import Authority

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
    assert reason(error) == "the certificate of the other side is not trusted: self-signed certificate"


def told(answer, uri, tls=None):
    """Why there is no connection to a server that answers so: octets, and then it closes the socket."""
    async def serve(reader, writer):
        await reader.read(8)
        writer.write(answer)
        writer.close()

    async def main():
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
        async with server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(ClientError) as caught:
                await Connection.open(Address.parse(uri.format(port=port)), "test")
            return str(caught.value)

    return asyncio.run(main())


@pytest.mark.parametrize(("answer", "text"), [
    (b"HTTP/1.1 400 Bad Request\r\n\r\n", "the port is that of a web server (HTTP), and not of an AMQP broker"),
    (b"\x15\x03\x03\0\x02\x02\x46", "the port speaks TLS: use amqps://"),
    (b"", "the other side closed the socket before it said anything: is it the port of an AMQP broker?"),
    (b"AMQP\0\1\0\0", "the broker speaks another protocol: it answered b'AMQP\\x00\\x01\\x00\\x00'"),
])
def test_what_seems_to_answer_at_the_port_is_told(answer, text):
    assert told(answer, "amqp://127.0.0.1:{port}") == text


@pytest.mark.parametrize("answer", [b"AMQP\0\0\x09\x01", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_tls_at_a_port_without_tls_is_told(answer):
    assert told(answer, "amqps://127.0.0.1:{port}") == (
        "the port does not speak TLS: use amqp://, or its port for TLS")


def test_a_tls_port_without_tls_and_files_that_are_wrong_are_told(tmp_path):
    authority = Authority(tmp_path / "ca")
    pair = authority.sign("server", "/CN=localhost")
    other = authority.sign("other", "/CN=other")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*pair)
    assert told(b"", "amqp://127.0.0.1:{port}", context) in (
        "the port speaks TLS: use amqps://", "Connection reset by peer",
        "the other side closed the socket before it said anything: is it the port of an AMQP broker?")
    assert told(b"", "amqps://127.0.0.1:{port}", context) == (
        "the certificate of the other side is not trusted: unable to get local issuer certificate")
    assert "certificate is not valid for 'wrong'" in told(
        b"", f"amqps://127.0.0.1:{{port}}?cacertfile={authority.file}&server_name_indication=wrong", context)
    empty = tmp_path / "empty"
    empty.touch()
    sealed = tmp_path / "sealed.key"
    subprocess.run(["openssl", "pkey", "-in", pair[1], "-aes256", "-passout", "pass:x", "-out", sealed], check=True)
    base = f"amqps://127.0.0.1:{{port}}?cacertfile={authority.file}"
    for uri, text in (
        ("amqps://127.0.0.1:{port}?cacertfile=/none.pem", "cacertfile '/none.pem': No such file or directory"),
        (f"amqps://127.0.0.1:{{port}}?cacertfile={empty}", f"cacertfile '{empty}': no certificate or crl found"),
        (f"{base}&certfile=/none.pem", "certfile '/none.pem': No such file or directory"),
        (f"{base}&certfile={pair[0]}&keyfile=/none.key", "keyfile '/none.key': No such file or directory"),
        (f"{base}&certfile={pair[0]}&keyfile={other[1]}", f"certfile or keyfile '{other[1]}': key values mismatch"),
    ):
        assert told(b"", uri, context) == text
    assert told(b"", f"{base}&certfile={pair[0]}&keyfile={sealed}&password=wrong", context).startswith(
        f"certfile or keyfile '{sealed}': ")
    # The right password opens it: what fails then is what the server says.
    assert told(b"", f"{base}&certfile={pair[0]}&keyfile={sealed}&password=x", context) == (
        "the other side closed the socket before it said anything: is it the port of an AMQP broker?")


def test_the_end_of_a_broker_ends_the_connection(broker):
    async def work(connection):
        broker.kill()
        return str(await connection.closed)

    assert run(broker, work) in ("the broker closed the socket", "Connection reset by peer")
