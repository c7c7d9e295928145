"""Generated from proto/xds/data/orca/v3 by `make proto`; do not edit."""
