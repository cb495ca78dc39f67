// BullMQ on node: `worker`, or a client that is told line by line what client.py is told, too.
const fs = require("fs");
const readline = require("readline");
const { FlowProducer, Queue, Worker } = require("bullmq");

const CALLERS = 64;
const STAGES = ["first", "second", "third"];
const url = new URL(process.env.BENCH_URL);
const connection = { host: url.hostname, port: +url.port, db: +url.pathname.slice(1), maxRetriesPerRequest: null };
const slots = +process.env.BENCH_SLOTS || 100;
const unkept = { removeOnComplete: true };
const soon = process.env.BENCH_SAFE === "1" ? { lockDuration: 5000, stalledInterval: 5000, maxStalledCount: 3 } : {};

const clock = () => process.hrtime.bigint();
const sleep = (seconds) => new Promise((done) => setTimeout(done, seconds * 1000));
const numbers = (begin, count) => Array.from({ length: count }, (_, n) => begin + n);
const noop = (i) => ({ name: "noop", data: { i }, opts: unkept });
const stage = (i, kind) => ({ name: "stage", queueName: "bench", data: { i, kind }, opts: unkept });

let ledger = -1;
function note(i, kind) {
  const now = clock();
  if (ledger < 0) ledger = fs.openSync(process.env.BENCH_LEDGER, "a");
  fs.writeSync(ledger, `${i} ${kind} ${now}\n`);
}

async function run(job) {
  const { i, kind } = job.data;
  if (job.name !== "long") return note(i, kind || "job");
  note(i, "begin");
  await sleep(+process.env.BENCH_LONG);
  note(i, "end");
}

const phases = (queue, flow) => ({
  async submit(begin, count) {
    for (const i of numbers(begin, count)) await queue.add("noop", { i }, unkept);
  },
  async bulk(begin, count) {
    for (let start = 0; start < count; start += 1000)
      await queue.addBulk(numbers(begin + start, Math.min(1000, count - start)).map(noop));
  },
  async chains(begin, count) {
    const left = numbers(begin, count).values();
    const call = async () => {
      for (const i of left)
        await flow.add({ ...stage(i, STAGES[2]), children: [{ ...stage(i, STAGES[1]), children: [stage(i, STAGES[0])] }] });
    };
    await Promise.all(numbers(0, CALLERS).map(call));
  },
  async apart(begin, count, gap) {
    const asked = {};
    const began = clock();
    for (const i of numbers(begin, count)) {
      await sleep(Math.max(0, (i - begin) * gap - Number(clock() - began) / 1e9));
      asked[i] = Number(clock());
      await queue.add("noop", { i }, unkept);
    }
    return { asked };
  },
  async long(begin, count) {
    for (const i of numbers(begin, count)) await queue.add("long", { i }, unkept);
  },
  async setup() {},
  async connect() {
    await queue.waitUntilReady();
  },
  async close() {
    await flow.close();
    await queue.close();
  },
});

async function serve() {
  const known = phases(new Queue("bench", { connection }), new FlowProducer({ connection }));
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [phase, ...words] = line.trim().split(/\s+/);
    const began = Number(clock());
    const told = await known[phase](...words.map(Number));
    console.log(JSON.stringify({ began, ended: Number(clock()), ...told }));
  }
  process.exit(0);
}

if (process.argv[2] === "worker") new Worker("bench", run, { connection, concurrency: slots, ...soon });
else serve();
