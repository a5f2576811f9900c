"""The stores behind `bus.ports.Store`, one engine per module: what a platform keeps across restarts."""
