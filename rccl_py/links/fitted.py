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
    tables: names in bench/measured, with `*` for any text; fitted on those of half a and grade A
    among them. also: what came from elsewhere, by letter of the sources.
    """

    latency: Triple
    message: float
    tables: tuple[str, ...]
    parts: Triple = (1.0, 1.0, 1.0)
    window: float = 0.0
    spread: float = 1.0
    multicast: float = 0.0
    also: str = ""


def _us(ll: float, ll128: float, simple: float) -> Triple:
    return ll * US, ll128 * US, simple * US


FITTED: dict[str, Fit] = {
    "xgmi-mi300": Fit(
        _us(0.2, 0.5, 1.78),
        0.05 * US,
        ("amd_mi300x_1n8_*", "amd_mi355x_1n8_*"),
        parts=(1.0, 0.7, 1.0),
        window=0.36e6,
        spread=0.97,
    ),
    "nvlink3": Fit(
        _us(0.3, 1.22, 5.8),
        0.53 * US,
        ("nv_a100_sxm_*",),
        parts=(1.0, 0.826, 1.0),
        window=4.05e6,
        spread=0.971,
    ),
    "nvlink4": Fit(
        _us(0.3, 1.83, 4.07),
        0.375 * US,
        ("nv_h100_sxm_*",),
        parts=(1.0, 0.98, 1.0),
        window=5.1e6,
        spread=0.852,
        multicast=0.74,
    ),
    "nvlink5": Fit(
        _us(0.47, 5.0, 6.4),
        0.58 * US,
        ("nv_b200_sxm_*", "nv_b200_1n8_*", "nv_gb200_*"),
        parts=(1.0, 0.49, 1.0),
        window=3.3e6,
        spread=0.935,
        multicast=0.66,
    ),
    "pcie-root": Fit(
        _us(0.4, 0.4, 2.9),
        0.53 * US,
        ("nv_rtx_pro_6000_server_*",),
        parts=(0.945, 0.2, 1.0),
        window=5e4,
    ),
    "roce": Fit(
        _us(17.5, 7.8, 45.0),
        1.35 * US,
        ("amd_mi300x_2n16_*", "amd_mi355x_2n16_*", "nv_a100_2n16_*_oci_b4"),
        parts=(0.09, 0.695, 1.0),
        window=1.2e4,
    ),
    "ib": Fit(
        _us(5.3, 3.8, 12.3),
        0.05 * US,
        ("nv_h100_*_issue309*",),
        parts=(0.43, 0.515, 1.0),
        window=4.2e5,
        spread=0.91,
        also="spread: M",
    ),
    "efa": Fit(
        _us(28.1, 33.7, 10.0),
        0.05 * US,
        ("nv_h100_2n16_*_efa_*",),
        parts=(0.1, 1.0, 1.0),
        window=1.05e6,
    ),
    "slingshot": Fit(
        _us(2.9, 1.0, 19.8),
        4.3 * US,
        ("nv_a100_*_polaris_*",),
        parts=(1.0, 0.82, 1.0),
        spread=0.56,
    ),
}
