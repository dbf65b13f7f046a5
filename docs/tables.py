"""Prints docs/links.md with every table made anew from rccl_py.links and rccl_py.framing.

    python docs/tables.py > links.md && mv links.md docs/links.md

Prose stays as it stands in the file; what is between `<!-- table NAME -->` and `<!-- end -->` is
replaced. tests/test_links.py fails when the file is not what this prints.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from rccl_py.framing import FRAMINGS
from rccl_py.links import DEVICES, LINKS, REGISTRATIONS, SOURCES, SWITCHES, first_touch
from rccl_py.links.fitted import FITTED

PAGE = Path(__file__).parent / "links.md"
_TABLE = re.compile(r"(<!-- table (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _short(value: float, digits: int = 4) -> str:
    return f"{value:.{digits}g}"


def framings() -> str:
    """Every framing: what a packet is made of and what is left."""
    rows = [
        (
            f"`{f.name}`",
            f.describe() if f.fields else "nothing taken off",
            " ".join(f"{name} {size:g}" for name, size in f.once) or "-",
            f"{f.efficiency:.2%}",
            " ".join(f"{name} {a:g}/{b:g}" for name, a, b in f.line) or "-",
            f.source,
        )
        for f in FRAMINGS.values()
    ]
    heads = ("framing", "a packet, in B", "once a message", "left for data",
             "already off the stated rate", "source")  # fmt: skip
    return _table(heads, rows)


def links() -> str:
    """Every row of LINKS."""
    rows = [
        (
            f"`{link.name}`",
            link.medium,
            _short(link.bandwidth / 1e9),
            "-" if link.framing.payload == 1 else f"{link.framing.efficiency:.1%}",
            f"{link.remainder:.1%}" + (f" {link.remainder_source}" * bool(link.remainder_source)),
            _short(link.usable / 1e9),
            " / ".join(_short(t * 1e6) for t in link.latency),
            _short(link.message * 1e6),
            " / ".join(_short(p) for p in link.parts) if any(p != 1 for p in link.parts) else "-",
            _short(link.spread) if link.spread != 1 else "-",
            _short(link.window / 1024) if link.window else "-",
            _short(link.multicast) if link.multicast else "-",
            f"{_short(link.hop * 1e9)} ({link.hop_source})" if link.hop else "-",
            "yes" if link.coherent else "no",
            link.source,
        )
        for link in LINKS.values()
    ]
    heads = ("link", "medium", "raw GB/s", "framing", "measured remainder", "usable GB/s",
             "hop us: LL / LL128 / Simple", "message us", "part: LL / LL128 / Simple",
             "to many", "window KiB", "multicast", "switch ns", "load/store", "source")  # fmt: skip
    return _table(heads, rows)


def fitted() -> str:
    """Every row of FITTED."""
    rows = [
        (
            f"`{name}`",
            " / ".join(_short(t * 1e6) for t in fit.latency),
            _short(fit.message * 1e6),
            " / ".join(_short(p) for p in fit.parts),
            _short(fit.spread),
            _short(fit.window / 1024),
            _short(fit.multicast) if fit.multicast else "-",
            ", ".join(f"`{name}`" for name in fit.tables) + (f"; {fit.also}" if fit.also else ""),
        )
        for name, fit in FITTED.items()
    ]
    heads = ("family", "hop us: LL / LL128 / Simple", "message us", "part: LL / LL128 / Simple",
             "to many", "window KiB", "multicast", "fitted on half a of")  # fmt: skip
    return _table(heads, rows)


def devices() -> str:
    """Every row of DEVICES."""
    rows = [
        (
            f"`{d.name}`",
            d.arch or "-",
            f"{_short(d.memory / 1e12)} of {_short(d.peak / 1e12)}" if d.peak else
            _short(d.memory / 1e12),
            _short(d.reduction_rate / 1e12, 3),
            f"{_short(d.launch * 1e6)} / {_short(d.graph_launch * 1e6)}",
            _short(d.message * 1e6),
            _short(d.copy / 1e9) if d.copy else "-",
            " / ".join(_short(r / 1e9) for r in d.per_channel) if any(d.per_channel) else "-",
            f"{d.engines} x {_short(d.engine / 1e9, 3)}" if d.engines else "-",
            f"{d.page >> 20} MiB",
            "yes" if d.p2p else "no",
            f"`{d.scale_up}`",
            d.source,
        )
        for d in DEVICES.values()
    ]  # fmt: skip
    heads = ("device", "arch", "memory TB/s", "reduction TB/s", "launch / graph us", "message us",
             "kernel copy GB/s", "channel GB/s: LL / LL128 / Simple",
             "copy engines x GB/s", "page", "PCIe P2P", "own link", "source")  # fmt: skip
    return _table(heads, rows)


def switches() -> str:
    """Every row of SWITCHES."""
    rows = [
        (
            f"`{s.name}`",
            _short(s.hop * 1e9),
            _short(s.capacity * 8 / 1e12) if s.capacity else "-",
            s.source,
        )
        for s in SWITCHES.values()
    ]
    return _table(("switch or hop", "ns", "Tb/s, each direction", "source"), rows)


def registrations() -> str:
    """Every row of REGISTRATIONS."""
    rows = [
        (
            f"`{r.name}`",
            _short(r.call * 1e6),
            _short(r.per_page * 1e6),
            f"{r.page >> 10} KiB",
            _short(r.rate / 1e9) if r.rate else "-",
            f"{_short(r.walk * 1e6)} / {r.walks}",
            "yes" if r.zero_copy else f"no, through {_short(r.most / 2**20)} MiB",
            r.source,
        )
        for r in REGISTRATIONS.values()
    ]
    heads = ("way", "call us", "us a page", "largest page", "fill GB/s", "walk us / at once",
             "in place afterwards", "source")  # fmt: skip
    return _table(heads, rows)


def touches() -> str:
    """First-touch costs of some buffers."""
    cases = (("mi300x", "xgmi-mi300"), ("mi300x", "roce-400g"), ("mi455x", "ualoe-200g"),
             ("h100", "nvlink4"), ("rtx4090", "pcie4-x16"))  # fmt: skip
    sizes = (64 << 10, 1 << 20, 64 << 20, 1 << 30)
    rows = [
        (
            f"`{device}`",
            f"`{link}`",
            *(f"{first_touch(DEVICES[device], LINKS[link], n) * 1e6:.0f}" for n in sizes),
        )
        for device, link in cases
    ]
    return _table(("device", "link", "64 KiB", "1 MiB", "64 MiB", "1 GiB"), rows)


def sources() -> str:
    """What the letters mean."""
    return _table(("letter", "source"), SOURCES.items())


TABLES: dict[str, Callable[[], str]] = {
    made.__name__: made
    for made in (framings, links, fitted, devices, switches, registrations, touches, sources)
}


def page(text: str) -> str:
    """Return `text` with its tables made anew."""
    return _TABLE.sub(lambda m: m[1] + TABLES[m[2]]() + m[3], text)


if __name__ == "__main__":
    print(page(PAGE.read_text(encoding="utf-8")), end="")
