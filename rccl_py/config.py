"""Config: the settings of one communicator, by the names nccl4py gives ncclConfig_t's fields.

Owns the fields, their ranges, and how a child takes its parent's. Knows nothing of communicators or
planners, and reads no environment: who makes a communicator asks for a field and acts on it. None
says "unset" throughout.

References: NCCL user guide, ncclConfig_t (names, ranges) and nccl4py's NCCLConfig (spellings).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import IntEnum, IntFlag
from typing import Any

from .arguments import finite, text, whole
from .errors import InvalidArgument

__all__ = ["CTAPolicy", "CommShrinkFlag", "Config", "WindowFlag"]

_INT_MAX = 2**31 - 1  # the fields are C ints
_LONGEST = 1e9  # s; no thread may wait longer than about 9e9 s


class CTAPolicy(IntEnum):
    """What a device's thread blocks are spent on (``NCCL_CTA_POLICY_*``)."""

    DEFAULT = 0
    EFFICIENCY = 1
    ZERO = 2


class CommShrinkFlag(IntEnum):
    """What a shrink does with calls in flight: wait for them, or abort them (``NCCL_SHRINK_*``)."""

    DEFAULT = 0
    ABORT = 1


class WindowFlag(IntFlag):
    """What a window promises; may be or-ed (``NCCL_WIN_*``)."""

    DEFAULT = 0
    COLL_SYMMETRIC = 1
    STRICT_ORDERING = 2


