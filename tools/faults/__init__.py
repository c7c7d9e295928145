"""Fault runs: misbehaving clients and model servers, and restarts of the endpoint picker."""
