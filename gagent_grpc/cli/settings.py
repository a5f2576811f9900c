"""Settings of the command: a flag, else the environment (`GAGENT_...`), else `gagent.toml`, else the default.

Owns: names and defaults of the settings, where each value comes from, and errors that name it. Keys of the file are the
names below; `GAGENT_` and the same in capitals is the variable; flags have hyphens.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from gagent_grpc.acl.aid import encode_name
from gagent_grpc.cli.output import note, printable
from gagent_grpc.config import DEFAULT_ENDPOINT, DEFAULT_PLATFORM, BusLimits, ClientLimits
from gagent_grpc.errors import ConfigurationError

FILE = "gagent.toml"
"""Settings file of the current folder."""
PREFIX = "GAGENT_"
"""What the variables of the environment begin with."""
FLEET = "agents"
"""The one key of the file that is no setting: the script agents that `gagent run --all` runs (`cli.fleet_config`)."""
OF_SCRIPTS = ("GAGENT_BRIDGE", "GAGENT_NAME", "GAGENT_SERVICES")
"""Variables that only script agents read."""


class Settings(BaseSettings):
    """Every setting that the command knows."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, extra="forbid", frozen=True)

    bus: str = DEFAULT_ENDPOINT
    """`HOST:PORT[,HOST:PORT]` where clients look for the bus."""
    timeout: float | None = Field(None, gt=0, allow_inf_nan=False)
    """Seconds that a client command waits; None for the defaults of `answer_timeout` and `call_timeout`."""
    listen: str = DEFAULT_ENDPOINT
    """`HOST:PORT` where `serve` listens; port 0 takes a free one."""
    store: str = ""
    """`sqlite:PATH` or `memory`; "" for a file in the user's state folder."""
    platform: str = DEFAULT_PLATFORM
    """Name of the platform that `serve` runs."""
    insecure: bool = False
    """Whether `serve` may listen where other machines reach it, without TLS and credentials."""
    web: str = ""
    """`HOST:PORT` where `serve` takes ACP messages over WebSocket; "" for nowhere."""
    web_origin: str = ""
    """Origins whose pages may connect there beside its own, separated by commas."""
    tokens: str = ""
    """File of tokens; "" for one in the user's state folder."""
    require_token: bool = False
    """Whether a WebSocket needs a token also while none was issued."""
    max_turns: int = Field(BusLimits().max_turns, ge=0)
    """Turns of two agents in one conversation, beyond which the bus that `serve` runs ends it; 0 for no bound."""
    max_hops: int = Field(BusLimits().max_hops, ge=0)
    """Messages that may lead to another one by answers and forwarding, beyond the turns of its conversation; 0 for no bound."""
    conversation_policy: Literal["observe", "warn", "enforce"] = "observe"
    """What is done about a message that is out of sequence in its interaction protocol."""
    log_format: Literal["console", "json"] = "console"
    """How log lines look."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level that is logged."""
    system_prompt: str = ""
    """Instructions for the language model of a script agent."""
    model: str = "gpt-4o-mini"
    """Name of that model."""
    max_tokens: int = Field(200, gt=0)
    """Longest answer to ask it for, in tokens."""
    max_history: int = Field(20, ge=0)
    """Turns of a conversation to keep for it."""
    tick_ms: int = Field(200, ge=0)
    """Milliseconds without a message after which a script agent gets a tick; 0 for no ticks."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take values from the constructor alone: `resolve` reads the sources, since it tells where each is from."""
        return (init_settings,)

    @property
    def store_address(self) -> str:
        """The store in force, in full: `sqlite:PATH`, or whatever was given."""
        return self.store or f"sqlite:{state_folder() / encode_name(self.platform)}.db"

    @property
    def tokens_path(self) -> Path:
        """The file of tokens in force, in full."""
        if self.tokens:
            return Path(self.tokens).expanduser().absolute()
        return state_folder() / f"{encode_name(self.platform)}.tokens.json"

    @property
    def answer_timeout(self) -> float:
        """Seconds to wait for an answer."""
        return self.timeout or ClientLimits().request_timeout

    @property
    def call_timeout(self) -> float:
        """Seconds that a call of the bus may take."""
        return self.timeout or ClientLimits().call_timeout


