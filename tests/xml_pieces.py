"""Topology XML written by hand: the pieces that tests put together."""

from __future__ import annotations

AMD = 'arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="1"'
GEN5 = 'link_speed="32.0 GT/s PCIe" link_width="16"'


def link(kind: str, target: str, count: object = 1, tclass: str = "0x120000") -> str:
    return f'<{kind} target="{target}" count="{count}" tclass="{tclass}"/>'


def gpu(bus: str, dev: object, links: str = "", arch: str = 'sm="304" gcn="gfx942"',
        rank: object | None = None, pci: str = GEN5) -> str:  # fmt: skip
    own = dev if rank is None else rank
    return (f'<pci busid="{bus}" class="0x120000" {pci}>'
            f'<gpu dev="{dev}" {arch} rank="{own}" gdr="1">{links}</gpu></pci>\n')  # fmt: skip


def nic(bus: str, dev: int, name: str = "mlx5_0", speed: object = 400000, *,
        pci_class: str = "0x020700") -> str:  # fmt: skip
    return (f'<pci busid="{bus}" class="{pci_class}" {GEN5}><nic>'
            f'<net name="{name}" dev="{dev}" speed="{speed}" port="1"/></nic></pci>\n')  # fmt: skip


def cpu(body: str, numa: object = 0, attributes: str = AMD) -> str:
    return f'<cpu numaid="{numa}" {attributes}>\n{body}</cpu>\n'


def system(body: str, version: object = 2) -> str:
    return f'<system version="{version}">\n{body}</system>\n'


PAIR = system(cpu(
    gpu("0000:01:00.0", 0, link("xgmi", "0000:02:00.0")) + nic("0000:03:00.0", 0)
    + gpu("0000:02:00.0", 1, link("xgmi", "0000:01:00.0"))
))  # fmt: skip
