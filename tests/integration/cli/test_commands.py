"""Every command against a real bus and a real script agent: what it prints, for people and for programs, and its exit code."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Place


# ---- request and send ----------------------------------------------------------------------------------------------


def test_request_prints_the_content_of_the_answer_and_nothing_else(town: Place) -> None:
    done = town.gagent("request", "oracle", "hello")
    assert (done.returncode, done.stdout, done.stderr) == (0, "echo: hello\n", "")


def test_request_reads_the_text_from_stdin(town: Place) -> None:
    done = town.gagent("request", "oracle@local", "-", text="two\nlines\n")
    assert (done.returncode, done.stdout) == (0, "echo: two\nlines\n")


def test_request_as_json_has_the_parameters_of_the_answer(town: Place) -> None:
    done = town.gagent("request", "oracle", "hello", "--conversation-id", "c-1", "--json")
    answer = json.loads(done.stdout)
    assert done.returncode == 0
    assert (answer["performative"], answer["sender"], answer["content"]) == ("inform", "oracle", "echo: hello")
    assert answer["conversation_id"] == "c-1"


def test_request_hands_on_its_parameters(town: Place) -> None:
    options = ["--conversation-id", "c-2", "--ontology", "weather", "--language", "en", "--protocol", "fipa-request"]
    done = town.gagent("request", "oracle", "parameters", *options)
    got = json.loads(done.stdout)
    assert {name: got.get(name) for name in ("conversation_id", "ontology", "language", "protocol")} == {
        "conversation_id": "c-2",
        "ontology": "weather",
        "language": "en",
        "protocol": "fipa-request",
    }
    assert got["sender"].startswith("cli-")


def test_request_asks_with_another_act_that_expects_an_answer(town: Place) -> None:
    search = '{"action": "search", "description": {"services": [{"type": "x"}]}}'
    done = town.gagent("request", "df", search, "--performative", "query-ref")
    # The act went out: the DF knows requests only, and says so.
    assert (done.returncode, "query-ref is not served" in done.stderr) == (1, True)
    done = town.gagent("request", "oracle", "hello", "--performative", "inform")
    assert done.returncode == 2
    assert "inform expects no answer; expected one of: cfp, " in " ".join(done.stderr.split())


def test_bytes_are_printed_as_they_are_and_as_base64_in_json(town: Place) -> None:
    raw = subprocess.run(
        [sys.executable, "-m", "gagent_grpc", "request", "oracle", "bytes"],
        env=town.env,
        capture_output=True,
        timeout=30,
        check=True,
    )
    assert raw.stdout == b"\x00\x01\x02\x03"
    done = town.gagent("request", "oracle", "bytes", "--json")
    assert json.loads(done.stdout)["content_base64"] == "AAECAw=="


@pytest.mark.parametrize(
    ("asked", "act", "said"),
    [("refuse", "refuse", "not today"), ("fail", "failure", "it broke"), ("what", "not-understood", "what?")],
)
def test_an_answer_that_is_a_no_is_exit_code_1(town: Place, asked: str, act: str, said: str) -> None:
    done = town.gagent("request", "oracle", asked, "--json")
    assert (done.returncode, done.stderr) == (1, f"oracle: {act} {said}\n")
    assert json.loads(done.stdout) == {"performative": act, "sender": "oracle", "content": said}


@pytest.mark.parametrize("asked", ["mute", "agree"])
def test_no_answer_in_time_is_exit_code_4(town: Place, asked: str) -> None:
    done = town.gagent("request", "oracle", asked, "--timeout", "0.5")
    assert (done.returncode, done.stdout, done.stderr) == (4, "", "oracle: no answer within 0.5 s\n")


@pytest.mark.parametrize("command", ["request", "send"])
def test_a_message_over_the_limit_is_told_with_the_way_out(town: Place, command: str) -> None:
    done = town.gagent(command, "oracle", "-", text="x" * 2_000_000)
    assert (done.returncode, done.stdout) == (3, ""), done.stderr
    assert done.stderr.startswith("oracle: TOO_LARGE. The message has 2,000,")
    assert done.stderr.endswith(" bytes encoded, the limit is 1,000,000; send less, or a reference\n")


def test_an_unknown_receiver_is_told_at_once_with_who_is_there(town: Place) -> None:
    done = town.gagent("request", "nobody", "hi")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "nobody: NO_SUCH_AGENT. Registered: oracle\n"


def test_a_message_may_wait_until_its_receiver_is_there(place: Place, oracle: str) -> None:
    place.serve()
    waiting = [place.start(command, "oracle", "hi", "--wait-for", "30") for command in ("request", "send")]
    agent = place.start("run", place.script("oracle.py", oracle))
    agent.said("oracle@local")
    assert [(program.end(), program.lines) for program in waiting] == [(0, ["echo: hi"]), (0, ["oracle: ACCEPTED"])]
    # Who does not come is told of as without waiting.
    assert place.gagent("request", "nobody", "hi", "--wait-for", "0.1").returncode == 3


def test_a_person_is_told_of_a_wait_and_a_program_is_not(town: Place) -> None:
    assert _shown_at_a_terminal(town, "request", "oracle", "mute", "--timeout", "1.5") == [
        "Waiting for oracle, 1.5 s at most ...",
        "oracle: no answer within 1.5 s",
    ]


def _shown_at_a_terminal(place: Place, *arguments: str) -> list[str]:
    """Return the lines that a command which fails with a time-out writes to stderr when that is a terminal."""
    terminal, its_other_end = pty.openpty()
    command = [sys.executable, "-m", "gagent_grpc", *arguments]
    done = subprocess.run(command, env=place.env, stdout=subprocess.PIPE, stderr=its_other_end, timeout=30, check=False)
    os.close(its_other_end)
    shown = os.read(terminal, 10_000).decode()
    os.close(terminal)
    assert done.returncode == 4
    return shown.splitlines()


def test_send_prints_the_receipt(town: Place) -> None:
    done = town.gagent("send", "oracle", "hi")
    assert (done.returncode, done.stdout, done.stderr) == (0, "oracle: ACCEPTED\n", "")
    done = town.gagent("send", "oracle", "hi", "--performative", "QUERY-REF", "--json")
    assert json.loads(done.stdout) == {"receiver": "oracle", "outcome": "ACCEPTED"}


def test_send_to_nobody_prints_the_refusal(town: Place) -> None:
    done = town.gagent("send", "nobody", "hi", "--json")
    assert done.returncode == 3
    assert json.loads(done.stdout) == {"receiver": "nobody", "outcome": "NO_SUCH_AGENT", "detail": "registered: oracle"}
    assert done.stderr == "nobody: NO_SUCH_AGENT. Registered: oracle\n"


def test_an_address_of_another_kind_is_for_the_bus_to_judge(town: Place) -> None:
    done = town.gagent("send", "bob@elsewhere", "hi")
    assert done.returncode == 3
    assert done.stderr.startswith("bob@elsewhere: UNREACHABLE. The platform 'elsewhere' is not known here")


def test_text_that_is_not_utf_8_is_a_usage_error(town: Place) -> None:
    done = town.gagent("request", "oracle", "-", text=b"\xff\xfe")
    assert done.returncode == 2
    assert b"stdin is not UTF-8" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        "watch --conversation",
        "df search",
        "df search --property",
        "df watch",
        "df register someone",
        "task get",
        "task cancel x --reason",
        "task answer x",
        "task signal x",
    ],
)
def test_an_argument_that_is_not_utf_8_is_a_usage_error(town: Place, arguments: str) -> None:
    done = town.gagent(*arguments.split(), "\udcff")
    assert done.returncode == 2
    assert "expected UTF-8" in done.stderr


def test_the_commands_own_names_stay_out_of_sight(town: Place) -> None:
    assert town.gagent("request", "oracle", "hello").returncode == 0
    listed = json.loads(town.gagent("ps", "--all", "--json").stdout)
    assert [one["name"] for one in listed] == ["oracle@local"]


# ---- ps and df -----------------------------------------------------------------------------------------------------


def test_ps_lists_who_is_there(town: Place) -> None:
    done = town.gagent("ps")
    heading, row = done.stdout.splitlines()
    assert heading.split() == ["NAME", "STATE", "CONNECTED", "MAIL", "OWNERSHIP"]
    assert row.split() == ["oracle@local", "active", "yes", "0"]
    (entry,) = json.loads(town.gagent("ps", "--json").stdout)
    assert (entry["name"], entry["state"], entry["connected"]) == ("oracle@local", "active", True)


def test_df_search_lists_who_offers_a_service(town: Place) -> None:
    heading, row = town.gagent("df", "search", "oracle").stdout.splitlines()
    assert heading.split() == ["AGENT", "SERVICE", "NAME", "SPEAKS", "PROPERTIES"]
    assert row.split() == ["oracle@local", "oracle", "oracle"]
    assert len(town.gagent("df", "search").stdout.splitlines()) == 3
    (entry,) = json.loads(town.gagent("df", "search", "echo", "--json").stdout)
    assert entry["name"] == "oracle@local"
    assert [service["type"] for service in entry["services"]] == ["oracle", "echo"]


def test_df_search_without_a_match_is_an_answer(town: Place) -> None:
    done = town.gagent("df", "search", "juggling")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "Nobody offers juggling.\n")
    assert json.loads(town.gagent("df", "search", "juggling", "--json").stdout) == []
    assert town.gagent("df", "search", "oracle", "--max-results", "0").returncode == 2


# ---- governing -----------------------------------------------------------------------------------------------------


def test_suspend_resume_and_kill_govern_an_agent(place: Place, oracle: str) -> None:
    place.serve()
    agent = place.start("run", place.script("oracle.py", oracle), "--service", "oracle", "--name", "deputy")
    agent.said("deputy@local")

    assert place.gagent("suspend", "deputy").stdout == "deputy: suspended\n"
    silent = place.gagent("request", "deputy", "hi", "--timeout", "0.5")
    assert silent.returncode == 4
    assert silent.stderr == (
        "deputy: no answer within 0.5 s; deputy is suspended; the request waits in its mailbox. See gagent ps --all\n"
    )
    assert place.gagent("df", "search", "oracle").stderr == "Nobody offers oracle.\n"
    assert json.loads(place.gagent("resume", "deputy", "--json").stdout) == {"name": "deputy", "state": "active"}
    assert place.gagent("request", "deputy", "hi").stdout == "echo: hi\n"

    assert place.gagent("kill", "deputy").stdout == "deputy: terminated\n"
    # Its agent is told, and the command ends with it.
    assert agent.end() == 0
    assert "deputy was ended by the AMS (gagent kill)" in agent.lines
    assert place.gagent("ps", "--all").stderr == "No agent is registered.\n"
    assert place.gagent("kill", "deputy").returncode == 1


def test_an_agent_that_was_stopped_is_away_and_keeps_its_name(place: Place, oracle: str) -> None:
    place.serve()
    agent = place.start("run", place.script("oracle.py", oracle))
    agent.said("oracle@local")
    assert agent.end(signal.SIGINT) == 0
    done = place.gagent("ps")
    hint = "1 more away (unknown: no session; its mail waits); see them: gagent ps --all"
    assert (done.stdout, done.stderr) == ("", f"No agent is connected.\n{hint}\n")
    assert "Unknown: no session; its mail waits." in " ".join(place.gagent("ps", "--help").stdout.split())
    assert place.gagent("send", "oracle", "later").stdout == "oracle: ACCEPTED\n"
    (entry,) = json.loads(place.gagent("ps", "--all", "--json").stdout)
    assert (entry["name"], entry["connected"], entry["mailbox_messages"]) == ("oracle@local", False, 1)

    away = "oracle is not connected (unknown); the request waits in its mailbox. See gagent ps --all"
    done = place.gagent("request", "oracle", "hi", "--timeout", "0.5")
    assert (done.returncode, done.stderr) == (4, f"oracle: no answer within 0.5 s; {away}\n")
    assert _shown_at_a_terminal(place, "request", "oracle", "hi", "--timeout", "1.5") == [
        "Waiting for oracle, 1.5 s at most ...",
        away,
        f"oracle: no answer within 1.5 s; {away}",
    ]


# ---- no bus --------------------------------------------------------------------------------------------------------


def test_without_a_bus_every_client_command_says_how_to_start_one(place: Place, free_port: int) -> None:
    commands = ("request bob hi", "send bob hi", "ps", "df search", "suspend bob", "resume bob", "kill bob")
    for program in [place.start(*command.split(), "--bus", f"127.0.0.1:{free_port}") for command in commands]:
        assert program.end() == 5, program.arguments
        assert program.lines == [f"No bus at 127.0.0.1:{free_port}. Start one: gagent serve"]


def test_of_several_buses_the_first_that_answers_is_asked(town: Place, free_port: int) -> None:
    both = f"127.0.0.1:{free_port},{town.env['GAGENT_BUS']}"
    assert town.gagent("request", "oracle", "hi", "--bus", both).stdout == "echo: hi\n"


def test_a_bad_endpoint_is_a_usage_error(place: Place) -> None:
    done = place.gagent("ps", "--bus", "here")
    assert done.returncode == 2
    assert done.stderr == "bus endpoint 'here': expected HOST:PORT, such as 127.0.0.1:50051\n"


def test_ctrl_c_while_waiting_for_an_answer_ends_with_130(town: Place) -> None:
    terminal, its_other_end = pty.openpty()
    command = [sys.executable, "-m", "gagent_grpc", "request", "oracle", "mute"]
    with subprocess.Popen(command, env=town.env, stdout=subprocess.PIPE, stderr=its_other_end) as asking:
        assert b"Waiting for oracle" in os.read(terminal, 10_000)
        asking.send_signal(signal.SIGINT)
        assert asking.wait(30) == 130
    os.close(its_other_end)
    os.close(terminal)


@pytest.fixture
def free_port() -> Any:
    """A port of loopback on which nobody listens: it is bound here, and not listened on."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]
