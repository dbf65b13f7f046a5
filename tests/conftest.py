"""Fixtures that several test files share."""

import pytest


@pytest.fixture
def read(tmp_path):
    """Read an NCCL/RCCL topology XML given as text or bytes."""
    from rccl_py.topology.formats.nccl.reader import read_nccl_xml

    def reader(text):
        path = tmp_path / "case.xml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_nccl_xml(path)

    return reader
