"""Packed forests: trees with weights that load a machine's links as evenly as any trees can.

`synthesise` is the door. A machine is what its routes cost (ways), a forest the solution of a
linear program over trees (columns, which asks arborescence for cheap ones), found for one rank of
those that are alike (symmetry), made shallow (build) and rounded to whole shares (shares), then
kept on disk (cache). Loaded only when a forest is asked for: it needs scipy.
"""

from .build import Packed, load_of
from .cache import cache_folder
from .synthesis import MOST_RANKS, forests, synthesise

__all__ = ["MOST_RANKS", "Packed", "cache_folder", "forests", "load_of", "synthesise"]
