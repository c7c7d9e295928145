"""Variants of plugins for an EPP that chooses among clusters: an endpoint is a whole cluster."""
