"""The machine a graph file's search saw, for files that come without their topology.

Owns the rule that turns channels into a node: a graph file names GPUs, NICs and the rate of a
channel, no hardware, so every GPU gets what all channels of the ring carry together, to a switch
when the paths were NVLink's, to the host otherwise. What is invented is said in Topology.notes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import networkx as nx

from ....errors import FormatError
from ....links import DEVICES, LINKS
from ...build import Topology, add_link, add_pcie, new_graph
from ..xml_tree import Notes
from .graph_file import Graph, GraphFile, gpu_text

__all__ = ["topology_of_graphs"]

_SCALE_UP = frozenset({"LOC", "NVL", "NVB", "C2C"})
_HOP = 0.1e-6  # s, assumed: one switch, port to port
_LEAST = 1e6  # B/s: a graph that says 0 was never found; NCCL's own last resort is 0.1 GB/s
_GPUS = 640  # NCCL holds 640 of a kind


def _chosen(graphs: GraphFile, where: str) -> Graph:
    """Return the ring with most channels, else the first graph that has any."""
    found = [graph for graph in graphs.graphs if graph.channels]
    if not found:
        raise FormatError(f"{where}: no <graph> of this graph file has a <channel>: no machine")
    rings = [graph for graph in found if graph.pattern == "ring"]
    return max(rings, key=lambda graph: len(graph.channels)) if rings else found[0]


def _add_gpus(graph: nx.DiGraph, chosen: Graph) -> int:
    gpus = sorted({gpu for channel in chosen.channels for gpu in channel.order})
    rate = max(chosen.speed_intra * len(chosen.channels), _LEAST)
    graph.add_node("cpu0", kind="cpu", host=0, numa=0, arch="", vendor="")
    own = replace(LINKS["pcie3-x16"], name="graph-path", bandwidth=rate, efficiency=1.0)
    for k, gpu in enumerate(gpus):
        graph.add_node(f"gpu{k}", kind="gpu", index=k, host=0, dev=gpu)
        add_pcie(graph, f"gpu{k}", "cpu0", own)
    if chosen.type_intra in _SCALE_UP and len(gpus) > 1:
        graph.add_node("nvswitch0", kind="switch")
        link = replace(LINKS["nvlink3"], name="graph-nvlink", bandwidth=rate, efficiency=1.0)
        for k in range(len(gpus)):
            add_link(graph, f"gpu{k}", "nvswitch0", link)
            graph.edges["nvswitch0", f"gpu{k}"]["latency"] = (_HOP, _HOP, _HOP)
    return len(gpus)


def _add_nics(graph: nx.DiGraph, chosen: Graph) -> None:
    uses = Counter(net for channel in chosen.channels for net in set(channel.nets) if net >= 0)
    for k, (net, count) in enumerate(sorted(uses.items())):
        rate = max(chosen.speed_inter * count, _LEAST)
        port = replace(LINKS["ib-100g"], name="graph-port", bandwidth=rate, efficiency=1.0)
        graph.add_node(f"nic{k}", kind="nic", index=k, host=0, port=port, name=f"net{net}")
        own = replace(LINKS["pcie3-x16"], name="graph-path", bandwidth=rate, efficiency=1.0)
        add_pcie(graph, "cpu0", f"nic{k}", own)


def topology_of_graphs(graphs: GraphFile, name: str, notes: Notes, where: str) -> Topology:
    """Return a node that carries what the channels of `graphs` carry.

    where: file and line, which open the FormatError of a file that has no channel.
    """
    chosen, graph = _chosen(graphs, where), new_graph(name)
    gpus = {gpu for channel in chosen.channels for gpu in channel.order}
    if len(gpus) > _GPUS:
        raise FormatError(f"{where}: {len(gpus)} GPUs: at most {_GPUS} are accepted")
    count = _add_gpus(graph, chosen)
    _add_nics(graph, chosen)
    notes.add(
        f"a graph file names channels, not hardware: {count} accelerators of unknown make are "
        f"assumed, gpu0 = dev {gpu_text(min(gpus))}, each with what the {len(chosen.channels)} "
        f"channels of graph {chosen.id} ({chosen.pattern}) carry together, "
        f"{chosen.speed_intra * len(chosen.channels) / 1e9:g} GB/s over {chosen.type_intra} paths"
    )
    return Topology(name, graph, DEVICES["generic"], notes=notes.lines())
