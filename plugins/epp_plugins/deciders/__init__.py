"""In-tree stage deciders, which decide whether a request goes through an optional stage.

A profile handler with several stages calls them; ``epp.scheduling.StageDecider`` is the contract.
"""
