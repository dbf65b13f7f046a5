"""RCCL-like collectives over a simulated fabric: real data, modelled time.

    import rccl_py as rccl

    comms = rccl.Communicator.init_all("mi300x-8")
    with rccl.group():
        for comm, x, y in zip(comms, inputs, outputs):
            comm.allreduce(x, y, op=rccl.SUM)
    comms[0].elapsed, comms[0].last_plan

Names are loaded when first used, so that a command's ``--help`` need not load NumPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import dtypes, errors
    from .collectives import COLLECTIVES
    from .comm import (
        Communicator,
        Event,
        Properties,
        Stream,
        UniqueId,
        WaitSignalDesc,
        Window,
        get_unique_id,
        group,
        group_end,
        group_simulate_end,
        group_start,
        run,
    )
    from .config import CommShrinkFlag, Config, CTAPolicy, WindowFlag
    from .errors import RcclError, Result
    from .formats import msccl_xml, read_schedule
    from .links import first_call, first_touch
    from .planner import Plan, Planner
    from .programs import Custom, Program, custom
    from .reduce_ops import PreMulSum, ReduceOp
    from .report.draw import draw
    from .topology import Topology, load, lower, machine_names
    from .topology.diff import compare

    SUM, PROD, MIN, MAX, AVG = (
        ReduceOp.SUM,
        ReduceOp.PROD,
        ReduceOp.MIN,
        ReduceOp.MAX,
        ReduceOp.AVG,
    )

__version__ = "0.1.0"

__all__ = [
    "AVG",
    "COLLECTIVES",
    "MAX",
    "MIN",
    "PROD",
    "SUM",
    "CTAPolicy",
    "CommShrinkFlag",
    "Communicator",
    "Config",
    "Custom",
    "Event",
    "Plan",
    "Planner",
    "PreMulSum",
    "Program",
    "Properties",
    "RcclError",
    "ReduceOp",
    "Result",
    "Stream",
    "Topology",
    "UniqueId",
    "WaitSignalDesc",
    "Window",
    "WindowFlag",
    "compare",
    "custom",
    "draw",
    "dtypes",
    "errors",
    "first_call",
    "first_touch",
    "get_unique_id",
    "group",
    "group_end",
    "group_simulate_end",
    "group_start",
    "load",
    "lower",
    "machine_names",
    "msccl_xml",
    "read_schedule",
    "run",
]

_HOMES = {
    "COLLECTIVES": "collectives",
    "CTAPolicy": "config",
    "CommShrinkFlag": "config",
    "Communicator": "comm",
    "Config": "config",
    "Custom": "programs",
    "Event": "comm",
    "Plan": "planner",
    "Planner": "planner",
    "PreMulSum": "reduce_ops",
    "Program": "programs",
    "Properties": "comm",
    "RcclError": "errors",
    "ReduceOp": "reduce_ops",
    "Result": "errors",
    "Stream": "comm",
    "Topology": "topology",
    "UniqueId": "comm",
    "WaitSignalDesc": "comm",
    "Window": "comm",
    "WindowFlag": "config",
    "compare": "topology.diff",
    "custom": "programs",
    "draw": "report.draw",
    "first_call": "links",
    "first_touch": "links",
    "get_unique_id": "comm",
    "group": "comm",
    "group_end": "comm",
    "group_simulate_end": "comm",
    "group_start": "comm",
    "load": "topology",
    "lower": "topology",
    "machine_names": "topology",
    "msccl_xml": "formats",
    "read_schedule": "formats",
    "run": "comm",
}
_MODULES = ("dtypes", "errors")
_OPS = ("SUM", "PROD", "MIN", "MAX", "AVG")


def __getattr__(name: str) -> Any:
    """Load a public name from its module (PEP 562)."""
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    if name in _OPS:
        value = getattr(import_module(".reduce_ops", __name__).ReduceOp, name)
    elif name in _HOMES:
        value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
