"""Test tools: a fake model-server fleet, a load generator, and a local Envoy gateway."""
