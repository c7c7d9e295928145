"""How the programs of Kubernetes are found and built, with a stand-in for Go."""

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tools.kube import go
from tools.kube.build import (
    CLIENTS,
    DEFINITIONS,
    ETCD,
    KITS,
    KUBERNETES,
    SERVERS,
    ModuleFile,
    build,
    check,
    command,
    find,
)
from tools.kube.go import BuildError

Environment = dict[str, str]
MakeGo = Callable[..., Environment]

GO = """#!/bin/sh
echo "$*" >> "$CALLS"
case "$1 $2" in
    "env GOVERSION") echo "$VERSION" ;;
    "env GOFLAGS") echo "$GOFLAGS" ;;
    "mod download")
        folder=$GOMODCACHE/$4
        for path in $FILES; do
            mkdir -p "$(dirname "$folder/$path")"
            echo "$path" > "$folder/$path"
        done
        echo '{"GoMod": "'"$4.mod"'", "Dir": "'"$folder"'"}' ;;
    "mod edit") cat "$REPLACED" ;;
    "list -deps") printf 'a\\nb\\n' ;;
    "build -v")
        printf 'a\\nb: undefined: c\\n' >&2
        { pwd; cat go.mod; env; } >> "$CALLS"
        while [ "$1" != -o ]; do shift; done
        echo "$2" > "$2"
        chmod +x "$2"
        exit $STATUS ;;
    *) exit 9 ;;
esac
"""
REPLACED = {
    "k8s.io/api": "./staging/src/k8s.io/api",
    "k8s.io/client-go": "./staging/src/k8s.io/client-go",
    "example.com/broken": "example.com/fork",
}


@pytest.fixture
def make_go(tmp_path: Path) -> MakeGo:
    """Makes an environment in which ``go`` pretends to build."""

    def make(
        version: str = "go1.26.8", status: int = 0, flags: str = "-buildvcs=false"
    ) -> Environment:
        replaced = [{"Old": {"Path": a}, "New": {"Path": b}} for a, b in REPLACED.items()]
        (tmp_path / "replaced").write_text(json.dumps({"Replace": replaced}))
        program = tmp_path / "bin" / "go"
        program.parent.mkdir(exist_ok=True)
        program.write_text(GO)
        program.chmod(0o755)
        return {
            "PATH": f"{program.parent}:{os.environ['PATH']}",
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
            "CALLS": str(tmp_path / "calls"),
            "REPLACED": str(tmp_path / "replaced"),
            "VERSION": version,
            "STATUS": str(status),
            "GOFLAGS": "-buildvcs=false",
            "FILES": " ".join(
                each.path for each in DEFINITIONS.parts if isinstance(each, ModuleFile)
            ),
        }

    return make


def calls(environment: Environment) -> str:
    return Path(environment["CALLS"]).read_text()


def test_a_folder_with_all_parts_is_used(tmp_path: Path) -> None:
    environment = {kit.variable: str(tmp_path) for kit in KITS}
    for kit in KITS:
        for name in kit.names:
            (tmp_path / name).touch(0o755)
        assert find(kit, environment) == build(kit, environment) == tmp_path
    check(environment)


