"""Runs the soak."""

import sys

from tools.soak.soak import command

if __name__ == "__main__":
    sys.exit(command())
