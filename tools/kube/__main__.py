"""Finds or makes the files for the tests, and prints their folders."""

import sys

from tools.kube.build import command

if __name__ == "__main__":
    sys.exit(command(sys.argv[1:]))
