"""The wheel: what a plain `pip install` gives, without this checkout and without MPI."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, **options)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """An environment that holds the wheel, its dependencies and nothing else; its bin folder."""
    folder = tmp_path_factory.mktemp("wheel")
    # Built from a copy: setuptools leaves a build folder behind.
    copy = folder / "source"
    names = ["setup.py", "pyproject.toml", "README.md", "LICENSE", "rccl_py", "topologies"]
    copy.mkdir()
    for name in names:
        run("cp", "-r", str(ROOT / name), str(copy))
    built = run(sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", str(folder), str(copy))
    if built.returncode and "No matching distribution" in built.stderr:
        pytest.skip("no package index to build from: " + built.stderr.strip().splitlines()[-1])
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("rccl_py-*.whl")
    venv.create(folder / "env")
    tools = folder / "env" / "bin"
    got = run(sys.executable, "-m", "pip", "--python", str(tools / "python"), "install", "-q",
              str(wheel), cwd="/")  # fmt: skip
    assert got.returncode == 0, got.stderr
    return tools


def command(tools, *arguments):
    # From the root folder and without PYTHONPATH, so that the checkout cannot be found.
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "OMPI", "PMI"))}
    return run(str(tools / arguments[0]), *arguments[1:], cwd="/", env=clean)


def test_a_plain_install_finds_its_machines_by_name(installed):
    listed = command(installed, "rccl-topo", "list")
    assert listed.returncode == 0, listed.stderr
    shipped = {path.stem for path in (ROOT / "topologies").glob("*.yaml")}
    assert {line.split()[0] for line in listed.stdout.splitlines()} == shipped


def test_a_plain_install_moves_and_checks_data_without_mpi(installed):
    table = command(installed, "rccl-perf", "allreduce", "--topology", "mi300x-8", "-e", "1M",
                    "-b", "1M")  # fmt: skip
    assert table.returncode == 0, table.stderr
    assert "# Out of bounds values : 0 OK" in table.stdout


def test_where_mpi_is_missing_the_message_says_what_to_install(installed):
    asked = command(installed, "python", "-c", "from rccl_py.transports.mpi import import_mpi\n"
                    "try: import_mpi()\nexcept Exception as e: print(e)")  # fmt: skip
    assert "pip install 'rccl_py[mpi]'" in asked.stdout, asked.stderr


def test_planning_from_python_needs_no_command(installed):
    code = ("import rccl_py as rccl\n"
            "print(rccl.run(lambda c: c.nranks, 'h100-8', nranks=3))")  # fmt: skip
    assert command(installed, "python", "-c", code).stdout.strip() == "[3, 3, 3]"
