"""ACP messages in the SDK: handlers and sending as part of an `Agent`, and the classes of the ACP interface over it."""
