"""Runs helm, apart from the user's own settings and caches."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tools.chart.paths import CHART

Document = dict[str, Any]


class HelmError(Exception):
    """helm failed; the text is what it has written."""


class Helm:
    """The program."""

    def __init__(self, program: Path, home: Path, kubeconfig: Path | None = None) -> None:
        """Set it up with a folder for its files, and the cluster for commands that need one."""
        self._program = program
        self._environment = {
            "PATH": os.environ.get("PATH", ""),
            "HOME": str(home),
            "HELM_CACHE_HOME": str(home / "cache"),
            "HELM_CONFIG_HOME": str(home / "config"),
            "HELM_DATA_HOME": str(home / "data"),
            "KUBECONFIG": str(kubeconfig or home / "none"),
        }

    def run(self, *arguments: str, values: Mapping[str, Any] | None = None) -> str:
        """Run a command and return what it prints.

        Raises:
            HelmError: It failed.
        """
        words = [str(self._program), *arguments]
        if values is not None:
            words += ["--values", "-"]
        done = subprocess.run(
            words,
            env=self._environment,
            input=yaml.safe_dump(values) if values is not None else "",
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise HelmError(done.stderr.strip())
        return done.stdout

    def render(
        self,
        values: Mapping[str, Any],
        *arguments: str,
        release: str = "llama",
        namespace: str = "default",
        chart: Path = CHART,
    ) -> list[Document]:
        """Return the objects of a release.

        Raises:
            HelmError: A value is refused.
        """
        words = ("template", release, str(chart), "--namespace", namespace, *arguments)
        return documents(self.run(*words, values=values))


def documents(text: str) -> list[Document]:
    """Return the objects of a text of several YAML documents."""
    return [each for each in yaml.safe_load_all(text) if each]


def of_kind(objects: Sequence[Document], kind: str, name: str | None = None) -> Document:
    """Return the one object of a kind, and of a name if there are several of the kind."""
    (found,) = (
        each
        for each in objects
        if each["kind"] == kind and name in (None, each["metadata"]["name"])
    )
    return found
