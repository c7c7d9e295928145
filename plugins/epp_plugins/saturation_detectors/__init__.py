"""In-tree saturation detectors: how full the pool is."""
