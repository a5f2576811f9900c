"""Server reflection of the public protos, under `grpc.reflection.v1` and the older `v1alpha`.

The package behind it serves v1alpha only; both versions have the same messages, so the same handler stands under both
names. The descriptors are a pool of their own: the twin of the frames is nobody's business.
"""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from gagent_grpc.pb.gagent.v1 import (
    acl_pb2,
    acp_pb2,
    admin_service_pb2,
    agent_pb2,
    ams_service_pb2,
    bus_service_pb2,
    context_service_pb2,
    df_service_pb2,
    task_service_pb2,
)

SERVICES = (
    "gagent.v1.AdminService",
    "gagent.v1.AmsService",
    "gagent.v1.BusService",
    "gagent.v1.ContextService",
    "gagent.v1.DfService",
    "gagent.v1.TaskService",
    "grpc.health.v1.Health",
)
"""Full names of the services that a bus serves."""
_FILES = (
    agent_pb2,
    acl_pb2,
    acp_pb2,
    bus_service_pb2,
    ams_service_pb2,
    df_service_pb2,
    task_service_pb2,
    context_service_pb2,
    admin_service_pb2,
    health_pb2,
)


def public_pool() -> descriptor_pool.DescriptorPool:
    """Return a pool with the public files and what they import, and nothing else."""
    pool = descriptor_pool.DescriptorPool()
    added: set[str] = set()

    def add(file: Any) -> None:
        if file.name in added:
            return
        added.add(file.name)
        for dependency in file.dependencies:
            add(dependency)
        made = descriptor_pb2.FileDescriptorProto()
        file.CopyToProto(made)
        pool.Add(made)

    for module in _FILES:
        add(module.DESCRIPTOR)
    return pool


def handlers() -> list[grpc.GenericRpcHandler]:
    """Return the handlers of both versions."""
    versions = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
    servicer = reflection.aio.ReflectionServicer((*SERVICES, *versions), pool=public_pool())
    method = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    return [grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": method}) for name in versions]
