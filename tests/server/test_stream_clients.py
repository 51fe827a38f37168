"""pika, aio-pika, py-amqp, amqplib of Node, and RabbitMQ's client for Java read a stream from where each form of
x-stream-offset says.

Each consumes, then publishes one more message, and reads until that one comes.
"""

import asyncio
import datetime
import json
import os
import shutil
import subprocess
from pathlib import Path

import aio_pika
import amqp
import pika
import pytest
from tests.broker import SECONDS
from tests.server.clients import PERSISTENT, connect, parameters, publish_confirmed

JARS = [Path("/usr/share/java", name) for name in ("amqp-client.jar", "slf4j-api.jar")]  # librabbitmq-client-java
NODE_MODULES = Path(__file__).parent / "amqplib" / "node_modules"
KEPT, LAST = 5, 6
LONG_AGO, FAR_OFF = (datetime.datetime.fromtimestamp(at, datetime.UTC) for at in (10**9, 4 * 10**9))
FORMS = {
    "first": 1, "last": 1, "next": 6, "1h": 1, "7D": 1, 0: 1, 1: 1, 3: 3, 6: 6, -2: 4, -99: 1, LONG_AGO: 1, None: 6,
}  # fmt: skip


def arguments_of(form):
    return {} if form is None else {"x-stream-offset": form}


@pytest.fixture
def streams(broker):
    """A stream for each form, with five messages: the form, its name, and the offset at which reading begins."""
    channel = connect(broker).channel()
    made = []
    for number, (form, first) in enumerate(FORMS.items()):
        name = f"events-{number}"
        channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream"})
        publish_confirmed(channel, name, [b"%d" % i for i in range(1, KEPT + 1)])
        made.append((form, name, first))
    return made


def expected(streams):
    return {name: list(range(first, LAST + 1)) for _, name, first in streams}


def test_pika_reads_from_each_offset(broker, streams):
    found = {}
    for form, name, _ in streams:
        channel = pika.BlockingConnection(parameters(broker)).channel()
        channel.basic_qos(prefetch_count=2)
        offsets = found[name] = []

        def take(channel, method, properties, body, offsets=offsets):
            offsets.append(properties.headers["x-stream-offset"])
            channel.basic_ack(method.delivery_tag)

        channel.basic_consume(name, take, arguments=arguments_of(form))
        channel.basic_publish("", name, b"6", PERSISTENT)
        while LAST not in offsets:
            channel.connection.process_data_events(SECONDS)
        channel.connection.close()
    assert found == expected(streams)


def test_aio_pika_reads_from_each_offset(broker, streams):
    async def offsets_of(connection, form, name):
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=2)
        queue = await channel.get_queue(name)
        offsets, done = [], asyncio.Event()

        async def take(message):
            offsets.append(message.headers["x-stream-offset"])
            await message.ack()
            if offsets[-1] == LAST:
                done.set()

        await queue.consume(take, arguments=arguments_of(form))
        await channel.default_exchange.publish(aio_pika.Message(b"6", delivery_mode=2), name)
        await asyncio.wait_for(done.wait(), SECONDS)
        await channel.close()
        return offsets

    async def all_of_them():
        async with await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{broker.port}") as connection:
            return {name: await offsets_of(connection, form, name) for form, name, _ in streams}

    assert asyncio.run(all_of_them()) == expected(streams)


def test_py_amqp_reads_from_each_offset(broker, streams):
    found = {}
    for form, name, _ in streams:
        with amqp.Connection(f"127.0.0.1:{broker.port}", connect_timeout=SECONDS) as connection:
            channel = connection.channel()
            channel.basic_qos(0, 2, False)
            offsets = found[name] = []

            def take(message, channel=channel, offsets=offsets):
                offsets.append(message.headers["x-stream-offset"])
                channel.basic_ack(message.delivery_tag)

            channel.basic_consume(name, callback=take, arguments=arguments_of(form))
            channel.basic_publish(amqp.Message(b"6", delivery_mode=2), "", name)
            while LAST not in offsets:
                connection.drain_events(SECONDS)
    assert found == expected(streams)


PROGRAM = """
const amqp = require('amqplib');
(async () => {
  const connection = await amqp.connect(process.env.AMQP_URL);
  const found = {};
  for (const [name, args] of JSON.parse(process.env.STREAMS)) {
    const channel = await connection.createChannel();
    await channel.prefetch(2);
    const offsets = found[name] = [];
    await new Promise((resolve, reject) => {
      channel.consume(name, (message) => {
        offsets.push(message.properties.headers['x-stream-offset']);
        channel.ack(message);
        if (offsets.at(-1) === 6) resolve();
      }, { arguments: args }).then(
        () => channel.sendToQueue(name, Buffer.from('6'), { persistent: true }), reject);
    });
    await channel.close();
  }
  await connection.close();
  console.log(JSON.stringify(found));
})().catch((error) => { console.error(error); process.exit(1); });
"""


