"""rccl-2.28 and rccl-2.22: what RCCL would pick, by its own tables and its overrides.

Owns RCCL's three changes to NCCL's model (bandwidth ratios, corrections of rings too, windows of
protocols and channels by bytes a rank) and what it decides outside the tables. The numbers are in
rccl_tuning.json. They were fitted to end-to-end runs: 320 us for a network hop is no hop's time.

Order of the decision: direct and MSCCL algorithms by size; else the cheapest of the table; then
the protocol's window overrides the protocol, but not the algorithm.

Sources: ROCm RCCL src/graph/tuning.cc and src/rccl_wrap.cc, 2.28.3; ROCm/rccl
tools/msccl-algorithms (sizes of the MSCCL files). The end of MSCCL's windows was checked against
the published MI300X table of RCCL 2.22.3: latency falls at 1 KiB, and the slope changes from 129
to 176 GB/s above 16 MiB (AMD ROCm blog, 2025-03-02).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from ...errors import InvalidUsage
from .choice import PROTOCOLS, Pick, peer_to_peer, stand_ins
from .graph import Figures, log2

__all__ = ["Release", "cost_table", "model_of", "pick", "window_of"]

KIB, MIB = 1 << 10, 1 << 20

_BASE = (12.0, 12.0, 17.0)  # us; RCCL 2.28.3, every algorithm
_MODELS = (  # arch begins with -> model; RCCL 2.28.3, for gfx1250 the tables are not published
    ("gfx906", "0"), ("gfx908", "0"), ("gfx90a", "0"), ("gfx103", "0"), ("gfx110", "0"),
    ("gfx94", "5"), ("gfx95", "6"), ("gfx120", "7"), ("gfx1151", "9"), ("gfx1250", "6"),
)  # fmt: skip
_LL128 = ("gfx90a", "gfx94", "gfx95", "gfx1250")
_THREADS = {"LL": 256, "LL128": 256, "Simple": 256}
_THRESHOLDS = {"LL": 8, "LL128": 8, "Simple": 64}
_ROOTED_LL = 1.65  # LL broadcast and reduce on one node of gfx942 and gfx950

# Bytes a rank up to which one node uses LL, whatever the table says.
_ONE_NODE_LL: dict[str, dict[str, int]] = {
    "gfx94": {"reduce_scatter": 352_128},
    "gfx95": {"allgather": 88_448, "reduce_scatter": MIB},
    "gfx120": {"broadcast": 1536, "reduce": 8192, "allgather": 98_304, "reduce_scatter": 98_304,
               "allreduce": 913_532},
}  # fmt: skip

_MSCCL = (  # above, up to (bytes), algorithm, protocol, channels of the file
    (KIB - 1, 20 * KIB, "MSCCL one-shot", "LL", 4),
    (20 * KIB, 64 * KIB, "MSCCL two-shot", "LL", 4),
    (64 * KIB, MIB, "MSCCL two-shot", "LL", 8),
    (MIB, 20 * MIB, "MSCCL two-shot", "Simple", 8),
)


@dataclass(frozen=True, slots=True)
class Release:
    """What one release has. msccl: MSCCL's algorithms on one node of 8. windows: protocol and
    channel windows between nodes, LL128, and direct allgather and reduce_scatter.
    """

    msccl: bool
    windows: bool


@cache
def _tables() -> dict[str, Any]:
    import json  # loaded with the tables: most planners follow no policy
    from importlib.resources import files

    text = files(__package__).joinpath("rccl_tuning.json").read_text(encoding="utf-8")
    models: dict[str, Any] = json.loads(text)["models"]
    return models


def model_of(f: Figures) -> str:
    """Return the number of the tuning model RCCL takes for these devices and NICs."""
    for start, model in _MODELS:
        if f.arch.startswith(start):
            return "8" if model == "5" and f.ainic else model
    raise InvalidUsage(f"RCCL has no tuning model for arch {f.arch!r}: one of "
                       f"{', '.join(start for start, _ in _MODELS)}")  # fmt: skip


def _new(f: Figures) -> bool:
    return f.arch.startswith(("gfx94", "gfx95"))


def _allowed(release: Release, collective: str, algorithm: str, protocol: str, f: Figures) -> bool:
    if algorithm == "Tree" and collective != "allreduce":
        return False
    if protocol == "LL128":
        near = f.within(f.type_intra, "NVL") and (f.nodes == 1 or f.within(f.type_inter, "PXB"))
        return release.windows and near and f.arch.startswith(_LL128)
    if protocol == "LL" and f.arch.startswith("gfx12"):
        return f.arch.startswith("gfx1250")
    # RCCL takes Tree/Simple out on one node of these: it loses to the rings of the mesh.
    return not (algorithm == "Tree" and protocol == "Simple" and f.nodes == 1 and _new(f))


def cost_table(
    release: Release, collective: str, f: Figures
) -> dict[tuple[str, str], tuple[float, float]]:
    """Return (algorithm, protocol) -> (latency in us, bandwidth in GB/s), before corrections."""
    table = {}
    for algorithm in ("Tree", "Ring"):
        for p, protocol in enumerate(PROTOCOLS):
            if _allowed(release, collective, algorithm, protocol, f):
                bandwidth = _bandwidth(collective, algorithm, p, f)
                if bandwidth > 0:
                    table[algorithm, protocol] = _latency(collective, algorithm, p, f), bandwidth
    return table


def _steps(collective: str, n: int) -> int:
    if collective == "allreduce":
        return 2 * (n - 1)
    return n - 1 if collective in ("allgather", "reduce_scatter") else n


def _bandwidth(collective: str, algorithm: str, p: int, f: Figures) -> float:
    graph = f.tree if algorithm == "Tree" else f.ring
    bus = graph.channels * (graph.intra if f.nodes <= 2 else graph.inter)
    bus *= _tables()[model_of(f)]["ratio"][0 if f.nodes <= 2 else 1][algorithm][p]
    if algorithm == "Ring" and p == 0 and collective in ("broadcast", "reduce"):
        bus *= _ROOTED_LL if f.nodes == 1 and _new(f) else 1.0
    ratio = f.ranks / _steps(collective, f.ranks) if algorithm == "Ring" else 0.5
    return float(bus * ratio)


def _latency(collective: str, algorithm: str, p: int, f: Figures) -> float:
    rows = _tables()[model_of(f)]["latency"]
    near = rows["XGMI" if f.within(f.type_intra, "NVL") else "PCI"]
    intra = near[algorithm][p]
    inter = rows["NET"]["Tree" if f.ranks == f.nodes else algorithm][p]
    inter += f.net_latency * (2 if p == 2 else 1)
    if algorithm == "Tree":
        return float(_BASE[p] + 2 * ((f.local - 1) * intra + log2(f.nodes) * inter))
    steps = _steps(collective, f.ranks)
    if collective in ("broadcast", "reduce"):
        where = near if f.nodes == 1 else rows["NET"]
        hop = where["Ring"][p] if f.same_channels or p < 2 else where["Tree"][p]
        return float(_BASE[p] + (hop if f.same_channels else steps * hop))
    crossing = (f.nodes - 1) * (2 if collective == "allreduce" else 1)
    overhead = f.net_overhead * (3 if p == 2 else 1) if f.nodes > 1 else 0.0
    return float(_BASE[p] + (steps - crossing) * max(intra, overhead) + crossing * inter)


def _corrected(algorithm: str, protocol: str, size: float, f: Figures) -> float:
    """Return the factor of bandwidth at this size."""
    if algorithm == "Ring" and f.nodes == 1:
        return 1.0
    row = _tables()[model_of(f)]["correction"][algorithm][PROTOCOLS.index(protocol)]
    at = log2(max(int(size) >> 6, 1))
    return float(row[min(at, len(row) - 1)])


def _per_rank(collective: str, size: float, n: int) -> float:
    return size if collective == "allreduce" else size // n


def window_of(release: Release, f: Figures, collective: str, size: float) -> str | None:
    """Return the protocol RCCL's windows and cut-offs ask for, None where the table decides."""
    part = _per_rank(collective, size, f.ranks)
    if f.nodes == 1:
        return _one_node(f, collective, part)
    found = _tables()[model_of(f)]["window"].get(collective) if release.windows else None
    if found is None:
        return None
    least, most, _ = found["LL128"]
    # At two nodes trees behave in their own way, so the window was set for those.
    most *= 3.8 if collective == "allreduce" and f.nodes > 2 else 1.0
    if least < part <= most and _allowed(release, collective, "Ring", "LL128", f):
        return "LL128"
    least, most, _ = found["LL"]
    return "LL" if least < part <= most else "Simple"


