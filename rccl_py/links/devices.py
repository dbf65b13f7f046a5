"""Accelerators, one row a kind.

Owns figures only. Among rows of one `arch`, readers of topology files take the first of a gfx name
and the last of an sm number, so the usual machine stands there.
"""

from __future__ import annotations

from .kinds import GB, US, Device, Triple

__all__ = ["DEVICES"]

TB = 1e12
_XGMI_ENGINE = 48.35e9  # U
_NVLINK_ENGINE = 776 / 900  # V: part of a GPU's port that one engine fills; others assumed alike
_PCIE_ENGINE = {"pcie4-x16": 25.2e9, "pcie5-x16": 52.9e9}  # H


def _amd(
    name: str,
    title: str,
    arch: str,
    launch: float,
    memory: float,
    peak: float,
    link: str,
    source: str,
    *,
    engines: int = 16,
    engine: float = _XGMI_ENGINE,
    graph: float = 0.0,
    reduction: float = 0.0,
    copy: float = 0.0,
    per_channel: Triple = (0.0, 0.0, 0.0),
) -> Device:
    """Return an AMD accelerator; launch and graph in us, memory, peak and reduction in TB/s."""
    return Device(
        name,
        f"AMD {title}",
        arch,
        launch * US,
        memory * TB,
        link,
        source,
        graph * US,
        reduction * TB,
        engines=engines,
        engine=engine,
        peak=peak * TB,
        copy=copy * TB,
        per_channel=per_channel,
    )


def _nvidia(
    name: str,
    title: str,
    arch: str,
    launch: float,
    memory: float,
    peak: float,
    link: str,
    source: str,
    *,
    engines: int = 3,
    port: float = 0.0,
    p2p: bool = True,
    copy: float = 0.0,
    ll: float = 0.0,
) -> Device:
    """Return an NVIDIA accelerator; port: GB/s of all its NVLinks, 0 where PCIe is all it has.

    copy: TB/s within its memory; ll: GB/s a channel under LL; both fitted.
    """
    engine = port * 1e9 * _NVLINK_ENGINE if port else _PCIE_ENGINE[link]
    return Device(
        name,
        f"NVIDIA {title}",
        arch,
        launch * US,
        memory * TB,
        link,
        source,
        engines=engines,
        engine=engine,
        p2p=p2p,
        peak=peak * TB,
        copy=copy * TB,
        per_channel=(ll * GB, 0.0, 0.0),
    )


def _tpu(name: str, title: str, peak: float, link: str) -> Device:
    return Device(
        name,
        title,
        "",
        5 * US,
        0.8 * peak * TB,
        link,
        "Q; launch and 80 % of the data sheet assumed",
        graph=5 * US,
        peak=peak * TB,
    )


_MI300_LAUNCH = 12.5  # AE; A: direct all_reduce of 1 KiB takes 12.8 us
_MI300_CHANNEL = 43 * GB, 0.0, 26 * GB  # AE
_MI350_CHANNEL = 43 * GB, 0.0, 52 * GB  # AE
_MI300_COPY = 0.356  # AE
_AS_MI300X = "launch as mi300x, memory 80 % of the data sheet"
_80 = "memory 80 % of the data sheet"

