"""Alltoall over relays: what crosses between all pairs of ranks, equal parts or not.

Two questions, both about flows on the fabric's own routes. `synthesise_paths`: which ways the
equal blocks of an alltoall should take. `plan_alltoallv`: how unequal parts are exchanged, in how
long, and what bounds it.
"""

from .alltoallv import UnevenCandidate, UnevenPlan, plan_alltoallv
from .paths import synthesise_paths

__all__ = ["UnevenCandidate", "UnevenPlan", "plan_alltoallv", "synthesise_paths"]
