"""Calls an agent's hooks and turns what they return into actions; the same for both ways of connecting.

Owns: what a hook's result means, and what answers for a hook that raised. Leaves to others: where events come from and
where actions go (`_stdio`, `_direct`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gagent_py import _actions, _task_actions
from gagent_py._message import ACLMessage
from gagent_py._tasks import ACPMessage, Task, TaskEvent

if TYPE_CHECKING:
    from gagent_py._actions import Action
    from gagent_py._agent import Agent

NEVER_ANSWERED = frozenset({"failure", "not-understood", "refuse"})
"""Acts that nothing answers by itself, or two broken agents would go on for ever."""
AUTOMATIC = "X-automatic"
"""Parameter of a message that no script decided to send; nothing answers it by itself."""
EXTENSIONS = {"delegate": "on_delegate", "task": "on_task", "acp": "on_acp"}
"""Events beyond those of every script, and the hooks that an agent has when it takes them."""
OWN_MODULES = (_actions.__name__, _task_actions.__name__, __name__, f"{__package__}._stdio")
"""Modules whose errors say nothing that a script has to hide."""


def start(agent: Agent, config: Mapping[str, Any]) -> list[Action]:
    """Give the agent its configuration and call `on_start`; what the hook raises passes through."""
    agent.config = dict(config)
    agent.system_prompt = config.get("system_prompt", agent.system_prompt)
    agent.model = config.get("model", agent.model)
    agent.max_tokens = config.get("max_tokens", agent.max_tokens)
    agent.max_history = config.get("max_history", agent.max_history)
    return actions_of(agent.on_start(), "on_start")


def message(agent: Agent, msg: ACLMessage) -> list[Action]:
    """Call `on_message`; what the hook raises passes through."""
    return actions_of(agent.on_message(msg), "on_message")


def extensions(agent: Agent) -> list[str]:
    """Return the extensions that the agent takes: those whose hook it has."""
    # Of the library's own class, whatever the script calls its.
    base = next(cls for cls in type(agent).__mro__ if cls.__module__ == f"{__package__}._agent")
    return [
        name
        for name, hook in EXTENSIONS.items()
        if hook in vars(agent) or getattr(type(agent), hook) is not getattr(base, hook)
    ]


def delegate(agent: Agent, task: Task) -> list[Action]:
    """Call `on_delegate`; what the hook raises passes through."""
    return actions_of(agent.on_delegate(task), "on_delegate")


def task_event(agent: Agent, event: TaskEvent) -> list[Action]:
    """Call `on_task`; what the hook raises passes through."""
    return actions_of(agent.on_task(event), "on_task")


def acp(agent: Agent, msg: ACPMessage) -> list[Action]:
    """Call `on_acp`; what the hook raises passes through."""
    return actions_of(agent.on_acp(msg), "on_acp")


def tick(agent: Agent) -> list[Action]:
    """Call `on_tick`; what the hook raises passes through."""
    return actions_of(agent.on_tick(), "on_tick")


def stop(agent: Agent) -> list[Action]:
    """Call `on_stop`; what the hook raises passes through. Nobody waits for these actions: `noop` is left out."""
    return [action for action in actions_of(agent.on_stop(), "on_stop") if action["action"] != "noop"]


def failed_message(msg: ACLMessage, error: Exception) -> list[Action]:
    """Return the answer for a message whose hook raised ``error``: a `failure`, where one may be sent."""
    if msg.performative.lower() in NEVER_ANSWERED or not (msg.sender or msg.reply_to):
        return [_actions.simple("noop")]
    return [_actions.reply(msg, "failure", _words(error), {AUTOMATIC: "true"})]


def failed_task(task: Task, error: Exception) -> list[Action]:
    """Return the answer for a task whose hook raised ``error``: the task fails."""
    return [_task_actions.about("fail", task, reason=_words(error))]


def failed_acp(msg: ACPMessage, error: Exception) -> list[Action]:
    """Return the answer for an ACP message whose hook raised ``error``: an `error`, where somebody waits."""
    if msg.type != "request" or not msg.source:
        return [_actions.simple("noop")]
    return [
        _task_actions.reply_acp(
            msg, "error", {"code": "FAILED", "error": _words(error)}, {"metadata": {"automatic": "true"}}
        )
    ]


def _words(error: Exception) -> str:
    """Return what others are told of an error.

    The text names the kind of the error only, since what an exception says may be a secret, such as a part of an API
    key. What this library says of a mistake in a script is none, and is told.
    """
    return f"internal-error: {type(error).__name__}" + (
        f": {error}" if _is_our_own(error) else "; see the log of the script's agent"
    )


def _is_our_own(error: Exception) -> bool:
    """Whether this library raised ``error`` to tell of a mistake in the script."""
    if not isinstance(error, (TypeError, ValueError)):
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    # Where it was raised: what json, base64 or the script itself says of a value may show the value.
    return trace is not None and trace.tb_frame.f_globals.get("__name__") in OWN_MODULES


def actions_of(result: Any, hook: str) -> list[Action]:
    """Return the actions that a hook's result stands for, at least one: nothing is `noop`.

    Raises:
        TypeError: The result is neither None, an action, nor a list of actions.
    """
    actions = [] if result is None else list(result) if isinstance(result, (list, tuple)) else [result]
    for action in actions:
        if not isinstance(action, dict) or "action" not in action:
            raise TypeError(
                f"{hook} returned {type(action).__name__}; expected what self.send, self.reply, self.noop, self.delete,"
                " self.suspend or self.wake returns, a list of those, or nothing"
            )
    return actions or [_actions.simple("noop")]
