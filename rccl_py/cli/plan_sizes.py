"""rccl-plan --explain and --breakpoints: a plan on one screen, and what other sizes get.

Owns the two flags, the switch of synthesis and where its results are kept. The text is
rccl_py.planner's.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..planner import Plan, Planner

__all__ = ["add_arguments", "as_dicts", "breakpoints", "explain", "kept"]


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
        default="auto",
        help="whether trees and paths are made for this machine where the rest leaves over 3%% of "
        "the optimum: auto (16 ranks, 32 for alltoall), always (80 and 64), never",
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

    lo, hi = (min(sizes), max(sizes)) if len(sizes) > 1 else (8, 16 << 30)
    found = planner.breakpoints(collective, lo, hi, root)
    if as_json:
        print(json.dumps([range_as_dict(r) for r in found], indent=1))
        return
    print(f"# {collective} on {planner.fabric.name}, {planner.fabric.nranks} ranks")
    print("\n".join(breakpoint_lines(found)))
