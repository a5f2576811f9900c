"""The class that script agents subclass. Owns: the interface; leaves to `_stdio` and `_direct` how events come in."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Union

from gagent_py import _actions, _stdio, _task_actions
from gagent_py._actions import Action, Content
from gagent_py._message import ACLMessage
from gagent_py._task_actions import Service, TaskRef
from gagent_py._tasks import ACPMessage, Task, TaskEvent

DIRECT_NEEDS = (3, 11)
"""Oldest Python that the package gagent-grpc runs on."""
_BRIDGED = "Or leave the connection to: gagent run SCRIPT.py"

HookResult = Union[Action, list[Action], None]  # Python 3.9 has no `|` here.
"""What a hook may return: an action, several, or nothing, which means `noop`."""


class Agent:
    """An agent whose life is a few hooks.

    Hooks run one at a time and may block as long as they need: messages wait meanwhile, and no tick comes. What a hook
    returns is what the agent does: an action that a helper made, a list of those, or nothing.

    Attributes:
        config: What the agent was started with: the attributes below and whatever else the start event holds.
        system_prompt: Instructions for the agent's language model.
        model: Name of that model.
        max_tokens: Longest answer to ask it for, in tokens.
        max_history: Turns of a conversation to keep for it.
    """

    # Class attributes, so that a subclass with an __init__ of its own has them without calling this one's.
    config: Mapping[str, Any] = MappingProxyType({})
    system_prompt: str = ""
    model: str = "gpt-4o-mini"
    max_tokens: int = 200
    max_history: int = 20

    # --- Hooks ---

    def on_start(self) -> HookResult:
        """Called once, before any message. What it raises ends the agent with exit code 1."""
        return None

    def on_message(self, msg: ACLMessage) -> HookResult:
        """Called for each message. What it raises is answered with `failure`, and its traceback goes to stderr."""
        return None

    def on_tick(self) -> HookResult:
        """Called when no message came for a while (`--tick-ms`, 200 ms)."""
        return None

    def on_stop(self) -> HookResult:
        """Called once, before the end. The process is killed when it takes longer than a few seconds."""
        return None

    # --- Hooks that an agent may have; without them it never meets what they are for ---

    def on_delegate(self, task: Task) -> HookResult:
        """Called for each task that somebody delegated to this agent. What it raises fails the task.

        The task is in hand from then on, until `complete`, `fail` or `reject` ends it: now, or in the answer to any later
        event. Without this hook a task comes as the ACL `request` that says the same.
        """
        return None

    def on_task(self, event: TaskEvent) -> HookResult:
        """Called for what happens to tasks that this agent delegated, or has in hand.

        Without this hook the end of a task that it delegated comes as `inform` or `failure`.
        """
        return None

    def on_acp(self, msg: ACPMessage) -> HookResult:
        """Called for each ACP message. What it raises for a request is answered with `error`.

        Without this hook such a message comes as the ACL message that says the same.
        """
        return None

    # --- Helpers: each builds an action, and nothing happens until a hook returns it ---

    def send(self, to: str | Sequence[str], performative: str, content: Content = None, **kwargs: Any) -> Action:
        """Return the action that sends a message.

        Args:
            to: Name of the receiver, or several.
            performative: One of FIPA's 22 acts, such as `inform`.
            content: Text or bytes; None for a message without content.
            **kwargs: Further ACL parameters: ontology, language, encoding, protocol, conversation_id, reply_with,
                in_reply_to, reply_by (ISO 8601 text or datetime), reply_to, receivers, user_parameters.

        Raises:
            TypeError: A parameter is unknown or of a wrong type.
            ValueError: The performative is not one of the 22 acts, or there is no receiver.
        """
        return _actions.send(to, performative, content, kwargs)

    def reply(self, original: ACLMessage, performative: str, content: Content = None, **kwargs: Any) -> Action:
        """Return the action that answers ``original``.

        The answer goes to its reply_to, else to its sender, and keeps conversation_id, protocol, language, ontology and
        encoding; in_reply_to is its reply_with. Keywords override these, and None leaves one out.

        Args:
            original: The message that is answered.
            performative: One of FIPA's 22 acts, such as `inform`.
            content: Text or bytes; None for a message without content.
            **kwargs: As for `send`; `to` sends the answer elsewhere.

        Raises:
            TypeError: A parameter is unknown or of a wrong type.
            ValueError: The performative is not one of the 22 acts, or nobody is there to answer.
        """
        return _actions.reply(original, performative, content, kwargs)

    def noop(self) -> Action:
        """Return the action that does nothing."""
        return _actions.simple("noop")

    def delete(self) -> Action:
        """Return the action that ends this agent and frees its name."""
        return _actions.simple("delete")

    def suspend(self) -> Action:
        """Return the action that suspends this agent: messages wait and ticks stop until the AMS wakes it."""
        return _actions.simple("suspend")

    def wake(self) -> Action:
        """Return the action that makes this agent active again."""
        return _actions.simple("wake")

    # --- Helpers for services, tasks and ACP ---

    def register(self, services: Service | Sequence[Service]) -> Action:
        """Return the action that offers services in the DF, in the place of those before.

        Args:
            services: Types such as `summarise`, or dicts with `type`, and maybe name, protocols, ontologies, languages,
                ownership and properties.

        Raises:
            TypeError: A service is neither.
            ValueError: There is none, or one without a type.
        """
        return _task_actions.register(services)

    def deregister(self) -> Action:
        """Return the action that withdraws this agent's services from the DF."""
        return _actions.simple("deregister")

    def delegate(
        self, target: str, description: str = "", parameters: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> Action:
        """Return the action that delegates a task; its id is in the action, as `task_id`.

        Args:
            target: Whom it is for: an agent's name, or `role:TYPE` for one that offers such a service.
            description: What is to be done, in words.
            parameters: Arguments, as JSON has them.
            **kwargs: task_id (a new one by default; the same one again is the same task), deadline (seconds from now, or a
                datetime), parent (a task in hand that the new one comes of and ends with), callback_url, on_executor_lost
                (`fail` or `redeliver`), max_attempts, attachments.

        Raises:
            TypeError: A keyword is unknown, or a value of a wrong type.
            ValueError: There is no target, or a value is none that JSON can say.
        """
        return _task_actions.delegate(target, description, parameters, kwargs)

    def answer_task(self, task: TaskRef, value: Any) -> Action:
        """Return the action that gives the input that a task of this agent's own asks for, a JSON value."""
        return _task_actions.with_value("answer", task, "value", value)

    def cancel_task(self, task: TaskRef, reason: str = "") -> Action:
        """Return the action that asks to end a task that this agent delegated."""
        return _task_actions.about("cancel", task, reason=reason)

    def progress(self, task: TaskRef, fraction: float | None = None, note: str = "") -> Action:
        """Return the action that tells the delegator how far a task in hand is.

        Raises:
            TypeError: ``task`` is no task, or the fraction no number.
            ValueError: The fraction is not from 0 to 1.
        """
        return _task_actions.progress(task, fraction, note)

    def output(self, task: TaskRef, text: str, channel: str = "") -> Action:
        """Return the action that gives the delegator a part of what comes out of a task in hand."""
        return _task_actions.about("output", task, text=_actions.checked("text", text), channel=channel)

    def save(self, task: TaskRef, checkpoint: Any) -> Action:
        """Return the action that notes a JSON value for whoever goes on with a task after this script."""
        return _task_actions.with_value("save", task, "checkpoint", checkpoint)

    def ask(self, task: TaskRef, question: str) -> Action:
        """Return the action that asks the delegator for input; it comes as the task event `answer`."""
        return _task_actions.about("ask", task, question=_actions.checked("question", question))

    def complete(self, task: TaskRef, result: Any = None) -> Action:
        """Return the action that ends a task in hand with a result, a JSON value."""
        return _task_actions.with_value("complete", task, "result", result)

    def fail(self, task: TaskRef, reason: str = "") -> Action:
        """Return the action that ends a task in hand without a result."""
        return _task_actions.about("fail", task, reason=reason)

    def reject(self, task: TaskRef, reason: str = "") -> Action:
        """Return the action that does not take a task; once work has been told of, it fails."""
        return _task_actions.about("reject", task, reason=reason)

    def send_acp(self, target: str, type: str, content: Any = None, **kwargs: Any) -> Action:  # noqa: A002  # ACP's word.
        """Return the action that sends an ACP message.

        Args:
            target: Name of the receiver.
            type: request, response, notification, heartbeat, error, delegate or result.
            content: JSON value; None for none.
            **kwargs: Further fields: id, in_reply_to, metadata, timestamp.

        Raises:
            TypeError: A field is unknown, or a value of a type that JSON does not have.
            ValueError: The type is none of the seven, there is no target, or a value is none that JSON can say.
        """
        return _task_actions.acp(target, type, content, kwargs)

    def reply_acp(self, original: ACPMessage, type: str, content: Any = None, **kwargs: Any) -> Action:  # noqa: A002  # ACP's word.
        """Return the action that answers an ACP message: to its source, with its id as `in_reply_to`. As `send_acp`."""
        return _task_actions.reply_acp(original, type, content, kwargs)

    # --- Life ---

    def run(self) -> None:
        """Be this agent until it is stopped: as a child of `gagent run`, or by itself where GAGENT_NAME is set.

        Does nothing in a child process of multiprocessing, which imports the script anew.

        Raises:
            SystemExit: The script was run by hand (exit code 2), `on_start` raised (exit code 1), or it could not
                connect by itself: the exit codes of `gagent`, such as 5 for no bus, 6 for denied, 2 for a bad setting.
        """
        if _is_spawned_child():
            return
        channel = _stdio.Channel.taken
        if channel is not None:
            _stdio.serve(self, channel)
            return
        if os.environ.get("GAGENT_NAME"):
            _run_direct(self)
            return
        if os.isatty(0) or not _stdio.serve(self, _stdio.take()):
            script = sys.argv[0] or "SCRIPT.py"
            print(
                f"This is a script agent and needs a bus. Run it with: gagent run {script}\n"
                f"or connect it by itself: GAGENT_NAME=my-agent python {script}",
                file=sys.stderr,
            )
            raise SystemExit(2)


def _run_direct(agent: Agent) -> None:
    if sys.version_info < DIRECT_NEEDS:
        needed = ".".join(map(str, DIRECT_NEEDS))
        _say(f"GAGENT_NAME is set, and an agent that connects by itself needs Python {needed} or newer. {_BRIDGED}")
        raise SystemExit(2)
    try:
        # Only here, since nothing else needs more than the standard library.
        from gagent_py._direct import run_direct  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("gagent_grpc", "grpc", "google"):
            raise
        _say(
            f"GAGENT_NAME is set, and the package gagent-grpc is missing. Install it: pip install gagent-grpc. {_BRIDGED}"
        )
        raise SystemExit(2) from None
    run_direct(agent)


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _is_spawned_child() -> bool:
    # multiprocessing imports the script as `__mp_main__` there; here that name is at most an alias of `__main__`.
    main = sys.modules.get("__mp_main__")
    return main is not None and main.__name__ == "__mp_main__"
