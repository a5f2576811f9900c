"""Scripts as their authors write them, with the SDKs and APIs of vendors, unchanged in both modes.

A local server speaks as much of each vendor's API as a client needs. It answers with the last thing that it was told.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from script_agents import WAIT, Launch, Person, until


@pytest.fixture(autouse=True)
async def in_time() -> AsyncIterator[None]:
    async with asyncio.timeout(3 * WAIT):
        yield


class Vendor(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.address = f"http://127.0.0.1:{self.server_address[1]}"
        self.status = 200


class _Handler(BaseHTTPRequestHandler):
    server: Vendor

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.asked.append((self.path, headers, asked))
        answer: dict[str, Any]
        if self.path == "/v1/messages":
            answer = {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "model": asked["model"],
                "content": [{"type": "text", "text": f"claude: {asked['messages'][-1]['content']}"}],
                "stop_reason": "end_turn",
                "stop_sequence": None,
                "usage": {"input_tokens": 1, "output_tokens": 1},
            }
        else:
            # As a proxy gets it, with the whole address.
            assert self.path == "http://localhost:11434/api/generate"
            answer = {"model": asked["model"], "response": f"llama: {asked['prompt']}", "done": True}
        if self.server.status != 200:
            answer = {"type": "error", "error": {"type": "authentication_error", "message": "a secret"}}
        body = json.dumps(answer).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def vendor() -> Iterator[Vendor]:
    with Vendor() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


ANTHROPIC_AGENT = '''
    """A script agent as its author would write it: one Anthropic call per request, no history."""
    import anthropic
    import gagent_py

    client = anthropic.Anthropic()


    class Claude(gagent_py.Agent):
        def on_message(self, msg):
            if msg.performative != "request":
                return self.noop()
            answer = client.messages.create(
                model="claude-haiku-4-5-20251001",
                max_tokens=self.max_tokens,
                system=self.system_prompt,
                messages=[{"role": "user", "content": msg.content}],
            )
            return self.reply(msg, "inform", answer.content[0].text)


    Claude().run()
'''


async def test_script_with_the_sdk_of_anthropic(launch: Launch, alice: Person, vendor: Vendor) -> None:
    pytest.importorskip("anthropic")
    env = {"ANTHROPIC_API_KEY": "sk-ant-a-secret", "ANTHROPIC_BASE_URL": vendor.address, "NO_PROXY": "127.0.0.1"}
    running = await launch(ANTHROPIC_AGENT, env=env, system_prompt="Be brief.", max_tokens=7)
    assert await alice.ask("helper", "one", conversation_id="k1", reply_with="q1") == "claude: one"
    ((_, headers, asked),) = vendor.asked
    # Versions of the SDK differ in the header.
    assert "sk-ant-a-secret" in (headers.get("x-api-key") or headers["authorization"])
    assert (asked["model"], asked["max_tokens"], asked["system"]) == ("claude-haiku-4-5-20251001", 7, "Be brief.")
    await alice.send("helper", "no request", "inform")
    vendor.status = 401
    await alice.send("helper", "two", conversation_id="k2")
    failure = await alice.next()
    assert (failure.performative.text, failure.conversation_id) == ("failure", "k2")
    # Its kind, and nothing of what the vendor says.
    assert failure.content == "internal-error: AuthenticationError; see the log of the script's agent"
    vendor.status = 200
    assert await alice.ask("helper", "three") == "claude: three"
    assert await running.stop() == 0


OLLAMA_AGENT = '''
    """A script agent as its author would write it: a local Ollama over plain HTTP, no SDK and no key."""
    import gagent_py
    import requests


    def generate(prompt, model="llama3"):
        answer = requests.post(
            "http://localhost:11434/api/generate",
            json={"model": model, "prompt": prompt, "stream": False},
        )
        return answer.json()["response"]


    class Local(gagent_py.Agent):
        def on_message(self, msg):
            if msg.performative == "request":
                return self.reply(msg, "inform", generate(msg.content))
            return self.noop()


    Local().run()
'''


async def test_script_that_asks_a_local_ollama(launch: Launch, alice: Person, vendor: Vendor) -> None:
    pytest.importorskip("requests")
    # The script names a fixed port, which somebody else may have: its library takes the way over this server.
    # Not so the agent that connects by itself, to the bus at 127.0.0.1.
    proxy = dict.fromkeys(("HTTP_PROXY", "http_proxy"), vendor.address)
    env = {**proxy, **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1")}
    running = await launch(OLLAMA_AGENT, env=env)
    assert await alice.ask("helper", "one") == "llama: one"
    assert [asked for _, _, asked in vendor.asked] == [{"model": "llama3", "prompt": "one", "stream": False}]
    await alice.send("helper", "no request", "inform")
    vendor.status = 500
    await alice.send("helper", "two")
    failure = await alice.next()
    assert failure.content == "internal-error: KeyError; see the log of the script's agent"
    vendor.status = 200
    assert await alice.ask("helper", "three") == "llama: three"
    assert await running.stop() == 0


HOOKS_AGENT = '''
    """Every hook and helper of the interface in one script; nothing but the standard library and gagent_py."""
    import gagent_py


    class Everything(gagent_py.Agent):
        def on_start(self):
            self.seen = 0
            self.ticks = 0
            self.extra = self.config.get("team")

        def on_message(self, msg: gagent_py.ACLMessage):
            self.seen += 1
            if msg.performative == "query-ref":
                return self.reply(msg, "inform", f"{self.seen} {self.ticks} {msg.ontology} {msg.language}")
            if msg.performative == "request" and msg.content == "tell bob":
                return self.send("bob", "inform", "hello", ontology="greetings", conversation_id=msg.conversation_id)
            if msg.performative == "request" and msg.content == "sleep":
                return self.suspend()
            if msg.performative == "request" and msg.content == "crash":
                raise RuntimeError("asked to")
            if msg.performative == "cancel":
                return self.delete()
            # Returning nothing means noop.

        def on_tick(self):
            self.ticks += 1
            return self.noop()

        def on_stop(self):
            with open("stopped.txt", "w") as mark:
                mark.write("bye")


    Everything().run()
'''


async def test_script_with_every_hook_and_helper(
    launch: Launch, alice: Person, person: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bob = await person("bob")
    running = await launch(HOOKS_AGENT)
    told = str(await alice.ask("helper", "", "query-ref", ontology="o", language="l")).split()
    assert [told[0], *told[2:]] == ["1", "o", "l"]
    await alice.send("helper", "tell bob", conversation_id="k7")
    heard = await bob.next()
    assert (heard.content, heard.ontology, heard.conversation_id) == ("hello", "greetings", "k7")
    await alice.send("helper", "crash")
    assert (await alice.next()).content == "internal-error: RuntimeError; see the log of the script's agent"
    await alice.send("helper", "sleep")
    await alice.send("helper", "", "query-ref")
    assert alice.inbox.empty()

    async def suspended() -> bool:
        return await alice.state("helper") == "suspended"

    await until(suspended)
    await alice.agent.ams.resume("helper")
    assert str((await alice.next()).content).startswith("5 ")
    await alice.send("helper", "", "cancel")
    assert await running.wait() == 0
    assert await alice.state("helper") == "gone"
    assert (tmp_path / "stopped.txt").read_text() == "bye"
