#!/usr/bin/env node
// Several helpers try the same task, each in a fork; the first that succeeds is merged.
// fanout.mjs BASE N COMMAND...   (the program is $TREEFORK, else treefork in the search path)
import { spawn } from "node:child_process";
import { text } from "node:stream/consumers";

const program = process.env.TREEFORK ?? "treefork";

async function treefork(...args) {
  const child = spawn(program, ["--json", ...args], { stdio: ["ignore", "pipe", "inherit"] });
  const exit = new Promise((resolve) => child.on("close", resolve));
  const output = await text(child.stdout);
  const answer = args[0] === "exec" ? output.trimEnd().split("\n").at(-1) : output;
  return { status: await exit, answer: JSON.parse(answer) };
}

const [base, n, ...command] = process.argv.slice(2);
if (!(Number(n) > 0) || command.length === 0) {
  console.error("usage: fanout.mjs BASE N COMMAND...");
  process.exit(2);
}
let winner = null;
let merging = Promise.resolve();

async function attempt() {
  const { status, answer } = await treefork("create", base);
  if (status !== 0) throw new Error(answer.error.message);
  const ran = await treefork("exec", answer.id, "--", ...command);
  merging = merging.then(async () => {
    const wins = winner === null && ran.status === 0 && (await treefork("merge", answer.id)).status === 0;
    if (wins) winner = answer.id;
    await treefork("remove", answer.id); // also where the merge has removed it
  });
  await merging;
}

await Promise.all(Array.from({ length: Number(n) }, attempt));
console.log(winner ? `merged ${winner}` : "no helper succeeded");
process.exit(winner ? 0 : 1);
