"""Runs the benchmarks."""

from tools.bench.main import command

if __name__ == "__main__":
    command()
