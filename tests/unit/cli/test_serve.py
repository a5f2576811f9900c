"""Which stores `gagent serve` knows by name."""

from pathlib import Path

import pytest

from gagent_grpc.cli.serve import open_store
from gagent_grpc.errors import ConfigurationError
from gagent_grpc.storage.memory import MemoryStore
from gagent_grpc.storage.sqlite import SqliteStore


def test_a_store_is_opened_by_its_kind(tmp_path: Path) -> None:
    assert isinstance(open_store("memory"), MemoryStore)
    assert isinstance(open_store(f"sqlite:{tmp_path}/bus.db"), SqliteStore)


@pytest.mark.parametrize("address", ["", "sqlite", "sqlite:", "memory:x", "postgres://db", "bus.db"])
def test_an_unknown_store_is_named_with_the_expected_form(address: str) -> None:
    with pytest.raises(ConfigurationError, match="expected sqlite:PATH or memory"):
        open_store(address)


def test_a_store_of_a_later_version_is_told_apart_from_an_unknown_one() -> None:
    with pytest.raises(ConfigurationError, match=r"NATS comes with a later version"):
        open_store("nats://127.0.0.1:4222")
