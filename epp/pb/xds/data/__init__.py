"""Generated from proto/xds/data."""