DEVICES: dict[str, Device] = {
    device.name: device
    for device in (
        _amd(
            "mi50", "Instinct MI50", "gfx906", 8, 0.8, 1.024, "xgmi-vega", "assumed", engines=2,
            engine=24e9,
        ),
        _amd(
            "mi100", "Instinct MI100", "gfx908", 8, 1.0, 1.229, "xgmi-mi100", "assumed",
            engines=8, engine=36e9,
        ),
        _amd(
            "mi250x", "Instinct MI250X (GCD)", "gfx90a", 8, 1.2, 1.6, "xgmi-mi200",
            "T; launch assumed", engines=5, engine=49e9,
        ),
        _amd(
            "mi210", "Instinct MI210", "gfx90a", 8, 1.23, 1.6, "xgmi-mi200",
            "T; launch assumed", engines=5, engine=49e9,
        ),
        _amd(
            "mi300a", "Instinct MI300A", "gfx940", _MI300_LAUNCH, 2.9, 5.3, "xgmi-mi300a",
            "T; launch as mi300x", graph=6.0, copy=_MI300_COPY, per_channel=_MI300_CHANNEL,
        ),
        # Reduction: a third of what 304 CUs copy at 39-52 GB/s each is 1.3-1.4 TB/s (inferred).
        _amd(
            "mi300x", "Instinct MI300X", "gfx942", _MI300_LAUNCH, 4.26, 5.3, "xgmi-mi300",
            "T, A, U", graph=6.0, copy=_MI300_COPY, per_channel=_MI300_CHANNEL, reduction=1.35,
        ),
        _amd(
            "mi308x", "Instinct MI308X", "gfx942", _MI300_LAUNCH, 4.26, 5.3, "xgmi-mi300",
            "memory and launch as mi300x; reduction by its 80 of 304 CUs", graph=6.0,
            copy=_MI300_COPY, per_channel=_MI300_CHANNEL, reduction=1.35 * 80 / 304,
        ),
        _amd(
            "mi325x", "Instinct MI325X", "gfx942", _MI300_LAUNCH, 4.8, 6.0, "xgmi-mi325",
            _AS_MI300X, graph=6.0, copy=_MI300_COPY, per_channel=_MI300_CHANNEL, reduction=1.35,
        ),
        _amd(
            "mi355x", "Instinct MI355X", "gfx950", 4.0, 6.4, 8.0, "xgmi-mi350",
            "AE; memory 80 % of the data sheet", graph=4.0, copy=_MI300_COPY,
            per_channel=_MI350_CHANNEL,
        ),
        _amd(
            "mi350x", "Instinct MI350X", "gfx950", 4.0, 6.4, 8.0, "xgmi-mi350x",
            "launch as mi355x; memory 80 % of the data sheet", graph=4.0, copy=_MI300_COPY,
            per_channel=_MI350_CHANNEL,
        ),
        _amd(
            "mi455x", "Instinct MI455X", "gfx1250", _MI300_LAUNCH, 15.7, 19.6, "ualink-200g",
            f"{_AS_MI300X}; copies by its memory, assumed", graph=6.0, copy=1.3, engine=100e9,
        ),
        _amd(
            "navi4x", "Radeon (gfx12)", "gfx1201", 8, 0.5, 0.64, "pcie5-x16", "assumed",
            engines=2, engine=50e9,
        ),
        _nvidia("p100", "P100", "60", 12, 0.55, 0.732, "nvlink1", "assumed", engines=2, port=80),
        _nvidia("v100", "V100", "70", 12, 0.8, 0.9, "nvlink2", "L", engines=5, port=150),
        # Copies read and write 1.9 TB/s, 93 % of the sheet: memory is less in one stream (assumed).
        _nvidia("a100", "A100", "80", 9.4, 1.6, 2.04, "nvlink3",
                f"AE; {_80} of the 80 GB card; copies, fitted, reach 93 % of it", port=300,
                copy=0.95, ll=10),
        _nvidia("rtx3090", "GeForce RTX 3090", "86", 8, 0.75, 0.936, "pcie4-x16",
                f"N; launch assumed; {_80}", engines=2, p2p=False),
        _nvidia("a10", "A10/RTX 30", "86", 8, 0.5, 0.6, "nvlink3", "assumed", engines=2, port=50),
        _nvidia("rtx4090", "GeForce RTX 4090", "89", 8, 0.8, 1.008, "pcie4-x16",
                f"AB; launch assumed; {_80}", engines=2, p2p=False),
        _nvidia("l4", "L4", "89", 8, 0.24, 0.3, "pcie4-x16", f"launch assumed; {_80}", engines=2),
        _nvidia("l40s", "L40S/RTX 40", "89", 8, 0.7, 0.864, "pcie4-x16", "assumed", engines=2),
        _nvidia("gh200", "GH200", "90", 4.95, 3.2, 4.0, "nvlink4", f"as h100; {_80}", port=450,
                copy=0.746, ll=21),
        _nvidia("h200", "H200", "90", 4.95, 3.84, 4.8, "nvlink4", f"as h100; {_80}", port=450,
                copy=0.746, ll=21),
        _nvidia("h800", "H800", "90", 4.95, 2.7, 3.35, "nvlink4", f"as h100; {_80}", port=200,
                copy=0.746, ll=21),
        _nvidia("h100", "H100", "90", 4.95, 2.7, 3.35, "nvlink4", f"AE; {_80}", port=450,
                copy=0.746, ll=21),
        _nvidia("gb200", "GB200", "100", 8.2, 6.2, 7.7, "nvlink5", f"as b200; {_80}", engines=4,
                port=900, copy=1.21, ll=12),
        _nvidia("b200", "B200", "100", 8.2, 6.2, 7.7, "nvlink5", f"AE; {_80}", engines=4, port=900,
                copy=1.21, ll=12),
        _nvidia("gb300", "GB300", "103", 8.2, 6.4, 8.0, "nvlink5", f"V; as b200; {_80}", engines=4,
                port=900, copy=1.21, ll=12),
        _nvidia("b300", "B300", "103", 8.2, 6.4, 8.0, "nvlink5", f"as b200; {_80}", engines=4,
                port=900, copy=1.21, ll=12),
        _nvidia("rtx-6000d", "RTX 6000D", "120", 4.6, 1.25, 1.57, "pcie5-x16",
                f"as rtx-pro-6000-server; memory assumed 1.57 TB/s of GDDR7; {_80}", engines=4,
                ll=11.4),
        _nvidia("rtx-pro-6000-server", "RTX PRO 6000 Blackwell Server Edition", "120", 4.6, 1.28,
                1.597, "pcie5-x16", f"N, AE; {_80}", engines=4, ll=11.4),
        _nvidia("rtx-pro-6000", "RTX PRO 6000 Blackwell", "120", 4.6, 1.43, 1.79, "pcie5-x16",
                f"as rtx-pro-6000-server; {_80}", engines=4, ll=11.4),
        _tpu("tpu-v4", "Google TPU v4", 1.2, "ici-v4"),
        _tpu("tpu-v5p", "Google TPU v5p", 2.765, "ici-v5p"),
        Device("generic", "accelerator of unknown make", "", 8 * US, 1.0e12, "pcie4-x16"),
    )
}  # fmt: skip
