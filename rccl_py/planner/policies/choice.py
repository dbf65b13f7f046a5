"""What a policy answers, what it is asked with, and which of our algorithms does what it names.

Owns Pick, Policy and the table of names. A policy is a record of what a library would do, by that
library's own tables; it knows no physical time of ours, and the planner times what it picks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...algorithms import ALGORITHMS
from ...collectives import collective_named
from ...errors import InvalidUsage
from ...fabric import Fabric
from .graph import Figures, figures_of

__all__ = ["PROTOCOLS", "Pick", "Policy", "peer_to_peer", "stand_ins"]

PROTOCOLS = ("LL", "LL128", "Simple")
"""In the order of the libraries' tables; the first of equals is taken."""

_P2P_LL = 16384  # B a peer up to which messages go by LL; NCCL_P2P_LL_THRESHOLD's default

_OURS: dict[tuple[str, str], tuple[str, ...]] = {
    ("allreduce", "Tree"): ("tree",),
    ("allreduce", "NVLS"): ("nvls", "direct-twoshot"),
    ("allreduce", "NVLSTree"): ("nvls-tree", "hier-nvls-tree", "hier-direct-tree", "tree"),
    ("allreduce", "CollNetDirect"): ("hier-direct-direct", "direct-twoshot"),
    ("allreduce", "CollNetChain"): ("hier-ring-direct", "ring"),
    ("allreduce", "MSCCL one-shot"): ("direct-oneshot",),
    ("allreduce", "MSCCL two-shot"): ("direct-twoshot",),
    ("broadcast", "Tree"): ("tree",),
    ("reduce", "Tree"): ("tree",),
    **{
        (collective, name): (*first, last)
        for collective in ("allgather", "reduce_scatter")
        for name, first, last in (
            ("NVLS", ("nvls",), "direct"),
            ("CollNetDirect", ("hier-direct-direct",), "direct"),
            ("PAT", ("pat",), "circulant"),
            ("Direct", (), "direct"),
        )
    },
    **{(name, "P2P"): ("direct",) for name in ("alltoall", "gather", "scatter")},
}
"""(collective, the library's algorithm) -> ours that do it, the closest first."""

_KNOWN = frozenset((a.collective, a.name) for a in ALGORITHMS)


@dataclass(frozen=True, slots=True)
class Pick:
    """What a library would do: its own names, and the name of our algorithm that does the same.

    channels: None where the library says nothing. seconds: the time its own model predicts, s;
    None where it has no model. stand_ins: names of our algorithms that do the same, the closest
    first. note: what the figures leave out or assume.
    """

    algorithm: str
    protocol: str
    channels: int | None
    seconds: float | None
    stand_ins: tuple[str, ...]
    note: str = ""

    @property
    def ours(self) -> str:
        """Our algorithm that comes closest."""
        return self.stand_ins[0]

    def __str__(self) -> str:
        channels = f", {self.channels} channel(s)" if self.channels else ""
        return f"{self.algorithm}/{self.protocol}{channels}"


def stand_ins(collective: str, algorithm: str, nodes: int = 1) -> tuple[str, ...]:
    """Return the names of our algorithms that do the library's `algorithm`, the closest first.

    Not every machine can do the first: a switch may not add up, a bus has no rings. Inside one node
    the libraries' tree is a chain.
    """
    names = (*_OURS.get((collective, algorithm), ()), "ring", "direct")
    if algorithm == "Tree" and nodes == 1:
        names = ("chain", *names)
    return tuple(dict.fromkeys(name for name in names if (collective, name) in _KNOWN))


def peer_to_peer(collective: str, size: float, ranks: int) -> Pick:
    """Return the pick of what NCCL and RCCL do by sends and receives, which they do not model.

    size: rccl-tests' bytes.
    """
    protocol = "LL" if size / max(ranks, 1) <= _P2P_LL else "Simple"
    return Pick("P2P", protocol, None, None, stand_ins(collective, "P2P"))


@dataclass(frozen=True, slots=True)
class Policy:
    """A library's choice, by name.

    makers: the beginnings of the archs it knows ("gfx"; digits for NVIDIA), empty for all.
    choose(figures, collective, size in bytes): the pick.
    """

    name: str
    summary: str
    makers: tuple[str, ...]
    choose: Callable[[Figures, str, float], Pick]

    def knows(self, arch: str) -> bool:
        """Whether the library runs on devices of this arch."""
        return not self.makers or arch.startswith(self.makers)

    def figures(self, fabric: Fabric) -> Figures:
        """Return what the library would find on this fabric; serves every size.

        Raises InvalidUsage for a machine the library does not run on.
        """
        if not self.knows(fabric.arch):
            found = f"devices of arch {fabric.arch!r}" if fabric.arch else "devices without an arch"
            raise InvalidUsage(
                f"policy {self.name}: {fabric.name} has {found}, which the library's tables do "
                f"not cover: expected an arch that begins with {' or '.join(self.makers)}"
            )
        return figures_of(fabric)

    def pick(self, machine: Fabric | Figures, collective: str, size: float) -> Pick:
        """Return what the library would do for `size` bytes, as rccl-tests counts them."""
        figures = self.figures(machine) if isinstance(machine, Fabric) else machine
        return self.choose(figures, collective_named(collective).name, size)
