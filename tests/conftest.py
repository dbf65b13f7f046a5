"""Fixtures that several test files share."""

import pytest

HEAVY = ("test_check", "test_networks", "test_simulate")
"""Files that take longest: started first, so that no process is left with one at the end."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Under pytest-xdist (--dist loadgroup) keep a file's tests in one process.

    So are all that start mpirun: jobs of real processes never run beside each other.
    """
    if not config.getoption("loadgroup", False):
        return
    for item in items:
        mpi = item.get_closest_marker("mpi") is not None
        item.add_marker(pytest.mark.xdist_group("mpirun" if mpi else item.path.stem))
    items.sort(key=lambda item: (item.get_closest_marker("mpi") is None,
                                 item.path.stem not in HEAVY))  # fmt: skip


@pytest.fixture
def read(tmp_path):
    """Read an NCCL/RCCL topology XML given as text or bytes."""
    from rccl_py.topology.formats.nccl.reader import read_nccl_xml

    def reader(text):
        path = tmp_path / "case.xml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_nccl_xml(path)

    return reader
