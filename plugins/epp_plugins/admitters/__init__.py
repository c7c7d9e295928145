"""In-tree admitters: who is turned away before anything is scheduled."""
