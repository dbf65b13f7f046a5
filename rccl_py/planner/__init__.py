"""The planner: try candidates, pick by predicted time, keep why the others lost."""

from .bounds import Bound, lower_bound
from .plan import Candidate, Plan
from .planner import Planner

__all__ = ["Bound", "Candidate", "Plan", "Planner", "lower_bound"]
