"""npm's @cloudamqp/amqp-client in Chromium: AMQP over WebSocket, from a page of the broker's own."""

import pytest
from tests.broker import ROOT

CLIENT = ROOT / "src" / "web" / "node_modules" / "@cloudamqp" / "amqp-client" / "dist" / "amqp-websocket-client.mjs"
pytestmark = pytest.mark.skipif(not CLIENT.exists(), reason="@cloudamqp/amqp-client is not installed: make test")

# Publishes with confirms, and answers what a consumer gets.
TALK = """
async ([url, count]) => {
  const { AMQPWebSocketClient } = await import("/amqp-client.mjs");
  const client = new AMQPWebSocketClient(url, "/", "guest", "guest");
  const connection = await client.connect();
  const channel = await connection.channel();
  const queue = await channel.queueDeclare("from a browser", { durable: false });
  await channel.confirmSelect();
  for (let number = 0; number < count; number++) {
    await channel.basicPublish("", queue.name, "x".repeat(number * 100) + number,
                               { contentType: "text/plain", headers: { number } });
  }
  const bodies = [];
  await new Promise((resolve) => {
    void channel.basicConsume(queue.name, { noAck: false }, async (message) => {
      bodies.push([message.properties.headers.number, message.bodyString().length]);
      await message.ack();
      if (bodies.length === count) resolve();
    });
  });
  await channel.queueDelete(queue.name);
  await connection.close();
  return bodies;
}
"""


def test_a_page_of_the_broker_publishes_and_consumes(site):
    window = site.window()
    window.route("**/amqp-client.mjs", lambda route: route.fulfill(content_type="text/javascript", path=CLIENT))
    window.goto(site.address())
    found = window.evaluate(TALK, [f"ws://127.0.0.1:{site.port}/ws/amqp", 50])
    assert found == [[number, number * 100 + len(str(number))] for number in range(50)]
