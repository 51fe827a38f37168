'use strict';
/* Conversations that tests/server/test_amqplib.py has with a broker over npm's amqplib, one by one:
 *
 *   node client.js SCENE URL
 *
 * Ends with status 0 and says nothing when all went as it should. */
const assert = require('node:assert');
const amqp = require('amqplib');

const COUNT = 100;

/* The first COUNT messages that a consumer gets, acked unless it consumes without. */
async function consume(channel, queue, { count = COUNT, noAck = false } = {}) {
  const got = [];
  await new Promise((resolve, reject) => {
    channel.consume(queue, (message) => {
      assert.notEqual(message, null);
      got.push(message);
      if (!noAck) channel.ack(message);
      if (got.length === count) resolve();
    }, { noAck }).catch(reject);
  });
  return got;
}

const event = (emitter, name) => new Promise((resolve) => emitter.once(name, resolve));
const texts = (messages) => messages.map((message) => message.content.toString());
const numbers = (count) => Array.from({ length: count }, (_, n) => `${n}`);

const scenes = {
  async publish_and_consume(connection) {
    const channel = await connection.createChannel();
    const { queue } = await channel.assertQueue('', { exclusive: true });
    for (const text of numbers(COUNT)) {
      channel.sendToQueue(queue, Buffer.from(text), { persistent: true, messageId: text, headers: { n: [1, 'a'] } });
    }
    const got = await consume(channel, queue);
    assert.deepEqual(texts(got), numbers(COUNT));
    assert.deepEqual(got[7].properties.headers, { n: [1, 'a'] });
    assert.equal(got[7].properties.messageId, '7');
    assert.equal(got[7].fields.redelivered, false);
  },

  async confirm(connection) {
    const channel = await connection.createConfirmChannel();
    const { queue } = await channel.assertQueue('amqplib.confirm', { durable: true });
    let confirmed = 0;
    for (const text of numbers(COUNT)) {
      channel.sendToQueue(queue, Buffer.from(text), { persistent: true }, (error) => {
        assert.equal(error, null);
        confirmed += 1;
      });
    }
    await channel.waitForConfirms();
    assert.equal(confirmed, COUNT);
    assert.equal((await channel.checkQueue(queue)).messageCount, COUNT);
    assert.equal((await channel.purgeQueue(queue)).messageCount, COUNT);
    assert.equal((await channel.deleteQueue(queue)).messageCount, 0);
  },

  async prefetch(connection) {
    const channel = await connection.createChannel();
    const { queue } = await channel.assertQueue('', { exclusive: true });
    await channel.prefetch(3);
    const held = [];
    await new Promise((resolve) => {
      channel.consume(queue, (message) => {
        held.push(message);
        if (held.length === 3) resolve();
      });
      for (const text of numbers(10)) channel.sendToQueue(queue, Buffer.from(text));
    });
    assert.equal((await channel.checkQueue(queue)).messageCount, 7);
    assert.equal(held.length, 3);
    const all = new Promise((resolve) => {
      const timer = setInterval(() => {
        const next = held.find((message) => !message.acked);
        if (next) { next.acked = true; channel.ack(next); }
        if (held.length === 10) { clearInterval(timer); resolve(); }
      }, 1);
    });
    await all;
    assert.deepEqual(texts(held), numbers(10));
  },

  async global_prefetch(connection) {
    const channel = await connection.createChannel();
    const { queue } = await channel.assertQueue('', { exclusive: true });
    await channel.prefetch(2, true);
    let count = 0;
    await channel.consume(queue, () => { count += 1; });
    await channel.consume(queue, () => { count += 1; });
    for (const text of numbers(5)) channel.sendToQueue(queue, Buffer.from(text));
    while ((await channel.checkQueue(queue)).messageCount !== 3);
    assert.equal(count, 2);
  },

  async rpc_by_direct_reply(connection, url) {
    const other = await amqp.connect(url);
    const server = await other.createChannel();
    const { queue } = await server.assertQueue('', { exclusive: true, autoDelete: true });
    await server.consume(queue, (message) => {
      const { replyTo, correlationId } = message.properties;
      server.sendToQueue(replyTo, Buffer.from(`${2 * Number(message.content)}`), { correlationId });
    }, { noAck: true });
    const channel = await connection.createChannel();
    const answers = new Map();
    let done;
    const all = new Promise((resolve) => { done = resolve; });
    await channel.consume('amq.rabbitmq.reply-to', (message) => {
      answers.set(message.properties.correlationId, message.content.toString());
      if (answers.size === COUNT) done();
    }, { noAck: true });
    for (const text of numbers(COUNT)) {
      channel.publish('', queue, Buffer.from(text), { replyTo: 'amq.rabbitmq.reply-to', correlationId: text });
    }
    await all;
    assert.equal(answers.get('21'), '42');
    await other.close();
  },

  async rpc_by_a_queue_of_replies(connection) {
    const channel = await connection.createChannel();
    const { queue: requests } = await channel.assertQueue('', { exclusive: true });
    const { queue: replies } = await channel.assertQueue('', { exclusive: true });
    await channel.consume(requests, (message) => {
      channel.sendToQueue(message.properties.replyTo, message.content, message.properties);
    }, { noAck: true });
    channel.sendToQueue(requests, Buffer.from('?'), { replyTo: replies, correlationId: '7' });
    const [reply] = await consume(channel, replies, { count: 1, noAck: true });
    assert.equal(reply.properties.correlationId, '7');
  },

  async exchanges(connection) {
    const channel = await connection.createChannel();
    const { queue } = await channel.assertQueue('', { exclusive: true });
    await channel.assertExchange('amqplib.topic', 'topic', { durable: false, autoDelete: true });
    await channel.assertExchange('amqplib.fanout', 'fanout', { durable: false, autoDelete: true });
    await channel.bindExchange('amqplib.fanout', 'amqplib.topic', 'a.#');
    await channel.bindQueue(queue, 'amqplib.fanout', '');
    channel.publish('amqplib.topic', 'a.b', Buffer.from('hit'));
    channel.publish('amqplib.topic', 'b.b', Buffer.from('miss'));
    channel.publish('amqplib.topic', 'a', Buffer.from('hit'));
    assert.deepEqual(texts(await consume(channel, queue, { count: 2, noAck: true })), ['hit', 'hit']);
    await channel.unbindExchange('amqplib.fanout', 'amqplib.topic', 'a.#');
    assert.equal((await channel.checkQueue(queue)).messageCount, 0);
  },

  async get_nack_and_requeue(connection) {
    const channel = await connection.createConfirmChannel();
    const { queue } = await channel.assertQueue('', { exclusive: true });
    assert.equal(await channel.get(queue), false);
    for (const text of numbers(3)) channel.sendToQueue(queue, Buffer.from(text));
    await channel.waitForConfirms();
    const [zero, one, two] = [await channel.get(queue), await channel.get(queue), await channel.get(queue)];
    assert.equal(zero.fields.messageCount, 2);
    channel.nack(one, false, false);
    channel.nack(two);
    channel.reject(zero, true);
    const got = await consume(channel, queue, { count: 2 });
    assert.deepEqual(texts(got), ['0', '2']);
    assert.equal(got[0].fields.redelivered, true);
  },

  async returns(connection) {
    const channel = await connection.createConfirmChannel();
    const returned = event(channel, 'return');
    channel.publish('', 'nowhere', Buffer.from('back'), { mandatory: true });
    await channel.waitForConfirms();
    const message = await returned;
    assert.equal(message.fields.replyCode, 312);
    assert.equal(message.content.toString(), 'back');
  },

  async errors_close_the_channel(connection) {
    const channel = await connection.createChannel();
    const failed = event(channel, 'error');
    await assert.rejects(channel.checkQueue('missing'), /404 \(NOT-FOUND\).*no queue 'missing' in vhost '\/'/);
    assert.equal((await failed).code, 404);
    const next = await connection.createChannel();
    next.on('error', () => {});
    await next.assertQueue('amqplib.conflict', { durable: false, autoDelete: true });
    await assert.rejects(next.assertQueue('amqplib.conflict', { durable: true, autoDelete: true }),
      /406 \(PRECONDITION-FAILED\).*inequivalent arg 'durable'/);
    await (await connection.createChannel()).deleteQueue('amqplib.conflict');
  },

  async cancelled_consumers_are_told(connection) {
    const channel = await connection.createChannel();
    const { queue } = await channel.assertQueue('amqplib.cancel', { durable: false });
    const told = new Promise((resolve) => { channel.consume(queue, resolve); });
    const other = await connection.createChannel();
    await other.deleteQueue(queue);
    assert.equal(await told, null);
  },

  async large_bodies(connection) {
    const channel = await connection.createChannel();
    const { queue } = await channel.assertQueue('', { exclusive: true });
    const body = Buffer.alloc(3_000_000, 'body ');
    channel.sendToQueue(queue, body);
    const [message] = await consume(channel, queue, { count: 1 });
    assert.ok(message.content.equals(body));
  },

  async dead_letters(connection) {
    const channel = await connection.createConfirmChannel();
    const { queue: dead } = await channel.assertQueue('', { exclusive: true });
    const { queue } = await channel.assertQueue('', {
      exclusive: true, deadLetterExchange: '', deadLetterRoutingKey: dead, messageTtl: 2000, maxLength: 5, expires: 60000,
    });
    for (const text of numbers(7)) channel.sendToQueue(queue, Buffer.from(text));
    const got = await consume(channel, dead, { count: 7 });
    assert.deepEqual(texts(got), numbers(7));
    assert.deepEqual(got.map((message) => message.properties.headers['x-death'][0].reason),
      ['maxlen', 'maxlen', 'expired', 'expired', 'expired', 'expired', 'expired']);
  },

  async priorities(connection) {
    const channel = await connection.createConfirmChannel();
    const { queue } = await channel.assertQueue('', { exclusive: true, maxPriority: 5 });
    for (const priority of [1, 5, 3]) channel.sendToQueue(queue, Buffer.from(`${priority}`), { priority });
    await channel.waitForConfirms();
    assert.deepEqual(texts(await consume(channel, queue, { count: 3 })), ['5', '3', '1']);
  },

  async heartbeats(_, url) {
    const connection = await amqp.connect(`${url}?heartbeat=1`);
    const failed = event(connection, 'error');
    const waited = new Promise((resolve) => { setTimeout(resolve, 2600); });
    assert.equal(await Promise.race([failed, waited]), undefined);
    await connection.close();
  },

  async refused_logins(_, url) {
    const wrong = new URL(url);
    wrong.password = 'wrong';
    await assert.rejects(amqp.connect(wrong.toString()), /403 \(ACCESS-REFUSED\)/);
    wrong.password = 'guest';
    wrong.pathname = '/missing';
    await assert.rejects(amqp.connect(wrong.toString()), /ConnectionClose|530 \(NOT-ALLOWED\)/);
  },

  async update_secret(connection) {
    await connection.updateSecret(Buffer.from('guest'), 'as a test');
    await connection.createChannel();
  },
};

async function main([name, url]) {
  if (name === undefined) {
    process.stdout.write(`${Object.keys(scenes).join('\n')}\n`);
    return;
  }
  const connection = await amqp.connect(url);
  const channels = [];
  for (const make of ['createChannel', 'createConfirmChannel']) {
    const made = connection[make].bind(connection);
    connection[make] = async () => {
      channels.push(await made());
      return channels.at(-1);
    };
  }
  await scenes[name](connection, url);
  /* What a channel still has to send is sent before its close, and not behind that of the connection. */
  await Promise.allSettled(channels.map(async (channel) => channel.close()));
  await connection.close();
}

main(process.argv.slice(2)).catch((error) => {
  process.stderr.write(`${error.stack}\n`);
  process.exit(1);
});
