"""Find and read a machine: by name, from YAML, or from a file of another format.

Owns where machines are looked for. Every failure is one FormatError (file, line or key) or
InvalidArgument (unknown name, with the near ones).
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx

from ..arguments import finite, numbers, whole
from ..errors import FormatError, InvalidArgument
from .build import Topology
from .collecting import not_collecting
from .formats import format_of
from .machine import topology_of
from .machine_spec import ClusterSpec, MachineSpec, NodesSpec
from .machine_values import network_of
from .yaml_text import checked, located, parsed, text_of

__all__ = ["load", "machine_names"]


def _folder() -> Path:
    package = Path(__file__).resolve().parents[1]
    installed = package / "machines"
    return installed if installed.is_dir() else package.parent / "topologies"


def machine_names() -> dict[str, str]:
    """Return every installed machine's name and its one-line summary, by name."""
    found = sorted(_folder().glob("*.yaml"), key=lambda path: path.stem)
    return {path.stem: str(parsed(path).get("summary", "")) for path in found}


def _from_yaml(path: Path, seen: tuple[Path, ...] = ()) -> Topology:
    data = parsed(path)
    if "node" not in data and not isinstance(data.get("nodes"), list):
        spec: MachineSpec = checked(data, MachineSpec, path)
        try:
            one = topology_of(spec, str(path))
        except FormatError as error:
            key, _, what = str(error).removeprefix(f"{path}: ").partition(": ")
            raise FormatError(located(path, key, what)) from None
        return one if spec.place is None else _placed(one, spec.place, path)
    cluster: ClusterSpec = checked(data, ClusterSpec, path)
    parts = _parts(cluster, path)
    read = {name: _node(name, path, seen) for name in dict.fromkeys(p.node for p in parts)}
    nodes = [read[part.node] for part in parts]
    network = (
        nodes[0].network
        if cluster.network is None
        else network_of(cluster.network, f"{path}: network")
    )
    unlike: list[tuple[int, nx.DiGraph]] = []
    first = parts[0].count
    for node, part in zip(nodes[1:], parts[1:]):
        if node.node is not nodes[0].node:
            unlike += [(first + k, node.node) for k in range(part.count)]
        first += part.count
    notes = [note for node in read.values() for note in node.notes]
    kinds = {node.device.title for node in read.values()}
    if len(kinds) > 1:
        notes.append(
            f"nodes of {len(kinds)} kinds of accelerator: launch and memory are modelled as "
            f"{nodes[0].device.title}"
        )
    joined = replace(
        nodes[0],
        name=cluster.name,
        nodes=first,
        network=network,
        notes=tuple(dict.fromkeys(notes)),
        unlike=tuple(unlike),
        place=(),
        summary=cluster.summary,
        sources=tuple(
            dict.fromkeys([*cluster.sources, *(t for n in read.values() for t in n.sources)])
        ),
    )
    return joined if cluster.place is None else _placed(joined, cluster.place, path)


def _placed(topology: Topology, place: str | Sequence[int], path: Path) -> Topology:
    try:
        return placed(topology, place)
    except InvalidArgument as error:
        raise FormatError(f"{path}: {str(error).partition(': ')[2]}") from None


def _parts(cluster: ClusterSpec, path: Path) -> list[NodesSpec]:
    """Return what a cluster is made of: (machine, count) rows."""
    if isinstance(cluster.nodes, int):
        if cluster.node is None:
            raise FormatError(f"{path}: node: the machine of the {cluster.nodes} nodes is missing")
        return [NodesSpec(cluster.node, cluster.nodes)]
    if cluster.node is not None or not cluster.nodes:
        raise FormatError(
            f"{path}: nodes: a list of {{node, count}} rows, and then no `node`, was expected"
        )
    if sum(part.count for part in cluster.nodes) > 1_000_000:
        raise FormatError(f"{path}: nodes: more than 1,000,000 in all")
    return cluster.nodes


