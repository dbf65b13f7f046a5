"""Named policies: the algorithm, protocol and channels that a library would take, by its tables.

Owns the registry. A policy is baseline and yardstick, not a prediction: what it picks is timed by
the physical model like everything else. docs/policies.md says what each covers.
"""

from __future__ import annotations

from functools import partial

from ...errors import InvalidArgument
from . import nccl, rccl
from .choice import Pick, Policy
from .graph import Figures, Graph, figures_of
from .tuner_csv import Rule, csv_policy, read_tuner_csv, tuner_csv

__all__ = [
    "POLICIES",
    "Figures",
    "Graph",
    "Pick",
    "Policy",
    "Rule",
    "csv_policy",
    "figures_of",
    "policies_for",
    "policy_named",
    "read_tuner_csv",
    "tuner_csv",
]

_SM = tuple("123456789")

POLICIES: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        Policy("nccl-2.30", "NCCL 2.30's cost model", _SM, nccl.pick),
        Policy(
            "rccl-2.28",
            "RCCL 2.28's tuning models, windows and direct algorithms",
            ("gfx",),
            partial(rccl.pick, rccl.Release(msccl=False, windows=True)),
        ),
        Policy(
            "rccl-2.26",
            "RCCL of ROCm 7.0 to 7.2: its tuning models, with MSCCL allreduce on one node of 8",
            ("gfx",),
            partial(rccl.pick, rccl.Release(msccl=True, windows=True)),
        ),
        Policy(
            "rccl-2.22",
            "RCCL of ROCm 6.3: MSCCL allreduce on one node of 8 MI300, no LL128",
            ("gfx",),
            partial(rccl.pick, rccl.Release(msccl=True, windows=False)),
        ),
    )
}


def policy_named(name: str) -> Policy:
    """Return the policy of this name, or that of a tuner file ("csv:FILE", or a name in .csv).

    Raises InvalidArgument for a name that is not known, FormatError for a file that is wrong.
    """
    if name.startswith("csv:") or name.endswith(".csv"):
        return csv_policy(name.removeprefix("csv:"))
    if name not in POLICIES:
        raise InvalidArgument(
            f"policy {name!r} is not known: one of {', '.join(POLICIES)}, or a tuner file as "
            "csv:FILE"
        )
    return POLICIES[name]


def policies_for(arch: str) -> tuple[Policy, ...]:
    """Return the named policies whose library runs on devices of this arch."""
    return tuple(p for p in POLICIES.values() if p.knows(arch))
