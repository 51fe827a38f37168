"""A server that speaks AMQP as far as a test lets it: what hostile or broken brokers say to links."""

import asyncio
import contextlib

from brokerd.wire import methods
from brokerd.wire.frames import FrameScanner, header_frame

USUAL = {
    methods.ConnectionStartOk: methods.ConnectionTune(channel_max=10, frame_max=131072, heartbeat=0),
    methods.ConnectionOpen: methods.ConnectionOpenOk(),
    methods.ConnectionClose: methods.ConnectionCloseOk(),
    methods.ChannelOpen: methods.ChannelOpenOk(),
    methods.QueueDeclare: methods.QueueDeclareOk(queue="q", message_count=0, consumer_count=0),
    methods.BasicQos: methods.BasicQosOk(),
    methods.BasicConsume: methods.BasicConsumeOk(consumer_tag="c"),
    methods.ConfirmSelect: methods.ConfirmSelectOk(),
}


def start(**properties):
    """The octets of connection.start."""
    return methods.ConnectionStart(version_major=0, version_minor=9, server_properties=properties, mechanisms=b"PLAIN",
                                   locales=b"en_US").frame(0)


def delivery(size, *frames, channel=1):
    """A delivery whose header says so many octets, and the frames that follow."""
    method = methods.BasicDeliver(consumer_tag="c", delivery_tag=1, redelivered=False, exchange="", routing_key="k")
    header = (60).to_bytes(2) + bytes(2) + size.to_bytes(8) + bytes(2)
    return method.frame(channel) + header_frame(channel, header) + b"".join(frames)


def usual(method, channel):
    """The octets that answer a method as brokers do; empty: it has no answer."""
    answer = USUAL.get(type(method))
    return answer.frame(channel) if answer is not None else b""


@contextlib.asynccontextmanager
async def stranger(answers=(), first=None, port=0):
    """Run the server; its port.  ``answers``: by name of method, octets in place of, or behind, the usual answer, which
    stand behind b"+" then.  ``first``: what it says before it is asked anything, in place of connection.start."""
    given, serving = dict(answers), set()

    async def serve(reader, writer):
        serving.add(asyncio.current_task())
        scanner = FrameScanner()
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await reader.readexactly(8)
            writer.write(start() if first is None else first)
            while octets := await reader.read(1 << 16):
                for frame in scanner.feed(octets):
                    if frame.kind != 1:
                        continue
                    method = methods.decode(frame.payload)
                    answer = given.get(method.NAME, b"+")
                    if answer.startswith(b"+"):
                        answer = usual(method, frame.channel) + answer[1:]
                    writer.write(answer)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", port)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.gather(*serving)
