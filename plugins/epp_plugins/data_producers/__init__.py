"""In-tree data producers."""
