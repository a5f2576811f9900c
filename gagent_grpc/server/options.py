"""Options of the gRPC server, each with its reason. A name that gRPC does not know is ignored without a word."""

from __future__ import annotations

import resource

from gagent_grpc.config import BusLimits

_SPARE_CALLS = 1_000
"""Calls beside the sessions that a node serves at the same time."""

_SPARE_DESCRIPTORS = 100
"""Descriptors that connections leave to the store, the log, and what else the process has open."""


def server_options(limits: BusLimits) -> list[tuple[str, int]]:
    """Return the channel arguments of a bus that listens for agents."""
    return [
        # The default lets a second bus bind the same port without an error, and each gets half of the agents.
        ("grpc.so_reuseport", 0),
        # Over it the whole stream ends, so it stands well above the message limit, which refuses one message only.
        ("grpc.max_receive_message_length", limits.max_frame_bytes),
        ("grpc.max_send_message_length", limits.max_frame_bytes),
        # Counted per connection. At the limit a call is refused, not queued, so it is no admission control; a gateway
        # with many sessions on one connection must fit.
        ("grpc.max_concurrent_streams", 1_000),
        ("grpc.max_allowed_incoming_connections", max_connections(limits)),
        # A connection that says nothing is dropped after 10 s instead of 120.
        ("grpc.server_handshake_timeout_ms", 10_000),
        # A dead or frozen peer is noticed after 20 + 5 s: ...
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 5_000),
        # ... without this one a ping that nobody answers waits another 60 s.
        ("grpc.http2.ping_timeout_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
        # Clients may ping every 10 s; the default cuts one that pings more often than every five minutes.
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.http2.max_ping_strikes", 2),
        # Measuring the line with pings takes a slow one for dead, since they wait behind the data.
        ("grpc.http2.bdp_probe", 0),
        # A connection without any call is of no use to anybody.
        ("grpc.max_connection_idle_ms", 300_000),
    ]


def max_connections(limits: BusLimits) -> int:
    """Return how many connections may be open: below the descriptors of the process, so that it can still open a file."""
    most = limits.max_sessions + _SPARE_CALLS
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return most
    return min(most, max(descriptors - _SPARE_DESCRIPTORS, descriptors // 2))


def max_concurrent_rpcs(limits: BusLimits) -> int:
    """Return how many calls may be served at the same time; each session is one for as long as it lasts."""
    return limits.max_sessions + _SPARE_CALLS
