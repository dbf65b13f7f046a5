"""What a topology XML file lists: CPUs, PCI functions, accelerators and NICs, named and checked.

Owns which element may stand where, which may not be given twice, and the order accelerators and
NICs are counted in. Builds no graph. Every failure is a FormatError with file and line.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ..names import BusId, bus_id, bus_text
from ..xml_tree import Element, Notes

__all__ = ["Place", "Survey", "survey"]

_LIMITS = {"<cpu>": 640, "GPUs": 640, "NICs": 640, "<pci>": 4096}  # NCCL holds 640 of a kind
_HOST_CPUS = 64  # of one host, which are joined pairwise; real machines have at most 32
_PARTITIONS = 16  # <gpu> of one function; MI300X in CPX mode has 8, MLOPart 2

# Element: where it may stand, and the attributes that are understood (or known not to matter).
_PCI_ATTRIBUTES = (
    "busid class vendor device subsystem_vendor subsystem_device link_speed link_width keep"
)
_SHAPE: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    name: (frozenset(parents.split()), frozenset(attributes.split()))
    for name, parents, attributes in (
        ("cpu", "system", "numaid affinity affinity_offset arch vendor familyid modelid host_hash"),
        ("pci", "cpu pci", _PCI_ATTRIBUTES),
        ("gpu", "pci", "dev sm rank gdr gcn arch mlopart keep"),
        ("nic", "cpu pci", "keep"),
        ("net", "nic", "name dev speed port latency guid maxconn gdr coll rail plane gin rma keep "
                       "net"),
        ("nvlink", "gpu", "target count tclass"),
        ("xgmi", "gpu", "target count tclass fabric_supported"),
        ("c2c", "gpu", "bw count"),
        ("pcilink", "pci", "target"),
    )
}  # fmt: skip
_UNUSED = frozenset({"gin", "rma"})  # devices of NCCL's GPU-initiated networking: no link of theirs
_GPU_CLASSES = ("0x0300", "0x0302", "0x0380", "0x12")
_NIC_CLASSES = ("0x0200", "0x0207", "0x0280")
_CONSOLES = frozenset({"0x1a03", "0x102b"})  # display chips of board controllers: no accelerator
_GPU_VENDORS = frozenset({"0x10de", "0x1002"})  # NVIDIA, AMD: of functions without a class
_NIC_VENDORS = frozenset({"0x15b3", "0x1d0f", "0x14e4", "0x1dd8", "0x17db"})
"""Mellanox, Amazon, Broadcom, Pensando, Cray (pci.ids): of functions without a class."""


@dataclass(slots=True)
class Place:
    """Where an element hangs: its host (0-based) and the vertex of its CPU."""

    host: int
    cpu: str


@dataclass(slots=True)
class Survey:
    """A file's devices in order. Elements are told apart by ``id``.

    hosts: how many the file joins, by host_hash. cpus_of: a <net>'s CPUs, for those without <pci>.
    gpus and nics hold (element, its <pci> or None); an inferred device is its own <pci>.
    bare_nics: <pci> without class that are assumed NICs where no <net> or class names any.
    """

    root: Element
    notes: Notes
    hosts: int = 1
    cpus: list[Element] = field(default_factory=list)
    gpus: list[tuple[Element, Element]] = field(default_factory=list)
    nics: list[tuple[Element, Element | None]] = field(default_factory=list)
    places: dict[int, Place] = field(default_factory=dict)
    by_bus: dict[tuple[int, BusId], Element] = field(default_factory=dict)
    buses: dict[int, BusId] = field(default_factory=dict)
    cpus_of: dict[int, set[str]] = field(default_factory=dict)
    bare_nics: list[Element] = field(default_factory=list)

    def place(self, element: Element) -> Place:
        """Return where `element` hangs."""
        return self.places[id(element)]


def _prune(element: Element, notes: Notes) -> None:
    """Drop what is not understood, with a remark, and refuse what stands in the wrong place."""
    kept = []
    for child in element.children:
        if child.name not in _SHAPE:
            if child.name not in _UNUSED:
                notes.add(f"element <{child.name[:40]}> is not known: ignored", child.line)
            continue
        parents, attributes = _SHAPE[child.name]
        if element.name not in parents:
            expected = " or ".join(f"<{p}>" for p in sorted(parents))
            raise child.error(f"<{child.name}> stands inside <{element.name}>: expected inside "
                              f"{expected}")  # fmt: skip
        for name in child.attributes:
            if name not in attributes:
                notes.add(f"attribute {name[:40]!r} of <{child.name}> is not known: ignored",
                          child.line)  # fmt: skip
        _prune(child, notes)
        kept.append(child)
    element.children = kept


def _place_cpus(found: Survey) -> None:
    """Name the CPUs cpu0, cpu1 … by NUMA id where those tell them apart, and number the hosts."""
    cpus = found.cpus = found.root.named("cpu")
    if not cpus:
        raise found.root.error("<system> has no <cpu>: nothing tells which devices there are")
    _require_few(found.root, "<cpu>", len(cpus))
    hosts: dict[str, int] = {}
    seen: dict[tuple[int, int], Element] = {}
    ids: list[int] = []
    for cpu in cpus:
        host = hosts.setdefault(cpu.text("host_hash").lower(), len(hosts))
        numa = cpu.integer("numaid")
        if numa is None:
            numa = next(n for n in range(len(cpus)) if (host, n) not in seen)
            cpu.attributes["numaid"] = str(numa)
            found.notes.add("<cpu> without numaid: counted as it stands", cpu.line)
        if (host, numa) in seen:
            raise cpu.error(f"numaid {numa} is given twice, first on line {seen[host, numa].line}")
        seen[host, numa] = cpu
        ids.append(numa)
        found.places[id(cpu)] = Place(host, "")
    found.hosts = len(hosts)
    most = max(Counter(host for host, _ in seen).values())
    if most > _HOST_CPUS:
        raise found.root.error(f"{most} <cpu> on one host: at most {_HOST_CPUS} are accepted")
    unique = len(set(ids)) == len(ids) and min(ids) >= 0
    for k, cpu in enumerate(cpus):
        found.place(cpu).cpu = f"cpu{ids[k] if unique else k}"


def _place_pcis(found: Survey) -> None:
    """Give every element below a CPU its place, and every <pci> its bus id, once a host."""
    for cpu in found.cpus:
        place = found.place(cpu)
        for element in cpu.walk():
            found.places[id(element)] = place
            if element.name != "pci":
                continue
            text = element.text("busid")
            bus = bus_id(text)
            if bus is None:
                raise element.error(f"<pci> busid {text[:40]!r} is no bus id such as 0000:c1:00.0")
            first = found.by_bus.setdefault((place.host, bus), element)
            if first is not element:
                raise element.error(f"bus id {bus_text(bus)} is given twice, "
                                    f"first on line {first.line}")  # fmt: skip
            found.buses[id(element)] = bus


def _numbered(found: Survey, gpus: list[tuple[Element, Element]], key: str) -> bool:
    """Return whether every GPU has its own number `key`; two with one number are refused."""
    seen: dict[tuple[int, int], Element] = {}
    complete = True
    for gpu, _ in gpus:
        value = gpu.integer(key)
        if value is None or value == -1:  # -1 is how NCCL writes "not set"
            complete = False
            continue
        if value < 0:
            raise gpu.error(f"<gpu> {key} {value} is negative")
        # Every host counts its devices from 0; ranks are counted over all of them.
        own = (0 if key == "rank" else found.place(gpu).host, value)
        first = seen.setdefault(own, gpu)
        # Partitions of one function share their dev.
        if first is not gpu and (key == "rank" or first.parent is not gpu.parent):
            raise gpu.error(f"GPU {key} {value} is given twice, first on line {first.line}")
    return complete


def _find_gpus(found: Survey) -> None:
    """List the accelerators by rank, else by dev, else as they stand in the file."""
    gpus: list[tuple[Element, Element]] = []
    for pci in found.by_bus.values():
        own = pci.named("gpu")
        if len(own) > _PARTITIONS:
            raise own[-1].error(f"{len(own)} <gpu> in one <pci>: at most {_PARTITIONS} partitions")
        if len(own) > 1:
            found.notes.add(f"{len(own)} <gpu> in one <pci>: partitions, each an accelerator with "
                            f"1/{len(own)} of the function's links", own[1].line)  # fmt: skip
        gpus += [(gpu, pci) for gpu in own]
    has_rank, has_dev = _numbered(found, gpus, "rank"), _numbered(found, gpus, "dev")
    if has_rank:
        gpus.sort(key=lambda pair: pair[0].integer("rank") or 0)
    elif has_dev:
        gpus.sort(key=lambda pair: (found.place(pair[0]).host, pair[0].integer("dev") or 0))
    found.gpus = gpus


def _leaves(found: Survey, classes: tuple[str, ...]) -> list[Element]:
    """Return the PCI functions of such classes that hold no other element, by bus id."""
    leaves = [
        pci
        for pci in found.by_bus.values()
        if not pci.children and is_of_class(pci.text("class"), classes)
        and pci.text("vendor").lower() not in _CONSOLES
    ]  # fmt: skip
    return _by_bus(found, leaves)


def _by_bus(found: Survey, pcis: list[Element]) -> list[Element]:
    return sorted(pcis, key=lambda pci: (found.place(pci).host, found.buses[id(pci)]))


def is_of_class(text: str, classes: tuple[str, ...]) -> bool:
    """Return whether a PCI class (with or without 0x, maybe cut to "0x03") is one of `classes`."""
    own = "0x" + text.lower().removeprefix("0x")
    return own.startswith(classes) or (len(own) >= 4 and any(c.startswith(own) for c in classes))


def _classless(found: Survey) -> tuple[list[Element], list[Element]]:
    """Return (accelerators, NICs) among the leaf <pci> that say no class.

    The vendor tells where there is one. Without: cloud files name the accelerators and maybe a
    NIC, and a node has a power of two accelerators (assumed), so the highest bus ids are those.
    """
    bare = [pci for pci in found.by_bus.values() if not pci.children and not pci.text("class")]
    gpus = [pci for pci in bare if pci.text("vendor").lower() in _GPU_VENDORS]
    nics = [pci for pci in bare if pci.text("vendor").lower() in _NIC_VENDORS]
    if bare and not gpus:
        open_ = _by_bus(found, [pci for pci in bare if not pci.text("vendor")])
        count = 1 << (len(open_).bit_length() - 1) if open_ else 0
        gpus, nics = open_[len(open_) - count :], nics + open_[: len(open_) - count]
        found.notes.add(
            f"{len(bare)} leaf <pci> have neither class nor vendor: the {count} with the highest "
            f"bus ids (a power of two) are assumed accelerators, the other {len(open_) - count} "
            "NICs; NCCL asks the live machine", bare[0].line)  # fmt: skip
    return _by_bus(found, gpus), _by_bus(found, nics)


def _infer_gpus(found: Survey) -> None:
    """Take PCI functions for accelerators, as files of cloud machines want it."""
    leaves = _leaves(found, _GPU_CLASSES)
    if not leaves:
        leaves, nics = _classless(found)
        found.bare_nics = nics
    if not leaves:
        raise found.root.error(
            "no accelerators: the file has no <gpu> element and no PCI function of class 0x0302, "
            "0x0300, 0x0380 or 0x12, and no leaf <pci> without class that could be one; NCCL would "
            "fill them in from the live machine"
        )
    found.gpus = [(pci, pci) for pci in leaves]
    found.notes.add(f"{len(leaves)} accelerators have no <gpu> element and no nvlink or xgmi (NCCL "
                    "detects them live): unless said below, scale-up links are unknown and only "
                    "PCIe paths modelled; they are counted by bus id")  # fmt: skip


def _is_used(net: Element, notes: Notes) -> bool:
    used = net.integer("dev") not in (None, -1) and net.integer("net") != 0
    if not used:
        notes.add("<net> without dev, or with net=0: not used, as in NCCL", net.line)
    return used


def _is_again(first: Element, net: Element) -> bool:
    """Return whether `net` is `first`, listed under a further CPU, as NCCL lists socket NICs."""
    bare = all(n.parent is not None and n.parent.parent is not None
               and n.parent.parent.name == "cpu" for n in (first, net))  # fmt: skip
    return bare and first.text("name") == net.text("name")


def _find_nics(found: Survey) -> None:
    """List the <net> that NCCL would use, by dev; without any, PCI network functions."""
    seen: dict[tuple[int, int], Element] = {}
    nets = [e for e in found.root.walk() if e.name == "net" and _is_used(e, found.notes)]
    complete = True
    for net in nets:
        first = seen.setdefault((found.place(net).host, net.integer("dev") or 0), net)
        if first is not net and _is_again(first, net):
            found.cpus_of.setdefault(id(first), set()).add(found.place(net).cpu)
            continue
        complete &= first is net
        above = net.parent.parent if net.parent is not None else None
        found.nics.append((net, above if above is not None and above.name == "pci" else None))
        found.cpus_of.setdefault(id(net), set()).add(found.place(net).cpu)
    if complete:
        found.nics.sort(key=lambda pair: (found.place(pair[0]).host, pair[0].integer("dev") or 0))
    else:
        found.notes.add("two <net> of one host have the same dev: NICs are counted as they stand")


def _infer_nics(found: Survey) -> None:
    leaves = _leaves(found, _NIC_CLASSES) or found.bare_nics
    found.nics = [(pci, pci) for pci in leaves]
    if leaves:
        found.notes.add(f"{len(leaves)} NICs have no <net> element (NCCL detects them live): taken "
                        "from the PCI network functions, counted by bus id")  # fmt: skip
    else:
        found.notes.add("no <net> element and no PCI network function: this machine has no NIC")


def _note_unused(found: Survey) -> None:
    """Remark on PCI functions that look like devices but are not described."""
    used = {id(pci) for _, pci in [*found.gpus, *found.nics] if pci is not None}
    for what, classes in (("<gpu>", _GPU_CLASSES), ("<net>", _NIC_CLASSES)):
        for pci in _leaves(found, classes):
            if id(pci) not in used:
                found.notes.add(f"PCI function of class {pci.text('class')[:10]} without a {what}: "
                                "not used", pci.line)  # fmt: skip


def _require_few(root: Element, what: str, count: int) -> None:
    if count > _LIMITS[what]:
        raise root.error(f"{count} {what}: at most {_LIMITS[what]} are accepted")


def survey(root: Element, notes: Notes) -> Survey:
    """Return what the file lists; remarks go to `notes`. Raises FormatError."""
    _prune(root, notes)
    found = Survey(root, notes)
    _place_cpus(found)
    _place_pcis(found)
    _require_few(root, "<pci>", len(found.by_bus))
    _find_gpus(found)
    if not found.gpus:
        _infer_gpus(found)
    _find_nics(found)
    if not found.nics:
        _infer_nics(found)
    _note_unused(found)
    _require_few(root, "GPUs", len(found.gpus))
    _require_few(root, "NICs", len(found.nics))
    return found
