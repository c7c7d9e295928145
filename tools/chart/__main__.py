"""Command line: see the package."""

import sys
import tempfile
from pathlib import Path

from tools.chart import kustomize, values_table
from tools.chart.helm import Helm
from tools.chart.paths import copy_files
from tools.kube.build import CLIENTS, build
from tools.kube.go import BuildError


def main(arguments: list[str]) -> int:
    """Run ``docs`` or ``kustomize``; return the exit status."""
    if arguments == ["docs"]:
        copy_files()
        values_table.write()
        return 0
    if arguments == ["kustomize"]:
        try:
            program = build(CLIENTS) / "helm"
        except BuildError as error:
            print(f"make kustomize: {error}", file=sys.stderr)
            return 1
        with tempfile.TemporaryDirectory() as home:
            kustomize.write(Helm(program, Path(home)))
        return 0
    print("usage: python -m tools.chart docs|kustomize", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
