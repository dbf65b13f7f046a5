"""What was fitted to published measurements, one row a hardware family, none keyed by size.

Owns the constants that no data sheet gives: what a hop costs a step under each protocol, which part
of a link copies keep up with, what a rank spends on a message. Fitted by least squares on half a
of the tables of grade A in bench/measured (the split is in their headers), each family on its own
machines, with the policy of the library that was measured; docs/validation.md has the errors on
both halves. A family without measurements takes the row of its nearest kin, and says so.
"""

from __future__ import annotations

from dataclasses import dataclass

from .kinds import US, Triple

__all__ = ["FITTED", "Fit"]


@dataclass(frozen=True, slots=True)
class Fit:
    """Constants of one family.

    latency: s a hop costs a step under LL, LL128 and Simple. parts: of the usable bandwidth, what
    copies under each protocol keep up with. message: s a sender spends a message. window: B that
    must have arrived before a receiver hands on. spread: the part of a link that a rank which
    serves many peers reaches. multicast: the part that transfers done by the switch reach.
    tables: which were fitted on.
    """

    latency: Triple
    message: float
    tables: str
    parts: Triple = (1.0, 1.0, 1.0)
    window: float = 0.0
    spread: float = 1.0
    multicast: float = 0.0


def _us(ll: float, ll128: float, simple: float) -> Triple:
    return ll * US, ll128 * US, simple * US


FITTED: dict[str, Fit] = {
    "xgmi-mi300": Fit(
        _us(0.2, 0.5, 1.78),
        0.05 * US,
        "MI300X 1x8 allreduce (blog, launched and in a graph); MI355X 1x8 allreduce, alltoall",
        parts=(1.0, 0.7, 1.0),
        window=0.36e6,
        spread=0.97,
    ),
    "nvlink3": Fit(
        _us(0.3, 1.22, 5.8),
        0.53 * US,
        "A100 SXM, 2 allreduce, 2 and 4 alltoall, 2 reduce_scatter, 8 allgather",
        parts=(1.0, 0.826, 1.0),
        window=4.05e6,
        spread=0.971,
    ),
    "nvlink4": Fit(
        _us(0.3, 1.83, 4.07),
        0.375 * US,
        "H100 SXM, 2 allgather, 4 allreduce, 4 alltoall, 4 and 8 reduce_scatter",
        parts=(1.0, 0.98, 1.0),
        window=5.1e6,
        spread=0.852,
        multicast=0.74,
    ),
    "nvlink5": Fit(
        _us(0.47, 5.0, 6.4),
        0.58 * US,
        "B200 and GB200, 2, 4, 8, 64 and 72 GPUs",
        parts=(1.0, 0.49, 1.0),
        window=3.3e6,
        spread=0.935,
        multicast=0.66,
    ),
    "pcie-root": Fit(
        _us(0.4, 0.4, 2.9),
        0.53 * US,
        "RTX PRO 6000, 4 allgather, 8 allreduce, alltoall, reduce_scatter",
        parts=(0.945, 0.2, 1.0),
        window=5e4,
    ),
    "roce": Fit(
        _us(17.8, 8.9, 90.0),
        0.44 * US,
        "MI355X 2x8 allreduce (Pollara), MI300X 2x8, A100 2x8 (OCI)",
        parts=(0.103, 0.65, 1.0),
        window=3.9e6,
    ),
    "ib": Fit(
        _us(5.3, 3.8, 12.3),
        0.05 * US,
        "H100 2x8 and 4x8 allreduce (NDR); spread: M",
        parts=(0.43, 0.515, 1.0),
        window=4.2e5,
        spread=0.91,
    ),
    "efa": Fit(
        _us(28.1, 33.7, 10.0),
        0.05 * US,
        "H100 2x8 allreduce (AWS P5)",
        parts=(0.1, 1.0, 1.0),
        window=1.05e6,
    ),
    "slingshot": Fit(
        _us(2.9, 1.0, 19.8),
        4.3 * US,
        "A100 2x4 and 8x4 (Polaris), allgather, allreduce, alltoall",
        parts=(1.0, 0.82, 1.0),
        spread=0.56,
    ),
}
