"""Builds the image: buildah executes the Dockerfile, in a chroot in place of containers.

The base is a Debian with the packages of debian:bookworm-slim, made by mmdebstrap and kept in the
user's cache for a week, so that no registry is needed. Both programs need root.
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PACKAGES = {
    "buildah": "buildah",
    "mmdebstrap": "mmdebstrap",
    "ip": "iproute2",
    "unshare": "util-linux",
    "curl": "curl",
}
"""The programs that build and run the image, and their Debian packages."""

BASE = "localhost/debian:bookworm-slim"
MAX_AGE_SECONDS = 7 * 24 * 3600.0

# Paths that debian:bookworm-slim leaves out.
_SLIM = (
    *("path-exclude=/usr/share/doc/*", "path-include=/usr/share/doc/*/copyright"),
    *("path-exclude=/usr/share/locale/*", "path-exclude=/usr/share/man/*"),
    "path-exclude=/usr/share/info/*",
)
_AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")


class BuildError(Exception):
    """The image could not be built."""


def check() -> None:
    """Check that this machine can build and run the image.

    Raises:
        BuildError: The user is not root, or a program is missing; the message names its package.
    """
    missing = sorted({package for name, package in PACKAGES.items() if not shutil.which(name)})
    if missing:
        raise BuildError(f"programs are missing: apt-get install {' '.join(missing)}")
    if os.geteuid():
        raise BuildError("root is needed, for chroot, mounts and namespaces: sudo make test-image")


def base_archive() -> Path:
    """Return the file system of the base as a tar file, at most a week old."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    archive = cache / "endpoint-picker" / "image" / "bookworm-slim.tar"
    if archive.exists() and time.time() - archive.stat().st_mtime < MAX_AGE_SECONDS:
        return archive
    archive.parent.mkdir(parents=True, exist_ok=True)
    unfinished = archive.with_name(f"{os.getpid()}.tar")
    try:
        options = (f"--dpkgopt={each}" for each in _SLIM)
        _run("mmdebstrap", "--quiet", "--variant=minbase", *options, "bookworm", unfinished)
        unfinished.replace(archive)
    finally:
        unfinished.unlink(missing_ok=True)
    return archive


class Buildah:
    """Runs buildah with its own storage of images.

    Args:
        folder: An empty folder; images take 1.5 GB. Removing it removes them.
    """

    def __init__(self, folder: Path) -> None:
        self._command = (
            *("buildah", f"--root={folder / 'root'}", f"--runroot={folder / 'run'}"),
            "--storage-driver=vfs",
        )
        container = self._call("from", "scratch")
        self._call("add", "--quiet", container, base_archive(), "/")
        self._call("commit", "--quiet", "--rm", container, BASE)

    def build(
        self, source: Path, name: str, arguments: Mapping[str, str], *, target: str = ""
    ) -> None:
        """Execute the Dockerfile of a folder.

        Args:
            source: The folder; its .dockerignore applies.
            name: Name of the image.
            arguments: Values of the Dockerfile's ARG instructions.
            target: The stage to end with, by default the last one.
        """
        self._call(
            *("build", "--isolation=chroot", "--network=host", "--format=docker", "--pull-never"),
            *([f"--secret=id=ca,src={_AUTHORITIES}"] if _AUTHORITIES.exists() else []),
            *(f"--build-arg={key}={value}" for key, value in {"BASE": BASE, **arguments}.items()),
            *(f"--target={target}", f"--tag={name}", source),
        )

    def root(self, name: str) -> Path:
        """Return the file system of an image, as a folder."""
        return Path(self._call("mount", self._call("from", "--pull-never", name)))

    def settings(self, name: str) -> Mapping[str, Any]:
        """Return the Dockerfile's settings of containers: ``User``, ``Env`` and so on."""
        settings: Mapping[str, Any] = json.loads(self._call("inspect", "--type=image", name))
        return settings["Docker"]["config"]  # type: ignore[no-any-return]

    def _call(self, *arguments: str | Path) -> str:
        return _run(*self._command, *arguments).strip()


def _run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-30:])
        raise BuildError(f"{' '.join(map(str, command))} failed:\n{said}")
    return done.stdout
