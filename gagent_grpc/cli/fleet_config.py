"""`[[agents]]` of `gagent.toml`: the script agents that `gagent run --all` runs.

Owns: the keys, their defaults, and errors that name the entry. Leaves to others: running them (`bridge.fleet`).

    [[agents]]
    script = "worker.py"          # beside this file; or command = ["node", "worker.mjs"]
    count = 3                     # worker-1, worker-2, worker-3
    services = ["summarise"]
    prompt = "Be brief."
    env = { LANGUAGE = "en" }
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gagent_grpc.acl.aid import split_aid
from gagent_grpc.bridge.behaviour import RestartPolicy
from gagent_grpc.bridge.command import script_command
from gagent_grpc.bridge.limits import ScriptLimits
from gagent_grpc.bridge.process import ANSWER_TIMEOUT_S, STOP_GRACE_S
from gagent_grpc.bridge.supervisor import ScriptAgent
from gagent_grpc.cli.output import printable
from gagent_grpc.cli.settings import FILE, FLEET, read_file
from gagent_grpc.errors import BusError, ConfigurationError

if TYPE_CHECKING:
    from gagent_grpc.cli.settings import Settings

MAX_COUNT = 1_000
"""Most agents of one entry."""


class AgentEntry(BaseModel):
    """One `[[agents]]` table: an agent, or several of the same kind."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)

    name: str | None = None
    """Name of the agent; the script's file name without suffix by default. With `count`, `NAME-1` and so on."""
    script: Path | None = None
    """The script, from the folder of the settings file on; its suffix says what runs it."""
    command: list[str] | None = Field(None, min_length=1)
    """Program and arguments instead; it needs a name."""
    count: int = Field(1, ge=1, le=MAX_COUNT)
    """How many of them."""
    services: list[str] = Field(default_factory=list)
    """Service types that it offers in the DF; its name (without number) by default."""
    prompt: str | None = None
    """Instructions for its language model; as the setting `system_prompt` by default."""
    model: str | None = None
    """Name of that model; this and what follows as the setting of that name by default."""
    max_tokens: int | None = Field(None, gt=0)
    max_history: int | None = Field(None, ge=0)
    tick_ms: int | None = Field(None, ge=0)
    config: dict[str, Any] = Field(default_factory=dict)
    """Further keys of its `start` event."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables to add."""
    inherit_env: list[str] | None = None
    """Names of the variables of `gagent` that it gets, beside `PATH` and the like; all of them by default."""
    answer_timeout: float = Field(ANSWER_TIMEOUT_S, gt=0, allow_inf_nan=False)
    """Seconds that it may take for one event."""
    stop_grace: float = Field(STOP_GRACE_S, ge=0, allow_inf_nan=False)
    """Seconds that it may take from its `stop` event to its end."""
    restarts: int = Field(RestartPolicy().restarts, ge=0)
    """How often it may be started anew within `restart_period`, after an end with an error; 0 for never."""
    restart_period: float = Field(RestartPolicy().period, gt=0, allow_inf_nan=False)
    """Seconds."""
    memory_mb: int | None = Field(None, ge=1)
    """Most memory of each of its processes, in megabytes."""
    cpu_seconds: int | None = Field(None, ge=1)
    """Most CPU time of each of its processes."""
    open_files: int | None = Field(None, ge=8)
    """Most open files of each of its processes."""
    reload: bool = False
    """Whether it is started anew when its script changes."""

    def agents(self, folder: Path, settings: Settings, *, reload: bool = False) -> list[ScriptAgent]:
        """Return its agents.

        Args:
            folder: Folder that the script's path begins in.
            settings: What counts where the entry says nothing.
            reload: Whether scripts are started anew when they change, whatever the entry says.

        Raises:
            BusError: It makes no agent: there is no such script, nothing is known to run it, a name is not valid.
        """
        if (self.script is None) == (self.command is None):
            raise ConfigurationError("expected either script or command")
        script = None if self.script is None else folder / self.script
        if script is not None:
            script_command(script)
        base = self.name if self.name is not None or script is None else script.stem
        if base is None:
            raise ConfigurationError("a command needs a name")
        local, sign, platform = base.partition("@")
        names = [base] if self.count == 1 else [f"{local}-{n}{sign}{platform}" for n in range(1, self.count + 1)]
        for name in names:
            split_aid(name)
        return [self._agent(name, base, script, settings, reload=reload) for name in names]

    def _agent(self, name: str, base: str, script: Path | None, settings: Settings, *, reload: bool) -> ScriptAgent:
        def chosen(own: Any, general: Any) -> Any:
            return general if own is None else own

        return ScriptAgent(
            script,
            name=name,
            command=self.command,
            bus=settings.bus,
            # Those of one kind are to be found together.
            services=self.services or (base.partition("@")[0],),
            system_prompt=chosen(self.prompt, settings.system_prompt),
            model=chosen(self.model, settings.model),
            max_tokens=chosen(self.max_tokens, settings.max_tokens),
            max_history=chosen(self.max_history, settings.max_history),
            tick_ms=chosen(self.tick_ms, settings.tick_ms),
            config=self.config,
            env=self.env,
            answer_timeout=self.answer_timeout,
            grace=self.stop_grace,
            restart=RestartPolicy(self.restarts, self.restart_period),
            limits=ScriptLimits(self.memory_mb, self.cpu_seconds, self.open_files),
            inherit=self.inherit_env,
            reload=(reload or self.reload) and script is not None,
        )


def fleet_agents(config: Path | None, settings: Settings, *, reload: bool = False) -> list[ScriptAgent]:
    """Return the agents of all `[[agents]]` tables, in their order.

    Args:
        config: Settings file; `gagent.toml` of the current folder by default.
        settings: What counts where an entry says nothing.
        reload: Whether scripts are started anew when they change.

    Raises:
        ConfigurationError: There is no file, it has no entry, or an entry makes no agent; the text names entry and key.
    """
    path = config or Path(FILE)
    entries = read_file(config).get(FLEET)
    if not entries:
        raise ConfigurationError(f"{path}: no [[{FLEET}]] table; expected one for each script, such as\n{_EXAMPLE}")
    if not isinstance(entries, list) or not all(isinstance(one, dict) for one in entries):
        raise ConfigurationError(f"{path}: {FLEET} is no list of tables; expected [[{FLEET}]], such as\n{_EXAMPLE}")
    made: list[ScriptAgent] = []
    taken: dict[str, str] = {}
    for number, given in enumerate(entries, 1):
        where = f"{path}: [[{FLEET}]] number {number}" + (
            f" ({printable(str(given['name']))})" if "name" in given else ""
        )
        try:
            agents = AgentEntry.model_validate(given).agents(path.parent, settings, reload=reload)
        except ValidationError as error:
            raise ConfigurationError(f"{where}: {_first(error)}") from None
        except BusError as error:
            raise ConfigurationError(f"{where}: {error}") from error
        for agent in agents:
            if agent.name in taken:
                raise ConfigurationError(f"{where}: {agent.name!r} is the name of {taken[agent.name]}, too")
            taken[agent.name] = f"number {number}"
        made += agents
    return made


_EXAMPLE = f'  [[{FLEET}]]\n  script = "worker.py"'


def _first(error: ValidationError) -> str:
    """Return the first thing that is wrong with an entry: key, value, what was expected."""
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"unknown key {key!r}; expected one of: {', '.join(AgentEntry.model_fields)}"
    message = first["msg"]
    return f"{key} is {repr(first['input'])[:80]}: {message[:1].lower()}{message[1:]}"
