"""The clients people use, each as its manual says, against a real broker."""

import asyncio
import shutil
import subprocess
import sys

import aio_pika
import pika
import pytest
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.adapters.select_connection import SelectConnection
from tests.broker import SECONDS
from tests.server.clients import connect, parameters

COUNT = 100


class Course:
    """Open, declare, publish with confirms, consume with acks, close: one callback after the other."""

    def __init__(self):
        self.confirmed = 0
        self.bodies = []
        self.closed = None
        self.stop = lambda: None
        self.failure = None

    def on_open(self, connection):
        self.connection = connection
        connection.channel(on_open_callback=self.on_channel)

    def on_open_error(self, _, error):
        self.failure = error
        self.stop()

    def on_close(self, _, reason):
        self.closed = reason
        self.stop()

    def on_channel(self, channel):
        self.channel = channel
        channel.confirm_delivery(self.on_confirm, callback=lambda _: channel.queue_declare(
            "", exclusive=True, callback=self.on_declare))

    def on_declare(self, frame):
        self.queue = frame.method.queue
        for n in range(COUNT):
            self.channel.basic_publish("", self.queue, b"%d" % n, pika.BasicProperties(delivery_mode=2))
        self.channel.basic_qos(prefetch_count=7, callback=lambda _: self.channel.basic_consume(
            self.queue, self.on_message))

    def on_confirm(self, frame):
        assert isinstance(frame.method, pika.spec.Basic.Ack)
        self.confirmed = frame.method.delivery_tag
        self.finish()

    def on_message(self, channel, method, properties, body):
        channel.basic_ack(method.delivery_tag)
        self.bodies.append(body)
        self.finish()

    def finish(self):
        if self.confirmed == COUNT and len(self.bodies) == COUNT:
            self.connection.close()

    def check(self):
        assert self.failure is None
        assert self.bodies == [b"%d" % n for n in range(COUNT)]
        assert self.confirmed == COUNT
        assert self.closed.reply_code == 200


def callbacks(course):
    return {"on_open_callback": course.on_open, "on_open_error_callback": course.on_open_error,
            "on_close_callback": course.on_close}


def test_pika_blocking(broker):
    connection = connect(broker)
    channel = connection.channel()
    channel.confirm_delivery()
    queue = channel.queue_declare("", exclusive=True).method.queue
    for n in range(COUNT):
        channel.basic_publish("", queue, b"%d" % n)
    bodies = []
    channel.basic_qos(prefetch_count=7)
    for method, _, body in channel.consume(queue, inactivity_timeout=SECONDS):
        channel.basic_ack(method.delivery_tag)
        bodies.append(body)
        if len(bodies) == COUNT:
            break
    assert channel.cancel() == 0
    assert bodies == [b"%d" % n for n in range(COUNT)]
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish("", "nowhere", b"", mandatory=True)
    connection.close()


def test_pika_select(broker):
    course = Course()
    connection = SelectConnection(parameters(broker), **callbacks(course))
    course.stop = connection.ioloop.stop
    connection.ioloop.start()
    course.check()


def test_pika_asyncio(broker):
    async def main():
        done = asyncio.Event()
        course = Course()
        course.stop = done.set
        AsyncioConnection(parameters(broker), **callbacks(course))
        await asyncio.wait_for(done.wait(), SECONDS)
        return course

    asyncio.run(main()).check()


