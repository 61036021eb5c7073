// rhea against the broker on the loopback port that is the first argument. Prints one line of JSON; exits with 1 if
// anything is wrong. The queues rhea, rhea.dead and rhea.selected are there.

const assert = require("node:assert");
const rhea = require("rhea");

const { message, types } = rhea;
const COUNT = 200;

function once(emitter, event) {
  return new Promise((resolve) => emitter.once(event, resolve));
}

// Send all, each with its own outcome; the names of the outcomes by message.
async function send(connection, target, messages) {
  const sender = connection.open_sender({ target });
  await once(sender, "sender_open");
  const outcomes = [];
  let next = 0;
  await new Promise((resolve, reject) => {
    const settled = (name) => () => {
      outcomes.push(name);
      if (outcomes.length === messages.length) resolve();
    };
    for (const name of ["accepted", "rejected", "released"]) sender.on(name, settled(name));
    sender.on("sender_error", (context) => reject(context.sender.error));
    const more = () => {
      while (sender.sendable() && next < messages.length) sender.send(messages[next++]);
    };
    sender.on("sendable", more);
    more();
  });
  sender.close();
  await once(sender, "sender_close");
  return outcomes;
}

// The next `count` messages; `settle(delivery, message)` says what becomes of each.
async function receive(connection, source, count, settle = (delivery) => delivery.accept()) {
  const receiver = connection.open_receiver({ source, credit_window: 0, autoaccept: false });
  const seen = [];
  const done = new Promise((resolve) => {
    receiver.on("message", (context) => {
      seen.push(context.message);
      settle(context.delivery, context.message);
      if (seen.length === count) resolve();
    });
  });
  await once(receiver, "receiver_open");
  receiver.add_credit(count);
  await done;
  const remote = receiver.source;
  receiver.close();
  await once(receiver, "receiver_close");
  return { seen, source: remote };
}

async function drained(connection, source) {
  const receiver = connection.open_receiver({ source, credit_window: 0, autoaccept: false });
  let count = 0;
  receiver.on("message", () => count++);
  await once(receiver, "receiver_open");
  receiver.drain_credit();
  receiver.add_credit(1000);
  await once(receiver, "receiver_drained");
  receiver.close();
  await once(receiver, "receiver_close");
  return count;
}

async function main(port) {
  const connection = rhea.create_container().connect({ host: "127.0.0.1", port, username: "guest", password: "guest", reconnect: false });
  await once(connection, "connection_open");

  // Everything that a message can hold.
  const full = {
    message_id: 7,
    correlation_id: "c-1",
    user_id: "guest",
    subject: "a subject",
    reply_to: "/queues/rhea.dead",
    content_type: "text/plain",
    creation_time: new Date(1700000000123),
    group_id: "g",
    group_sequence: 3,
    durable: true,
    priority: 7,
    application_properties: { text: "é", n: 5, real: 1.5, yes: true, none: null },
    message_annotations: { "x-opt-mine": "kept" },
    body: { list: [1, "two", { three: 3 }] },
  };
  assert.deepStrictEqual(await send(connection, "/queues/rhea", [full]), ["accepted"]);
  const [got] = (await receive(connection, "/queues/rhea", 1)).seen;
  for (const name of ["message_id", "correlation_id", "subject", "reply_to", "content_type", "group_id", "priority", "durable"]) {
    assert.deepStrictEqual(got[name], full[name], name);
  }
  assert.strictEqual(got.user_id.toString(), "guest");
  assert.strictEqual(new Date(got.creation_time).getTime(), 1700000000123);
  assert.deepStrictEqual(got.application_properties, full.application_properties);
  assert.strictEqual(got.message_annotations["x-opt-mine"], "kept");
  assert.deepStrictEqual(got.body, full.body);
  assert.strictEqual(got.first_acquirer, true);

  // In order, all kinds of bodies.
  const many = [];
  for (let n = 0; n < COUNT; n++) many.push({ body: message.data_section(Buffer.from(String(n))), durable: true });
  assert.deepStrictEqual(new Set(await send(connection, "rhea", many)), new Set(["accepted"]));
  const { seen } = await receive(connection, "rhea", COUNT);
  assert.deepStrictEqual(seen.map((m) => m.body.content.toString()), many.map((_, n) => String(n)));
  await send(connection, "rhea", [{ body: message.sequence_section([1, 2]) }, { body: types.wrap_ulong(9) }]);
  const kinds = (await receive(connection, "rhea", 2)).seen;
  assert.deepStrictEqual(kinds[0].body.content, [1, 2]);
  assert.strictEqual(kinds[1].body, 9);

  // Outcomes: released and modified come back, rejected goes to the dead letters.
  await send(connection, "rhea", [{ body: "again" }]);
  await receive(connection, "rhea", 1, (delivery) => delivery.release({ delivery_failed: false }));
  await receive(connection, "rhea", 1, (delivery) => delivery.modified({ delivery_failed: true, undeliverable_here: false, message_annotations: { "x-opt-try": 1 } }));
  const [again] = (await receive(connection, "rhea", 1, (delivery) => delivery.reject({ condition: "amqp:decode-error", description: "no" }))).seen;
  assert.strictEqual(again.delivery_count, 1);
  assert.strictEqual(again.message_annotations["x-opt-try"], 1);
  const [dead] = (await receive(connection, "rhea.dead", 1)).seen;
  assert.strictEqual(dead.body, "again");
  assert.strictEqual(dead.message_annotations["x-first-death-queue"], "rhea");
  assert.strictEqual(dead.message_annotations["x-opt-deaths"][0].reason, "rejected");

  // A selector takes what it wants, and says that it is in force; a copy takes nothing away.
  const colors = [];
  for (let n = 0; n < 10; n++) colors.push({ body: n, application_properties: { color: n % 2 ? "red" : "blue" } });
  await send(connection, "rhea.selected", colors);
  const source = { address: "rhea.selected", filter: rhea.filter.selector("color = 'red' AND NOT amqp.priority > 4") };
  const browsed = await receive(connection, { ...source, distribution_mode: "copy" }, 5);
  assert.deepStrictEqual(browsed.seen.map((m) => m.body), [1, 3, 5, 7, 9]);
  assert.deepStrictEqual(Object.keys(browsed.source.filter), ["jms-selector"]);
  const red = await receive(connection, source, 5);
  assert.deepStrictEqual(red.seen.map((m) => m.body), [1, 3, 5, 7, 9]);
  assert.strictEqual(await drained(connection, { address: "rhea.selected", distribution_mode: "copy" }), 5);

  // A request and its answer by a dynamic node.
  const replies = connection.open_receiver({ source: { dynamic: true } });
  await once(replies, "receiver_open");
  const answer = once(replies, "message");
  await send(connection, {}, [{ to: replies.source.address, body: "answer" }]);
  assert.strictEqual((await answer).message.body, "answer");

  // What is not there is refused.
  const nowhere = connection.open_sender("/queues/nowhere");
  nowhere.on("sender_error", () => {});
  await once(nowhere, "sender_close");
  assert.strictEqual(nowhere.error.condition, "amqp:not-found");

  connection.close();
  await once(connection, "connection_close");
  console.log(JSON.stringify({ seen: seen.length }));
}

main(Number(process.argv[2])).catch((error) => {
  console.error(error);
  process.exit(1);
});
