"""Runs the fault runs."""

import sys

from tools.faults.main import command

if __name__ == "__main__":
    sys.exit(command())
