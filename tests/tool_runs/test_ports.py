"""Ports that nobody else takes while their server is not started."""

import socket
import subprocess
import sys

import pytest

from tools import REPOSITORY
from tools.harness.ports import BLOCK_PORTS, PORTS, NoFreePortError, PortBlocks, free_ports

MANY = BLOCK_PORTS // 2
TAKE = f"""
from tools.harness.ports import free_ports

print(*free_ports({MANY}), flush=True)
input()
"""


def test_ports_are_different_and_not_ephemeral() -> None:
    ports = free_ports(3)
    assert len(set(ports)) == 3
    assert set(ports) <= set(PORTS)


def test_a_port_is_not_returned_again_soon() -> None:
    ports = [free_ports(1)[0] for _ in range(MANY)]
    assert len(set(ports)) == MANY


def test_a_port_in_use_is_left_out_and_more_than_a_block_can_be_had() -> None:
    blocks = PortBlocks()
    (port,) = blocks.take(1)
    with socket.socket() as user:
        user.bind(("127.0.0.1", port))
        ports = blocks.take(2 * BLOCK_PORTS)
    assert len(set(ports)) == 2 * BLOCK_PORTS
    assert port not in ports


def taking() -> "subprocess.Popen[str]":
    """Start a process that asks for ports, prints them, and keeps them until it gets a line."""
    return subprocess.Popen(
        (sys.executable, "-c", TAKE),
        cwd=REPOSITORY,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def test_processes_get_different_ports_before_they_use_them() -> None:
    ours = set(free_ports(MANY))
    with taking() as one, taking() as other:
        theirs = []
        for each in (one, other):
            assert each.stdout is not None
            theirs.append({int(port) for port in each.stdout.readline().split()})
        for each in (one, other):
            each.communicate("\n")
    assert len(ours.union(*theirs)) == 3 * MANY


def test_without_a_block_that_nobody_owns_there_are_no_ports() -> None:
    (port,) = free_ports(1)
    with socket.socket() as owner:
        owner.bind(("127.0.0.1", port))
        with pytest.raises(NoFreePortError, match=f"fewer than 2 ports from {port} to {port + 9}"):
            PortBlocks(range(port, port + 10)).take(2)
