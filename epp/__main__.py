"""``python -m epp``."""

from epp.cli import main

if __name__ == "__main__":
    main()
