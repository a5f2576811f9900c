"""Finds agents that offer a service, passes each request on to all of them, and reports what they answered.

    gagent run planner.py
    gagent request planner "Which colour is the sky?"

The service is `answer`, or what PLANNER_SERVICE or the key `service` of the configuration says. It is looked up in the
DF anew for each request, by a message to the agent `df`: agents may come and go.
"""

import json
import os
import time

import gagent_py

DEADLINE_S = 60  # Who has not answered by then is left out of the report.
MAX_PLANS = 100


class Plan:
    """One request on its way: who asked, whose answers are due, and those that came."""

    def __init__(self, asked):
        self.asked = asked
        self.due = set()
        self.answers = {}
        self.until = time.monotonic() + DEADLINE_S


class Planner(gagent_py.Agent):
    def on_start(self):
        self.service = self.config.get("service") or os.environ.get("PLANNER_SERVICE") or "answer"
        self.plans = {}
        self.made = 0

    def on_message(self, msg):
        plan = self.plans.get(msg.conversation_id)
        if plan is not None:
            if local(msg.sender) == "df":
                return self.ask_workers(msg.conversation_id, plan, msg)
            return self.take_answer(msg.conversation_id, plan, msg)
        if msg.performative != "request":
            return self.noop()
        if len(self.plans) >= MAX_PLANS:
            return self.reply(msg, "refuse", f"busy with {MAX_PLANS} requests; try again later")
        self.made += 1
        name = f"plan-{os.getpid()}-{self.made}"
        self.plans[name] = Plan(msg)
        search = {
            "action": "search",
            "description": {"services": [{"type": self.service}]},
            "constraints": {"max_results": -1},
        }
        return self.send("df", "request", json.dumps(search), conversation_id=name, reply_with=name)

    def ask_workers(self, name, plan, msg):
        if plan.due or msg.performative != "inform":
            return self.end(name, "failure", f"the DF did not search: {msg.content}")
        found = [local(entry["name"]) for entry in json.loads(msg.content)["result"]]
        # Whoever asked may offer the service, too, and so may this agent: each would wait for itself.
        plan.due = set(found) - {self.config.get("name"), local(plan.asked.sender)}
        if not plan.due:
            return self.end(name, "failure", f"nobody offers the service {self.service!r}")
        return [
            self.send(worker, "request", plan.asked.content, conversation_id=name, reply_with=f"{name}-{worker}")
            for worker in sorted(plan.due)
        ]

    def take_answer(self, name, plan, msg):
        if msg.performative == "agree":
            return self.noop()
        # The platform answers for agents that are not there any more.
        worker = local(msg.user_parameters.get("X-failed-receiver") or msg.sender)
        if worker not in plan.due:
            return self.noop()
        plan.due.discard(worker)
        plan.answers[worker] = msg.content if msg.performative == "inform" else f"({msg.performative}) {msg.content}"
        return self.noop() if plan.due else self.report(name, plan)

    def on_tick(self):
        late = [name for name, plan in self.plans.items() if time.monotonic() > plan.until]
        return [self.report(name, self.plans[name]) for name in late]

    def report(self, name, plan):
        lines = [f"{worker}: {answer}" for worker, answer in plan.answers.items()]
        lines += [f"{worker}: (no answer within {DEADLINE_S} s)" for worker in sorted(plan.due)]
        return self.end(name, "inform", "\n".join(lines) or "no answer")

    def end(self, name, act, content):
        return self.reply(self.plans.pop(name).asked, act, content)


def local(name):
    """Return an agent's name without its platform."""
    return name.partition("@")[0]


Planner().run()
