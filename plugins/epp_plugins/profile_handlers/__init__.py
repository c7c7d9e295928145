"""In-tree profile handlers."""
