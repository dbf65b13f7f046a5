"""`rccl-topo diff` and `validate`: what they print, as lines or JSON, and their exit codes."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..topology.difference import Difference
    from ..topology.validate import Finding

__all__ = ["diff", "validate"]


def _differences(arguments: argparse.Namespace) -> tuple[str, str | None, list[Difference]]:
    """Return the names of both machines (of one: None) and their differences."""
    from ..topology import load
    from ..topology.diff import compare
    from ..topology.suspects import suspects

    first = load(arguments.a)
    if arguments.b is None:
        return first.name, None, suspects(first)
    second = load(arguments.b)
    return first.name, second.name, compare(first, second)


def diff(arguments: argparse.Namespace) -> int:
    """Print the differences, and return 1 if there are any."""
    from ..topology.difference import shown, summarised

    a, b, found = _differences(arguments)
    joined = found if arguments.all else summarised(found)
    if arguments.json:
        rows = [{**asdict(d), "text": shown(d)} for d in joined]
        print(json.dumps({"a": a, "b": b, "equal": not found, "differences": rows}, indent=1))
    elif not found:
        print(f"{a}: nothing is odd" if b is None else f"{a} and {b}: no differences")
    else:
        title = f"{a}: not as the rest of it (healthy -> found)" if b is None else f"{a} -> {b}"
        print("\n".join([title, *(f"  {shown(d)}" for d in joined)]))
    return 1 if found else 0


def _findings(name: str) -> tuple[list[Finding], str]:
    """Return what there is to say of one machine, or why it cannot be read."""
    from ..errors import RcclError
    from ..topology import load
    from ..topology.validate import validate

    try:
        return validate(load(name)), ""
    except RcclError as error:
        return [], " ".join(str(error).split())


def validate(arguments: argparse.Namespace) -> int:
    """Print a line a finding, and return 0, 1 with errors, or 2 with an unreadable file."""
    rows, worst = [], 0
    for name in arguments.topologies:
        found, unreadable = _findings(name)
        errors = any(f.severity == "error" for f in found)
        worst = max(worst, 2 if unreadable else int(errors))
        rows.append({"topology": name, "unreadable": unreadable or None,
                     "findings": [asdict(f) for f in found]})  # fmt: skip
        if arguments.json:
            continue
        if unreadable:
            print(f"rccl-topo: {unreadable}", file=sys.stderr)
        elif not found:
            print(f"{name}: ok")
        else:
            print("\n".join([f"{name}:", *(f"  {f}" for f in found)]))
    if arguments.json:
        print(json.dumps({"exit": worst, "machines": rows}, indent=1))
    return worst
