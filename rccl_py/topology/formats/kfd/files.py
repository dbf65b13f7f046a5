"""The files of the AMD kernel driver's topology: folders of numbers that know their line.

Owns where the folder may begin, its limits, and the sentences that say which file is broken. Knows
nothing of what the numbers mean. Every failure is one FormatError that opens with the file and,
where there is one, the line.

    nodes/0/properties            "key value" a line, values are whole numbers
    nodes/0/io_links/1/properties the same: type, node_from, node_to, weight, min_/max_bandwidth
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path

from ....errors import FormatError

__all__ = ["IoLink", "Node", "find_nodes", "read_nodes"]

_SIZE_LIMIT = 64 << 10  # bytes; real files have under one kilobyte
_NODE_LIMIT = 1024  # a node of 8 GPUs in 8 partitions each has 66
_LINK_LIMIT = 32768  # the same node has 4,290
_ENTRY_LIMIT = 16384  # names in one folder
_NUMBER = re.compile(r"0|[1-9][0-9]{0,5}")
_WHOLE = re.compile(r"[0-9]{1,20}")  # 64 bits
_INSIDE = ("", "nodes", "topology/nodes", "kfd/topology/nodes")


@dataclass(frozen=True, slots=True)
class Properties:
    """One properties file: every value as text, with its line."""

    file: Path
    texts: dict[str, tuple[str, int]]

    def error(self, key: str, message: str) -> FormatError:
        """Return a FormatError that opens with the file and the line of `key`."""
        line = self.texts[key][1] if key in self.texts else 0
        return FormatError(f"{self.file}{f':{line}' if line else ''}: {message}")

    def number(self, key: str, missing: int = 0) -> int:
        """Return the value of `key`, or `missing` when the file does not have it."""
        if key not in self.texts:
            return missing
        text = self.texts[key][0]
        if not _WHOLE.fullmatch(text):
            raise self.error(key, f"{key} {text[:40]!r} is not a whole number of at most 20 digits")
        return int(text)


@dataclass(frozen=True, slots=True)
class IoLink:
    """One link of a node: rates in MB/s as the driver writes them, 0 where it does not know."""

    properties: Properties
    kind: int
    source: int
    target: int
    weight: int
    least: int
    most: int


@dataclass(slots=True)
class Node:
    """One node: a CPU (NUMA node), a GPU or a partition of one, or both (an APU)."""

    number: int
    properties: Properties
    links: list[IoLink] = field(default_factory=list)

    def value(self, key: str) -> int:
        """Return the node's property `key`; 0 when it has none."""
        return self.properties.number(key)

    @property
    def is_cpu(self) -> bool:
        """Whether the node has CPU cores."""
        return self.value("cpu_cores_count") > 0

    @property
    def is_gpu(self) -> bool:
        """Whether the node has SIMD units."""
        return self.value("simd_count") > 0


def _text(path: Path) -> str:
    """Return the text of a small regular file."""
    try:
        info = path.stat()
        if not stat.S_ISREG(info.st_mode):
            raise FormatError(f"{path}: is not a regular file: a copy of the folder was expected")
        with path.open("rb") as file:
            data = file.read(_SIZE_LIMIT + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FormatError(f"{path}: cannot be read: {reason}: copy the folder again") from None
    if len(data) > _SIZE_LIMIT:
        raise FormatError(f"{path}: larger than {_SIZE_LIMIT} bytes: no file of kfd is")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: not a text: byte {error.start} is not UTF-8") from None


def _properties(path: Path) -> Properties:
    texts: dict[str, tuple[str, int]] = {}
    for line, text in enumerate(_text(path).split("\n"), 1):
        if not text.strip():
            continue
        key, _, value = text.strip().partition(" ")
        if not value:
            raise FormatError(f"{path}:{line}: {text[:40]!r}: a line 'key value' was expected")
        if key in texts:
            raise FormatError(
                f"{path}:{line}: {key[:40]!r} is given twice, first on line {texts[key][1]}"
            )
        texts[key] = value.strip(), line
    return Properties(path, texts)


def _numbered(folder: Path, limit: int) -> list[int]:
    """Return the numbers that name the folders in `folder`, sorted; none when there is none."""
    found: list[int] = []
    try:
        if not folder.is_dir():
            return []
        with os.scandir(folder) as entries:
            for seen, entry in enumerate(entries):
                if seen >= _ENTRY_LIMIT or len(found) > limit:
                    raise FormatError(f"{folder}: more than {limit} numbered folders")
                if _NUMBER.fullmatch(entry.name) and entry.is_dir():
                    found.append(int(entry.name))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FormatError(f"{folder}: cannot be read: {reason}") from None
    if len(found) > limit:
        raise FormatError(f"{folder}: more than {limit} numbered folders")
    return sorted(found)


def _io_link(path: Path, node: int) -> IoLink:
    own = _properties(path)
    missing = [key for key in ("type", "node_from", "node_to") if key not in own.texts]
    if missing:
        raise FormatError(f"{path}: has no {', '.join(missing)}: copy the folder again")
    link = IoLink(
        own,
        kind=own.number("type"),
        source=own.number("node_from"),
        target=own.number("node_to"),
        weight=own.number("weight"),
        least=own.number("min_bandwidth"),
        most=own.number("max_bandwidth"),
    )
    if link.source != node:
        raise own.error("node_from", f"node_from {link.source}, but the folder is node {node}'s")
    if link.target == node:
        raise own.error("node_to", f"node_to {node}: a link of a node to itself")
    if link.most > 10_000_000:
        raise own.error("max_bandwidth", f"max_bandwidth {link.most} MB/s is above 10 TB/s")
    if link.least > link.most:
        raise own.error(
            "min_bandwidth", f"min_bandwidth {link.least} is above max_bandwidth {link.most}"
        )
    return link


def find_nodes(path: Path) -> Path | None:
    """Return the folder of nodes at or inside `path`; None when there is none."""
    try:
        for inside in _INSIDE:
            folder = path / inside
            for number in _numbered(folder, _ENTRY_LIMIT):
                if (folder / str(number) / "properties").exists():
                    return folder
    except (FormatError, OSError, ValueError):
        return None
    return None


def read_nodes(folder: Path) -> list[Node]:
    """Return the nodes of `folder` with their io_links, by number.

    Raises FormatError: a file missing, unreadable, too large, not "key value" lines; more than
    1,024 nodes or 32,768 links; a link that leads nowhere or back to its node.
    """
    numbers = _numbered(folder, _NODE_LIMIT)
    nodes, left = [], _LINK_LIMIT
    for number in numbers:
        home = folder / str(number)
        node = Node(number, _properties(home / "properties"))
        for k in _numbered(home / "io_links", left):
            node.links.append(_io_link(home / "io_links" / str(k) / "properties", number))
            left -= 1
        nodes.append(node)
    for node in nodes:
        targets: set[int] = set()
        for link in node.links:
            if link.target not in numbers:
                raise link.properties.error(
                    "node_to", f"node_to {link.target}: there is no such node in {folder}"
                )
            if link.target in targets:
                raise link.properties.error(
                    "node_to", f"a second link of node {node.number} to node {link.target}"
                )
            targets.add(link.target)
    return nodes
