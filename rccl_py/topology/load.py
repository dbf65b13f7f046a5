"""Find and read a machine: by name, from YAML, or from NCCL/RCCL topology XML.

Owns where machines are looked for and how a text is told apart. Every failure is one FormatError
(file, line or key) or InvalidArgument (unknown name, with the near ones).
"""

from __future__ import annotations

import difflib
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import yaml

from ..arguments import finite, whole
from ..errors import FormatError, InvalidArgument
from . import machine
from .build import Topology
from .machine import ClusterSpec, MachineSpec, network_of, topology_of

__all__ = ["load", "machine_names"]

_SPECS = [
    s for s in vars(machine).values() if isinstance(s, type) and issubclass(s, msgspec.Struct)
]
_LIMIT = 8 << 20  # a machine description is kilobytes; anything larger is another kind of file


class _Loader(yaml.SafeLoader):
    """A YAML loader that refuses duplicate keys and aliases."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.get_mark()
            raise yaml.MarkedYAMLError(None, None, "aliases are not used here", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        if not isinstance(node, yaml.MappingNode):
            raise yaml.MarkedYAMLError(None, None, "a mapping was expected", node.start_mark)
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(None, None, "keys must be texts", key.start_mark)
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    None, None, f"key {key.value!r} is given twice", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _folder() -> Path:
    package = Path(__file__).resolve().parents[1]
    installed = package / "machines"
    return installed if installed.is_dir() else package.parent / "topologies"


def machine_names() -> dict[str, str]:
    """Return every installed machine's name and its one-line summary, by name."""
    return {
        path.stem: str(_parsed(path).get("summary", ""))
        for path in sorted(_folder().glob("*.yaml"))
    }


def _text(path: Path) -> str:
    try:
        if path.is_dir():
            raise FormatError(f"{path}: is a folder: a YAML or XML file was expected")
        if path.is_char_device() or path.is_block_device():
            raise FormatError(f"{path}: is a device: a YAML or XML file was expected")
        if path.is_fifo() and not str(path.absolute()).startswith(("/dev/fd/", "/proc/")):
            raise FormatError(f"{path}: is a named pipe: a YAML or XML file was expected")
        if path.stat().st_size > _LIMIT:
            raise FormatError(
                f"{path}: {path.stat().st_size} bytes is no machine description (limit {_LIMIT})"
            )
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: not a text: byte {error.start} is not UTF-8") from None
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror}") from None


