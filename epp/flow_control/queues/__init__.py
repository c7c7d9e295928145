"""Queues of waiting requests: priority bands, their limits and timeouts."""