def _one_node(f: Figures, collective: str, part: float) -> str | None:
    for start, cuts in _ONE_NODE_LL.items():
        if f.arch.startswith(start):
            if part <= cuts.get(collective, -1):
                return "LL"
            return "Simple" if start == "gfx120" else None
    return None


def _direct(release: Release, f: Figures, collective: str, size: float) -> Pick | None:
    """Return the pick of what goes ahead of the table: MSCCL, and peer-to-peer algorithms."""
    if release.msccl and collective == "allreduce" and f.nodes == 1 and f.ranks == 8:
        for above, most, name, protocol, channels in _MSCCL if _new(f) else ():
            if above < size <= most:
                return Pick(name, protocol, channels, None, stand_ins(collective, name))
    if not release.windows or not _new(f):
        return None
    new = f.arch.startswith("gfx95")
    if collective == "allgather" and f.ranks % 8 == 0:
        most = 4 * MIB
        if new:
            most = 8 * MIB if f.nodes == 1 else f.nodes * 2 * MIB if f.nodes < 64 else 72 * MIB
        fits = size <= most
    else:
        # Between nodes it needs PXN, which is on from 32 ranks.
        fits = (collective == "reduce_scatter" and new and f.nodes > 1 and f.ranks >= 32
                and size <= 2 * MIB)  # fmt: skip
    if not fits:
        return None
    return Pick("Direct", "Simple", f.channels, None, stand_ins(collective, "Direct"))


