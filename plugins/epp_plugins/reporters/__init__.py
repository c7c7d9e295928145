"""Plugins that tell the client something about its answer."""
