"""What the commands share: one way to fail (one line, exit code 2) and one way to name a machine.

Owns exit codes and the topology arguments. Imports nothing heavy at module level, so that
``--help`` stays fast.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from ..collectives import Collective
    from ..topology import Topology

__all__ = [
    "PLANNED_ONLY",
    "OneLineParser",
    "add_cluster_arguments",
    "add_engine_argument",
    "add_topology_arguments",
    "at_least",
    "collective_for",
    "filter_from",
    "guarded",
    "print_json",
    "topology_from",
]


PLANNED_ONLY = ("barrier", "alltoallv")
"""What rccl-plan alone has: a barrier moves no bytes, and an alltoallv has no one size."""


class OneLineParser(argparse.ArgumentParser):
    """An argument parser whose errors are one line and exit code 2."""

    def error(self, message: str) -> NoReturn:
        """Print one line and leave with code 2."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def read(self, words: Sequence[str] | None) -> argparse.Namespace:
        """Return the arguments; none may be empty, as what a script left unset would be."""
        found = self.parse_args(words)
        for name, value in vars(found).items():
            if value == "" or (isinstance(value, list) and "" in value):
                self.error(f"argument {name.replace('_', '-')} is empty: name one, or leave it out")
        return found


def at_least(least: int) -> Callable[[str], int]:
    """Return what argparse reads a whole number of `least` or more with."""

    def read(text: str) -> int:
        if not re.fullmatch(r"\s*[+-]?[0-9]{1,99}\s*", text):
            raise argparse.ArgumentTypeError(f"{text[:40]!r}: a whole number was expected")
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"{text.strip()}: expected {least} or more")
        return int(text)

    return read


def collective_for(name: str) -> Collective:
    """Return the collective a command but rccl-plan is asked for. Raises InvalidArgument."""
    from ..collectives import collective_named
    from ..errors import InvalidArgument

    try:
        return collective_named(name)
    except InvalidArgument as error:
        only = name.lower().removesuffix("_perf")
        if only not in PLANNED_ONLY:
            raise
        raise InvalidArgument(f"{error}; rccl-plan {only} times that one") from None


def filter_from(
    flag: str, given: str | None, variable: str, environment: Mapping[str, str] = os.environ
) -> str | None:
    """Return what a flag, or else its environment variable, allows; None for everything.

    Raises InvalidUsage for a flag that cannot be read, or is blank: it would fall back to the
    variable.
    """
    from ..collectives import COLLECTIVES
    from ..errors import InvalidUsage
    from ..planner.restrict import allowed_algorithms, allowed_protocols

    if given is None:
        return environment.get(variable) or None
    if not given.strip():
        raise InvalidUsage(f"{flag} {given!r} names nothing: leave {flag} out to allow everything")
    read = allowed_protocols if variable == "NCCL_PROTO" else allowed_algorithms
    for collective in COLLECTIVES:  # what cannot be read is told by the flag's name
        read(given, collective, flag)
    return given


def print_json(value: object) -> None:
    """Print plain values as JSON; a number JSON has none of (infinite, not a number) as null."""
    try:
        print(json.dumps(value, indent=1, allow_nan=False))
    except ValueError:
        print(json.dumps(_finite(value), indent=1, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _printable(text: str) -> str:
    """Return a text a terminal only shows: a file's name may hold what it would act on."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _quiet() -> None:
    """Let nothing more go to a stdout that cannot be written, not even at the interpreter's end."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def guarded(prog: str, body: Callable[[], int]) -> int:
    """Return the exit code of `body`; an error of the library's tree becomes one line and 2."""
    from ..errors import RcclError

    try:
        code = body()
        if sys.stdout is not None:  # None where the caller closed it (>&-)
            sys.stdout.flush()
        return code
    except RcclError as error:
        print(f"{prog}: {_printable(' '.join(str(error).split()))}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader has gone (`| head`): say nothing, and let the interpreter not flush again.
        _quiet()
        return 0
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        # The library's own readers say what they could not read: what is left is the output.
        print(f"{prog}: cannot write the output: {error.strerror or error}", file=sys.stderr)
        _quiet()
        return 2
    except MemoryError:
        print(f"{prog}: not enough memory for this call", file=sys.stderr)
        return 2
    except Exception as error:
        # A fault of ours: still one line; RCCL_PY_DEBUG=1 shows where it came from.
        if os.environ.get("RCCL_PY_DEBUG"):
            raise
        said = " ".join(f"{type(error).__name__}: {error}".split())
        print(f"{prog}: internal error, {said[:300]} (RCCL_PY_DEBUG=1 shows more)", file=sys.stderr)
        return 2


def add_topology_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --topology, --nodes and the network options that make a cluster of a node."""
    parser.add_argument(
        "--topology",
        dest="topology",
        required=True,
        metavar="NAME|FILE",
        help="a machine's name (rccl-topo list), or a file: YAML, NCCL/RCCL or hwloc XML, "
        "nvidia-smi or rocm-smi text, ... (docs/machines.md)",
    )
    add_cluster_arguments(parser)


def add_engine_argument(parser: argparse.ArgumentParser) -> None:
    """Add --engine, which has a plan timed once more and its time explained."""
    parser.add_argument(
        "--engine",
        choices=["auto", "estimate", "clock", "simulate"],
        help="time the plan by another engine too, and say what its time goes to (docs/timing.md)",
    )


def add_cluster_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that join nodes to a cluster."""
    parser.add_argument("--nodes", type=int, metavar="N", help="join N of the node (default: 1)")
    parser.add_argument("--network", choices=["rails", "leaf-spine"], help="how nodes are joined")
    parser.add_argument(
        "--oversubscription",
        type=float,
        metavar="F",
        help="NIC capacity under a leaf over its uplinks (default: the machine's, 1)",
    )
    parser.add_argument("--leaf-nodes", type=int, metavar="N", help="nodes under one leaf")
    parser.add_argument(
        "--pod-nodes", type=int, metavar="N", help="nodes in a pod of a three-tier tree"
    )
    parser.add_argument(
        "--routing",
        choices=["spray", "ecmp", "adaptive"],
        help="all shortest paths evenly, one a flow by hash, or flows that avoid each other",
    )
    parser.add_argument("--seed", type=int, metavar="N", help="of the flows' hash (0)")
    parser.add_argument(
        "--pxn",
        action=argparse.BooleanOptionalAction,
        help="leave on the rail a message arrives on, through the peer that owns its NIC",
    )
    parser.add_argument(
        "--place",
        metavar="LIST",
        help="the GPUs ranks take, in order, counted over all nodes: 0-3,8-11",
    )


def topology_from(arguments: argparse.Namespace) -> Topology:
    """Return the topology the arguments name, without what --without takes away."""
    from ..topology import load

    topology = load(
        arguments.topology,
        nodes=arguments.nodes,
        network=arguments.network,
        oversubscription=arguments.oversubscription,
        leaf_nodes=arguments.leaf_nodes,
        pod_nodes=arguments.pod_nodes,
        routing=arguments.routing,
        seed=arguments.seed,
        pxn=arguments.pxn,
        place=arguments.place,
    )
    gone = getattr(arguments, "without", None)  # of rccl-plan alone
    if gone:
        from .plan_faults import degraded

        return degraded(topology, gone)
    return topology
