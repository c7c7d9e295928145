"""Generated from proto/envoy/service."""
