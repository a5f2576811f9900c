"""Health and reflection: what a load balancer and a tool such as grpcurl see."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from gagent_grpc.errors import ConfigurationError
from gagent_grpc.server.app import Bus, open_bus
from gagent_grpc.storage.memory import MemoryStore

SERVED = ["", "gagent.v1.BusService", "gagent.v1.AdminService", "gagent.v1.AmsService", "gagent.v1.DfService"]


@pytest.mark.parametrize("service", SERVED)
async def test_service_is_healthy_until_the_bus_drains(bus: Bus, channel: grpc.aio.Channel, service: str) -> None:
    health = health_pb2_grpc.HealthStub(channel)
    watch = health.Watch(health_pb2.HealthCheckRequest(service=service))
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
    answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    await bus.drain()
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
    watch.cancel()


async def ask(channel: grpc.aio.Channel, version: str, **question: Any) -> reflection_pb2.ServerReflectionResponse:
    method = channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    call = method()
    await call.write(reflection_pb2.ServerReflectionRequest(**question))
    answer: reflection_pb2.ServerReflectionResponse = await call.read()
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    return answer


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_reflection_lists_what_is_served(channel: grpc.aio.Channel, version: str) -> None:
    answer = await ask(channel, version, list_services="")
    listed = {service.name for service in answer.list_services_response.service}
    assert {*SERVED[1:], "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection"} <= listed


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_reflection_shows_the_public_files_and_not_the_twin(channel: grpc.aio.Channel, version: str) -> None:
    answer = await ask(channel, version, file_containing_symbol="gagent.v1.BusService")
    files = [
        descriptor_pb2.FileDescriptorProto.FromString(data)
        for data in answer.file_descriptor_response.file_descriptor_proto
    ]
    public = next(file for file in files if file.name == "gagent/v1/bus_service.proto")
    batch = next(message for message in public.message_type if message.name == "SendBatch")
    assert batch.field[0].type_name == ".gagent.v1.BusMessage"
    hidden = await ask(channel, version, file_containing_symbol="gagent.internal.v1.SendBatch")
    assert hidden.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "example.org:1", "10.0.0.1:0"])
async def test_address_that_is_not_loopback_is_refused(listen: str) -> None:
    with pytest.raises(ConfigurationError, match="--insecure"):
        async with open_bus(MemoryStore(), listen=listen):
            pass


@pytest.mark.parametrize("listen", ["127.0.0.1", "127.0.0.1:x", ":50051", "127.0.0.1:70000", ""])
async def test_address_that_is_none_is_refused_with_the_form(listen: str) -> None:
    with pytest.raises(ConfigurationError, match="expected HOST:PORT"):
        async with open_bus(MemoryStore(), listen=listen):
            pass


async def test_port_that_is_taken_is_told_and_the_first_bus_goes_on(bus: Bus, connect: Any) -> None:
    with pytest.raises(ConfigurationError, match="in use"):
        async with open_bus(MemoryStore(), listen=bus.address):
            pass
    assert (await connect(bus, "alice")).welcome.agent == "alice@local"


async def test_bus_listens_where_insecure_is_allowed() -> None:
    async with open_bus(MemoryStore(), listen="0.0.0.0:0", insecure=True) as bus:
        assert not bus.address.endswith(":0")
