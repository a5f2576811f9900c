"""The class that script agents subclass. Owns: the interface; leaves to `_stdio` and `_direct` how events come in."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Union

from gagent_py import _actions, _stdio
from gagent_py._actions import Action, Content
from gagent_py._message import ACLMessage

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
            # Only here, since nothing else needs more than the standard library.
            from gagent_py._direct import run_direct  # noqa: PLC0415

            run_direct(self)
            return
        if os.isatty(0) or not _stdio.serve(self, _stdio.take()):
            script = sys.argv[0] or "SCRIPT.py"
            print(
                f"This is a script agent and needs a bus. Run it with: gagent run {script}\n"
                f"or connect it by itself: GAGENT_NAME=my-agent python {script}",
                file=sys.stderr,
            )
            raise SystemExit(2)


def _is_spawned_child() -> bool:
    # multiprocessing imports the script as `__mp_main__` there; here that name is at most an alias of `__main__`.
    main = sys.modules.get("__mp_main__")
    return main is not None and main.__name__ == "__mp_main__"