def test_amqplib_reads_from_each_offset(broker, streams, tmp_path):
    if shutil.which("node") is None or not (NODE_MODULES / "amqplib").exists():
        pytest.skip("needs node, and amqplib by: npm ci --prefix tests/server/amqplib")
    timestamp = {"!": "timestamp", "value": int(LONG_AGO.timestamp())}
    asked = [(name, arguments_of(timestamp if form is LONG_AGO else form)) for form, name, _ in streams]
    (tmp_path / "program.js").write_text(PROGRAM, encoding="utf-8")
    told = {"NODE_PATH": str(NODE_MODULES), "AMQP_URL": f"amqp://127.0.0.1:{broker.port}", "STREAMS": json.dumps(asked)}
    done = subprocess.run(["node", "program.js"], cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS,
                          env=os.environ | told)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == expected(streams)


JAVA_PROGRAM = """
import com.rabbitmq.client.*;
import java.util.*;
import java.util.concurrent.CountDownLatch;

public class Read {
  static Object valueOf(String kind, String text) {
    return switch (kind) {
      case "int" -> Integer.valueOf(text);
      case "long" -> Long.valueOf(text);
      case "datetime" -> new Date(1000 * Long.parseLong(text));
      default -> text;
    };
  }

  public static void main(String[] asked) throws Exception {
    ConnectionFactory factory = new ConnectionFactory();
    factory.setPort(Integer.parseInt(asked[0]));
    try (Connection connection = factory.newConnection()) {
      for (int at = 1; at < asked.length; at += 3) {
        Map<String, Object> arguments = new HashMap<>();
        if (!asked[at + 1].equals("NoneType")) arguments.put("x-stream-offset", valueOf(asked[at + 1], asked[at + 2]));
        Channel channel = connection.createChannel();
        channel.basicQos(2);
        CountDownLatch done = new CountDownLatch(1);
        StringBuilder offsets = new StringBuilder(asked[at]);
        channel.basicConsume(asked[at], false, arguments, new DefaultConsumer(channel) {
          @Override
          public void handleDelivery(String tag, Envelope envelope, AMQP.BasicProperties properties, byte[] body)
              throws java.io.IOException {
            long offset = (Long) properties.getHeaders().get("x-stream-offset");
            offsets.append(" ").append(offset);
            channel.basicAck(envelope.getDeliveryTag(), false);
            if (offset == 6) done.countDown();
          }
        });
        channel.basicPublish("", asked[at], MessageProperties.PERSISTENT_BASIC, "6".getBytes());
        done.await();
        channel.close();
        System.out.println(offsets);
      }
    }
  }
}
"""


def test_the_java_client_reads_from_each_offset(broker, streams, tmp_path):
    if shutil.which("java") is None or not all(jar.exists() for jar in JARS):
        pytest.skip("needs Java, and RabbitMQ's client: apt-get install librabbitmq-client-java")
    (tmp_path / "Read.java").write_text(JAVA_PROGRAM, encoding="utf-8")
    asked = []
    for form, name, _ in streams:
        value = int(form.timestamp()) if isinstance(form, datetime.datetime) else form
        kind = "long" if form == 3 else type(form).__name__
        asked += [name, kind, str(value)]
    command = ["java", "-XX:TieredStopAtLevel=1", "-cp", ":".join(map(str, JARS)), "Read.java", str(broker.port)]
    done = subprocess.run(command + asked, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    found = {name: list(map(int, offsets)) for name, *offsets in map(str.split, done.stdout.splitlines())}
    assert found == expected(streams)


def test_a_time_that_is_to_come_waits_and_a_named_reader_goes_on(broker, streams):
    channel = connect(broker).channel()
    channel.basic_qos(prefetch_count=5)
    name, got = streams[0][1], []
    channel.basic_consume(name, lambda *came: got.append("early"), arguments=arguments_of(FAR_OFF))
    channel.basic_consume(name, lambda channel, method, properties, body: got.append(method.delivery_tag),
                          arguments={"x-stream-offset": "first", "x-stream-reader": "billing"})
    while len(got) < KEPT:
        channel.connection.process_data_events(SECONDS)
    assert "early" not in got
    channel.basic_ack(got[2], multiple=True)
    channel.connection.close()
    channel = connect(broker).channel()
    channel.basic_qos(prefetch_count=5)
    bodies = []
    channel.basic_consume(name, lambda channel, method, properties, body: bodies.append(body),
                          arguments={"x-stream-reader": "billing"})
    while len(bodies) < 2:
        channel.connection.process_data_events(SECONDS)
    assert bodies == [b"4", b"5"]
