"""rccl-plan --explain and --breakpoints: a plan on one screen, and what other sizes get.

Owns the two flags, the switch of synthesis and where its results are kept. The text is
rccl_py.planner's.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from .common import print_json

if TYPE_CHECKING:
    from ..planner import Plan, Planner

__all__ = ["add_arguments", "as_dicts", "breakpoints", "explain", "kept", "sizes_from"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument(
        "--explain",
        action="store_true",
        help="each plan on one screen: how much of the optimum it reaches, the cut that bounds "
        "it, the best alternatives, what other sizes get",
    )
    parser.add_argument(
        "--breakpoints",
        action="store_true",
        help="the sizes at which the choice changes, from the least --size to the largest (8 to "
        "16G)",
    )
    parser.add_argument(
        "--synthesis",
        choices=["auto", "always", "never"],
        help="whether trees and ways are made for this machine: auto (the default: up to 16 ranks; "
        "up to 64 where the rest takes 10%% over the bound), always (up to 128, of alltoall 64), "
        "never",
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="simulate the first four candidates before one is taken, as --explain does",
    )


def kept() -> Path | None:
    """Return the folder in which synthesised trees are kept: RCCL_PY_CACHE, or the user's cache."""
    from ..planner.packing import cache_folder

    return cache_folder(os.environ)


def sizes_from(arguments: argparse.Namespace) -> list[int]:
    """Return the sizes asked for, in bytes. Raises InvalidArgument, InvalidUsage."""
    from ..errors import InvalidArgument, InvalidUsage
    from ..units import parse_size

    found = []
    for text in (part for given in arguments.size or [] for part in given.split(",")):
        try:
            found.append(parse_size(text))
        except InvalidArgument as error:
            raise InvalidArgument(f"--size: {error}") from None
    if arguments.breakpoints and found and min(found) == max(found):
        raise InvalidUsage(
            "--breakpoints goes from the least --size to the largest: give two, or none for "
            "8 to 16G"
        )
    return found


def as_dicts(planner: Planner, collective: str, root: int) -> list[dict[str, object]]:
    """Return the ranges of sizes, ready for JSON."""
    from ..planner.describe import range_as_dict

    return [range_as_dict(r) for r in planner.breakpoints(collective, root=root)]


def explain(plans: list[Plan], planner: Planner) -> None:
    """Print every plan on one screen."""
    from ..planner.describe import explained

    ranges = planner.breakpoints(plans[0].collective, root=plans[0].root)
    for plan in plans:
        print("\n".join(explained(plan, ranges)))


def breakpoints(
    planner: Planner, collective: str, sizes: list[int], root: int, *, as_json: bool
) -> None:
    """Print the sizes at which the choice changes."""
    from ..planner.breakpoints import breakpoint_lines
    from ..planner.describe import range_as_dict

    lo, hi = (min(sizes), max(sizes)) if sizes else (8, 16 << 30)
    found = planner.breakpoints(collective, lo, hi, root)
    if as_json:
        print_json([range_as_dict(r) for r in found])
        return
    print(f"# {collective} on {planner.fabric.name}, {planner.fabric.nranks} ranks")
    print("\n".join(breakpoint_lines(found)))
