"""Protocol efficiency from headers and flits: what of a link's rate is left for data.

Owns how bytes are framed on every kind of link: the fields around a payload, each with its bytes,
and the encodings below them. Knows no link rate, no topology and no time. The rule: an efficiency
is computed from named fields here, never written down; what hardware loses beyond its framing is
a measured remainder and belongs to a row of `links`.

Sources, cited in the framings:

* UALink    UALink_200 Rev 1.0: TL flit 64 B (5.1), packing limits (5.4), DL flit 640 B of which
            628 B payload (6.3), RS(544,514) below 800GBASE-R (7)
* IEEE      IEEE 802.3: preamble and gap 20 B, header 14 B, FCS 4 B; 256b/257b and RS(544,514)
* IBTA      InfiniBand Architecture 1.x: LRH 8, BTH 12, RETH 16, ICRC 4, VCRC 2 B; RoCEv2 annex A17
* UEC       Ultra Ethernet 1.0 as in the open XDP2 headers (uet/pds.h, uet/ses.h): PDS request 12 B
            (16 B with congestion state), standard SES request 44 B
* PCI-SIG   PCI Express 3.0 to 6.0: 128b/130b, STP + sequence 4 B, LCRC 4 B, header of 3 or 4
            words; gen 6 flit of 256 B: 236 B TLP, 6 B DLP, 8 B CRC, 6 B FEC
* HC28      Foley and Danskin, "Pascal GPU with NVLink", Hot Chips 28 (2016): 16 B flits, one header
            flit, up to 16 data flits; later generations assumed alike
* TU        Broadcom Tomahawk Ultra (2025): Ethernet header 46 -> 10 B for scale-up
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, expm1, isfinite, log1p

from .errors import InvalidArgument

__all__ = [
    "FRAMINGS",
    "UNFRAMED",
    "Framing",
    "infiniband",
    "nvlink",
    "pcie",
    "replay_slowdown",
    "roce",
    "slingshot",
    "tcp",
    "ualink",
    "ualoe",
    "uet",
    "xgmi",
]

Ratio = tuple[str, float, float]
"""A code: its name, units of data, units sent for them."""


@dataclass(frozen=True, slots=True)
class Framing:
    """How payload travels on a link.

    payload: B of data in a full packet. fields: (name, B) sent with every packet, a fraction
    where several packets share a field. once: (name, B) sent with the first packet of a message
    only. codes: encodings that the link's stated rate still contains. line: encodings that the
    stated rate is already net of (a 200G lane signals 212.5 Gb/s); kept to know the signalling
    rate, not part of the efficiency. unit: B that are checked and sent again together.
    """

    name: str
    payload: float
    fields: tuple[tuple[str, float], ...] = ()
    once: tuple[tuple[str, float], ...] = ()
    codes: tuple[Ratio, ...] = ()
    line: tuple[Ratio, ...] = ()
    unit: float = 0.0
    source: str = "assumed"

    @property
    def overhead(self) -> float:
        """Bytes beside the payload in each packet."""
        return sum(nbytes for _, nbytes in self.fields)

    @property
    def coding(self) -> float:
        """Part of the stated rate that encodings leave."""
        return _product(self.codes)

    @property
    def efficiency(self) -> float:
        """Part of the stated rate left for data in a long message."""
        return self.payload / (self.payload + self.overhead) * self.coding

    def wire(self, nbytes: float) -> float:
        """Return the bytes a message of `nbytes` takes of the link's stated rate, headers and all.

        A message without data is one empty packet. Raises InvalidArgument for a size below 0.
        """
        if not (isfinite(nbytes) and nbytes >= 0):
            raise InvalidArgument(f"{self.name}: message of {nbytes!r} bytes: expected 0 or more")
        packets = max(1, ceil(nbytes / self.payload))
        first = sum(size for _, size in self.once)
        return (nbytes + packets * self.overhead + first) / self.coding

    def trimmed(self) -> float:
        """Return the B on the wire of a packet whose payload a full switch has cut off.

        Ultra Ethernet's packet trimming: the header goes on, so that the loss is known at once.
        An Ethernet frame with its gap takes 84 B at least.
        """
        return max(self.overhead, 84.0)

    def signalling(self, rate: float) -> float:
        """Return what the wires carry for a stated `rate`, in the same unit."""
        return rate / _product(self.line)

    def describe(self) -> str:
        """Return the fields and codes in one line, as docs/links.md shows them."""
        parts = [f"{self.payload:g} B payload"]
        parts += [f"{name} {size:.4g}" for name, size in self.fields]
        parts += [f"{name} {have:g}/{sent:g}" for name, have, sent in self.codes]
        return " + ".join(parts)


def _product(codes: tuple[Ratio, ...]) -> float:
    left = 1.0
    for _, have, sent in codes:
        left *= have / sent
    return left


def _one_of(what: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        known = ", ".join(str(a) for a in allowed)
        raise InvalidArgument(f"{what} {value!r} is not one of {known}")


UNFRAMED = Framing("unframed", 1.0, source="the stated rate is already what data gets")

_RS544: tuple[Ratio, ...] = (("256b/257b", 256, 257), ("RS(544,514)", 514, 544))
"""Line code of 50G and faster Ethernet lanes (IEEE 802.3 clause 119), InfiniBand HDR and later."""
_FRAME = (("preamble and gap", 20.0), ("Ethernet", 14.0), ("FCS", 4.0))  # IEEE
_UDP = (("IPv4", 20.0), ("UDP", 8.0))
_MTUS = (256, 512, 1024, 2048, 4096)  # IBTA path MTUs


def ualink(payload: int = 256, *, compressed: bool = True, gigabits: int = 200) -> Framing:
    """Return UALink 200G 1.0 for transactions of `payload` B, both directions busy with writes.

    A control half-flit of 32 B has eight sectors of 4 B; every second one gives a sector to flow
    control, so 7.5 are left. A write takes 2 sectors for its request and 1 for the response that
    crosses the other way (uncompressed 4 and 2). Reads cost the same: request, then response.
    At 256 B that is the specification's own maximum of 95.24 % (5.4.4).
    """
    _one_of("UALink transaction of", payload, (64, 128, 192, 256))
    _one_of("UALink lane of Gb/s:", gigabits, (100, 128, 200))
    sectors = 3 if compressed else 6
    # The 128G option runs on a PCIe 7 like PHY; its line code is not published.
    line = () if gigabits == 128 else _RS544
    return Framing(
        f"ualink-{payload}" + ("" if compressed else "-uncompressed"),
        float(payload),
        (("control half-flit", 32 * sectors / 7.5),),
        codes=(("DL flit", 628, 640),),
        line=line,
        unit=640.0,
        source="UALink 5.1, 5.4, 6.3",
    )


def ualoe(payload: int = 256, packed: int = 4) -> Framing:
    """Return UALink over Ethernet: `packed` transactions in a frame with a 10 B scale-up header.

    The 10 B replace 46 B of Ethernet, IP and UDP header (TU). That four transactions share a
    frame is assumed: no specification of the frame is public.
    """
    inner = ualink(payload)
    if not 1 <= packed <= 64:
        raise InvalidArgument(f"{packed} transactions in a frame: expected 1 to 64")
    control = inner.fields[0][1]
    return Framing(
        f"ualoe-{payload}x{packed}",
        float(payload * packed),
        (
            ("UALink control", control * packed),
            ("preamble and gap", 20.0),
            ("scale-up header", 10.0),
            ("FCS", 4.0),
        ),
        line=_RS544,
        unit=payload * packed + control * packed + 14,
        source="UALink 5.4, TU, IEEE; packing assumed",
    )


def roce(mtu: int = 4096) -> Framing:
    """Return RoCEv2 for a path MTU of `mtu` B; the first packet of a write carries a RETH."""
    _one_of("RoCE MTU", mtu, _MTUS)
    fields = (*_FRAME, *_UDP, ("BTH", 12.0), ("ICRC", 4.0))
    once = (("RETH", 16.0),)
    return Framing(
        f"roce-{mtu}", mtu, fields, once, line=_RS544, unit=mtu + 62, source="IBTA, IEEE"
    )


def uet(mtu: int = 4096, *, congestion: bool = False) -> Framing:
    """Return Ultra Ethernet (UET over UDP) for payloads of `mtu` B.

    Every packet carries its SES header, since packets may arrive in any order. `congestion`: the
    request carries credit state (RCCC). The optional 4 B CRC is left out: FCS covers the frame.
    """
    _one_of("UET payload", mtu, (*_MTUS, 8192))
    fields = (*_FRAME, *_UDP, ("PDS", 16.0 if congestion else 12.0), ("SES", 44.0))
    return Framing(f"uet-{mtu}", mtu, fields, line=_RS544, unit=mtu + 102, source="UEC, IEEE")


def tcp(mtu: int = 1500) -> Framing:
    """Return TCP over Ethernet: 20 B of IPv4 and 32 B of TCP (with timestamps) out of the MTU."""
    if not 576 <= mtu <= 9216:
        raise InvalidArgument(f"Ethernet MTU {mtu!r} is not from 576 to 9216")
    fields = (*_FRAME, ("IPv4", 20.0), ("TCP", 32.0))
    return Framing(f"tcp-{mtu}", mtu - 52.0, fields, unit=mtu + 18, source="IEEE, RFC 791/7323")


def infiniband(mtu: int = 4096, *, forward_correction: bool = True) -> Framing:
    """Return InfiniBand; its data rate is net of 64b/66b (EDR) or of RS-FEC (HDR and later)."""
    _one_of("InfiniBand MTU", mtu, _MTUS)
    fields = (("LRH", 8.0), ("BTH", 12.0), ("ICRC", 4.0), ("VCRC", 2.0))
    line = _RS544 if forward_correction else (("64b/66b", 64, 66),)
    once = (("RETH", 16.0),)
    return Framing(f"ib-{mtu}", mtu, fields, once, line=line, unit=mtu + 26, source="IBTA")


def slingshot(payload: int = 2048) -> Framing:
    """Return HPE Slingshot's HPC Ethernet; packet and header sizes are assumed, none is public.

    The optimised mode drops the gap and allows 32 B frames (arXiv 2008.08886); 40 B of Ethernet
    and fabric header plus 24 B of Portals are assumed.
    """
    if not 64 <= payload <= 9216:
        raise InvalidArgument(f"Slingshot payload of {payload!r} B is not from 64 to 9216")
    fields = (("fabric header", 40.0), ("Portals header", 24.0))
    return Framing(f"slingshot-{payload}", payload, fields, line=_RS544, unit=payload + 64)


def pcie(generation: int, payload: int = 256, *, long_address: bool = True) -> Framing:
    """Return PCI Express posted writes of at most `payload` B; the stated rate is net of its code.

    So x16 of generation 5 is stated as 63.0 GB/s, of 64 GB/s signalled. `long_address`: a header
    of four words, which every 64-bit address needs. Generations 1 and 2 send 8b/10b, 3 to 5
    128b/130b; 6 has no such code, but flits of 256 B: 242 B are left of CRC and error correction
    (the stated rate), 236 B of these are TLPs.
    """
    _one_of("PCIe generation", generation, (1, 2, 3, 4, 5, 6))
    _one_of("PCIe payload", payload, (128, 256, 512, 1024, 2048, 4096))
    fields: tuple[tuple[str, float], ...] = (("TLP header", 16.0 if long_address else 12.0),)
    name = f"pcie{generation}-{payload}"
    if generation == 6:
        line: Ratio = ("CRC and FEC", 242, 256)
        flit: Ratio = ("DLP in the flit", 236, 242)
        return Framing(
            name, payload, fields, codes=(flit,), line=(line,), unit=256.0, source="PCI-SIG"
        )
    fields += (("framing and sequence", 4.0), ("LCRC", 4.0))
    line = ("8b/10b", 8, 10) if generation < 3 else ("128b/130b", 128, 130)
    return Framing(name, payload, fields, line=(line,), unit=payload + 24.0, source="PCI-SIG")


def nvlink(payload: int = 256, *, both_ways: bool = True) -> Framing:
    """Return NVLink packets of `payload` B in 16 B flits.

    `both_ways`: each direction also carries the one-flit responses of the other's traffic, as in
    a collective: 256 B are then 16 of 18 flits, else 16 of 17.
    """
    if payload not in range(16, 257, 16):
        raise InvalidArgument(f"NVLink payload {payload!r} is not a multiple of 16 up to 256")
    fields: tuple[tuple[str, float], ...] = (("header flit", 16.0),)
    if both_ways:
        fields += (("response flit", 16.0),)
    name = f"nvlink-{payload}" + ("" if both_ways else "-one-way")
    return Framing(name, payload, fields, unit=payload + 16.0, source="HC28")


def xgmi(payload: int = 64) -> Framing:
    """Return Infinity Fabric between packages: a line of 64 B with 12 B of header and CRC.

    The packet format is not public, so both are assumed: it cannot be much more, since MI300A was
    measured at 81 % (arXiv 2508.11298). AMD says that of MI300X's 64 GB/s 48 are left "after
    protocol and error-correction overhead" (rocm.blogs.amd.com, 2025-03-02).
    """
    _one_of("xGMI payload", payload, (64, 128, 256))
    return Framing(f"xgmi-{payload}", payload, (("header and CRC", 12.0),), unit=payload + 12.0)


FRAMINGS: dict[str, Framing] = {
    f.name: f
    for f in (
        UNFRAMED,
        *(ualink(n) for n in (64, 128, 192, 256)),
        ualink(compressed=False),
        ualoe(),
        *(roce(n) for n in (1024, 2048, 4096)),
        uet(),
        tcp(),
        *(infiniband(n) for n in (2048, 4096)),
        slingshot(),
        *(pcie(g) for g in (3, 4, 5, 6)),
        *(pcie(5, n) for n in (128, 512)),
        nvlink(),
        nvlink(both_ways=False),
        nvlink(64, both_ways=False),
        xgmi(),
    )
}
"""The framings docs/links.md shows, by name."""


def replay_slowdown(rate: float, unit: float, error_rate: float, replay: float) -> float:
    """Return how much longer a long transfer takes with link-level replay: 1 without errors.

    rate: B/s. unit: B checked together (`Framing.unit`). error_rate: bit errors per bit that
    error correction leaves. replay: s lost for a bad unit, about one round trip of the link,
    since everything sent after it is sent again. A unit is sent until it arrives: with
    probability p of a bad one, p / (1 - p) replays each.
    """
    if not (0 <= error_rate < 1 and replay >= 0 and rate > 0 and unit > 0):
        raise InvalidArgument(
            f"replay at {rate!r} B/s of {unit!r} B, error rate {error_rate!r}, {replay!r} s: "
            "expected rates above 0, an error rate from 0 to below 1 and a time of 0 or more"
        )
    bad = -expm1(8 * unit * log1p(-error_rate))
    if bad >= 1:
        return float("inf")
    return 1 + bad / (1 - bad) * replay * rate / unit
