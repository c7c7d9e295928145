"""In-tree saturation detectors, which measure how full the pool is."""
