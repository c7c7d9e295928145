"""What can go wrong before there is a server."""


class BuildError(Exception):
    """There are no programs to run, and none can be built."""
