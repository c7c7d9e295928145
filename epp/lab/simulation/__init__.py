"""Simulated runs: real routing decisions, modelled servers, a virtual clock."""
