"""`DfService`: the calls of the directory facilitator, adapted to `bus.platform`."""

from __future__ import annotations

from typing import Any, cast

import grpc

from gagent_grpc.bus.offers import OfferNews
from gagent_grpc.bus.platform import Platform
from gagent_grpc.codec.management import constraints_of, df_from_proto, df_to_proto
from gagent_grpc.codec.times import timestamp_of
from gagent_grpc.pb.gagent.v1 import df_service_pb2, df_service_pb2_grpc
from gagent_grpc.server.answers import written
from gagent_grpc.server.identity import caller_of
from gagent_grpc.server.watching import counted_as, tell

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

    async def ModifyDescription(
        self, request: df_service_pb2.ModifyDescriptionRequest, context: Context
    ) -> df_service_pb2.ModifyDescriptionResponse:
        """Replace the description of the calling agent."""
        entry = self._platform.modify_description(
            df_from_proto(request.description), caller_of(self._platform, context)
        )
        await self._platform.flush()
        return df_service_pb2.ModifyDescriptionResponse(description=df_to_proto(entry))

    async def RenewDescription(
        self, request: df_service_pb2.RenewDescriptionRequest, context: Context
    ) -> df_service_pb2.RenewDescriptionResponse:
        """Start the lease of the calling agent's description anew."""
        lease = request.lease_seconds if request.HasField("lease_seconds") else None
        caller = caller_of(self._platform, context)
        entry = self._platform.renew_description(request.agent or None, lease, caller)
        await self._platform.flush()
        return df_service_pb2.RenewDescriptionResponse(description=df_to_proto(entry))

    async def WatchDescriptions(  # type: ignore[override]  # [override]: a coroutine that writes, and so knows of its end.
        self, request: df_service_pb2.WatchDescriptionsRequest, context: Context
    ) -> None:
        """Tell what matches, and what changes."""
        caller = counted_as(caller_of(self._platform, context), context)
        watch = self._platform.watch_descriptions(df_from_proto(request.template), request.cursor, caller=caller)
        await tell(watch, _news, context, timeout=self._platform.limits.write_timeout)

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
        constraints = constraints_of(
            request.max_results if request.HasField("max_results") else None,
            max_depth=request.max_depth,
            search_id=request.search_id,
        )
        found = self._platform.search_descriptions(df_from_proto(request.template), constraints)
        limit = self._platform.limits.max_frame_bytes
        return df_service_pb2.SearchDescriptionsResponse(
            descriptions=await written(found, df_to_proto, max_frame_bytes=limit)
        )


def _news(news: OfferNews) -> df_service_pb2.WatchDescriptionsResponse:
    return df_service_pb2.WatchDescriptionsResponse(
        cursor=news.cursor,
        kind=cast("df_service_pb2.DescriptionEventKind.ValueType", int(news.kind)),
        description=df_to_proto(news.description) if news.description is not None else None,
        cause=news.cause,
        at=timestamp_of(news.at),
    )
