"""Pure ACP values: delegated tasks, and free JSON as the text that travels. No socket, clock or loop."""
