"""The `gagent` command: one module per group of commands. Owns: what a person types and reads; never a rule of the bus."""
