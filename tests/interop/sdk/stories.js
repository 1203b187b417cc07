// The stories of stories.py, by Apache's client for Node.js: ENDPOINT STORY TOPIC GROUP
'use strict';
const { Producer, SimpleConsumer, PushConsumer, ConsumeResult, FilterExpression } = require('rocketmq-client-nodejs');
const { TransactionResolution, FilterType } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const WAIT_MS = 60000;
const [endpoints, story, topic, group, accessKey, accessSecret] = process.argv.slice(2);
const shared = { endpoints, namespace: '', requestTimeout: 10000,
  ...(accessKey ? { sslEnabled: true, sessionCredentials: { accessKey, accessSecret } } : {}) }; // over TLS
const opened = [];
const asked = [];
const sleep = ms => new Promise(done => setTimeout(done, ms));

async function started(client) {
  await client.startup();
  opened.push(client);
  return client;
}

const producer = () => started(new Producer({ ...shared, topics: [topic], topic, maxAttempts: 3,
  checker: { async check(view) { asked.push(view.body.toString()); return TransactionResolution.COMMIT; } } }));

const consumer = (expression = '*', name = group) => started(new SimpleConsumer({ ...shared,
  consumerGroup: name, subscriptions: new Map().set(topic, expression), awaitDuration: 5000 }));

const message = (number, more = {}) => ({ topic, body: Buffer.from(`body ${number}`), ...more });

async function drain(from, count, ms = WAIT_MS) {
  const found = [];
  const end = Date.now() + ms;
  while (found.length < count && Date.now() < end) {
    for (const view of await from.receive(32, 15000)) {
      await from.ack(view);
      found.push(view);
    }
  }
  return found;
}

const bodies = views => views.map(each => each.body.toString()).sort();

async function listened(fails, count, send) {
  const seen = [];
  await started(new PushConsumer({ ...shared, consumerGroup: group, subscriptions: new Map().set(topic, '*'),
    messageListener: { async consume(view) {
      const body = view.body.toString();
      seen.push([body, view.deliveryAttempt]);
      if ((fails[body] || 0) > 0) {
        fails[body] -= 1;
        return ConsumeResult.FAILURE;
      }
      return ConsumeResult.SUCCESS;
    } } }));
  await send(await producer());
  const end = Date.now() + WAIT_MS;
  while (seen.length < count && Date.now() < end) await sleep(50);
  return seen;
}

const stories = {
  async simple() {
    const from = await consumer();
    const to = await producer();
    const sent = new Map();
    for (let number = 0; number < 10; number++) {
      const receipt = await to.send(message(number, { tag: `tag${number % 2}`, keys: [`key${number}`, 'all'],
        properties: new Map([['shop', `shop ${number}`]]) }));
      sent.set(receipt.messageId, number);
    }
    const found = await drain(from, 10);
    found.sort((left, right) => (left.body.toString() < right.body.toString() ? -1 : 1));
    const seen = found.map(view => ({ number: sent.get(view.messageId), body: view.body.toString(), tag: view.tag,
      keys: [...view.keys].sort(), shop: view.properties.get('shop'), attempt: view.deliveryAttempt,
      corrupted: Boolean(view.corrupted) }));
    return { seen, left: (await from.receive(1, 15000)).length };
  },
  async change() {
    const from = await consumer();
    await (await producer()).send(message(1));
    let first = [];
    while (!first.length) first = await from.receive(1, 60000);
    const began = Date.now();
    const attempt = first[0].deliveryAttempt;
    await from.changeInvisibleDuration(first[0], 2000);
    let again = [];
    while (!again.length && Date.now() - began < WAIT_MS) again = await from.receive(1, 15000);
    const seconds = (Date.now() - began) / 1000;
    await from.ack(again[0]);
    return { same: again[0].messageId === first[0].messageId, attempts: [attempt, again[0].deliveryAttempt], seconds,
      left: (await from.receive(1, 15000)).length };
  },
  async push() {
    const seen = await listened({ 'body 3': 1 }, 11, async to => {
      for (let number = 0; number < 10; number++) await to.send(message(number));
    });
    seen.sort((left, right) => (left.join() < right.join() ? -1 : 1));
    return { seen };
  },
  async fifo() {
    const seen = await listened({ 'body 2': 1 }, 7, async to => {
      for (let number = 0; number < 6; number++) await to.send(message(number, { messageGroup: 'order-1' }));
    });
    return { seen: seen.map(each => each[0]) };
  },
  async delay() {
    const from = await consumer();
    const to = await producer();
    const began = Date.now();
    await to.send(message(1, { deliveryTimestamp: new Date(began + 4000) }));
    const later = await to.send(message(2, { deliveryTimestamp: new Date(began + 10000) }));
    const recalled = Boolean(await to.recallMessage(topic, later.recallHandle));
    const found = await drain(from, 1);
    const seconds = (Date.now() - began) / 1000;
    return { bodies: bodies(found), seconds, recalled, left: bodies(await drain(from, 1, 14000)) };
  },
  async transaction() {
    const from = await consumer();
    const to = await producer();
    for (const [number, verb] of [[1, 'commit'], [2, 'rollback'], [3, '']]) {
      const begun = to.beginTransaction();
      await to.send(message(number), begun);
      if (verb) await begun[verb]();
    }
    const found = await drain(from, 2);
    return { bodies: bodies(found), asked: [...new Set(asked)].sort(), left: (await from.receive(1, 15000)).length };
  },
  async filters() {
    const byTag = await consumer('red || blue');
    const to = await producer();
    for (const [number, tag] of ['red', 'green', 'blue', 'red'].entries()) {
      await to.send(message(number, { tag }));
    }
    const tagged = bodies(await drain(byTag, 3));
    const bySql = await consumer(new FilterExpression('size > 1', FilterType.SQL), `${group}-sql`);
    await bySql.receive(1, 15000);
    for (let number = 0; number < 4; number++) {
      await to.send(message(number + 10, { properties: new Map([['size', String(number)]]) }));
    }
    return { tagged, sized: bodies(await drain(bySql, 2)) };
  },
  async dead() {
    const seen = await listened({ 'body 1': 100 }, 2, to => to.send(message(1)));
    for await (const _ of process.stdin); // until the test has seen the dead letter
    return { attempts: seen.map(each => each[1]) };
  },
};

(async () => {
  const result = await stories[story]();
  console.log(`RESULT ${JSON.stringify(result)}`);
  for (const client of opened.reverse()) await Promise.race([client.shutdown().catch(() => {}), sleep(5000)]);
  process.exit(0);
})().catch(error => { console.error(error); process.exit(1); });
