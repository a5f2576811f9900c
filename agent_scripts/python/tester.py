"""Sends questions to an agent, one after the other, prints each answer, and ends.

    gagent run --name tester -- python tester.py llm "What is FIPA?" "And what is ACL?"
    GAGENT_NAME=tester python tester.py llm "What is FIPA?"

Target and questions may also come as TESTER_TARGET and TESTER_QUESTIONS (one a line), or as the keys `target` and
`questions` of the configuration. Answers go to stdout; under the bridge that is stderr, and so the bridge's log.
"""

import os
import sys

import gagent_py

QUESTIONS = ["Who are you?", "What did I ask you before?"]


class Tester(gagent_py.Agent):
    def on_start(self):
        target, questions = [*sys.argv[1:2], None][0], sys.argv[2:]
        self.target = target or self.config.get("target") or os.environ.get("TESTER_TARGET") or "llm"
        self.questions = list(
            questions
            or self.config.get("questions")
            or os.environ.get("TESTER_QUESTIONS", "").splitlines()
            or QUESTIONS
        )
        self.conversation = f"test-{os.getpid()}"
        self.asked = 0
        return self.ask_next()

    def ask_next(self):
        if self.asked == len(self.questions):
            return self.delete()
        question = self.questions[self.asked]
        self.asked += 1
        print(f"{self.target} < {question}", flush=True)
        return self.send(
            self.target,
            "request",
            question,
            conversation_id=self.conversation,
            reply_with=f"{self.conversation}-{self.asked}",
        )

    def on_message(self, msg):
        if msg.conversation_id != self.conversation or msg.performative == "agree":
            return self.noop()
        act = "" if msg.performative == "inform" else f"({msg.performative}) "
        print(f"{msg.sender} > {act}{msg.content}", flush=True)
        return self.ask_next()


Tester().run()
