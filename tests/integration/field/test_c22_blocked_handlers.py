"""C22: the blocked. An agent whose handler stands in a call for far longer than liveness allows is still an agent."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from pulse import pulse_check
from script_agents import Bridged, script_file
from waiting import until

from gagent_grpc import Agent, BusLimits, LifeCycleState, Received
from gagent_grpc.bridge.supervisor import ScriptAgent

HEARTBEAT = 1 / 3
"""Seconds; after three silent ones, which is one second, an agent is lost."""
BLOCKED = 3.0
"""Seconds that each handler stands."""

SCRIPT = f"""
    import time
    import gagent_py

    class Slow(gagent_py.Agent):
        def on_message(self, msg):
            if msg.performative != "request":
                return None
            with open(self.system_prompt, "a") as runs:
                runs.write(msg.content + "\\n")
            time.sleep({BLOCKED})
            return self.reply(msg, "inform", "done " + msg.content)

    Slow().run()
"""


async def test_c22_blocked_handler_keeps_its_agent_alive_and_runs_once(
    buses: Any, programs: Any, tmp_path: Path
) -> None:
    """Handlers on the loop of their agent let it miss its heartbeats: it is lost, and its request runs again."""
    bus = await buses(limits=BusLimits(heartbeat_interval=HEARTBEAT, resume_grace=1.0, drain_grace=1.0))
    runs: list[str] = []

    def slow(message: Received) -> str:
        runs.append(message.content)
        time.sleep(BLOCKED)
        return f"done {message.content}"

    async with pulse_check(bus) as stack:
        client = Agent("client", bus=bus.address)
        client.on("request")(slow)
        await stack.enter_async_context(client)
        bridged_runs, direct_runs = tmp_path / "bridged.txt", tmp_path / "direct.txt"
        script = script_file(tmp_path, SCRIPT, "bridged", ".py")
        bridged = Bridged(ScriptAgent(script, bus=bus.address, system_prompt=str(bridged_runs)))
        stack.push_async_callback(bridged.aclose)
        variables = {"NAME": "direct", "BUS": bus.address, "SYSTEM_PROMPT": str(direct_runs)}
        await stack.enter_async_context(
            programs(SCRIPT, **{f"GAGENT_{name}": value for name, value in variables.items()})
        )
        await bridged.ready()
        alice = await stack.enter_async_context(Agent("alice", bus=bus.address))

        async def states() -> dict[str, LifeCycleState]:
            return {one.description.name: one.description.state for one in await alice.ams.search_all()}

        slow_ones = ("client", "bridged", "direct")
        everybody = {f"{name}@local": LifeCycleState.ACTIVE for name in (*slow_ones, "alice")}

        async def all_there() -> bool:
            return await states() == everybody

        await until(all_there)
        asked = [(name, f"{name} {number}") for name in slow_ones for number in range(2)]
        asking = asyncio.gather(*(alice.request(name, content, timeout=20) for name, content in asked))
        while not asking.done():
            assert await states() == everybody
            await asyncio.sleep(0.1)
        assert [one.content for one in await asking] == [f"done {content}" for _, content in asked]
        assert sorted(runs) == ["client 0", "client 1"]
        assert bridged_runs.read_text().splitlines() == ["bridged 0", "bridged 1"]
        assert direct_runs.read_text().splitlines() == ["direct 0", "direct 1"]
        assert [bus.platform.ams.get(name).generation for name in slow_ones] == [1, 1, 1]
