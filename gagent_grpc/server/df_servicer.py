"""`DfService`: the calls of the directory facilitator, adapted to `bus.platform`."""

from __future__ import annotations

from typing import Any

import grpc

from gagent_grpc.bus.platform import Platform
from gagent_grpc.codec.management import constraints_of, df_from_proto, df_to_proto
from gagent_grpc.pb.gagent.v1 import df_service_pb2, df_service_pb2_grpc
from gagent_grpc.server.answers import written
from gagent_grpc.server.identity import caller_of

Context = grpc.aio.ServicerContext[Any, Any]


class DfServicer(df_service_pb2_grpc.DfServiceServicer):
    """Serves the DF. Errors are raised as they are; the interceptor makes statuses of them."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform

    async def RegisterDescription(
        self, request: df_service_pb2.RegisterDescriptionRequest, context: Context
    ) -> df_service_pb2.RegisterDescriptionResponse:
        """Register a description for the calling agent."""
        entry = self._platform.register_description(
            df_from_proto(request.description), caller_of(self._platform, context)
        )
        await self._platform.flush()
        return df_service_pb2.RegisterDescriptionResponse(description=df_to_proto(entry))

    async def DeregisterDescription(
        self, request: df_service_pb2.DeregisterDescriptionRequest, context: Context
    ) -> df_service_pb2.DeregisterDescriptionResponse:
        """Remove the description of the calling agent."""
        self._platform.deregister_description(request.agent or None, caller_of(self._platform, context))
        await self._platform.flush()
        return df_service_pb2.DeregisterDescriptionResponse()

    async def SearchDescriptions(
        self, request: df_service_pb2.SearchDescriptionsRequest, context: Context
    ) -> df_service_pb2.SearchDescriptionsResponse:
        """Search the descriptions."""
        constraints = constraints_of(request.max_results if request.HasField("max_results") else None)
        found = self._platform.search_descriptions(df_from_proto(request.template), constraints)
        limit = self._platform.limits.max_frame_bytes
        return df_service_pb2.SearchDescriptionsResponse(
            descriptions=await written(found, df_to_proto, max_frame_bytes=limit)
        )
