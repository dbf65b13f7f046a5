"""A malformed or contradictory topology XML file is one FormatError with file and line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from xml_pieces import PAIR, cpu, gpu, nic, system

from rccl_py.errors import FormatError
from rccl_py.topology.formats.nccl.reader import read_nccl_xml

TWICE = gpu("1:0.0", 0) + gpu("2:0.0", 1)

MALFORMED = {
    "empty file": ("", 1, "empty"),
    "only blanks": (" \n\n", 1, "empty"),
    "only a comment": ("<!-- x -->", 1, "no XML element"),
    "plain text": ("gpus: 8\n", 1, "not well-formed"),
    "binary": (bytes(range(256)), 1, "not well-formed"),
    "not UTF-8": (PAIR.encode().replace(b"mlx5", b"\xff\xfe\xff"), 4, "not well-formed"),
    "unknown encoding": ('<?xml version="1.0" encoding="klingon"?>' + PAIR, 1, "ncoding"),
    "blank before declaration": ('\n<?xml version="1.0"?>' + PAIR, 2, "declaration"),
    "truncated": (PAIR[: len(PAIR) // 2], None, ""),
    "truncated in an element": (PAIR[: PAIR.index("<nic>") + 5], 4, "cut short"),
    "mismatched tag": (PAIR.replace("</nic>", "</nac>"), 4, "<nic>"),
    "two roots": (PAIR + PAIR, 8, "junk"),
    "duplicate attribute": (PAIR.replace("numaid", 'numaid="0" numaid', 1), 2, "duplicate"),
    "entity bomb": ('<!DOCTYPE x [<!ENTITY a "b">]>' + PAIR, 1, "DOCTYPE"),
    "external DTD": ('<!DOCTYPE system SYSTEM "x.dtd">' + PAIR, 1, "DOCTYPE"),
    "huge nesting": (system("<pci>\n" * 100_000), 65, "deeper"),
    "other root": ("<machine/>", 1, "<machine>"),
    "graph file without a channel": (
        '<graphs><graph id="0" pattern="4" speedintra="1" speedinter="1" typeintra="NVL" '
        'typeinter="PIX"/></graphs>', 1, "no machine"),
    "graph file without a graph": ('<graphs version="1"></graphs>', 1, "no <graph>"),
    "other version": (system(cpu(TWICE), 7), 1, "version '7'"),
    "no cpu": (system(""), 1, "no <cpu>"),
    "no accelerators": (system(cpu(nic("3:0.0", 0))), 1, "no accelerators"),
    "no class, but a NIC's vendor": (system(cpu('<pci busid="1:0.0" vendor="0x15b3"/>')), 1,
                                     "no leaf <pci>"),
    "same bus id": (system(cpu(gpu("1:0.0", 0) + gpu("0000:01:00.0", 1))), 4, "first on line 3"),
    "same rank": (system(cpu(gpu("1:0.0", 0, rank=0) + gpu("2:0.0", 1, rank=0))), 4, "rank 0"),
    "same dev": (system(cpu(gpu("1:0.0", 0, rank=0) + gpu("2:0.0", 0, rank=1))), 4, "dev 0"),
    "same numaid": (system(cpu(TWICE) + cpu("")), 6, "numaid 0"),
    "negative rank": (system(cpu(gpu("1:0.0", 0, rank=-3))), 3, "negative"),
    "bad bus id": (system(cpu(gpu("0000:g1:00.0", 0))), 3, "no bus id"),
    "missing bus id": (PAIR.replace('busid="0000:01:00.0"', ""), 3, "no bus id"),
    "bad dev": (system(cpu(gpu("1:0.0", "zero", rank=0))), 3, "dev='zero'"),
    "bad width": (PAIR.replace('width="16"', 'width="wide"', 1), 3, "link_width='wide'"),
    "absurd width": (PAIR.replace('width="16"', 'width="-1"', 1), 3, "link_width -1"),
    "bad speed": (PAIR.replace('speed="400000"', 'speed="fast"'), 4, "speed='fast'"),
    "no count": (PAIR.replace('count="1"', "", 1), 3, "no count"),
    "zero count": (PAIR.replace('count="1"', 'count="0"', 1), 3, "count 0"),
    "bad count": (PAIR.replace('count="1"', 'count="1e3"', 1), 3, "count='1e3'"),
    "counts that differ": (PAIR.replace('count="1"', 'count="2"', 1), 3, "line 5"),
    "no target": (PAIR.replace('target="0000:02:00.0"', ""), 3, "target ''"),
    "bad target": (PAIR.replace('target="0000:02:00.0"', 'target="next"'), 3, "target 'next'"),
    "unknown target": (PAIR.replace('target="0000:02', 'target="0000:0b'), 3, "is no GPU"),
    "NIC as target": (PAIR.replace('target="0000:02', 'target="0000:03'), 3, "is no GPU"),
    "link to itself": (PAIR.replace('target="0000:02', 'target="0000:01'), 3, "gpu0 itself"),
    "GPU called a switch": (PAIR.replace('tclass="0x120000"', 'tclass="0x068000"', 1), 3, "switch"),
    "gpu inside cpu": (system(cpu('<gpu dev="0"/>')), 3, "expected inside <pci>"),
    "net inside pci": (PAIR.replace("<nic>", "").replace("</nic>", ""), 4, "expected inside <nic>"),
    "pci outside cpu": (system(gpu("1:0.0", 0)), 2, "expected inside <cpu> or <pci>"),
    "20 gpus in one pci": (PAIR.replace("</gpu>", '</gpu>' + '<gpu dev="9"/>' * 19, 1), 3,
                           "at most 16 partitions"),
    "partitions with one rank": (system(cpu(gpu("1:0.0", 0, rank=0).replace(
        "</gpu>", '</gpu><gpu dev="0" rank="0"/>'))), 3, "rank 0 is given twice"),
    "c2c of 1e9 MB/s": (system(cpu(gpu("1:0.0", 0, '<c2c bw="1e9" count="1"/>'))), 3, "bw '1e9'"),
    "two kinds of link to a CPU": (system(cpu(gpu("1:0.0", 0, '<c2c bw="1" count="1"/>'
        '<nvlink target="2:0" count="1" tclass="0x068001"/>'))), None, "gpu0"),
    "60,000 elements": (system("<x/>\n" * 60_000), 50_001, "50000 elements"),
    "unknown comment of ours": ("<!-- rccl_py colour 1 -->\n" + PAIR, 1, "expected device"),
    "comment of ours that is no JSON": ("<!-- rccl_py hop 1us -->\n" + PAIR, 1, "'hop'"),
    "a hop of years": ("<!-- rccl_py hop 1e8 -->\n" + PAIR, 1, "up to 1 s"),
    "a link of no bandwidth": ('<!-- rccl_py scale_up {"name": "x", "medium": "xgmi", "bandwidth": '
        '0, "efficiency": 1, "latency": [0, 0, 0], "message": 0, "source": "x"} -->\n' + PAIR, 1,
        "1 B/s"),
    "an edge of another file": ('<!-- rccl_py edge {"link": "upi-spr", "lanes": 1, "latency": '
        '[0, 0, 0], "between": [["gpu0", "gpu7"]]} -->\n' + PAIR, 1, "gpu0 -> gpu7"),
    "c2c without bw": (system(cpu(gpu("1:0.0", 0, '<c2c count="1"/>'))), 3, "bw ''"),
    "two c2c": (system(cpu(gpu("1:0.0", 0, '<c2c bw="1" count="1"/>' * 2))), 3, "second"),
    "pcilink to nowhere": (system(cpu(TWICE + '<pci busid="9:0.0"><pcilink target="8:0"/></pci>')),
                           5, "PCI switch"),
    "100 sockets": (system("".join(cpu(TWICE if k == 0 else "", k) for k in range(100))), 1,
                    "100 <cpu>"),
}  # fmt: skip


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_or_contradictory_file_is_one_error_with_file_and_line(read, tmp_path, case):
    text, line, what = MALFORMED[case]
    with pytest.raises(FormatError) as caught:
        read(text)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'case.xml'}:" + ("" if line is None else f"{line}: "))
    assert what in message and "\n" not in message


def test_a_missing_file_a_folder_and_a_device_are_said_by_name(tmp_path):
    for path, what in ((tmp_path / "none.xml", "no such file"), (tmp_path, "is a folder"),
                       (Path("/dev/null"), "not a regular file")):  # fmt: skip
        with pytest.raises(FormatError, match=re.escape(f"{path}: ") + f".*{what}"):
            read_nccl_xml(path)


def test_a_file_too_large_for_a_topology_is_not_read(tmp_path):
    path = tmp_path / "large.xml"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(FormatError, match="limit"):
        read_nccl_xml(path)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_cut_swap_or_overwrite_is_read_or_refused_with_the_file_named(tmp_path, data):
    text = bytearray(PAIR.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(len(text) - 1, 0)))
        new = data.draw(st.sampled_from([b"", b"<", b'"', b">", b"/", b"0", b"\xff", b"<pci>"]))
        text[at : at + data.draw(st.integers(0, 60))] = new
    path = tmp_path / "mutated.xml"
    path.write_bytes(bytes(text))
    try:
        assert read_nccl_xml(path).gpus_per_node >= 1
    except FormatError as error:
        assert str(error).startswith(f"{path}:")
