"""Attacks on a running endpoint picker, and their scorecard."""
