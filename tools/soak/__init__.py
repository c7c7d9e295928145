"""Millions of requests, then a check for leaks."""
