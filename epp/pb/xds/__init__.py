"""Generated from proto/xds."""
