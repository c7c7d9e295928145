"""Runs a step of a release: python -m tools.release STEP."""

import sys

if __name__ == "__main__":
    match sys.argv[1:]:
        case ["lock", *options]:
            from tools.release.locks import write_locks

            write_locks(options)
        case ["licences"]:
            from tools.release.licences import write_page

            write_page()
        case _:
            sys.exit("python -m tools.release lock [OPTION OF uv ...] | licences")
