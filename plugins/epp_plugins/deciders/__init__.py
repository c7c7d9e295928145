"""In-tree stage deciders: they say which optional stages a request goes through.

A profile handler with several stages asks them; ``epp.scheduling.StageDecider`` is the contract.
"""
