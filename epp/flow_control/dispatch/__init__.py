"""Dispatch sessions over requests: their order, the choice of endpoints, and commits."""
