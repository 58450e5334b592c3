// The client of the npm package zmq-raft at work, for bench_raft.py.
//
//   node raft_node_client.js FOLDER URL,URL,...
//
// FOLDER has the package under node_modules. Orders come in as JSON, one on a line, and so do the answers go out:
//
//   {"do": "append", "count": 500, "size": 100, "in_flight": 1}   -> {"operations", "seconds", "cpu_s"}
//   {"do": "read", "after": 0, "count": 50000}                    -> {"operations", "seconds", "cpu_s"}
//   {"do": "open"}       a new client that knows the leader       -> {"operations", "seconds", "cpu_s"}
"use strict";

const readline = require("readline");

const [folder, urls] = process.argv.slice(2);
const { client: { ZmqRaftClient }, utils: { id: { genIdent } } } = require(
  require.resolve("zmq-raft", { paths: [folder] })
);

let client = null;

async function open() {
  if (client) client.close();
  client = new ZmqRaftClient(urls.split(","));
  await client.requestConfig(10000);
  return 1;
}

async function append({ count, size, in_flight }) {
  const data = Buffer.alloc(size, "v");
  let started = 0;
  const worker = async () => {
    while (started < count) {
      started += 1;
      await client.requestUpdate(genIdent(), data);
    }
  };
  await Promise.all(Array.from({ length: in_flight }, worker));
  return count;
}

async function read({ after, count }) {
  let entries = 0;
  await client.requestEntries(after, count, (status, batch) => {
    entries += batch.length;
  });
  return entries;
}

async function timed(work, order) {
  const cpu = process.cpuUsage();
  const start = process.hrtime.bigint();
  const operations = await work(order);
  const seconds = Number(process.hrtime.bigint() - start) / 1e9;
  const used = process.cpuUsage(cpu);
  return { operations, seconds, cpu_s: (used.user + used.system) / 1e6 };
}

const works = { append, open, read };

(async () => {
  await open();
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const order = JSON.parse(line);
    process.stdout.write(JSON.stringify(await timed(works[order.do], order)) + "\n");
  }
  client.close();
})().catch(error => {
  console.error(error);
  process.exit(1);
});
