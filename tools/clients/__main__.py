"""Compares the two clients."""

import sys

from tools.clients.main import command

if __name__ == "__main__":
    sys.exit(command())
