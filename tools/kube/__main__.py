"""Finds or builds the programs and prints their folder."""

import sys

from tools.kube.build import command

if __name__ == "__main__":
    sys.exit(command(sys.argv[1:]))
