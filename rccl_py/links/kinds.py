"""What a link, a switch, a protocol and an accelerator are made of.

Owns the shapes of the rows; their figures are in the modules beside it. Rates are B/s per
direction, times are s. Knows no topology, no schedule and no time of a call.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..framing import UNFRAMED, Framing, replay_slowdown

__all__ = ["GB", "US", "Device", "LinkType", "Protocol", "Switch", "Triple"]

Triple = tuple[float, float, float]
"""Seconds under LL, LL128 and Simple."""

GB = 1e9
US = 1e-6

LOAD_STORE = frozenset({"xgmi", "nvlink", "ualink", "c2c"})
"""Media over which a peer's memory is read and written by plain loads and stores."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """How bytes travel: `wire` bytes on the link per byte of payload."""

    name: str
    wire: float
    index: int


@dataclass(frozen=True, slots=True)
class LinkType:
    """A kind of link. `bandwidth` is raw B/s per direction; `efficiency` the usable part of it.

    latency: what one hop costs a step under LL, LL128 and Simple. message: s a sender spends per
    message. framing: how data is framed, from which part of `efficiency` is computed; the rest of
    it is `remainder`, measured, and `remainder_source` says by whom. hop: s a usual switch or hop
    of this kind adds (machines may say otherwise). replay: s lost for a unit that link-level
    replay sends again, at `error_rate` bit errors per bit after correction.
    """

    name: str
    medium: str  # xgmi, nvlink, ualink, ici, c2c, pci, cpu, net: what path matrices call it
    bandwidth: float
    efficiency: float
    latency: Triple
    message: float  # seconds a sender spends per message
    source: str
    framing: Framing = UNFRAMED
    remainder_source: str = ""
    hop: float = 0.0
    hop_source: str = "assumed"
    replay: float = 0.4e-6  # assumed: a round trip of the link, 300-500 ns
    error_rate: float = 1e-15  # assumed, a usual target after RS(544,514)
    multicast: float = 0.0  # part of `usable` that transfers done by its switches get; 0: none
    parts: Triple = (1.0, 1.0, 1.0)  # of `usable`, that copies under each protocol keep up with
    spread: float = 1.0  # part of `usable` that a rank reaches to many peers at once
    pauses: bool = False  # whether it stops for all it carries while what it feeds is full
    window: float = 0.0  # B that must have arrived before a receiver hands anything on

    @property
    def usable(self) -> float:
        """B/s per direction that data gets."""
        return self.bandwidth * self.efficiency

    @property
    def wire(self) -> Triple:
        """Bytes of `usable` that a byte of payload takes under LL, LL128 and Simple.

        LL carries 4 B of data with 4 B of flag, LL128 120 B in 128 B (NCCL 2.30 source).
        """
        return 2.0 / self.parts[0], 128 / 120 / self.parts[1], 1.0 / self.parts[2]

    @property
    def remainder(self) -> float:
        """The part of `efficiency` that headers and encodings do not explain: 1 if they do."""
        return self.efficiency / self.framing.efficiency

    @property
    def coherent(self) -> bool:
        """Whether a peer's memory is reached by loads and stores, so that data needs no staging."""
        return self.medium in LOAD_STORE

    @property
    def replay_slowdown(self) -> float:
        """How much longer a long transfer takes for units sent again at the usual error rate."""
        unit = self.framing.unit or 256.0  # assumed where the format is not public
        return replay_slowdown(self.bandwidth, unit, self.error_rate, self.replay)


@dataclass(frozen=True, slots=True)
class Switch:
    """A kind of switch. hop: s port to port. capacity: B/s per direction of all ports."""

    name: str
    hop: float
    capacity: float
    source: str


@dataclass(frozen=True, slots=True)
class Device:
    """A kind of accelerator.

    launch: seconds of a call that moves nothing (queue, kernel start and end). memory: usable B/s
    of one copy stream (read + write). scale_up: its native link, used where a file only says
    "xgmi" or "nvlink". arch: gfx name or sm number, as topology files spell it. graph: launch from
    a captured graph (0: not known). reduction: B/s of reduced output (0: memory / 3, since each
    output byte takes two reads and a write). message: s a kernel spends per message on a scale-up
    link. engines, engine: copy engines and what one moves, B/s. page: B its memory is mapped in.
    p2p: whether peers reach its memory over PCIe; without, data bounces off host memory. peak: B/s
    of memory by the data sheet. copy: B/s a collective's kernel copies from its own memory to its
    own memory, all its channels together. per_channel: B/s that one channel moves
    under LL, LL128 and Simple (0: not a limit).
    """

    name: str
    title: str
    arch: str
    launch: float
    memory: float
    scale_up: str
    source: str = field(default="assumed")
    graph: float = 0.0
    reduction: float = 0.0
    message: float = 0.05 * US  # assumed: one flag write and its fence
    engines: int = 0
    engine: float = 0.0
    page: int = 2 << 20
    p2p: bool = True
    peak: float = 0.0
    copy: float = 0.0
    per_channel: Triple = (0.0, 0.0, 0.0)

    @property
    def copy_rate(self) -> float:
        """B/s at which a collective's kernel copies within its memory; else half the memory's."""
        return self.copy or self.memory / 2

    @property
    def graph_launch(self) -> float:
        """Seconds of an empty call launched from a graph; `launch` less 3.5 us where not measured.

        Queue to start takes 3 to 5 us eager and 1 to 2 us a graph node (usual figures, assumed).
        """
        return self.graph or max(self.launch - 3.5 * US, 1 * US)

    @property
    def reduction_rate(self) -> float:
        """B/s of output when two inputs are read, added and written back."""
        return self.reduction or self.memory / 3
