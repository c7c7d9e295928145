"""Fuzz targets, and checks of the work that inputs cost."""
