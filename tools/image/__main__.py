"""Checks whether this machine can build and run the image, and prints what is missing."""

import sys

from tools.image.build import BuildError, check

if __name__ == "__main__":
    try:
        check()
    except BuildError as error:
        sys.exit(f"make test-image: {error}")
