"""Library for script agents of a gagent bus: subclass `Agent`, fill in hooks, call `run()`.

    import gagent_py

    class Echo(gagent_py.Agent):
        def on_message(self, msg):
            if msg.performative == "request":
                return self.reply(msg, "inform", msg.content)

    Echo().run()

`gagent run echo.py` makes it an agent of the bus: the bridge spawns the script and speaks JSON lines with it over
stdin and stdout. `GAGENT_NAME=echo python echo.py` connects the same script by itself, over gRPC. Nothing but the
standard library is needed, except in the second case.

Under the bridge, stdin and stdout carry the protocol, and anything printed would break it. So the import of this
module takes the two descriptors for itself and leaves in their place the null device and stderr: `print`, native
libraries and child processes do no harm.
"""

from __future__ import annotations

from gagent_py import _stdio
from gagent_py._actions import Action
from gagent_py._agent import Agent
from gagent_py._message import ACLMessage
from gagent_py._tasks import ACPMessage, Task, TaskEvent

__all__ = ["ACLMessage", "ACPMessage", "Action", "Agent", "Task", "TaskEvent"]

# At import and not in `run`: what the script imports and prints on its way there must not reach the protocol.
_stdio.take_when_marked()
