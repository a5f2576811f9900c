"""Agents with the stubs of `TaskService`."""

from __future__ import annotations

from typing import Any

import pytest
from tasking import Side

from gagent_grpc.pb.gagent.v1 import task_service_pb2_grpc as services
from gagent_grpc.server.app import Bus


@pytest.fixture
async def side(connect: Any, channels: Any) -> Any:
    """Return a factory: `await side(bus, "alice")`."""

    async def make(bus: Bus, name: str, **hello: Any) -> Side:
        return Side(await connect(bus, name, **hello), services.TaskServiceStub(channels(bus)))

    return make
