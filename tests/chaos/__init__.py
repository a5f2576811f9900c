"""Faults made on purpose, and what became of every message meanwhile."""
