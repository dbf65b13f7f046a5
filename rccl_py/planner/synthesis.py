"""Algorithms made for one machine, asked for where those of the registry leave too much.

Owns for which machines and collectives synthesis is started, and which recipes it leads to. Whether
it is follows from the machine, the collective and the mode, so what is made is an option at
all sizes. Trees and ways themselves are rccl_py.planner.packing's and rccl_py.planner.flows'; both,
and SciPy with them, are loaded when they are first needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..algorithms import Algorithm, Forest, Paths, Recipe
from ..errors import InvalidArgument
from ..fabric import Fabric
from ..units import LARGEST
from .bounds import Bound

__all__ = ["MODES", "Synthesis"]

MODES = ("auto", "always", "never")

_SMALL = 16  # ranks up to which it is done whatever is gained: 0.3 s at most, once
_GAP = 1.10  # time over bound, of a call in which bytes rule, from which on it is done for more
_REFERENCE = 1e3  # how many times its launch and hops the bytes of that call take
_SAID = 1.03  # time over bound from which on a plan says what synthesis might be asked for
_RULE = 10.0  # and the bytes take so many times the launch and hops
_AUTO = 64  # ranks for which it is done unasked: up to 4 s
_MOST = {"forest": 128, "paths": 64}  # ranks for which it is done at all
_MADE = {"forest": "trees", "paths": "ways"}


@dataclass(eq=False)
class Synthesis:
    """What was synthesised for one fabric.

    mode: auto (up to 64 ranks), always (more), or never. folder: where forests are kept on disk;
    asked when the first is wanted, None for nowhere.
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
        if n > _AUTO and self.mode == "auto":
            return f"{n} ranks take longer to synthesise for: ask for it (synthesise=True)"
        hashed = self.fabric.wiring is not None and not self.fabric.wiring.bundled
        if n > _SMALL and hashed and self.mode == "auto":
            return "routes by hash or load take longer to synthesise for: ask (synthesise=True)"
        return "" if n > 2 else "two ranks"

    def reference(self, bound: Bound) -> float | None:
        """Return the size at which it shows whether synthesis pays; None: it is started anyway.

        bound: that of a call of the collective, of any size.
        """
        if self.mode == "always" or self.fabric.nranks <= _SMALL:
            return None
        return min(bound.rate * _REFERENCE * (bound.launch + bound.latency), float(LARGEST))

    def pays(self, bound: Bound, best: float) -> bool:
        """Return whether the call of the reference size leaves enough to gain.

        best: the s of its best way so far, without what follows the last step (filling windows and
        copying out): better trees and ways do nothing about that.
        """
        return best > _GAP * bound.seconds

    def hint(self, needs: Iterable[str], bound: Bound, best: float) -> str:
        """Return what might be asked for where a call leaves much and nothing was synthesised.

        needs: what its collective's synthesised algorithms need. best: as in `pays`.
        """
        n, rules = self.fabric.nranks, bound.links > _RULE * (bound.launch + bound.latency)
        kinds = sorted({_MADE[need] for need in needs if 2 < n <= _MOST[need]})
        if self.mode != "auto" or not kinds or not rules or best < _SAID * bound.seconds:
            return ""
        return (
            f"--synthesis always looks for {' and '.join(kinds)} made for this machine: "
            f"{1 - bound.seconds / best:.1%} of the time is above the bound"
        )

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
