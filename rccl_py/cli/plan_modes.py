"""Which options of rccl-plan mean something together: what would have no effect is refused.

Owns that table. An option is in a row where the mode reads it; the machine's own (--topology,
--nodes, ..., -g, --without) and --json always mean something.
"""

from __future__ import annotations

import argparse

from .common import PLANNED_ONLY

__all__ = ["check", "check_root", "named"]

_PLAN = ("size", "root", "algo", "proto", "schedule", "synthesis", "tuner_csv")
_TAKEN: dict[str, tuple[str, ...]] = {
    "barrier": (),
    "alltoallv": ("size", "counts", "algo", "proto", "engine"),
    "--breakpoints": (*_PLAN, "breakpoints"),
    "--compare": (*_PLAN, "compare", "policy", "verify"),
    "--explain": (*_PLAN, "explain", "policy", "verify", "export", "limits", "pieces", "engine"),
    "--json": (*_PLAN, "explain", "policy", "verify", "export", "limits", "pieces", "engine"),
    "": (*_PLAN, "policy", "verify", "export", "limits", "pieces", "engine", "ranks", "all"),
}
"""The options each mode takes, the first mode that is asked for first."""

_OPTIONS = tuple(sorted({option for taken in _TAKEN.values() for option in taken}))


def named(collective: str | None) -> str | None:
    """Return what the registry has no row of by its name, however written; else as given."""
    plain = (collective or "").lower().replace("-", "_").removesuffix("_perf")
    return plain if plain in PLANNED_ONLY else collective


def _mode(arguments: argparse.Namespace) -> str:
    """Return what is asked for: a key of _TAKEN."""
    if arguments.collective in PLANNED_ONLY:
        return str(arguments.collective)
    for flag in ("breakpoints", "compare", "explain", "json"):
        if getattr(arguments, flag):
            return f"--{flag}"
    return ""


def _given(arguments: argparse.Namespace, option: str) -> bool:
    value = getattr(arguments, option)
    return value is not None and value is not False


def check(arguments: argparse.Namespace) -> None:
    """Raise InvalidUsage for an option that would have no effect, and say in which mode."""
    from ..errors import InvalidUsage

    if arguments.counts and arguments.collective != "alltoallv":
        asked = arguments.collective or "no collective"
        raise InvalidUsage(f"--counts is for alltoallv, not for {asked}")
    mode = _mode(arguments)
    for option in _OPTIONS:
        if option in _TAKEN[mode] or not _given(arguments, option):
            continue
        where = f"with {mode}" if mode.startswith("--") else f"on {mode}"
        raise InvalidUsage(f"--{option.replace('_', '-')} has no effect {where}: leave it out")
    if arguments.export is None:
        for option in ("limits", "pieces"):
            if _given(arguments, option):
                raise InvalidUsage(f"--{option} is for --export FILE, which is not given")
    if mode == "" and not arguments.size:
        for option in ("ranks", "all"):
            if _given(arguments, option):
                raise InvalidUsage(f"--{option} has no effect on a table of sizes: give a --size")
    if arguments.verify and arguments.policy:
        raise InvalidUsage(
            "--verify has no effect with --policy: what a policy picks is taken, however fast"
        )


def check_root(arguments: argparse.Namespace, collective: str, *, rooted: bool) -> None:
    """Raise InvalidUsage for a --root of a collective that has none."""
    from ..errors import InvalidUsage

    if arguments.root is not None and not rooted:
        raise InvalidUsage(f"--root has no effect on {collective}, which has no root: leave it out")
