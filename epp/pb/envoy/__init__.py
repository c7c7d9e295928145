"""Generated from proto/envoy."""