def _channels(
    release: Release, f: Figures, collective: str, size: float, algorithm: str, protocol: str
) -> int:
    model, count = _tables()[model_of(f)], f.channels
    part = -(-size // f.ranks)
    gfx9 = _new(f) or f.arch.startswith("gfx1250")
    if release.windows and (f.nodes > 1 or not gfx9):
        for above, most, channels in model["channels"].get(collective, ()):
            if above < part and (most is None or part <= most):
                count = min(channels, count)
                break
    threshold = _THRESHOLDS[protocol]
    if algorithm == "Ring" and protocol == "LL":
        threshold *= f.ranks
    window = model["window"].get(collective, {}).get(protocol) if f.nodes > 1 else None
    if release.windows and window and window[2] and collective != "allreduce":
        threshold = window[2] * f.ranks
    return max(1, min(count, int(size // (_THREADS[protocol] * threshold))))


def pick(release: Release, f: Figures, collective: str, size: float) -> Pick:
    """Return what this release of RCCL would do for `size` bytes."""
    if f.ranks == 1:
        return Pick("Ring", "Simple", 1, 0.0, stand_ins(collective, "Ring"))
    if collective in ("alltoall", "gather", "scatter"):
        return peer_to_peer(collective, size, f.ranks)
    early = _direct(release, f, collective, size)
    if early is not None:
        return early
    times = {
        key: latency + size / (1000 * bandwidth * _corrected(*key, size, f))
        for key, (latency, bandwidth) in cost_table(release, collective, f).items()
    }
    algorithm, protocol = min(times, key=lambda key: times[key])
    protocol = window_of(release, f, collective, size) or protocol
    us = times.get((algorithm, protocol))
    return Pick(
        algorithm,
        protocol,
        _channels(release, f, collective, size, algorithm, protocol),
        None if us is None else us * 1e-6,
        stand_ins(collective, algorithm, f.nodes),
        "RCCL publishes no tables for gfx1250: those of gfx950" if f.arch == "gfx1250" else "",
    )
