"""Fairness, priority and cost of flow control, through Envoy and on a virtual clock."""
