"""`gagent run`: a script becomes an agent, and every way in which it ends."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Place


def test_a_script_gets_what_the_command_line_says(town: Place) -> None:
    assert town.gagent("request", "oracle", "colour").stdout == "blue\n"
    start = json.loads(town.gagent("request", "oracle", "start").stdout)
    assert {name: start.get(name) for name in ("system_prompt", "model", "max_tokens", "max_history")} == {
        "system_prompt": "",
        "model": "gpt-4o-mini",
        "max_tokens": 200,
        "max_history": 20,
    }


def test_settings_of_a_script_come_from_flags_environment_and_file(place: Place, oracle: str) -> None:
    place.serve()
    (place.folder / "gagent.toml").write_text("max_tokens = 7\nmodel = 'of-file'\n")
    script = place.script("oracle.py", oracle)
    agent = place.start("run", script, "--system-prompt", "Be brief.", GAGENT_MODEL="of-env", GAGENT_MAX_HISTORY="3")
    agent.said("oracle@local")
    start = json.loads(place.gagent("request", "oracle", "start").stdout)
    assert (start["system_prompt"], start["model"], start["max_tokens"], start["max_history"]) == (
        "Be brief.",
        "of-env",
        7,
        3,
    )


def test_a_bash_script_of_a_few_lines_is_an_agent(place: Place) -> None:
    place.serve()
    script = place.script(
        "parrot.sh",
        """\
        while read -r line; do
          case "$line" in
            *'"event":"stop"'*) exit 0;;
            *'"event":"message"'*)
              to=$(printf '%s' "$line" | sed 's/.*"sender":"\\([^"]*\\)".*/\\1/')
              echo '{"action":"send","to":"'"$to"'","msg":{"performative":"inform","content":"polly"}}';;
            *) echo '{"action":"noop"}';;
          esac
        done
        """,
    )
    agent = place.start("run", script)
    agent.said("parrot@local")
    assert place.gagent("request", "parrot", "who is a pretty bird?").stdout == "polly\n"
    assert agent.end(signal.SIGTERM) == 0


def test_a_command_behind_two_dashes_is_an_agent(place: Place, oracle: str) -> None:
    place.serve()
    agent = place.start("run", "--name", "seer", "--", "python3", "-u", place.script("oracle.txt", oracle))
    agent.said("seer@local")
    assert place.gagent("request", "seer", "hi").stdout == "echo: hi\n"
    assert agent.end(signal.SIGINT) == 0


def test_a_script_that_ends_well_ends_the_command_well_and_its_name_stays(place: Place) -> None:
    place.serve()
    script = place.script("short.py", 'print(input() and \'{"action": "noop"}\', flush=True)\n')
    assert place.start("run", script).end() == 0
    (entry,) = json.loads(place.gagent("ps", "--all", "--json").stdout)
    assert (entry["name"], entry["connected"]) == ("short@local", False)


def test_a_program_that_does_not_exist_is_one_clear_error(place: Place) -> None:
    place.serve()
    done = place.gagent("run", "--name", "ghost", "--", "no-such-program")
    assert done.returncode == 1
    assert "no-such-program" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_reserved_name_is_denied(place: Place, oracle: str) -> None:
    place.serve()
    done = place.gagent("run", place.script("ams.py", oracle))
    assert done.returncode == 6
    assert "reserved" in done.stderr


def test_a_name_that_a_live_agent_has_is_refused(town: Place) -> None:
    done = town.gagent("run", str(town.folder / "oracle.py"))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "oracle: already registered with the AMS (a live session holds the name). Stop it (gagent kill oracle) or choose"
        " another name with --name"
    )
    assert town.gagent("request", "oracle", "still there?").stdout == "echo: still there?\n"


def test_a_second_ctrl_c_does_not_wait_for_a_script_that_hangs(place: Place) -> None:
    place.serve()
    script = place.script(
        "stubborn.py",
        """\
        import signal, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for line in sys.stdin:
            if '"stop"' in line:
                print("told to stop", file=sys.stderr, flush=True)
                time.sleep(600)
            print('{"action": "noop"}', flush=True)
        """,
    )
    agent = place.start("run", script)
    agent.said("stubborn@local")
    agent.process.send_signal(signal.SIGINT)
    agent.said("told to stop")
    assert agent.end(signal.SIGINT) == 130
