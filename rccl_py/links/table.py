"""Links and protocols, one row a kind.

Owns figures only. A row says what a link carries raw, how it is framed (`framing` computes the
part that leaves for data) and, where somebody has measured a link or a collective over it, what it
really gives: `usable` in B/s. Without a measurement the framing is all that is taken off.
"""

from __future__ import annotations

from dataclasses import replace

from ..framing import (
    UNFRAMED,
    Framing,
    infiniband,
    nvlink,
    pcie,
    roce,
    slingshot,
    tcp,
    ualink,
    ualoe,
    uet,
    xgmi,
)
from .fitted import FITTED, Fit
from .kinds import GB, US, LinkType, Protocol, Triple
from .switches import SWITCHES

__all__ = ["LINKS", "PROTOCOLS"]

PROTOCOLS: dict[str, Protocol] = {
    # LL carries 4 B data + 4 B flag; LL128 120 B data in 128 B; NCCL 2.30 source.
    "LL": Protocol("LL", 2.0, 0),
    "LL128": Protocol("LL128", 128 / 120, 1),
    "Simple": Protocol("Simple", 1.0, 2),
}


def _us(ll: float, ll128: float, simple: float) -> Triple:
    return ll * US, ll128 * US, simple * US


_SCALE_UP_MESSAGE = 0.05 * US  # assumed: one flag write and its fence per peer
_NIC_MESSAGE = 0.5 * US  # M: the NIC itself takes 0.11 us (I), posting and progress the rest

_XGMI_MI200 = _us(0.8, 1.4, 2.5)  # B
_XGMI_MI300 = _us(0.8, 0.8, 2.1)  # B
_NVLINK = _us(0.85, 1.9, 3.4)  # L for LL, E for the others
_PCI = _us(1.0, 1.9, 4.0)  # E, its PCI row: charged once a path, however many PCI hops
_CPU = _us(0.3, 0.5, 1.0)  # assumed: a socket crossing on top of the PCI links
_TCP = _us(20.0, 20.0, 30.0)  # assumed
_ICI = _us(1.0, 1.0, 1.0)  # R: below 1 us a hop; a TPU has no such protocols


def _row(
    name: str,
    medium: str,
    raw: float,
    latency: Triple,
    source: str,
    *,
    framing: Framing = UNFRAMED,
    usable: float | None = None,
    measured: str = "",
    message: float = _SCALE_UP_MESSAGE,
    switch: str = "",
    fit: Fit | None = None,
) -> LinkType:
    """Return a row; `usable` B/s were `measured` by a source, else the framing says them."""
    efficiency = framing.efficiency if usable is None else usable / raw
    hop = SWITCHES[switch].hop if switch else 0.0
    why = f"as {switch}: {SWITCHES[switch].source}" if switch else "no switch"
    row = LinkType(
        name, medium, raw, efficiency, latency, message, source, framing, measured, hop, why
    )
    if fit is None:
        return row
    return replace(
        row,
        latency=fit.latency,
        message=fit.message,
        parts=fit.parts,
        window=fit.window,
        spread=fit.spread,
        multicast=fit.multicast,
    )


def _xgmi(
    name: str, raw: float, usable: float, measured: str, latency: Triple | None = None
) -> LinkType:
    """Return a row; without a latency of its own it takes what was fitted to MI300."""
    return _row(
        name,
        "xgmi",
        raw * GB,
        latency or _XGMI_MI300,
        "N, B" if latency else "N, AE",
        framing=xgmi(),
        usable=usable * GB,
        measured=measured,
        fit=None if latency else FITTED["xgmi-mi300"],
    )


def _nvlink(
    name: str,
    raw: float,
    usable: float,
    measured: str,
    source: str,
    *,
    both_ways: bool = True,
    fit: str = "",
) -> LinkType:
    return _row(
        name,
        "nvlink",
        raw * GB,
        _NVLINK,
        source,
        framing=nvlink(both_ways=both_ways),
        usable=usable * GB,
        measured=measured,
        switch="nvswitch-3",
        fit=FITTED[fit] if fit else None,
    )


def _ualink(name: str, raw: float, framing: Framing, switch: str, source: str) -> LinkType:
    # No silicon has been measured: what can be fitted is that of xGMI, its next of kin.
    return _row(
        name,
        "ualink",
        raw * GB,
        _XGMI_MI300,
        source,
        framing=framing,
        switch=switch,
        fit=FITTED["xgmi-mi300"],
    )


