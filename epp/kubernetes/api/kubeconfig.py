"""Reads kubeconfig files, merges them as kubectl does, and resolves one cluster and user.

lightkube reads only one file; its types for clusters, users and contexts are used here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
from lightkube.config.models import Cluster, Context, User

from epp.inputs import why_unreadable
from epp.kubernetes.api.errors import ConfigurationError

_T = TypeVar("_T")


class KubeconfigCluster(Cluster, omit_defaults=True):
    """A cluster, with two fields that lightkube lacks."""

    tls_server_name: str | None = msgspec.field(name="tls-server-name", default=None)
    """The name to expect in the server's certificate instead of the host's."""
    proxy_url: str | None = msgspec.field(name="proxy-url", default=None)


class _NamedCluster(msgspec.Struct):
    name: str
    cluster: KubeconfigCluster


class _NamedUser(msgspec.Struct):
    name: str
    user: User


class _NamedContext(msgspec.Struct):
    name: str
    context: Context


class _File(msgspec.Struct, rename="kebab"):
    """The fields of a kubeconfig file that are used; kubectl writes ``null`` for empty lists."""

    clusters: list[_NamedCluster] | None = None
    users: list[_NamedUser] | None = None
    contexts: list[_NamedContext] | None = None
    current_context: str | None = None


# Each client reads the file in a thread of its own. msgspec looks at a type when it is first
# decoded, and two threads that do so at once end the process with SIGSEGV (msgspec 0.22).
msgspec.json.Decoder(_File)


@dataclass(frozen=True, slots=True)
class Selected:
    """The cluster and the user of the current context; paths in them are absolute."""

    context_name: str
    cluster: KubeconfigCluster
    user: User
    namespace: str | None


def read_kubeconfig(paths: Sequence[Path], context_name: str = "") -> Selected:
    """Merge the files that exist and return their current context, or another one; blocks.

    As with kubectl, the first file that has a name or a current context determines it, and relative
    paths are relative to the file that has them.

    Raises:
        ConfigurationError: A file is unreadable or invalid, or the context is incomplete.
    """
    clusters: dict[str, KubeconfigCluster] = {}
    users: dict[str, User] = {}
    contexts: dict[str, Context] = {}
    current = context_name
    for path in paths:
        if not path.exists():
            continue
        file = _read(path)
        for each in file.clusters or ():
            clusters.setdefault(each.name, each.cluster)
        for each_user in file.users or ():
            users.setdefault(each_user.name, each_user.user)
        for each_context in file.contexts or ():
            contexts.setdefault(each_context.name, each_context.context)
        current = current or file.current_context or ""
    where = ", ".join(map(str, paths))
    if not current:
        raise ConfigurationError(f"{where}: no current-context: kubectl config use-context NAME")
    context = _named(current, contexts, "context", where)
    return Selected(
        current,
        _named(context.cluster, clusters, "cluster", where),
        _named(context.user, users, "user", where) if context.user else User(),
        context.namespace or None,
    )


def _read(path: Path) -> _File:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {why_unreadable(error)}") from error
    if not content.strip():
        return _File()
    try:
        file = msgspec.yaml.decode(content, type=_File)
    except msgspec.DecodeError as error:
        said = " ".join(str(error).replace('in "<byte string>", ', "").split())
        raise ConfigurationError(f"{path} is no valid kubeconfig: {said}") from error
    folder = path.absolute().parent
    for each in file.clusters or ():
        each.cluster.certificate_auth = _absolute(each.cluster.certificate_auth, folder)
    for each_user in file.users or ():
        user = each_user.user
        user.client_cert = _absolute(user.client_cert, folder)
        user.client_key = _absolute(user.client_key, folder)
        user.token_file = _absolute(user.token_file, folder)
        if user.exec is not None and "/" in user.exec.command:
            user.exec.command = str(folder / user.exec.command)
    return file


def _absolute(path: str | None, folder: Path) -> str | None:
    return str(folder / path) if path else None


def _named(name: str, by_name: Mapping[str, _T], what: str, where: str) -> _T:
    try:
        return by_name[name]
    except KeyError:
        known = ", ".join(by_name) or "none"
        raise ConfigurationError(f"{where}: no {what} {name!r} (there are: {known})") from None
