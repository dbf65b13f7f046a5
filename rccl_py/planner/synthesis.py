"""Algorithms made for one machine, asked for where those of the registry leave too much.

Owns when synthesis is worth it, and which recipes it leads to. Trees and ways themselves are
rccl_py.planner.packing's and rccl_py.planner.flows'; both, and SciPy with them, are loaded when
they are first needed. Small calls never need them: there hops rule, and synthesised trees are deep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..algorithms import Algorithm, Forest, Paths, Recipe
from ..errors import InvalidArgument
from ..fabric import Fabric
from .bounds import Bound

__all__ = ["MODES", "Synthesis"]

MODES = ("auto", "always", "never")

_GAP = 1.03  # time over bound from which on it is worth it
_LARGE = 10.0  # how many times its launch and hops a call's bytes must take
_AUTO = {"forest": 16, "paths": 32}  # ranks for which it is done unasked: about a second
_MOST = {"forest": 80, "paths": 64}  # ranks for which it is done at all


@dataclass(eq=False)
class Synthesis:
    """What was synthesised for one fabric.

    mode: auto (few ranks), always (more), or never. folder: where forests are kept on disk; asked
    when the first is wanted, None for nowhere.
    """

    fabric: Fabric
    mode: str = "auto"
    folder: Callable[[], Path | None] = lambda: None
    forests: dict[tuple[str, int], list[Forest]] = field(default_factory=dict)
    paths: dict[str, Paths | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise InvalidArgument(
                f"synthesise={self.mode!r}: expected one of {', '.join(MODES)}, or a bool"
            )

    @staticmethod
    def of(
        fabric: Fabric, wanted: str | bool, cache: str | Path | Callable[[], Path | None] | None
    ) -> Synthesis:
        """Return the synthesis of a planner's arguments: a mode, or whether it is wanted."""
        if isinstance(wanted, bool):
            wanted = "always" if wanted else "never"
        if callable(cache):
            return Synthesis(fabric, wanted, cache)
        kept = None if cache is None else Path(cache)
        return Synthesis(fabric, wanted, lambda: kept)

    def why_not(self, need: str) -> str:
        """Return why nothing is synthesised of a kind ("forest", "paths") whatever the size."""
        if self.mode == "never":
            return "synthesis is switched off"
        n, most = self.fabric.nranks, _MOST[need]
        if n > most:
            return f"{n} ranks, over the {most} that are synthesised for"
        if n > _AUTO[need] and self.mode == "auto":
            return f"{n} ranks take longer to synthesise for: ask for it (synthesise=True)"
        return "" if n > 2 else "two ranks"

    def is_worth(self, bound: Bound, best: float) -> bool:
        """Return whether a call leaves enough to gain.

        best: the s of the best way so far, without what follows the last step (filling windows and
        copying out): better trees and ways do nothing about that.
        """
        small = bound.links < _LARGE * (bound.launch + bound.latency)
        return not small and best > _GAP * bound.seconds

    def found(
        self, rows: list[Algorithm], recipe: Recipe
    ) -> Iterator[tuple[Algorithm, str, Callable[[int], Recipe]]]:
        """Yield (row, name of its own, recipe by pieces) of what is synthesised for some rows."""
        for row in rows:
            if self.why_not(row.needs):
                continue
            if row.needs == "paths":
                paths = self._paths()
                if paths is not None:
                    yield row, "paths", _by_pieces(replace(recipe, paths=paths))
                continue
            root = recipe.root if row.name == "arborescences" else 0
            for k, forest in enumerate(self._forests(row.collective, root)):
                yield row, f"{row.name} {k}", _by_pieces(replace(recipe, forest=forest))

    def _paths(self) -> Paths | None:
        if "paths" not in self.paths:
            from .flows.paths import synthesise_paths

            self.paths["paths"] = synthesise_paths(self.fabric)
        return self.paths["paths"]

    def _forests(self, collective: str, root: int) -> list[Forest]:
        key = collective, root
        if key not in self.forests:
            from .packing import synthesise

            self.forests[key] = synthesise(self.fabric, collective, root, self.folder())
        return self.forests[key]


def _by_pieces(recipe: Recipe) -> Callable[[int], Recipe]:
    return lambda pieces: replace(recipe, pieces=pieces, memo={})
