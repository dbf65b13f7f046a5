"""The optima of collectives with a root: broadcast, reduce, gather, scatter.

Owns which cut bounds each. A broadcast sends all to every rank: the narrowest cut between the root
and any rank (Edmonds, "Edge-disjoint branchings", 1973). A gather brings every rank's own to the
root: k of n ranks send k / n of the size over what leaves them, one flow from all of them.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np

from ...fabric.graph import Graph
from ...fabric.symmetry import Symmetry, symmetry
from .allgather import converging
from .cuts import Optimum, leaving
from .flows import Network
from .programs import merged_from

__all__ = ["broadcast", "gather", "reduce", "scatter"]