@dataclass(frozen=True, slots=True)
class Resolved:
    """Settings in force."""

    settings: Settings
    origins: Mapping[str, str]
    """Where each setting comes from: a flag, a variable, a file, or `default`."""


def unknown_variables() -> dict[str, str | None]:
    """Return the variables of the environment that look like settings and are none, with the nearest known one."""
    known = [*OF_SCRIPTS, *(PREFIX + name.upper() for name in Settings.model_fields)]
    unknown = sorted(name for name in os.environ if name.upper().startswith(PREFIX) and name.upper() not in known)
    return {name: next(iter(get_close_matches(name.upper(), known, 1, 0.8)), None) for name in unknown}


def resolve(config: Path | None = None, **flags: object) -> Settings:
    """Return the settings in force; arguments, notes and errors as `resolve_with_origins`."""
    return resolve_with_origins(config, **flags).settings


def resolve_with_origins(config: Path | None = None, **flags: object) -> Resolved:
    """Return the settings in force, and where each is from; note on stderr which variables are none.

    Args:
        config: Settings file; `gagent.toml` of the current folder by default, which may be absent.
        flags: What was said on the command line, by name of the setting; None for what was not.

    Raises:
        ConfigurationError: The file is absent or no TOML, has an unknown key, or a value is of the wrong form; the text
            names it and where it is from.
    """
    for name, nearest in unknown_variables().items():
        way_out = f"Did you mean {nearest}?" if nearest else "See them: gagent config"
        note(f"{printable(name)} is ignored: no such setting. {way_out}")
    sources: list[tuple[Mapping[str, Any], Any]] = [
        (_from_file(config), lambda _: str(config or FILE)),
        (EnvSettingsSource(Settings)(), lambda name: PREFIX + name.upper()),
        (
            {name: value for name, value in flags.items() if value is not None},
            lambda name: "--" + name.replace("_", "-"),
        ),
    ]
    values: dict[str, Any] = {}
    origins = dict.fromkeys(Settings.model_fields, "default")
    for found, origin in sources:
        values.update(found)
        origins.update({name: origin(name) for name in found})
    try:
        return Resolved(Settings(**values), origins)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        given = repr(first["input"])[:80]
        raise ConfigurationError(f"{_named(name, origins[name])} is {given}: {_lower(first['msg'])}") from None


def state_folder() -> Path:
    """Return the folder for the state of `gagent`: in XDG_STATE_HOME, or ~/.local/state.

    Raises:
        ConfigurationError: The user has no home folder.

    Spec: XDG Base Directory Specification 0.8 (a relative path in the variable is to be ignored).
    """
    given = Path(os.environ.get("XDG_STATE_HOME") or "")
    try:
        return (given if given.is_absolute() else Path.home() / ".local" / "state") / "gagent"
    except RuntimeError as error:
        raise ConfigurationError(
            "no home folder is known for the default store; give one: --store sqlite:PATH"
        ) from error


def read_file(config: Path | None) -> dict[str, Any]:
    """Return what the settings file says, or nothing where there is no `gagent.toml` in the current folder.

    Raises:
        ConfigurationError: The file that was given is absent, cannot be read, or is no TOML.
    """
    path = config or Path(FILE)
    if config is not None and not path.is_file():
        raise ConfigurationError(f"{path}: no such settings file")
    try:
        return dict(TomlConfigSettingsSource(Settings, path).toml_data)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: not valid TOML: {error}") from error
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from error


def _from_file(config: Path | None) -> Mapping[str, Any]:
    path = config or Path(FILE)
    found = read_file(config)
    found.pop(FLEET, None)
    for key in found:
        if key not in Settings.model_fields:
            raise ConfigurationError(
                f"{path}: unknown key {key!r}; expected one of: {', '.join(Settings.model_fields)}"
            )
    return found


def _named(name: str, origin: str) -> str:
    return origin if origin.startswith(("--", PREFIX)) else f"{origin}: {name}"


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
