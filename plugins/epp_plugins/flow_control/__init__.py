"""In-tree flow control policies: fairness, ordering, usage limits and eviction."""
