"""In-tree parsers."""
