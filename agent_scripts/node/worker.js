// Works on tasks: counts the words of texts, a text at a time, and tells how far it is. Run it with: gagent run worker.js
const lines = require("readline").createInterface({ input: process.stdin });

lines.on("line", (line) => {
  const { event, id, ...more } = JSON.parse(line);
  if (event === "stop") process.exit(0);
  let answer = { action: "noop" };
  if (event === "start") answer = { action: "noop", extensions: ["delegate"] };
  if (event === "delegate") answer = { actions: work(more) };
  console.log(JSON.stringify({ ...answer, id }));
});

function work({ task_id, delegator, parameters }) {
  const about = { task_id, delegator };
  const texts = parameters.texts;
  if (!Array.isArray(texts)) return [{ action: "reject", reason: "expected the parameter texts: a list of texts", ...about }];
  const counts = texts.map((text) => text.split(/\s+/).filter(Boolean).length);
  return [
    ...counts.map((count, at) => ({ action: "output", text: `text ${at + 1}: ${count} words\n`, ...about })),
    { action: "complete", result: { words: counts.reduce((sum, count) => sum + count, 0), counts }, ...about },
  ];
}
