"""Millions of requests, then a search for what is left of them."""
