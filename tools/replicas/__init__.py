"""Replicas of the endpoint picker that share their state through a real Redis, measured."""
