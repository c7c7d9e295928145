"""Runs helm with settings and caches of its own, not the user's."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tools.chart.paths import CHART

Document = dict[str, Any]


class HelmError(Exception):
    """helm failed; the text is helm's output."""


class Helm:
    """The helm program with a folder of its own."""

    def __init__(self, program: Path, home: Path, kubeconfig: Path | None = None) -> None:
        """Set it up.

        Args:
            program: The helm binary.
            home: Folder for its settings and caches.
            kubeconfig: The cluster, for commands that need one.
        """
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
            HelmError: The chart refuses a value.
        """
        words = ("template", release, str(chart), "--namespace", namespace, *arguments)
        return documents(self.run(*words, values=values))


def documents(text: str) -> list[Document]:
    """Return the objects of a text of several YAML documents."""
    return [each for each in yaml.safe_load_all(text) if each]


def of_kind(objects: Sequence[Document], kind: str, name: str | None = None) -> Document:
    """Return the only object of a kind, and of a name if there are several of the kind."""
    (found,) = (
        each
        for each in objects
        if each["kind"] == kind and name in (None, each["metadata"]["name"])
    )
    return found
