"""Generated from proto/xds/data/orca."""
