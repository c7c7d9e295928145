"""In-tree admitters, which refuse requests before scheduling."""
