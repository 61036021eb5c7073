// amqplib against the broker whose URI is the first argument. Prints one line of JSON; exits with 1 if anything is wrong.

const assert = require("node:assert");
const amqp = require("amqplib");

async function main(uri) {
  const connection = await amqp.connect(uri);
  const channel = await connection.createConfirmChannel();

  await channel.assertExchange("node.source", "topic", { durable: true });
  await channel.assertExchange("node.target", "fanout", { internal: true, durable: false });
  await channel.bindExchange("node.target", "node.source", "a.#");
  await channel.assertQueue("node", { durable: true, deadLetterExchange: "", deadLetterRoutingKey: "node.dead" });
  await channel.assertQueue("node.dead", { durable: true });
  await channel.bindQueue("node", "node.target", "");

  for (let n = 0; n < 500; n++) {
    channel.publish("node.source", "a.b", Buffer.from(String(n)), { persistent: true, headers: { n } });
  }
  await channel.waitForConfirms();
  assert.strictEqual((await channel.checkQueue("node")).messageCount, 500);

  const returned = new Promise((resolve) => channel.once("return", resolve));
  channel.publish("", "nowhere", Buffer.from("back"), { mandatory: true });
  assert.strictEqual((await returned).fields.replyCode, 312);
  await channel.waitForConfirms();

  await channel.prefetch(10);
  const seen = [];
  await new Promise((resolve) => {
    channel.consume("node", (message) => {
      seen.push(Number(message.content));
      if (seen.length % 100 === 1 && !message.fields.redelivered) {
        channel.nack(message, false, true);
        seen.pop();
      } else if (seen.length % 100 === 0) {
        channel.reject(message, false);
      } else {
        channel.ack(message);
      }
      if (seen.length === 500) resolve();
    }, { consumerTag: "reader" });
  });
  await channel.cancel("reader");
  assert.deepStrictEqual([...seen].sort((a, b) => a - b), [...Array(500).keys()]);

  const dead = await channel.get("node.dead", { noAck: true });
  assert.strictEqual(dead.properties.headers["x-death"][0].reason, "rejected");
  assert.strictEqual(dead.fields.messageCount, 4);
  assert.strictEqual((await channel.purgeQueue("node.dead")).messageCount, 4);
  assert.strictEqual(await channel.get("node.dead"), false);

  const cancelled = new Promise((resolve) => channel.consume("node", (message) => message === null && resolve()));
  await new Promise((resolve) => setTimeout(resolve, 50));
  await channel.deleteQueue("node");
  await cancelled;
  await channel.deleteQueue("node.dead");
  await channel.unbindExchange("node.target", "node.source", "a.#");
  await channel.deleteExchange("node.target");
  await channel.deleteExchange("node.source");

  const broken = await connection.createChannel();
  broken.on("error", () => {});
  await assert.rejects(broken.checkQueue("node.absent"), /404/);
  await channel.close();
  await connection.close();
  console.log(JSON.stringify({ seen: seen.length }));
}

main(process.argv[2]).catch((error) => {
  console.error(error);
  process.exit(1);
});