def test_folders_may_be_relative(
    make_go: MakeGo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = build(SERVERS, make_go() | {"XDG_CACHE_HOME": "relative"})
    assert folder.is_relative_to(tmp_path / "relative")
    assert find(SERVERS, {"KUBEBUILDER_ASSETS": str(folder.relative_to(tmp_path))}) == folder


def test_a_folder_that_lacks_a_program_is_an_error(tmp_path: Path) -> None:
    environment = {"KUBEBUILDER_ASSETS": str(tmp_path)}
    (tmp_path / "etcd").touch(0o755)
    for action in (partial(find, SERVERS), partial(build, SERVERS), check):
        with pytest.raises(BuildError, match="contains no kube-apiserver: name a folder"):
            action(environment)


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        pytest.param("", "go is neither on the PATH nor in /nowhere", id="missing"),
        pytest.param("go1.24.11", "is go1.24.11", id="old"),
        pytest.param("devel", "is devel", id="unknown"),
    ],
)
def test_without_a_usable_go_the_error_says_what_to_do(
    make_go: MakeGo, version: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(go, "GO_FOLDER", "/nowhere")
    environment = make_go(version)
    if not version:
        environment["PATH"] = ""
    for action in (partial(build, SERVERS), check):
        with pytest.raises(BuildError, match=reason) as raised:
            action(environment)
        assert "needs Go 1.25 or newer: install it" in str(raised.value)
        assert "or set KUBEBUILDER_ASSETS" in str(raised.value)


def test_files_are_taken_from_their_modules(make_go: MakeGo) -> None:
    folder = build(DEFINITIONS, make_go())
    assert {path.name for path in folder.iterdir()} == set(DEFINITIONS.names)
    assert (folder / "httproutes.yaml").read_text() == (
        "config/crd/standard/gateway.networking.k8s.io_httproutes.yaml\n"
    )


def test_helm_and_kustomize_can_be_had_without_go_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(go, "GO_FOLDER", "/nowhere")
    with pytest.raises(BuildError, match="helm and kustomize have to be made") as raised:
        build(CLIENTS, {"PATH": "", "XDG_CACHE_HOME": "/nowhere"})
    assert "or set CHART_TOOLS" in str(raised.value)


def test_the_programs_are_built_once(
    make_go: MakeGo, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    environment = make_go()
    check(environment)
    assert find(SERVERS, environment) is None
    folder = build(SERVERS, environment)
    assert folder.parent == tmp_path / "cache" / "endpoint-picker" / "kube"
    assert folder.name == f"kubernetes-{KUBERNETES}-etcd-{ETCD}"
    assert {path.name for path in folder.iterdir()} == set(SERVERS.names)
    assert find(SERVERS, environment) == build(SERVERS, environment) == folder
    assert calls(environment).count("\nbuild -v ") == 2
    assert not list(folder.parent.glob("*.partial"))
    messages = capfd.readouterr().err.splitlines()
    assert f"» kube-apiserver {KUBERNETES}: compiling 2 packages; 0 s so far" in messages
    assert messages[-1] == f"» etcd {ETCD}: built in 0 s"


def test_a_module_stands_for_each_folder_of_kubernetes(make_go: MakeGo) -> None:
    environment = make_go()
    build(SERVERS, environment)
    lines = calls(environment).splitlines()
    minor = KUBERNETES.partition(".")[2]
    assert f"require k8s.io/kubernetes v{KUBERNETES}" in lines
    assert f"replace k8s.io/api => k8s.io/api v0.{minor}" in lines
    assert f"replace k8s.io/client-go => k8s.io/client-go v0.{minor}" in lines
    assert not any("fork" in line for line in lines)


def test_the_settings_of_go_in_the_environment_stay(make_go: MakeGo) -> None:
    environment = make_go() | {"GOPROXY": "https://proxy.example"}
    build(SERVERS, environment)
    lines = calls(environment).splitlines()
    assert lines.count("GOFLAGS=-buildvcs=false -mod=mod -modcacherw") == 2
    assert lines.count("GOPROXY=https://proxy.example") == 2


def test_a_failed_build_leaves_nothing_and_can_be_repeated(make_go: MakeGo, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="b: undefined: c"):
        build(SERVERS, make_go(status=1))
    folder = tmp_path / "cache" / "endpoint-picker" / "kube"
    assert [path.suffix for path in folder.iterdir()] == [".lock"]
    assert build(SERVERS, make_go()).is_dir()


def test_what_a_killed_build_left_is_removed(make_go: MakeGo) -> None:
    environment = make_go()
    folder = build(SERVERS, environment)
    left = folder.with_name(f"{folder.name}.partial")
    folder.rename(left)
    (left / "bin").mkdir()
    (left / "bin" / "unfinished").touch()
    assert {path.name for path in build(SERVERS, environment).iterdir()} == set(SERVERS.names)
    assert not left.exists()


def test_of_two_builds_at_once_one_waits(make_go: MakeGo) -> None:
    environment = make_go()
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(partial(build, SERVERS), [environment] * 2)
    assert first == second
    assert calls(environment).count("\nbuild -v ") == 2


def test_a_cache_that_cannot_be_written_is_an_error(make_go: MakeGo, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    environment = make_go() | {"XDG_CACHE_HOME": str(tmp_path / "file")}
    with pytest.raises(BuildError, match="set XDG_CACHE_HOME"):
        build(SERVERS, environment)


def test_the_command_prints_the_folders_or_the_reason(
    make_go: MakeGo, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for kit in KITS:
        monkeypatch.delenv(kit.variable, raising=False)
    for name, value in make_go().items():
        monkeypatch.setenv(name, value)
    assert command(["--check"]) == 0
    assert capfd.readouterr().out == ""
    assert command([]) == 0
    assert capfd.readouterr().out.splitlines() == [str(find(kit)) for kit in KITS]
    monkeypatch.setenv("KUBEBUILDER_ASSETS", "/nowhere")
    for arguments in ([], ["--check"]):
        assert command(arguments) == 1
        captured = capfd.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("make test-kube: KUBEBUILDER_ASSETS=/nowhere contains no")