def _node(name: str, path: Path, seen: tuple[Path, ...]) -> Topology:
    """Return the machine a cluster file at `path` names as its node."""
    try:
        node = _read(name, (*seen, path), path.parent)
    except FormatError:
        raise
    except InvalidArgument as error:
        raise FormatError(f"{path}: node: {error}") from None
    if node.nodes > 1:
        raise FormatError(f"{path}: node: {name!r} is itself {node.nodes} nodes: name one node")
    return node


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
    if path.is_dir():
        from .formats.kfd.reader import is_kfd, read_kfd

        if is_kfd(path):
            return read_kfd(path)
    found = format_of(text_of(path))
    return found.reader()(path) if found is not None else _from_yaml(path, seen)


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
    pod_nodes: int | None = None,
    routing: str | None = None,
    seed: int | None = None,
    pxn: bool | None = None,
    place: str | Sequence[int] | None = None,
) -> Topology:
    """Return the machine called `name`: an installed one, or a file.

    A file is a machine's YAML (docs/machines.md), or of a format of `topology.formats`: NCCL/RCCL
    topology XML, hwloc XML, nvidia-smi or rocm-smi text, a copy of the kfd folder, ASTRA-sim YAML,
    SimGrid XML, GraphML, node-link JSON; which one is told from its text.

    nodes: join so many of the node. network: "rails" or "leaf-spine". oversubscription: NIC
    capacity under a leaf over its uplinks. leaf_nodes: nodes under one leaf. pod_nodes: nodes in
    a pod of a three-tier tree. routing: "spray", "ecmp" or "adaptive"; seed: of the hash. pxn:
    whether a message leaves on the rail it arrives on, through the peer that owns its NIC (rails
    only). place: the accelerators ranks take, in order, counted over all nodes: "0-3,8-11" or
    numbers. What is not given stays as the file says. Raises InvalidArgument (unknown name, a
    number out of range) or FormatError (a file that does not follow its format).
    """
    for what, value in (("nodes", nodes), ("leaf_nodes", leaf_nodes), ("pod_nodes", pod_nodes)):
        if value is not None:
            whole(value, what, 1, 1_000_000)
    if seed is not None:
        whole(seed, "seed", 0, 1 << 62)
    if pxn not in (None, True, False):
        raise InvalidArgument(f"pxn {pxn!r}: True or False was expected")
    if routing not in (None, "spray", "ecmp", "adaptive"):
        raise InvalidArgument(f"routing {routing!r}: expected spray, ecmp or adaptive")
    if oversubscription is not None:
        finite(oversubscription, "oversubscription", 1e-3, 1e6)
    if not isinstance(name, (str, Path)):
        raise InvalidArgument(
            f"topology {name!r} is a {type(name).__name__}: a name or a path was expected"
        )
    if network not in (None, "rails", "leaf-spine"):
        raise InvalidArgument(f"network {network!r}: expected rails or leaf-spine")
    try:
        with not_collecting():
            topology = _read(str(name))
    except (OSError, ValueError, RuntimeError) as error:  # a name no file can have, a loop of links
        raise InvalidArgument(f"topology {str(name)[:80]!r} is no path: {error}"[:300]) from None
    if not topology.name.isprintable():  # from a file's name
        shown = "".join(c if c.isprintable() else "?" for c in topology.name)
        topology = replace(topology, name=shown)
    changes = {
        "kind": network,
        "oversubscription": oversubscription,
        "leaf_nodes": leaf_nodes,
        "pod_nodes": pod_nodes,
        "routing": routing,
        "seed": seed,
        "pxn": pxn,
    }
    given: dict[str, Any] = {k: v for k, v in changes.items() if v is not None}
    if nodes is not None and nodes != topology.nodes and (topology.unlike or topology.place):
        topology = _cut(topology, nodes)
    joined = replace(
        topology, nodes=nodes or topology.nodes, network=replace(topology.network, **given)
    )
    joined = replace(joined, notes=joined.notes + _moot(joined))
    return joined if place is None else placed(joined, place)


def placed(topology: Topology, place: str | Sequence[int]) -> Topology:
    """Return the machine for a job that takes these accelerators, in this order."""
    if isinstance(place, str):
        place = numbers(place, f"{topology.name}: place")
    if not hasattr(place, "__iter__"):
        raise InvalidArgument(f"{topology.name}: place {place!r}: a list was expected")
    found = tuple(whole(k, f"{topology.name}: place", 0, topology.ngpus - 1) for k in place)
    if len(set(found)) < len(found):
        twice = next(k for k in found if found.count(k) > 1)
        raise InvalidArgument(f"{topology.name}: place: accelerator {twice} is listed twice")
    if not found:
        raise InvalidArgument(f"{topology.name}: place: no accelerator is listed")
    return replace(topology, place=found)


def _cut(topology: Topology, nodes: int) -> Topology:
    """Return the first `nodes` nodes of a cluster of several kinds, which cannot be more.

    A job that takes some accelerators only keeps those of them that are left.
    """
    if nodes > topology.nodes and topology.unlike:
        raise InvalidArgument(
            f"{topology.name}: {nodes} nodes asked for, but its nodes are of several kinds and "
            f"{topology.nodes}: write a file with more"
        )
    unlike = tuple((node, graph) for node, graph in topology.unlike if node < nodes)
    few = replace(topology, unlike=unlike, nodes=nodes, place=())
    place = tuple(k for k in topology.place if k < few.ngpus)
    if topology.place and not place:
        raise InvalidArgument(f"{topology.name}: none of its place is on the first {nodes} node(s)")
    return replace(few, place=place)
