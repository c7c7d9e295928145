"""Runs a step of a release: python -m tools.release lock | licences | build [VERSION]."""

import sys

if __name__ == "__main__":
    # Each runs in an environment of its own, which lacks what the others import.
    match sys.argv[1:]:
        case ["lock", *options]:
            from tools.release.locks import write_locks

            write_locks(options)
        case ["licences"]:
            from tools.release.licences import write_page

            write_page()
        case ["build", *arguments]:
            from tools.release.artefacts import command

            sys.exit(command(arguments))
        case _:
            sys.exit("python -m tools.release lock [OPTION OF uv ...] | licences | build [VERSION]")
