"""Answers requests with a language model: OpenAI where OPENAI_API_KEY is set, else an echo that says what it is.

    OPENAI_API_KEY=... gagent run llm.py --system-prompt "Be brief."
    gagent request llm "What is a mailbox?"

OPENAI_BASE_URL points it to any other server that speaks the same API, such as http://localhost:11434/v1 for Ollama.
Each conversation with each sender has a history of its own, cut to the last `max_history` questions with their answers.
"""

import os
import sys
from collections import OrderedDict

import gagent_py

MAX_CONVERSATIONS = 1000  # Beyond that the one that was quiet for the longest is forgotten.
TIMEOUT_S = 60  # For one call; the library tries twice more when the server is busy.


class Assistant(gagent_py.Agent):
    def on_start(self):
        self.histories = OrderedDict()  # (sender, conversation_id) -> [(question, answer), ...]
        self.client = None
        if not os.environ.get("OPENAI_API_KEY"):
            print("llm: OPENAI_API_KEY is not set, so this agent only echoes", file=sys.stderr)
            return self.noop()
        try:
            import openai  # noqa: PLC0415  # Not needed for the echo.
        except ImportError:
            sys.exit("llm: the openai package is missing. Install it: pip install 'gagent-grpc[llm]'")
        self.client = openai.OpenAI(timeout=TIMEOUT_S)
        print(f"llm: answers with {self.model} at {self.client.base_url.host}", file=sys.stderr)
        return self.noop()

    def on_message(self, msg):
        if msg.performative != "request":
            return self.noop()
        if not isinstance(msg.content, str):
            return self.reply(msg, "not-understood", "expected text")
        if self.client is None:
            return self.reply(msg, "inform", f"(echo: no OPENAI_API_KEY) {msg.content}")
        key = (msg.sender, msg.conversation_id)
        try:
            text = self.ask_model(self.histories.get(key, []), msg.content)
        except Exception as error:
            # Only its kind: what a vendor's error says may hold a part of the key.
            print(f"llm: the model failed: {error}", file=sys.stderr)
            return self.reply(msg, "failure", f"model-error: {type(error).__name__}")
        if not text:
            return self.reply(msg, "failure", "model-error: an empty answer")
        self.remember(key, msg.content, text)
        return self.reply(msg, "inform", text)

    def ask_model(self, history, question):
        messages = [{"role": "system", "content": self.system_prompt}] if self.system_prompt else []
        for earlier, answer in history:
            messages += [{"role": "user", "content": earlier}, {"role": "assistant", "content": answer}]
        messages.append({"role": "user", "content": question})
        done = self.client.chat.completions.create(model=self.model, max_tokens=self.max_tokens, messages=messages)
        return (done.choices[0].message.content or "").strip()

    def remember(self, key, question, answer):
        turns = [*self.histories.pop(key, []), (question, answer)]
        self.histories[key] = turns[-self.max_history :] if self.max_history else []
        if len(self.histories) > MAX_CONVERSATIONS:
            self.histories.popitem(last=False)


Assistant().run()
