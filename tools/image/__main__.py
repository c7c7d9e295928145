"""Says what is missing to build the image and run it."""

import sys

from tools.image.build import BuildError, check

if __name__ == "__main__":
    try:
        check()
    except BuildError as error:
        sys.exit(f"make test-image: {error}")