# Each of these brings a loop of its own, which does not end well in the same process as another.
ADAPTERS = {
    "tornado": """
from pika.adapters.tornado_connection import TornadoConnection
from tornado.ioloop import IOLoop
connection = TornadoConnection(parameters(broker), **callbacks(course))
course.stop = IOLoop.current().stop
IOLoop.current().start()
""",
    "gevent": """
from pika.adapters.gevent_connection import GeventConnection
connection = GeventConnection(parameters(broker), **callbacks(course))
course.stop = connection.ioloop.stop
connection.ioloop.start()
""",
    "twisted": """
from pika.adapters.twisted_connection import TwistedProtocolConnection
from twisted.internet import defer, protocol, reactor

@defer.inlineCallbacks
def main():
    client = protocol.ClientCreator(reactor, TwistedProtocolConnection, parameters(broker))
    connection = yield client.connectTCP("127.0.0.1", broker.port)
    yield connection.ready
    channel = yield connection.channel()
    yield channel.confirm_delivery()
    declared = yield channel.queue_declare("", exclusive=True)
    queue = declared.method.queue
    yield defer.gatherResults([channel.basic_publish("", queue, b"%d" % n) for n in range(COUNT)])
    course.confirmed = COUNT
    yield channel.basic_qos(prefetch_count=7)
    deliveries, _ = yield channel.basic_consume(queue)
    while len(course.bodies) < COUNT:
        channel_, method, properties, body = yield deliveries.get()
        course.bodies.append(body)
        yield channel.basic_ack(method.delivery_tag)
    yield connection.close()
    course.closed = SimpleNamespace(reply_code=200)

def end(result):
    course.failure = getattr(result, "value", None)
    reactor.stop()

reactor.callWhenRunning(lambda: main().addBoth(end))
reactor.run()
""",
}


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_pika_with_other_loops(broker, adapter):
    pytest.importorskip(adapter)
    script = f"""
from types import SimpleNamespace
from tests.server.clients import parameters
from tests.server.test_clients import COUNT, Course, callbacks
broker, course = SimpleNamespace(port={broker.port}), Course()
{ADAPTERS[adapter]}
course.check()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=SECONDS,
                          env={"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin"})
    assert done.returncode == 0, done.stderr


def test_aio_pika(broker):
    async def main():
        connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{broker.port}/")
        async with connection:
            channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
            await channel.set_qos(prefetch_count=7)
            exchange = await channel.declare_exchange("logs", aio_pika.ExchangeType.TOPIC, auto_delete=True)
            queue = await channel.declare_queue("", exclusive=True)
            await queue.bind(exchange, "a.#")
            await asyncio.gather(*(exchange.publish(aio_pika.Message(b"%d" % n), "a.b") for n in range(COUNT)))
            with pytest.raises(aio_pika.exceptions.DeliveryError):
                await exchange.publish(aio_pika.Message(b""), "nowhere", mandatory=True)
            bodies = []
            async with queue.iterator() as messages:
                async for message in messages:
                    async with message.process():
                        bodies.append(message.body)
                    if len(bodies) == COUNT:
                        break
            return bodies

    assert sorted(asyncio.run(main()), key=int) == [b"%d" % n for n in range(COUNT)]


def test_aio_pika_comes_back_after_a_kill(broker):
    async def main():
        connection = await aio_pika.connect_robust(f"amqp://guest:guest@127.0.0.1:{broker.port}/?reconnect_interval=1")
        async with connection:
            channel = await connection.channel()
            queue = await channel.declare_queue("kept", durable=True)
            message = aio_pika.Message(b"kept", delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
            await channel.default_exchange.publish(message, "kept")
            again = asyncio.Event()
            connection.reconnect_callbacks.add(lambda *_: again.set())
            await asyncio.to_thread(broker.restart, kill=True)
            await asyncio.wait_for(again.wait(), SECONDS)
            got = await queue.get(timeout=SECONDS, no_ack=True)
            return got.body

    assert asyncio.run(main()) == b"kept"


# --- Debian's amqp-tools


@pytest.fixture
def tools(broker):
    """Runs one of the tools: its standard output."""
    if shutil.which("amqp-publish") is None:
        pytest.skip("Debian's package amqp-tools is not installed")

    def run(name, *arguments, stdin=b"", status=0):
        done = subprocess.run([name, "-u", f"amqp://guest:guest@127.0.0.1:{broker.port}/", *arguments],
                              input=stdin, capture_output=True, timeout=SECONDS)
        assert done.returncode == status, done.stderr
        return done.stdout

    return run


def test_amqp_tools(tools):
    assert tools("amqp-declare-queue", "-q", "tool", "-d") == b"tool\n"
    tools("amqp-publish", "-r", "tool", "-b", "first", "-p")
    tools("amqp-publish", "-r", "tool", "-C", "text/plain", stdin=b"second")
    for n in range(3):
        tools("amqp-publish", "-r", "tool", "-b", f"more {n}")
    assert tools("amqp-get", "-q", "tool") == b"first"
    assert tools("amqp-consume", "-q", "tool", "-c", "2", "-p", "1", "cat") == b"secondmore 0"
    assert tools("amqp-delete-queue", "-q", "tool") == b"2\n"
    tools("amqp-get", "-q", "tool", status=1)


def test_amqp_consume_binds_a_queue_of_its_own(tools, broker):
    consumer = subprocess.Popen(
        ["amqp-consume", "-u", f"amqp://guest:guest@127.0.0.1:{broker.port}/", "-e", "amq.topic", "-r", "k.*",
         "-c", "1", "cat"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with consumer:
        connection = connect(broker)
        channel = connection.channel()
        channel.confirm_delivery()
        while consumer.poll() is None:  # until its binding is there
            try:
                channel.basic_publish("amq.topic", "k.1", b"bound", mandatory=True)
                break
            except pika.exceptions.UnroutableError:
                pass
        assert consumer.communicate(timeout=SECONDS)[0] == b"bound"
        assert consumer.returncode == 0
        connection.close()
