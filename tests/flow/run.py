"""Makes the runs (main.py) from the repository root, without installing the tests."""

import sys
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.remove(str(Path(__file__).parent))

if __name__ == "__main__":
    sys.exit(import_module("flow.main").command())
