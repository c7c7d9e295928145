"""Socket files: stale ones, those in use, and invalid paths."""

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

from epp.transport import Http2Server, ListenError, Server
from epp.transport.grpcio import GrpcioServer
from epp.transport.socket_file import SocketFile


@pytest.fixture(params=["http2 on asyncio", "http2 on uvloop", "grpcio"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def make_server(kind: str, path: Path) -> Server:
    return (GrpcioServer if kind == "grpcio" else Http2Server)({}, path=path)


def run_once(kind: str, path: Path) -> None:
    """Start a server there, check that it listens, and stop it."""

    async def run() -> None:
        server = make_server(kind, path)
        assert await server.start() == 0
        try:
            mode = (await asyncio.to_thread(path.stat)).st_mode
            assert mode & 0o777 == 0o660
            _, writer = await asyncio.open_unix_connection(path)
            writer.close()
            await writer.wait_closed()
        finally:
            await server.stop(0)

    factory = uvloop.new_event_loop if "uvloop" in kind else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(run())


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "epp.sock"))
        yield made


def test_the_file_of_a_dead_process_is_replaced(
    kind: str, tmp_path: Path, listener: socket.socket
) -> None:
    listener.close()
    path = tmp_path / "epp.sock"
    assert path.is_socket()
    run_once(kind, path)
    assert not path.exists()


@pytest.mark.parametrize("waiting", [0, 1], ids=["with room", "with a full backlog"])
def test_a_file_in_use_is_an_error_and_stays(
    kind: str, tmp_path: Path, listener: socket.socket, waiting: int
) -> None:
    path = tmp_path / "epp.sock"
    listener.listen(0)
    clients = [socket.socket(socket.AF_UNIX) for _ in range(waiting)]
    for client in clients:
        client.connect(str(path))
    with pytest.raises(ListenError) as raised:
        run_once(kind, path)
    for client in clients:
        client.close()
    assert str(raised.value) == (
        f"cannot listen on unix:{path}: another process is listening there;"
        " stop it, or give another --listen"
    )
    assert path.is_socket()


def test_a_file_that_is_not_a_socket_is_not_removed(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "epp.sock"
    path.write_text("precious")
    with pytest.raises(ListenError, match="a file that is not a socket exists; give"):
        run_once(kind, path)
    assert path.read_text() == "precious"


def test_an_invalid_path_is_reported_with_its_reason(tmp_path: Path) -> None:
    for path, reason in (
        (tmp_path / "none" / "epp.sock", "No such file or directory; the folder must exist"),
        (tmp_path / ("x" * 108), "AF_UNIX path too long; .* shorter than 108 bytes"),
    ):
        with pytest.raises(ListenError, match=f"^cannot listen on unix:{path}: {reason}"):
            run_once("http2", path)


def test_a_missing_folder_is_reported_by_the_c_core_transport(tmp_path: Path) -> None:
    path = tmp_path / "none" / "epp.sock"
    with pytest.raises(ListenError, match=f"^cannot listen on unix:{path}: .*; the folder must"):
        run_once("grpcio", path)


def test_a_file_replaced_by_another_process_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "epp.sock"
    first, second = SocketFile(path), SocketFile(path)
    with first.bind():
        pass
    with second.bind() as bound:
        bound.listen()
        first.remove()
        assert path.is_socket()
        second.remove()
        assert not path.exists()
        second.remove()
