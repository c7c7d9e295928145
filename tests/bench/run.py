"""Runs the benchmark (main.py) from the repository root, without installing the tests."""

import sys
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

if __name__ == "__main__":
    import_module("bench.main").command()
