"""Pure FIPA values: acts, identifiers, messages, descriptions, content languages. No socket, clock or loop."""
