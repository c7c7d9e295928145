"""Fuzz targets, and work counted against the size of the input."""
