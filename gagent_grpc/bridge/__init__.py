"""Script agents: processes that speak one JSON object per line on stdin and stdout, made agents of the bus."""
