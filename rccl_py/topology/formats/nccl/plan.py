"""A machine's graph as the elements of a topology XML file, and what the file reads back to.

Owns which element each vertex and link becomes: several switch planes become targets of one
switch, partitions list the links of their package. Knows no text. What the format has no place for
is a FormatError or a remark, never silently another machine.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import networkx as nx

from ....links import LINKS, LinkType
from ...build import SCALE_UP, Topology, nics_of
from ..names import PCIE_SPEEDS, host_link
from .ids import (
    NET_KEPT,
    BusIds,
    bridge_ids,
    cpu_ids,
    device_attributes,
    gpu_ids,
    nic_ids,
    nic_name,
    number_text,
)
from .limits import require_expressible
from .pci_levels import Figures, PciTree, figures_of, plain

__all__ = ["Item", "Plan", "plan_of"]

_ELEMENTS_READ = 256  # NCCL_TOPO_XML_MAX_NODES, NCCL 2.19 to 2.30
_WIDTH = 64  # lanes; what readers take for one link
_ELEMENTS = {"nvlink": "nvlink", "xgmi": "xgmi", "ualink": "xgmi"}
_SWITCH = "nvswitch0"
_NOWHERE = "fffffff:ff:ff.0"  # how drivers spell a switch that has no PCI function in sight
_SWITCH_CLASS = "0x068000"
_POWER_CLASS = "0x068001"  # POWER's NVLink bridge


@dataclass(slots=True)
class Item:
    """One element to be written."""

    name: str
    attributes: dict[str, str]
    children: list[Item] = field(default_factory=list)

    def size(self) -> int:
        """Return how many elements this one and those below it are."""
        return 1 + sum(child.size() for child in self.children)


@dataclass(slots=True)
class Plan:
    """The <cpu> elements, the edges a reader must find (by its own names), and remarks."""

    cpus: list[Item] = field(default_factory=list)
    edges: dict[tuple[str, str], Figures] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


class _Planner:
    """Builds a Plan; vertices are the machine's, `names` those of a reader."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.graph: nx.DiGraph = topology.node
        self.pci = PciTree(topology)
        self.data, self.tree, self.parent = self.pci.data, self.pci.tree, self.pci.parent
        self.kind, self.host, self.refuse = self.pci.kind, self.pci.host, self.pci.refuse
        self.remarks = self.pci.remarks
        self.gpus, self.nics = self.pci.gpus, nics_of(self.graph)
        self.plan = Plan()
        self.ids = BusIds()
        for data in self.data.values():
            if data.get("busid"):
                self.ids.keep(data["busid"])
        self.hosts = sorted({self.host(v) for v in [*self.gpus, *self.nics]})
        self.bus: dict[str, str] = {}
        self.names: dict[str, str] = {}
        self.items: dict[str, Item] = {}
        self.of_unit: dict[str, str] = {}
        self.packages: dict[str, str] = {}
        """The package of each partition: a switch that every one of its GPUs is a part of."""
        for gpu in self.gpus:
            own = [v for v in self.graph[gpu] if v.startswith("package")]
            if own and "package" in self.data[gpu]:
                self.packages[gpu] = own[0]

    def unit(self, gpu: str) -> str:
        """Return the vertex that has a GPU's scale-up links: its package, else itself."""
        return self.packages.get(gpu, gpu)

    # Elements ---------------------------------------------------------------------------------

    def _inside(self, vertex: str) -> bool:
        """Return whether a device is the function its parent stands for."""
        parent, bus = self.parent[vertex], self.data[vertex].get("busid")
        if self.kind(parent) != "pci":
            return False
        part = vertex in self.packages and self.data[parent].get("bridge") is False
        return part or (bool(bus) and self.data[parent].get("busid") == bus)

    def _function(self, vertex: str, ids: dict[str, str]) -> Item:
        own = self.tree.edges[vertex, self.parent[vertex]]["figures"]
        # A device without a PCIe link of its own has gen 5 x16 (assumed).
        figures = plain(LINKS["pcie5-x16"]) if own is None else own
        row = figures.link if figures.link.name in PCIE_SPEEDS else host_link(figures.link)
        width = min(max(round(figures.lanes * 16), 1), _WIDTH)
        speed = {"link_speed": PCIE_SPEEDS[row.name], "link_width": str(width)}
        given = self.data[vertex].get("busid")
        self.bus[vertex] = given or self.ids.new(self.host(vertex))
        return Item("pci", {"busid": self.bus[vertex], **ids, **speed})

    def _place(self, vertex: str) -> None:
        """Make a vertex's element and put it into its parent's."""
        kind, data = self.kind(vertex), self.data[vertex]
        parent = self.items[self.parent[vertex]]
        if kind == "pci":
            inner = [v for v, p in self.parent.items() if p == vertex]
            device = next((v for v in inner if self._inside(v)), None)
            self.items[vertex] = self._function(vertex, bridge_ids(data) if device is None
                                                else self._ids(device, data))  # fmt: skip
            parent.children.append(self.items[vertex])
            return
        if self.pci.bare(vertex):
            parent.children += [Item("nic", {}, [self._net(vertex)])]
            for cpu in self.tree[vertex]:
                if cpu != self.parent[vertex]:
                    self.items[cpu].children += [Item("nic", {}, [self._net(vertex)])]
            return
        if vertex in self.packages and not self._inside(vertex):
            raise self.refuse(f"{vertex} is a partition, but its PCIe function is not shared by "
                              f"all of {self.packages[vertex]}")  # fmt: skip
        if self._inside(vertex):
            holder, self.bus[vertex] = parent, self.bus[self.parent[vertex]]
        else:
            holder = self._function(vertex, self._ids(vertex, data))
            parent.children.append(holder)
        self.items[vertex] = self._device(vertex, holder)

    def _ids(self, device: str, data: dict[str, Any]) -> dict[str, str]:
        if self.kind(device) == "gpu":
            return gpu_ids(data, self.topology.device)
        return nic_ids(data, self.data[device]["port"])

    def _device(self, vertex: str, holder: Item) -> Item:
        if self.kind(vertex) == "gpu":
            item = Item("gpu", self._gpu(vertex))
            holder.children.append(item)
            return item
        nic = next((c for c in holder.children if c.name == "nic"), None)
        if nic is None:
            holder.children.append(nic := Item("nic", {}))
        nic.children.append(item := self._net(vertex))
        return item

    def _gpu(self, vertex: str) -> dict[str, str]:
        data = self.data[vertex]
        make = device_attributes(data, self.topology.device)
        if vertex in self.packages:
            parts = [v for v in self.gpus if self.unit(v) == self.unit(vertex)]
            make["mlopart"] = str(parts.index(vertex))
        gdr = "1" if data.get("gdr", True) else "0"
        return {
            "dev": number_text(self.devs[vertex]),
            **make,
            "rank": str(data["index"]),
            "gdr": gdr,
        }

    def _net(self, vertex: str) -> Item:
        data = self.data[vertex]
        port, number = data["port"], self.devs[vertex]
        guid = f"{0x72CC100000000000 + int(data['index']):#x}"
        usual = {"port": "1", "latency": "0.000000", "guid": guid, "maxconn": "131072", "gdr": "1"}
        kept = {name: data[f"net_{name}"] for name in NET_KEPT if f"net_{name}" in data}
        return Item("net", {
            "name": nic_name(data, port, number), "dev": str(number),
            "speed": str(max(round(port.bandwidth * 8 / 1e6), 1)), **usual, **kept,
        })  # fmt: skip

    def _number(self) -> None:
        """Number GPUs and NICs on their host; a file's own numbers are kept where they can be."""
        self.devs: dict[str, int] = {}
        for names in (self.gpus, self.nics):
            for host in self.hosts:
                own = [v for v in names if self.host(v) == host]
                given = [self.data[v].get("dev") for v in own]
                places = {(self.data[v].get("dev"), self.data[v].get("busid")) for v in own}
                fine = names is self.gpus and all(isinstance(d, int) and d >= 0 for d in given)
                fine = fine and len({d for d, _ in places}) == len(places)
                fine = fine and len({b for _, b in places}) == len(places)
                self.devs |= {v: int(given[k] or 0) if fine else k for k, v in enumerate(own)}

    def _cpus(self) -> list[str]:
        """Return the CPUs in file order, with their elements made and named as a reader will."""
        cpus = [v for v in self.tree if self.kind(v) == "cpu"]
        cpus.sort(key=lambda v: (self.host(v), int(self.data[v].get("numa") or 0)))
        numas: dict[str, int] = {}
        for cpu in cpus:
            own = [numas[c] for c in numas if self.host(c) == self.host(cpu)]
            numa = self.data[cpu].get("numa")
            fits = isinstance(numa, int) and numa not in own
            numas[cpu] = int(numa or 0) if fits else max(own, default=-1) + 1
        values = list(numas.values())
        unique = len(set(values)) == len(values) and min(values) >= 0
        many = len({self.host(v) for v in cpus}) > 1
        for k, cpu in enumerate(cpus):
            self.names[cpu] = f"cpu{values[k] if unique else k}"
            hashed = {"host_hash": f"{0x5C1E000000000001 + self.host(cpu):#x}"} if many else {}
            rows = [d["link"].name for _, _, d in self.graph.out_edges(cpu, data=True)
                    if d["link"].medium == "cpu"] if cpu in self.graph else []  # fmt: skip
            data = self.data[cpu]
            affinity = {"affinity": data["affinity"]} if data.get("affinity") else {}
            ids = cpu_ids(data, rows[0] if rows else "", self.topology.device)
            spelled = number_text(values[k])
            self.items[cpu] = Item("cpu", {**hashed, "numaid": spelled, **affinity, **ids})
        return cpus

    # Links beside the tree --------------------------------------------------------------------

    def _scale_up(self) -> None:
        shares, numbers = Counter(self.bus[g] for g in self.gpus), dict[str, int]()
        for gpu in self.gpus:
            unit = self.unit(gpu)
            self.names[unit] = (
                f"gpu{self.data[gpu]['index']}" if unit == gpu
                else f"package{numbers.setdefault(unit, len(numbers))}"
            )  # fmt: skip
            self.of_unit.setdefault(unit, gpu)
            if len({self.bus[g] for g in self.gpus if self.unit(g) == unit}) > 1:
                raise self.refuse(f"partitions of {unit} are not on one PCIe function")
        for gpu in self.gpus:
            unit = self.unit(gpu)
            if unit != gpu:
                self._expect(gpu, unit)
                self._expect(unit, gpu)
            for _, b, data in self.graph.out_edges(gpu, data=True):
                if self.kind(b) == "cpu" and data["link"].medium == "c2c":
                    self._expect(gpu, b)
                    self._expect(b, gpu)
                    self.items[gpu].children.append(self._coherent(data, shares, gpu))
            for _, b, data in self.graph.out_edges(unit, data=True):
                if b in self.of_unit:
                    self._peer(gpu, unit, b, data)
        self._switch()

    def _peer(self, gpu: str, unit: str, b: str, data: dict[str, Any]) -> None:
        """Add the element of one link of `gpu` to another GPU or package."""
        link, peer = data["link"], self.of_unit.get(b, b)
        if self.unit(peer) != b or self.unit(gpu) == b or self.unit(gpu) == self.unit(peer):
            return  # a partition's link to its own package
        if link.medium not in SCALE_UP or link.medium not in _ELEMENTS:
            raise self.refuse(f"{unit} is joined to {b} by a {link.medium} link")
        self._expect(unit, b)
        fabric = {} if self.host(peer) == self.host(gpu) else {"fabric_supported": "1"}
        tclass = gpu_ids(self.data[peer], self.topology.device).get("class", "")
        tclass = tclass if tclass.startswith(("0x03", "0x12")) else "0x03"
        own = {"target": self.bus[peer], "count": str(max(round(data["lanes"]), 1)),
               "tclass": tclass, **fabric}  # fmt: skip
        self.items[gpu].children.append(Item(_ELEMENTS[link.medium], own))

    def _coherent(self, data: dict[str, Any], shares: Counter[str], gpu: str) -> Item:
        """Return the element of a GPU's link to its CPU; partitions list all of it."""
        link, lanes = data["link"], data["lanes"] * shares[self.bus[gpu]]
        count = max(round(lanes), 1)
        if link.name.endswith("-cpu"):
            return Item("nvlink", {"target": _NOWHERE, "count": str(count), "tclass": _POWER_CLASS})
        rate = max(round(link.bandwidth * lanes / count / 1e6), 1)
        return Item("c2c", {"bw": str(rate), "count": str(count)})

    def _switch(self) -> None:
        """Write all switch planes as targets of every GPU; a reader makes one switch of them."""
        planes = [v for v in self.graph if self.kind(v) == "switch" and v not in self.of_unit]
        if not planes:
            return
        joined = [frozenset(self.graph.predecessors(p)) for p in planes]
        if len(set(joined)) > 1:
            raise self.refuse("its switches do not all reach the same GPUs: NCCL has one switch")
        if not joined[0] <= set(self.of_unit):
            raise self.refuse(f"switch {planes[0]} joins what is no GPU")
        many = len(self.hosts) > 1
        if len(planes) > 1:
            self.remarks[f"{len(planes)} switch planes are read as one switch of the same sum"] += 1
        targets = [_NOWHERE if many or len(planes) == 1 else self.ids.new(self.hosts[0])
                   for _ in planes]  # fmt: skip
        for gpu in [g for g in self.gpus if self.unit(g) in joined[0]]:
            link, lanes = self._to_planes(self.unit(gpu), planes)
            if link.medium not in _ELEMENTS:
                raise self.refuse(f"{gpu} reaches a switch by a {link.medium} link")
            whole = max(round(lanes), 1)
            parts = Counter(targets[k * len(targets) // whole] for k in range(whole))
            fabric = {"fabric_supported": "1"} if many and link.medium != "nvlink" else {}
            self.items[gpu].children += [
                Item(_ELEMENTS[link.medium], {"target": t, "count": str(n),
                                              "tclass": _SWITCH_CLASS, **fabric})
                for t, n in sorted(parts.items())]  # fmt: skip

    def _to_planes(self, unit: str, planes: list[str]) -> tuple[LinkType, float]:
        """Return the link of a GPU or package to its switch, and its lanes over all planes."""
        ways = [(figures_of(self.graph.edges[unit, p]), figures_of(self.graph.edges[p, unit]))
                for p in planes]  # fmt: skip
        if len({(up.link, up.latency, down.latency) for up, down in ways}) > 1:
            raise self.refuse(f"{unit} reaches its switches by links of several kinds")
        lanes, (up, down), name = sum(w.lanes for w, _ in ways), ways[0], self.names[unit]
        self.plan.edges[name, _SWITCH] = replace(up, lanes=lanes)
        self.plan.edges[_SWITCH, name] = replace(down, lanes=lanes)
        return up.link, lanes

    def _peers_of_bridges(self) -> None:
        for a, b, data in self.graph.edges(data=True):
            if data.get("peer") and self.kind(a) == "pci" and a in self.items and b in self.items:
                self.items[a].children.append(Item("pcilink", {"target": self.bus[b]}))
                self._expect(a, b)

    # What a reader must find ------------------------------------------------------------------

    def _expect(self, a: str, b: str) -> None:
        """Expect the edge from `a` to `b` as the machine has it."""
        self.plan.edges[self.names[a], self.names[b]] = figures_of(self.graph.edges[a, b])

    def _expect_tree(self) -> None:
        for vertex, parent in self.parent.items():
            figures = self.tree.edges[vertex, parent]["figures"]
            if figures is not None and parent in self.graph and vertex in self.names:
                pair = self.names[vertex], self.names[parent]
                self.plan.edges[pair] = self.plan.edges[pair[::-1]] = figures
        for a, b in combinations([v for v in self.graph if self.kind(v) == "cpu"], 2):
            if self.graph.has_edge(a, b):
                self._expect(a, b)
                self._expect(b, a)
            elif self.host(a) == self.host(b):
                self.remarks["CPUs of one host are joined pairwise by readers"] += 1

    def _name(self, cpus: list[str]) -> None:
        for vertex in self.parent:
            data = self.data[vertex]
            if self.kind(vertex) != "pci":
                self.names[vertex] = f"{self.kind(vertex)}{data['index']}"
            elif vertex in self.bus:
                hosts = list(dict.fromkeys(self.host(cpu) for cpu in cpus))
                host = hosts.index(self.host(vertex)) if len(hosts) > 1 else None
                self.names[vertex] = (f"pci{self.bus[vertex]}" if host is None
                                      else f"pci{host}/{self.bus[vertex]}")  # fmt: skip

    def make(self) -> Plan:
        """Return the plan."""
        self._number()
        cpus = self._cpus()
        for vertex in self.parent:
            self._place(vertex)
        self._name(cpus)
        self._scale_up()
        self._peers_of_bridges()
        self._expect_tree()
        self.plan.cpus = [self.items[cpu] for cpu in cpus]
        count = 1 + sum(item.size() for item in self.plan.cpus)
        if count > _ELEMENTS_READ * len(self.hosts):
            self.remarks[f"{count} elements: NCCL reads {_ELEMENTS_READ} of a host"] += 1
        self.plan.remarks = [f"{text} ({n} times)" if n > 1 else text
                             for text, n in self.remarks.items()]  # fmt: skip
        return self.plan


def plan_of(topology: Topology) -> Plan:
    """Return the elements of one node of `topology`. Raises FormatError for what has no place."""
    require_expressible(topology)
    return _Planner(topology).make()
