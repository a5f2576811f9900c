"""`gagent serve` as it starts, refuses to start, stops, and comes back."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from gagent_grpc.pb.gagent.v1 import bus_service_pb2, bus_service_pb2_grpc

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Place


def test_serve_says_where_it_listens_and_where_it_keeps_things(place: Place) -> None:
    bus = place.serve(store=f"sqlite:{place.folder}/bus.db")
    line = bus.said("gagent: bus ")
    assert line == f"gagent: bus 'local' listens at {bus.address}, store sqlite:{place.folder}/bus.db"
    # Said once, and on the side of the log.
    bus.said("the developer's default")
    assert bus.end(signal.SIGTERM) == 0
    assert sum("the developer's default" in one for one in bus.lines) == 1
    assert not (place.folder / "bus.port").exists()


def test_the_default_store_is_a_file_in_the_users_state_folder(place: Place) -> None:
    bus = place.start("serve", "--listen", "127.0.0.1:0", "--platform", "hub")
    assert f"store sqlite:{place.folder}/state/gagent/hub.db" in bus.said("gagent: bus ")
    assert bus.end(signal.SIGINT) == 0
    assert (place.folder / "state" / "gagent" / "hub.db").is_file()


def test_logs_are_json_on_stderr_and_stdout_has_one_line(place: Place) -> None:
    arguments = [
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--store",
        "memory",
        "--log-format",
        "json",
        "--log-level",
        "debug",
    ]
    bus = place.start(*arguments)
    bus.said("gagent: bus ")
    assert bus.end(signal.SIGTERM) == 0
    plain = [line for line in bus.lines if not line.startswith("{")]
    assert [line.partition(",")[0].rpartition(":")[0] for line in plain] == ["gagent: bus 'local' listens at 127.0.0.1"]
    events = [json.loads(line)["event"] for line in bus.lines if line.startswith("{")]
    assert any(event.startswith("bus listens: 127.0.0.1:") for event in events)
    assert "stopping: SIGTERM" in events


def test_a_port_that_is_taken_is_one_line_with_the_way_out(place: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        done = place.gagent("serve", "--listen", address, "--store", "memory", "--log-level", "warning")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"cannot listen at {address}: the address is in use")
    assert "--listen HOST:PORT" in done.stderr
    assert done.stdout == ""


def test_settings_that_cannot_be_served_are_one_line(place: Place) -> None:
    cases = [
        ("--listen", "0.0.0.0:0", "listen address '0.0.0.0:0' is not loopback"),
        ("--listen", "here", "listen address 'here': expected HOST:PORT"),
        ("--store", "nats://127.0.0.1:4222", "NATS comes with a later version"),
        ("--store", "mongo", "store 'mongo': expected sqlite:PATH or memory"),
        ("--platform", "two words", "platform name 'two words': expected"),
        ("--log-level", "loud", "--log-level is 'loud': input should be 'debug', 'info', 'warning' or 'error'"),
        ("--port-file", "/no/such/folder/port", "--port-file /no/such/folder/port: cannot be written"),
    ]
    usual = {"--listen": "127.0.0.1:0", "--store": "memory", "--log-level": "error"}
    programs = [
        place.start("serve", *(word for pair in {**usual, option: value}.items() for word in pair))
        for option, value, _ in cases
    ]
    for program, (_, _, said) in zip(programs, cases, strict=True):
        assert program.end() == 2
        (line,) = program.lines
        assert said in line


def test_insecure_allows_any_address_and_warns(place: Place) -> None:
    bus = place.start("serve", "--listen", "0.0.0.0:0", "--store", "memory", "--insecure")
    bus.said("listens at 0.0.0.0:")
    bus.said("INSECURE")
    assert bus.end(signal.SIGTERM) == 0


def test_a_file_of_another_program_is_left_alone(place: Place) -> None:
    other = place.folder / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE customers (name TEXT)")
    connection.close()
    before = other.read_bytes()
    done = place.gagent("serve", "--listen", "127.0.0.1:0", "--store", "sqlite:other.db", "--log-level", "error")
    assert done.returncode == 2
    assert done.stderr.startswith(f"{other}: is an SQLite database of another program")
    assert done.stderr.count("\n") == 1
    assert other.read_bytes() == before

    (place.folder / "notes.txt").write_text("milk, bread\n")
    done = place.gagent("serve", "--listen", "127.0.0.1:0", "--store", "sqlite:notes.txt", "--log-level", "error")
    assert done.returncode == 2
    assert "is not an SQLite database" in done.stderr
    assert (place.folder / "notes.txt").read_text() == "milk, bread\n"


def test_a_store_has_one_bus(place: Place) -> None:
    store = f"sqlite:{place.folder}/bus.db"
    first = place.serve(store=store)
    done = place.gagent("serve", "--listen", "127.0.0.1:0", "--store", store, "--log-level", "error")
    assert done.returncode == 2
    assert done.stderr == (
        f"A bus already runs on this store (process {first.process.pid}). Use it, or start another one:"
        " gagent serve --store sqlite:OTHER.db --listen 127.0.0.1:0\n"
    )
    assert place.gagent("ps").returncode == 0


def test_a_signal_drains_with_an_agent_connected(place: Place, oracle: str) -> None:
    bus = place.serve()
    agent = place.start("run", place.script("oracle.py", oracle))
    agent.said("oracle@local")
    assert bus.end(signal.SIGTERM) == 0
    # The agent waits for the bus to come back, and still ends politely when it is told to.
    assert agent.process.poll() is None
    assert agent.end(signal.SIGINT) == 0


async def test_a_second_signal_exits_at_once_and_keeps_what_was_accepted(place: Place) -> None:
    store = f"sqlite:{place.folder}/bus.db"
    bus = await asyncio.to_thread(place.serve, store=store)
    async with grpc.aio.insecure_channel(bus.address) as channel:
        session = await _deaf_session(channel, "stuck")
        sent = await asyncio.to_thread(place.gagent, "send", "stuck", "keep me")
        assert (sent.returncode, sent.stdout) == (0, "stuck: ACCEPTED\n")
        bus.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(bus.said, "stopping")
        # It is held up by a session that does not listen.
        assert await asyncio.to_thread(bus.end, signal.SIGINT) == 130
        session.cancel()
    await asyncio.to_thread(place.serve, store=store)
    listed = await asyncio.to_thread(place.gagent, "ps", "--all", "--json")
    assert [(one["name"], one["mailbox_messages"]) for one in json.loads(listed.stdout)] == [("stuck@local", 1)]


async def _deaf_session(channel: grpc.aio.Channel, name: str) -> Any:
    """Open a session that never reads after its welcome, so that a drain waits for it."""
    call = bus_service_pb2_grpc.BusServiceStub(channel).OpenSession()
    hello = bus_service_pb2.Hello(protocol_version=1, agent=name)
    await call.write(bus_service_pb2.OpenSessionRequest(hello=hello))
    frame = await call.read()
    assert frame.WhichOneof("frame") == "welcome"
    return call


def test_mail_for_a_stopped_agent_survives_kill_9_of_the_bus(place: Place, recorder: str, eventually: Any) -> None:
    store, record = f"sqlite:{place.folder}/bus.db", place.folder / "record.txt"
    script = place.script("recorder.py", recorder)
    bus = place.serve(store=store)

    def recorded() -> list[str]:
        return record.read_text().splitlines() if record.exists() else []

    agent = place.start("run", script, "--env", f"RECORD={record}")
    agent.said("recorder@local")
    assert place.gagent("send", "recorder", "before").stdout == "recorder: ACCEPTED\n"
    eventually(lambda: recorded() == ["before"])
    assert agent.end(signal.SIGINT) == 0

    for number in range(3):
        assert place.gagent("send", "recorder", f"waiting {number}").stdout == "recorder: ACCEPTED\n"
    assert bus.end(signal.SIGKILL) == -signal.SIGKILL

    place.serve(store=store)
    agent = place.start("run", script, "--env", f"RECORD={record}")
    agent.said("recorder@local")
    # When this one is there, nothing of what came before it can still be on its way.
    assert place.gagent("send", "recorder", "last").stdout == "recorder: ACCEPTED\n"
    eventually(lambda: "last" in recorded())
    assert agent.end(signal.SIGINT) == 0
    assert recorded() == ["before", *(f"waiting {number}" for number in range(3)), "last"]


def test_serve_leaves_no_draft_of_its_port_file(place: Place) -> None:
    bus = place.serve()
    assert [one for one in os.listdir(place.folder) if one.startswith("bus.port")] == ["bus.port"]
    assert Path(place.folder / "bus.port").read_text() == f"{bus.address}\n"
