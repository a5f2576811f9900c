// Answers each request with its own content. Run it with: gagent run echo.js
const lines = require("readline").createInterface({ input: process.stdin });

lines.on("line", (line) => {
  const { event, id, msg } = JSON.parse(line);
  if (event === "stop") process.exit(0);
  let answer = { action: "noop" };
  if (event === "message" && msg.performative === "request") {
    const reply = { performative: "inform", content: msg.content, conversation_id: msg.conversation_id, in_reply_to: msg.reply_with };
    answer = { action: "send", to: msg.sender, msg: reply };
  }
  // Repeating the id is optional; it keeps answers and events together whatever happens.
  console.log(JSON.stringify({ ...answer, id }));
});