def _pcie(
    generation: int, lane: float, usable: float | None, measured: str, suffix: str = ""
) -> LinkType:
    """Return PCIe x16 of a generation; `lane` is GB/s of one lane, net of its code."""
    return _row(
        f"pcie{generation}-x16{suffix}",
        "pci",
        16 * lane * GB,
        _PCI,
        "N, E",
        framing=pcie(generation),
        usable=None if usable is None else usable * GB,
        measured=measured,
        switch="pcie-switch",
        fit=FITTED["pcie-root"] if suffix else None,
    )


def _socket(name: str, usable: float, source: str) -> LinkType:
    """Return a link between CPU sockets, of which only what NCCL counts on is known."""
    return _row(name, "cpu", usable * GB, _CPU, source, message=0.0)


def _network(
    name: str,
    gigabits: float,
    framing: Framing,
    switch: str,
    source: str,
    *,
    fit: str = "",
    part: float | None = None,
    measured: str = "",
    pauses: bool = False,
) -> LinkType:
    """Return a NIC's port of so many Gb/s; `part` of it was measured at the application.

    fit: its row in FITTED; without one its latency is that of TCP.
    """
    raw = gigabits / 8 * GB
    row = _row(
        name,
        "net",
        raw,
        _TCP,
        source,
        framing=framing,
        usable=None if part is None else raw * part,
        measured=measured,
        message=_NIC_MESSAGE,
        switch=switch,
        fit=FITTED[fit] if fit else None,
    )
    return replace(row, pauses=pauses)


_RINGS = "AE (rings)"
_NDR = 0.94  # AE
_POLLARA = 0.96  # AE; I: 45.5 of 50