def _parsed(path: Path) -> dict[str, Any]:
    try:
        data = yaml.load(_text(path), Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise FormatError(f"{path}:{line}: {error.problem or error.context}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise FormatError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict):
        raise FormatError(
            f"{path}: a mapping of keys such as name, gpus, device was expected, "
            f"found {type(data).__name__}"
        )
    return data


def _checked(data: dict[str, Any], kind: Any, path: Path) -> Any:
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        # msgspec says "Expected `int`, got `str` - at `$.gpus`": put the key first.
        what, _, at = str(error).partition(" - at ")
        key = at.strip("`").removeprefix("$").removeprefix(".").removesuffix("[...]")
        raise FormatError(_located(path, key, _plain(what, key, kind))) from None


_QUANTITIES = ("hop", "bandwidth", "latency", "launch", "memory", "message")


def _plain(what: str, key: str, kind: Any) -> str:
    """Return msgspec's sentence with what a person would do about it."""
    if "Expected `str`" in what and re.split(r"[.\[]", key)[-1] in _QUANTITIES:
        return "a quantity with its unit was expected, such as 0.2us or 50GB/s"
    if what.endswith("\\udfff]+$'"):
        return "one line of printable text was expected"
    unknown = re.search(r"unknown field `(.*)`", what)
    if unknown:
        fields = [f for spec in _SPECS for f in spec.__struct_fields__]
        close = difflib.get_close_matches(unknown[1], fields, n=2, cutoff=0.6)
        return what + (f": did you mean {' or '.join(dict.fromkeys(close))}?" if close else "")
    return what


def _located(path: Path, key: str, what: str) -> str:
    """Return the message behind file, line (where one line has the key) and key."""
    unknown = re.search(r"unknown field `(.*?)`", what)
    name = unknown[1] if unknown else re.sub(r"\[.*?\]", "", key).rpartition(".")[2]
    pattern = re.compile(rf"(?:^|[\s{{,]){re.escape(name)}\s*:") if name else None
    lines = [
        i
        for i, text in enumerate(_text(path).splitlines(), 1)
        if pattern and pattern.search(text.partition("#")[0])
    ]
    at = f"{path}:{lines[0]}" if len(lines) == 1 else f"{path}"
    return f"{at}: {key + ': ' if key else ''}{what}"


def _from_yaml(path: Path, seen: tuple[Path, ...] = ()) -> Topology:
    data = _parsed(path)
    if "node" not in data:
        spec: MachineSpec = _checked(data, MachineSpec, path)
        return topology_of(spec, str(path))
    cluster: ClusterSpec = _checked(data, ClusterSpec, path)
    try:
        node = _read(cluster.node, (*seen, path), path.parent)
    except FormatError:
        raise
    except InvalidArgument as error:
        raise FormatError(f"{path}: node: {error}") from None
    if node.nodes > 1:
        raise FormatError(
            f"{path}: node: {cluster.node!r} is itself {node.nodes} nodes: name one node"
        )
    network = (
        node.network if cluster.network is None else network_of(cluster.network, f"{path}: network")
    )
    return replace(node, name=cluster.name, nodes=cluster.nodes, network=network)


def _is_xml(path: Path) -> bool:
    return path.suffix.lower() == ".xml" or _text(path).lstrip()[:1] == "<"


def _read(name: str, seen: tuple[Path, ...] = (), near: Path | None = None) -> Topology:
    installed = _folder() / f"{name}.yaml"
    path = Path(name)
    if near is not None and not path.is_absolute() and (near / path).exists():
        path = near / path
    if path.resolve() in {p.resolve() for p in seen}:
        raise FormatError(f"{seen[-1]}: node: {name!r} leads back to {path}")
    if "/" not in name and "\\" not in name and installed.is_file():
        return _from_yaml(installed, seen)
    if not path.exists():
        names = machine_names()
        close = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(close)}? " if close else ""
        raise InvalidArgument(
            f"topology {name!r} is neither a file nor a known machine: {hint}"
            f"known: {', '.join(names)}"
        )
    if path.is_file() and _is_xml(path):
        from .formats.nccl_xml import read_nccl_xml

        return read_nccl_xml(path)
    return _from_yaml(path, seen)


def _moot(topology: Topology) -> tuple[str, ...]:
    """Return a note where an oversubscription cannot matter."""
    network, nodes = topology.network, topology.nodes
    if network.oversubscription == 1 or nodes > network.leaf_nodes or nodes == 1:
        return ()
    what = "has no effect" if network.kind == "leaf-spine" else "slows only traffic between rails"
    return (
        f"oversubscription {network.oversubscription:g} {what}: {nodes} node(s) fit under one leaf "
        f"of {network.leaf_nodes} (see --leaf-nodes)",
    )


def load(
    name: str | Path,
    *,
    nodes: int | None = None,
    network: str | None = None,
    oversubscription: float | None = None,
    leaf_nodes: int | None = None,
) -> Topology:
    """Return the machine called `name`: an installed one, a YAML file or an NCCL/RCCL XML file.

    nodes: join so many of the node. network: "rails" or "leaf-spine". oversubscription: NIC
    capacity under a leaf over its uplinks. leaf_nodes: nodes under one leaf. What is not given
    stays as the file says. Raises InvalidArgument (unknown name, a number out of range) or
    FormatError (a file that does not follow its format).
    """
    for what, value in (("nodes", nodes), ("leaf_nodes", leaf_nodes)):
        if value is not None:
            whole(value, what, 1, 1_000_000)
    if oversubscription is not None:
        finite(oversubscription, "oversubscription", 1e-3, 1e6)
    if not isinstance(name, (str, Path)):
        raise InvalidArgument(
            f"topology {name!r} is a {type(name).__name__}: a name or a path was expected"
        )
    if network not in (None, "rails", "leaf-spine"):
        raise InvalidArgument(f"network {network!r}: expected rails or leaf-spine")
    try:
        topology = _read(str(name))
    except (OSError, ValueError) as error:  # a name no file can have
        raise InvalidArgument(f"topology {str(name)[:80]!r} is no path: {error}"[:300]) from None
    changes = {"kind": network, "oversubscription": oversubscription, "leaf_nodes": leaf_nodes}
    given: dict[str, Any] = {k: v for k, v in changes.items() if v is not None}
    joined = replace(
        topology, nodes=nodes or topology.nodes, network=replace(topology.network, **given)
    )
    return replace(joined, notes=joined.notes + _moot(joined))
