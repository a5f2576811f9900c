"""ACP messages as JSON over WebSocket, for clients without gRPC. A client of the bus: it has no rights of its own."""
