"""A flag, else the environment, else the file, else the default; and errors that say where the bad value is."""

from pathlib import Path

import pytest

from gagent_grpc.cli.settings import Settings, resolve, resolve_with_origins
from gagent_grpc.errors import ConfigurationError


def test_without_anything_the_defaults_are_in_force() -> None:
    resolved = resolve_with_origins()
    assert resolved.settings.bus == "127.0.0.1:50051"
    assert (resolved.settings.answer_timeout, resolved.settings.call_timeout) == (120.0, 10.0)
    assert set(resolved.origins.values()) == {"default"}
    assert set(resolved.origins) == set(Settings.model_fields)


def test_each_source_gives_way_to_the_one_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("gagent.toml").write_text('bus = "file:1"\nmodel = "of-file"\nlisten = "file:2"\n')
    monkeypatch.setenv("GAGENT_BUS", "env:1")
    monkeypatch.setenv("GAGENT_MODEL", "of-env")
    resolved = resolve_with_origins(bus="flag:1", model=None)
    assert (resolved.settings.bus, resolved.origins["bus"]) == ("flag:1", "--bus")
    assert (resolved.settings.model, resolved.origins["model"]) == ("of-env", "GAGENT_MODEL")
    assert (resolved.settings.listen, resolved.origins["listen"]) == ("file:2", "gagent.toml")
    assert (resolved.settings.platform, resolved.origins["platform"]) == ("local", "default")


def test_an_empty_variable_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAGENT_BUS", "")
    assert resolve_with_origins().origins["bus"] == "default"


def test_variables_of_the_bridge_are_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAGENT_BRIDGE", "stdio")
    monkeypatch.setenv("GAGENT_NAME", "bob")
    assert set(resolve_with_origins().origins.values()) == {"default"}


def test_a_named_file_takes_the_place_of_the_one_in_the_folder(tmp_path: Path) -> None:
    Path("gagent.toml").write_text('bus = "folder:1"\n')
    other = tmp_path / "other.toml"
    other.write_text("max_tokens = 5\n")
    resolved = resolve_with_origins(other)
    assert (resolved.settings.bus, resolved.settings.max_tokens) == ("127.0.0.1:50051", 5)
    assert resolved.origins["max_tokens"] == str(other)


def test_an_unknown_key_is_named_with_the_known_ones() -> None:
    Path("gagent.toml").write_text('buss = "x:1"\n')
    with pytest.raises(
        ConfigurationError, match=r"^gagent.toml: unknown key 'buss'; expected one of: bus, timeout, listen"
    ):
        resolve()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('max_tokens = "many"\n', r"^gagent.toml: max_tokens is 'many': input should be a valid integer"),
        ("log_format = 3\n", r"^gagent.toml: log_format is 3: input should be 'console' or 'json'"),
        ("timeout = nan\n", r"^gagent.toml: timeout is nan: input should be a finite number"),
        ("bus = \n", r"^gagent.toml: not valid TOML: "),
    ],
)
def test_a_bad_value_of_the_file_is_named_with_its_file(text: str, error: str) -> None:
    Path("gagent.toml").write_text(text)
    with pytest.raises(ConfigurationError, match=error):
        resolve()


def test_a_bad_value_of_the_environment_is_named_with_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAGENT_MAX_TOKENS", "0")
    with pytest.raises(ConfigurationError, match=r"^GAGENT_MAX_TOKENS is '0': input should be greater than 0"):
        resolve()


def test_a_bad_flag_is_named_as_it_was_typed() -> None:
    with pytest.raises(ConfigurationError, match=r"^--log-level is 'loud': input should be 'debug', 'info'"):
        resolve(log_level="loud")


def test_a_file_that_was_named_has_to_exist() -> None:
    with pytest.raises(ConfigurationError, match=r"^missing.toml: no such settings file"):
        resolve(Path("missing.toml"))


def test_the_default_store_is_a_file_in_the_state_folder_named_after_the_platform(tmp_path: Path) -> None:
    assert resolve().store_address == f"sqlite:{tmp_path}/state/gagent/local.db"
    assert resolve(store="memory").store_address == "memory"
    # A platform name may hold what no file name may.
    assert (
        resolve(platform="hub:1099/JADE").store_address
        == f"sqlite:{tmp_path}/state/gagent/hub=3a1099=2f=4a=41=44=45.db"
    )


def test_a_relative_state_folder_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "state")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert resolve().store_address == f"sqlite:{tmp_path}/home/.local/state/gagent/local.db"
