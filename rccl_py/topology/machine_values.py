"""What the values of a machine file mean: quantities, link and device rows, the network.

Owns the figures a file may give; machine.py owns the graph. Every error is a FormatError that
names the key.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import Any

from ..errors import FormatError, InvalidArgument
from ..links import DEVICES, LINKS, Device, LinkType, Triple
from ..units import parse_bandwidth, parse_time
from .build import Network
from .machine_spec import MachineSpec, NetworkSpec

__all__ = ["device_of", "link_table", "network_of", "of_medium", "quantity", "rate_of"]

_RATE = 1e3, 1e16  # B/s a link may have: a modem's to a thousand racks'


def network_of(spec: NetworkSpec, where: str) -> Network:
    """Return the Network `spec` describes."""
    needs = {"torus": ("dims",), "dragonfly": ("groups", "routers", "global_links")}
    for key in needs.get(spec.kind, ()):
        if not getattr(spec, key):
            raise FormatError(f"{where}.{key}: a {spec.kind} needs it")
    for kind, keys in needs.items():
        for key in keys:
            if spec.kind != kind and getattr(spec, key):
                raise FormatError(f"{where}.{key}: only a {kind} has it, and this is {spec.kind}")
    rates = {
        key: rate_of(text, f"{where}.{key}")
        for key in ("local_rate", "global_rate")
        if (text := getattr(spec, key)) is not None
    }
    leaf_nodes = spec.leaf_nodes or (1 if spec.kind == "dragonfly" else 32)
    return Network(
        spec.kind,
        leaf_nodes,
        spec.oversubscription,
        spec.spine,
        quantity(parse_time, spec.hop, f"{where}.hop"),
        spec.pod_nodes,
        spec.pod_oversubscription,
        spec.routing,
        spec.seed,
        spec.flows,
        spec.pxn,
        tuple(spec.dims),
        spec.wrap,
        spec.groups,
        spec.routers,
        spec.global_links,
        **rates,
    )


def quantity(parse: Any, text: str, key: str) -> float:
    """Return a text with its unit as a number in SI, by `parse` of rccl_py.units."""
    try:
        return float(parse(text))
    except InvalidArgument as error:
        raise FormatError(f"{key}: {error}") from None


def rate_of(text: str, key: str) -> float:
    """Return a bandwidth in B/s that a link or a memory can have."""
    rate, (least, most) = quantity(parse_bandwidth, text, key), _RATE
    if rate <= 0:
        raise FormatError(f"{key}: {text!r} is not above 0")
    if not least <= rate <= most:
        raise FormatError(
            f"{key}: {text!r} is {rate:.3g} B/s, which no link has: expected {least:g} to {most:g}"
        )
    return rate


def _triple(spec: str | tuple[str, str, str], key: str) -> Triple:
    texts = (spec, spec, spec) if isinstance(spec, str) else spec
    ll, ll128, simple = (quantity(parse_time, t, key) for t in texts)
    return ll, ll128, simple


def link_table(spec: MachineSpec) -> dict[str, LinkType]:
    """Return the built-in links and the machine's own, by name."""
    table = dict(LINKS)
    for name, own in spec.links.items():
        key = f"links.{name}"
        table[name] = LinkType(
            name,
            own.medium,
            rate_of(own.bandwidth, f"{key}.bandwidth"),
            own.efficiency,
            _triple(own.latency, f"{key}.latency"),
            quantity(parse_time, own.message, f"{key}.message"),
            own.source,
        )
    return table


def _named(table: dict[str, Any], name: str, key: str, what: str) -> Any:
    if name not in table:
        near = (
            difflib.get_close_matches(name, table, n=3, cutoff=0.5)
            or [other for other in sorted(table) if name and other.startswith(name)][:6]
        )
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise FormatError(f"{key}: {what} {name!r} is not known: {hint}docs/links.md has them all")
    return table[name]


def of_medium(table: dict[str, LinkType], name: str, key: str, media: Collection[str]) -> LinkType:
    """Return the link called `name`, which must be of one of `media`."""
    link: LinkType = _named(table, name, key, "link")
    if link.medium not in media:
        fit = ", ".join(n for n, other in sorted(table.items()) if other.medium in media)
        raise FormatError(f"{key}: {name} is {link.medium}: expected one of {fit}")
    return link


def device_of(spec: MachineSpec) -> Device:
    """Return the accelerator a machine names or describes."""
    own = spec.device
    if isinstance(own, str):
        device: Device = _named(DEVICES, own, "device", "device")
        return device
    memory = rate_of(own.memory, "device.memory")
    return Device(
        spec.name,
        own.title,
        own.arch,
        quantity(parse_time, own.launch, "device.launch"),
        memory,
        "",
        own.source,
    )
