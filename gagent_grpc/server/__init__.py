"""The gRPC edge of the bus: frames and calls become calls of `bus.platform`, errors become statuses."""
