"""Mutated topology and graph XML is a machine that lowers or one FormatError, never anything else.

Small pieces always; real files when RCCL_PY_CASES names the folder that holds topo_xml/.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from xml_pieces import AMD, PAIR, cpu, gpu, link, nic, system

from rccl_py.errors import FabricError, FormatError
from rccl_py.topology.formats.nccl.graph_file import read_graph_xml
from rccl_py.topology.formats.nccl.graph_write import rings_graph, write_graph_xml
from rccl_py.topology.formats.nccl.reader import read_nccl_xml
from rccl_py.topology.formats.nccl.writer import write_nccl_xml
from rccl_py.topology.lower import lower

CASES = os.environ.get("RCCL_PY_CASES", "")
REAL = sorted(Path(CASES, "topo_xml").rglob("*.xml")) if CASES else []
SMALL = [path for path in REAL if path.stat().st_size < 6000]

TWO = system(
    cpu(f'<pci busid="9:0.0" class="0x060400"><pcilink target="a:0.0"/>{gpu("1:0.0", 0)}</pci>'
        + nic("3:0.0", 0))
    + cpu(f'<pci busid="a:0.0" class="0x060400"><pcilink target="9:0.0"/>{gpu("2:0.0", 1)}</pci>'
          '<nic><net name="eth0" dev="1" speed="1000"/></nic>', 1)
)  # fmt: skip
SWITCHED = system("".join(
    cpu(gpu("1:0.0", 0, link("nvlink", "fffffff:ff:ff.0", 18, "0x068000")
            + '<c2c bw="44712" count="5"/>', 'sm="100"', rank=k), 0,
        f'arch="arm64" host_hash="0x{k}"') for k in range(2)), 1)  # fmt: skip
PARTS = system(cpu(gpu("1:0.0", 0, link("xgmi", "2:0.0"), rank=0).replace(
    "</gpu>", '</gpu><gpu dev="0" gcn="gfx942" rank="2"/>')
    + gpu("2:0.0", 1, link("xgmi", "1:0.0"))))  # fmt: skip
BARE = system(cpu('<pci busid="1:0.0"/><pci busid="2:0.0"/>', 0, AMD))
EXACT = (
    '<!-- rccl_py device "mi325x" -->\n<!-- rccl_py port [[[0, 0]], "uec-800g"] -->\n'
    '<!-- rccl_py hop 1e-07 -->\n<!-- rccl_py edge {"link": "pcie5-x16", "lanes": 1.5, '
    '"latency": [1e-7, 1e-7, 1e-7], "between": [["gpu0", "cpu0"]]} -->\n' + PAIR
)
GRAPH = write_graph_xml(rings_graph([[0, 1, 2], [2, 1, 0]], [0, 1], speed_intra=1e9))
PIECES = [PAIR, TWO, SWITCHED, PARTS, BARE, EXACT, GRAPH]

VALUES = st.sampled_from([
    "", "0", "-1", "1", "7", "1e9", "1e400", "nan", "inf", "0x10", "0xffffffffffffffff",
    "999999999999999999", "9" * 40, "16.0 GT/s PCIe", "0.0 GT/s", "gfx942", "910", "x" * 300,
    "0000:01:00.0", "fffffff:ff:ff.0", "0x068000", "0x030200", "0x068001", "GenuineIntel",
    "400Gb/s", "\u00e9", "&lt;",
])  # fmt: skip
BYTES = st.sampled_from([b"", b"<", b'"', b">", b"/", b"0", b"\xff", b"<pci>", b"--", b"&amp;"])


def bytes_changed(data: st.DataObject, text: str) -> bytes:
    """Return `text` with pieces cut out or overwritten anywhere."""
    own = bytearray(text.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, max(len(own) - 1, 0)))
        own[at : at + data.draw(st.integers(0, 40))] = data.draw(BYTES)
    return bytes(own)


def values_changed(data: st.DataObject, text: str) -> bytes:
    """Return `text` with some attributes given other values, so that it stays XML."""
    found = list(re.finditer(r'="([^"]*)"', text))
    for _ in range(data.draw(st.integers(1, 4)) if found else 0):
        spot = data.draw(st.sampled_from(found))
        text = text[: spot.start()] + f'="{data.draw(VALUES)}"' + text[spot.end() :]
        found = list(re.finditer(r'="([^"]*)"', text))
    return text.encode()


def lines_changed(data: st.DataObject, text: str) -> bytes:
    """Return `text` with lines removed, repeated or swapped."""
    lines = text.splitlines(keepends=True)
    for _ in range(data.draw(st.integers(1, 4))):
        a, b = (data.draw(st.integers(0, max(len(lines) - 1, 0))) for _ in range(2))
        how = data.draw(st.sampled_from("dcs"))
        if not lines:
            break
        if how == "d":
            del lines[a]
        elif how == "c":
            lines.insert(b, lines[a])
        else:
            lines[a], lines[b] = lines[b], lines[a]
    return "".join(lines).encode()


def hold(path: Path) -> None:
    """Read the file as both kinds; what is a machine must lower, and be written or refused."""
    try:
        read_graph_xml(path)
    except FormatError as error:
        assert str(error).startswith(f"{path}") and "\n" not in str(error)
    try:
        topology = read_nccl_xml(path)
    except FormatError as error:
        assert str(error).startswith(f"{path}") and "\n" not in str(error)
        return
    try:
        lower(topology)
        read_back = write_nccl_xml(topology)
    except (FabricError, FormatError) as error:
        assert "\n" not in str(error)
    else:
        assert "<system" in read_back


CHANGES = pytest.mark.parametrize("change", [bytes_changed, values_changed, lines_changed])
FUZZ = settings(max_examples=120, deadline=None,
                suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip


@CHANGES
@FUZZ
@given(data=st.data())
def test_mutated_pieces_are_read_or_refused(tmp_path, change, data):
    path = tmp_path / "mutated.xml"
    path.write_bytes(change(data, data.draw(st.sampled_from(PIECES))))
    hold(path)


@pytest.mark.skipif(not SMALL, reason="RCCL_PY_CASES does not name a folder with topo_xml/")
@CHANGES
@settings(FUZZ, max_examples=40)
@given(data=st.data())
def test_mutated_real_files_are_read_or_refused(tmp_path, change, data):
    path = tmp_path / "mutated.xml"
    path.write_bytes(change(data, data.draw(st.sampled_from(SMALL)).read_text()))
    hold(path)