LINKS: dict[str, LinkType] = {
    link.name: link
    for link in (
        # AMD Infinity Fabric, one x16 link. K's constants are what RCCL counts on.
        _row("xgmi-vega", "xgmi", 24 * GB, _XGMI_MI200, "K, B"),
        _xgmi("xgmi-mi100", 46, 35.88, "K (36)", _XGMI_MI200),
        _xgmi("xgmi-mi200", 50, 37.5, "C (1 link 35-39, 2 links 69-76)", _XGMI_MI200),
        _xgmi("xgmi-mi200-package", 50, 142.2 / 4, "C (4 links in a package)", _XGMI_MI200),
        _xgmi("xgmi-mi300", 64, 0.7557 * 64, "AE (A, by copies: 46.55 of 64)"),
        _xgmi("xgmi-mi300a", 64, 0.81 * 64, "P"),
        _xgmi("xgmi-mi325", 64, 0.7557 * 64, "AE (the same links)"),
        _xgmi("xgmi-mi350", 76.8, 63.8, "AE (D: MI355X 402-409 over 7)"),
        _xgmi("xgmi-mi350x", 76.8, 57.8, "D (MI350X 367 over 7), as far above it as AE"),
        # NVLink, one link. Rings load both directions; K's constants are for one.
        _nvlink("nvlink1", 20, 18, "K (18)", "N, E", both_ways=False),
        _nvlink("nvlink2", 25, 23, "F (V100 rings reach 134.7 of 150)", "N, E", both_ways=False),
        _nvlink("nvlink3", 25, 18.05, _RINGS, "N, AE", fit="nvlink3"),
        _nvlink("nvlink4", 25, 22.2, _RINGS, "N, AE", fit="nvlink4"),
        _nvlink("nvlink5", 50, 40.45, _RINGS, "N, AE", fit="nvlink5"),
        _nvlink(
            "nvlink6",
            50,
            40.45,
            "assumed as nvlink5",
            "N; the rest assumed as nvlink5",
            fit="nvlink5",
        ),
        _row(
            "nvlink-c2c",
            "c2c",
            450 * GB,
            _us(0.6, 1.0, 2.0),
            "N; lines of 64 B and latency assumed",
            framing=nvlink(64, both_ways=False),
        ),
        # UALink: a lane, and a station of four. 212.5 Gb/s signal 200 Gb/s after correction.
        _ualink("ualink-200g", 25, ualink(), "ualink-100t", "G, B"),
        _ualink("ualink-100g", 12.5, ualink(gigabits=100), "ualink-50t", "G, B"),
        _ualink("ualink-128g", 16, ualink(gigabits=128), "ualink-50t", "G, B"),
        _ualink("ualink-station-800g", 100, ualink(), "ualink-100t", "G, B"),
        # The same transactions in Ethernet frames: Helios and Tomahawk-class switches.
        _ualink("ualoe-200g", 25, ualoe(), "tomahawk-ultra", "O, B"),
        _ualink("ualoe-800g", 100, ualoe(), "tomahawk-ultra", "O, B"),
        # TPU torus links, one of six.
        _row("ici-v4", "ici", 50 * GB, _ICI, "Q, R", usable=45 * GB, measured="Q", switch="ocs"),
        _row("ici-v5p", "ici", 100 * GB, _ICI, "Q, R", usable=90 * GB, measured="Q", switch="ocs"),
        _pcie(3, 0.985, 11.98, "H"),
        _pcie(4, 1.969, 25.2, "H"),
        _pcie(5, 3.938, 52.93, "H"),
        _pcie(6, 7.563, 104.1, "H"),
        # The same where peers' traffic crosses the root complex of a CPU, which halves it.
        _pcie(5, 3.938, 24.6, "AE (RTX PRO 6000 rings)", "-root"),
        _socket("upi-bdw", 6, "K"),
        _socket("upi-skl", 10, "K"),
        _socket("upi-spr", 22, "K"),
        _socket("upi-erp", 40, "K"),
        _socket("xgmi-cpu", 16, "K"),
        # One of the three or four links between sockets of EPYC 7003 and 9004.
        _row("xgmi-cpu-sp3", "cpu", 36 * GB, _CPU, "N", framing=xgmi(), message=0.0),
        _row("xgmi-cpu-sp5", "cpu", 64 * GB, _CPU, "N", framing=xgmi(), message=0.0),
        _socket("power-xbus", 32, "K"),
        _socket("arm-cpu", 6, "K"),
        _socket("zhaoxin-cpu", 6, "K"),
        # TCP drops what a port has no room for, and lowers its window: it pauses nobody.
        _network("eth-10g", 10, tcp(), "tomahawk-5", "N, M; latency assumed"),
        # RoCE sends all again from a lost packet on, so its networks pause what feeds a full port.
        *(
            _network(
                f"roce-{speed}g",
                speed,
                roce(),
                "tomahawk-5",
                "N, AE",
                fit="roce",
                part=_POLLARA,
                measured="AE, I" if speed == 400 else "AE, I (at 400G)",
                pauses=True,
            )
            for speed in (100, 200, 400, 800)
        ),
        # AWS Elastic Fabric Adapter: datagrams sprayed by the NIC (SRD), Ethernet frames. It sends
        # a lost datagram again, out of order, and slows the sender: no pauses.
        _network(
            "efa-100g", 100, roce(), "tomahawk-5", "N, AE; framed as RoCE, assumed", fit="efa"
        ),
        _network(
            "efa-400g", 400, roce(), "tomahawk-5", "N, AE; framed as RoCE, assumed", fit="efa"
        ),
        # UET sprays packets; a full port trims them to headers, and receivers hand out credits.
        _network("uec-400g", 400, uet(), "tomahawk-5", "N; the rest assumed as ib", fit="ib"),
        _network("uec-800g", 800, uet(), "tomahawk-6", "N; the rest assumed as ib", fit="ib"),
        # EDR, HDR, NDR and XDR. Credits a virtual lane: what waits holds up its own lane only.
        _network(
            "ib-100g",
            100,
            infiniband(forward_correction=False),
            "quantum",
            "N, AE; to many M",
            fit="ib",
        ),
        _network(
            "ib-200g",
            200,
            infiniband(),
            "quantum",
            "N, AE; to many M",
            fit="ib",
            part=_NDR,
            measured="AE",
        ),
        _network(
            "ib-400g",
            400,
            infiniband(),
            "quantum-2",
            "N, AE; to many M",
            fit="ib",
            part=_NDR,
            measured="AE",
        ),
        _network(
            "ib-800g",
            800,
            infiniband(),
            "quantum-x800",
            "N, AE; to many M",
            fit="ib",
            part=_NDR,
            measured="AE",
        ),
        # Rosetta holds back the flows that cause congestion at their source, not their neighbours.
        _network(
            "slingshot-200g",
            200,
            slingshot(),
            "rosetta",
            "N, S, AE",
            fit="slingshot",
            part=0.733,
            measured="AE",
        ),
    )
}
