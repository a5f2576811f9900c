"""Answers requests with a language model: OpenAI where OPENAI_API_KEY is set, else an echo that says what it is.

    OPENAI_API_KEY=... gagent run llm.py --system-prompt "Be brief."
    gagent request llm "What is a mailbox?"

OPENAI_BASE_URL points it to any other server that speaks the same API, such as http://localhost:11434/v1 for Ollama.
Each conversation with each sender has a history of its own, cut to the last `max_history` questions with their answers.
"""

import os
import sys
import time
from collections import OrderedDict
from datetime import datetime

import gagent_py

MAX_CONVERSATIONS = 1000  # Beyond that the one that was quiet for the longest is forgotten.
TIMEOUT_S = (
    100  # For one question: below the 120 s that `gagent run` waits. The library tries once more when a call fails.
)


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
        self.client = openai.OpenAI(max_retries=1)
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
        left = time_left(msg)
        if left <= 0:
            return self.reply(msg, "failure", "timeout: its reply-by had passed before its turn came")
        try:
            text = self.ask_model(self.histories.get(key, []), msg.content, left)
        except Exception as error:
            # Only its kind: what a vendor's error says may hold a part of the key.
            print(f"llm: the model failed: {error}", file=sys.stderr)
            return self.reply(msg, "failure", f"model-error: {type(error).__name__}")
        if not text:
            return self.reply(msg, "failure", "model-error: an empty answer")
        self.remember(key, msg.content, text)
        return self.reply(msg, "inform", text)

    def ask_model(self, history, question, left):
        messages = [{"role": "system", "content": self.system_prompt}] if self.system_prompt else []
        for earlier, answer in history:
            messages += [{"role": "user", "content": earlier}, {"role": "assistant", "content": answer}]
        messages.append({"role": "user", "content": question})
        client = self.client.with_options(timeout=left / 2)
        done = client.chat.completions.create(model=self.model, max_tokens=self.max_tokens, messages=messages)
        return (done.choices[0].message.content or "").strip()

    def remember(self, key, question, answer):
        turns = [*self.histories.pop(key, []), (question, answer)]
        self.histories[key] = turns[-self.max_history :] if self.max_history else []
        if len(self.histories) > MAX_CONVERSATIONS:
            self.histories.popitem(last=False)


def time_left(msg):
    """Return the seconds in which an answer is of use."""
    if not msg.reply_by:
        return TIMEOUT_S
    return min(TIMEOUT_S, datetime.fromisoformat(msg.reply_by).timestamp() - time.time() - 0.5)


Assistant().run()
