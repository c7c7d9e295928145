"""Plugins that report facts about a response to the client or the gateway."""
