"""Finds or makes what the tests need, and prints the folders."""

import sys

from tools.kube.build import command

if __name__ == "__main__":
    sys.exit(command(sys.argv[1:]))
