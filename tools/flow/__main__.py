"""Measures flow control."""

import sys

from tools.flow.main import command

if __name__ == "__main__":
    sys.exit(command())