def _claim(value: object, what: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidArgument(
            f"{what} {value!r} is a {type(value).__name__}: True or False was expected"
        )
    return value


def _name(value: object, what: str) -> str:
    if not text(value, what).strip():
        raise InvalidArgument(f"{what} {value!r} is blank: a name was expected, None leaves it out")
    return str(value)


def _between(low: int, high: int = _INT_MAX) -> Callable[[object, str], int]:
    return lambda value, what: whole(value, what, low, high)


def _power_of_two(value: object, what: str) -> int:
    return int(1 << (whole(value, what, 1, 1 << 30) - 1).bit_length())


def _policy(value: object, what: str) -> CTAPolicy:
    return CTAPolicy(whole(value, what, 0, 2))


def _seconds(value: object, what: str) -> float:
    return finite(value, what, 0, _LONGEST)


def _schedules(value: object, what: str) -> object:
    if isinstance(value, str):
        return value
    if not isinstance(value, (list, tuple)):
        raise InvalidArgument(
            f"{what} {value!r} is a {type(value).__name__}: names of files in one text, or a list "
            "of files and schedules was expected"
        )
    return tuple(value)


_CHECKS: dict[str, Callable[[object, str], object]] = {
    "blocking": _claim,
    "cga_cluster_size": _between(0, 8),
    "min_ctas": _between(1, 32),
    "max_ctas": _between(1, 32),
    "net_name": _name,
    "split_share": _claim,
    "traffic_class": _between(0),
    "comm_name": _name,
    "collnet_enable": _claim,
    "cta_policy": _policy,
    "shrink_share": _claim,
    "nvls_ctas": _between(1),
    "n_channels_per_net_peer": _power_of_two,
    "nvlink_centric_sched": _claim,
    "graph_usage_mode": _between(0, 2),
    "num_rma_ctx": _between(1),
    "max_p2p_peers": _between(1),
    "graph_stream_ordering": _between(0, 1),
    "launch_order_implicit": _claim,
    "num_rma_sig": _between(0),
    "rma_eager_init": _claim,
    "algo": text,
    "proto": text,
    "policy": text,
    "schedules": _schedules,
    "timeout": _seconds,
    "flight_dir": text,
}


@dataclass(kw_only=True, repr=False)
class Config:
    """Settings of a communicator; every field is None, "unset", unless it is given.

    A wrong type or value raises InvalidArgument, at construction and at assignment alike; the
    config then stays as it was.

    =========================  =============  ====================================================
    field                      values         what it does here
    =========================  =============  ====================================================
    blocking                   bool           False: calls return before they are done; unset: True
    cga_cluster_size           0 to 8         accepted, no effect: no thread blocks to cluster
    min_ctas, max_ctas         1 to 32        fewest and most channels the planner takes
    net_name                   text           accepted, no effect: the network is the topology's
    split_share, shrink_share  bool           accepted, no effect: no resources to share
    traffic_class              0 and more     accepted, no effect: one class of traffic
    comm_name                  text           the communicator's name in messages and records
    collnet_enable             bool           accepted, no effect: no reducing switches
    cta_policy                 CTAPolicy      accepted, no effect: no thread blocks to spend
    nvls_ctas                  1 and more     accepted, no effect: no reducing switches
    n_channels_per_net_peer    1 and more     rounded up to a power of 2; no effect: the planner
                                              gives a peer the channels the links carry
    nvlink_centric_sched       bool           accepted, no effect: the planner knows all links
    graph_usage_mode           0, 1, 2        accepted, no effect: no CUDA graphs
    graph_stream_ordering      0, 1           accepted, no effect: no CUDA graphs; 0 is refused
                                              together with graph_usage_mode 2
    num_rma_ctx                1 and more     contexts of one-sided calls; unset: 1
    num_rma_sig                0 and more     signals a context has; unset: 1
    rma_eager_init             bool           accepted, no effect: signals exist from the start
    max_p2p_peers              1 and more     accepted, no effect: any number of peers
    launch_order_implicit      bool           accepted, no effect: no device to launch on
    algo, proto                text           what the planner may choose (NCCL_ALGO, NCCL_PROTO);
                                              read by the planner, which refuses unknown names
    policy                     text           whose choices the planner takes, such as nccl-2.30 or
                                              csv:FILE (docs/policies.md); unset: the fastest
    schedules                  text or list   schedules that calls they fit take before all others:
                                              files (MSCCL XML, MSCCL++ JSON) in one text, as in
                                              PATH, or a list of files and of schedules written in
                                              Python (docs/custom.md)
    timeout                    above 0, s     the longest wait for other ranks; unset: 30
    flight_dir                 text           where flight records go when a communicator fails;
                                              unset: rccl-flight in the temporary files; "": none
    =========================  =============  ====================================================
    """

    blocking: bool | None = None
    cga_cluster_size: int | None = None
    min_ctas: int | None = None
    max_ctas: int | None = None
    net_name: str | None = None
    split_share: bool | None = None
    traffic_class: int | None = None
    comm_name: str | None = None
    collnet_enable: bool | None = None
    cta_policy: CTAPolicy | int | None = None
    shrink_share: bool | None = None
    nvls_ctas: int | None = None
    n_channels_per_net_peer: int | None = None
    nvlink_centric_sched: bool | None = None
    graph_usage_mode: int | None = None
    num_rma_ctx: int | None = None
    max_p2p_peers: int | None = None
    graph_stream_ordering: int | None = None
    launch_order_implicit: bool | None = None
    num_rma_sig: int | None = None
    rma_eager_init: bool | None = None
    algo: str | None = None
    proto: str | None = None
    policy: str | None = None
    schedules: str | tuple[Any, ...] | list[Any] | None = None
    timeout: float | None = None
    flight_dir: str | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        check = _CHECKS.get(name)
        if check is None:
            raise AttributeError(f"config has no field {name!r}: one of {', '.join(_CHECKS)}")
        held = None if value is None else check(value, f"config: {name}")
        self._require_fit(name, held)
        object.__setattr__(self, name, held)

    def __delattr__(self, name: str) -> None:
        setattr(self, name, None)

    def _require_fit(self, name: str, value: Any) -> None:
        """Raise when `name`, if it became `value`, would contradict another field."""

        def then(field: str) -> Any:
            return value if field == name else getattr(self, field)

        if name in ("min_ctas", "max_ctas"):
            low, high = then("min_ctas"), then("max_ctas")
            if low is not None and high is not None and low > high:
                raise InvalidArgument(
                    f"config: min_ctas {low} is above max_ctas {high}: expected at most that"
                )
        elif (
            name in ("graph_usage_mode", "graph_stream_ordering")
            and then("graph_usage_mode") == 2
            and then("graph_stream_ordering") == 0
        ):
            raise InvalidArgument(
                "config: graph_stream_ordering 0 does not go with graph_usage_mode 2: "
                "expected mode 0 or 1, or ordering 1"
            )

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{name}={value!r}' for name, value in self._given().items())})"

    def _given(self) -> dict[str, Any]:
        """Return the fields that are set."""
        held = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in held.items() if value is not None}

    @property
    def blocks(self) -> bool:
        """Whether calls return only when they are done: unless blocking is False."""
        return self.blocking is not False

    def merged(self, parent: Config | None) -> Config:
        """Return a new config: these settings, and the parent's where nothing is set here.

        Raises InvalidArgument when the two contradict each other.
        """
        above = {} if parent is None else parent._given()
        try:
            return Config(**{**above, **self._given()})
        except InvalidArgument as error:
            raise InvalidArgument(f"{error} (with what the parent has set)") from None
