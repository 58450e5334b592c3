// The client and the subscriber of the npm package zmq-raft, on peers that are not Node's.
//
//   node node_client.js FOLDER URL,URL,... COUNT
//
// FOLDER has the package under node_modules. What it has seen goes out as JSON, one on a line, "half" when half of the
// entries are appended; it goes on when a line comes in.
"use strict";

const readline = require("readline");

const [folder, seeds, count] = process.argv.slice(2);
const { client: { ZmqRaftClient, ZmqRaftSubscriber }, utils: { id: { genIdent } } } = require(
  require.resolve("zmq-raft", { paths: [folder] })
);
const urls = seeds.split(",");
const say = (name, value) => process.stdout.write(JSON.stringify([name, value]) + "\n");
const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();

(async () => {
  const client = new ZmqRaftClient(urls);
  const config = await client.requestConfig(20000);
  say("config", { leader: config.leaderId, peers: config.peers });

  const heard = [];
  const subscriber = new ZmqRaftSubscriber(urls, { lastIndex: 0 });
  const done = new Promise((resolve, reject) => {
    subscriber.on("error", reject);
    subscriber.on("data", entry => {
      if (entry.isStateEntry) heard.push([entry.logIndex, entry.readEntryData().toString()]);
      if (heard.length === Number(count)) resolve();
    });
  });

  const appended = [];
  for (let begin = 0; begin < count; begin += count / 2) {
    const batch = Array.from({ length: count / 2 }, (_, n) => `entry ${begin + n}`);
    const indexes = await Promise.all(batch.map(data => client.requestUpdate(genIdent(), Buffer.from(data), 60000)));
    appended.push(...indexes.map((index, n) => [index, batch[n]]));
    say("half", null);
    await lines.next();
  }
  say("appended", appended);

  const info = await client.requestLogInfo(false, 20000);
  say("info", { last: info.lastApplied, first: info.firstIndex });
  const read = [];
  await client.requestEntries(0, undefined, (status, entries) => {
    for (const frame of entries) read.push(frame.toString("hex"));
  }, 60000);
  say("read", read);
  await done;
  say("heard", heard);

  const same = config.peers.slice().reverse();
  const forms = [
    same.map(([id, url]) => [id, url]),
    config.peers.map(([id, url]) => ({ id, url })),
  ];
  for (const peers of forms) await client.configUpdate(genIdent(), peers, 20000);
  try {
    await client.configUpdate(genIdent(), forms[1], 20000);
  } catch (error) {
    say("refused", error.message);
  }
  say("changed", (await client.requestConfig(20000)).peers);
  subscriber.close();
  client.close();
  process.exit(0);
})().catch(error => {
  console.error(error);
  process.exit(1);
});
