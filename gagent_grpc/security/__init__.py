"""Who callers are and what they may do: credentials and their rights. Knows no transport."""
