"""The laboratory: a fake model-server fleet, a load generator and reports."""
