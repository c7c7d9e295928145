"""The generated code in epp/pb equals protoc's output for proto/."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROTO_ROOT = ROOT / "proto"
GENERATED_ROOT = ROOT / "epp" / "pb"
EXTERNAL_PROCESSOR = "envoy/service/ext_proc/v3/external_processor.proto"


def generate(proto_root: Path, destination: Path) -> None:
    """Run the command of `make proto` with another source and destination."""
    destination.mkdir()
    sources = sorted(str(path) for path in proto_root.rglob("*.proto"))
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{proto_root}"]
    command += [f"--python_out={destination}", f"--pyi_out={destination}", *sources]
    subprocess.run(command, check=True, timeout=60)


def contents(root: Path) -> dict[str, bytes]:
    """The generated files below a folder by their relative path."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*_pb2.py*")}


def stale_files(proto_root: Path, generated_root: Path, scratch: Path) -> list[str]:
    """The files that differ from fresh output, are missing, or have no source any more."""
    generate(proto_root, scratch)
    fresh, committed = contents(scratch), contents(generated_root)
    return sorted(name for name in fresh | committed if fresh.get(name) != committed.get(name))


def edited_proto(destination: Path, old: str, new: str) -> Path:
    """A copy of proto/ in which one line of the ext_proc file reads otherwise."""
    shutil.copytree(PROTO_ROOT, destination)
    source = destination / EXTERNAL_PROCESSOR
    text = source.read_text()
    assert text.count(old) == 1
    source.write_text(text.replace(old, new))
    return destination


def test_committed_code_is_what_protoc_generates(tmp_path: Path) -> None:
    stale = stale_files(PROTO_ROOT, GENERATED_ROOT, tmp_path / "fresh")
    assert not stale, f"run `make proto`: {', '.join(stale)} in epp/pb is stale"


def test_both_the_code_and_the_stub_are_compared() -> None:
    stem = EXTERNAL_PROCESSOR.removesuffix(".proto") + "_pb2"
    assert {f"{stem}.py", f"{stem}.pyi"} <= set(contents(GENERATED_ROOT))


def test_a_changed_field_number_makes_the_code_stale(tmp_path: Path) -> None:
    changed = edited_proto(tmp_path / "proto", "bytes raw_value = 3;", "bytes raw_value = 9;")
    stale = stale_files(changed, GENERATED_ROOT, tmp_path / "fresh")
    assert any(name.endswith("_pb2.py") for name in stale)


def test_a_changed_field_name_makes_the_stub_stale_too(tmp_path: Path) -> None:
    changed = edited_proto(tmp_path / "proto", "bytes raw_value = 3;", "bytes raw_bytes = 3;")
    stale = stale_files(changed, GENERATED_ROOT, tmp_path / "fresh")
    assert {Path(name).suffix for name in stale} == {".py", ".pyi"}


def test_generated_code_without_a_source_is_stale(tmp_path: Path) -> None:
    generated = tmp_path / "pb"
    shutil.copytree(GENERATED_ROOT, generated)
    (generated / "orphan_pb2.py").write_text("")
    assert stale_files(PROTO_ROOT, generated, tmp_path / "fresh") == ["orphan_pb2.py"]
