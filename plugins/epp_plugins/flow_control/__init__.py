"""In-tree policies of flow control: who waits, behind whom, and for how much room."""
