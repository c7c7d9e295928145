"""Dispatch sessions over requests: their order, their endpoints and what a commit does."""
