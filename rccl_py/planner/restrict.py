"""What NCCL_ALGO and NCCL_PROTO allow, in their own syntax, with no silent fallback.

Owns the parsing: ``ring,tree`` allows these, ``^tree`` all but these, ``ring;allreduce:^tree``
one list for all and another for one collective. Names are families (ring, tree, direct, ...),
full algorithm names, or NCCL's own algorithms that this library does not have (which then leave
nothing). Knows no time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..algorithms import ALGORITHMS, FAMILIES
from ..collectives import COLLECTIVES, collective_named
from ..errors import InvalidArgument, InvalidUsage
from ..links import PROTOCOLS

__all__ = ["allowed_algorithms", "allowed_protocols"]

# Known to NCCL and RCCL, absent here: a restriction to them is legal and leaves nothing.
_ELSEWHERE = ("collnetdirect", "collnetchain")


def _list_for(text: str, collective: str, variable: str) -> list[tuple[bool, str]] | None:
    """Return the (excluded, token) list that applies to `collective`, None for no restriction."""
    chosen: str | None = None
    for i, entry in enumerate(e.strip() for e in text.lower().split(";")):
        if not entry:
            continue
        name, colon, tokens = entry.rpartition(":")
        if not colon:
            if i:
                raise InvalidUsage(
                    f"{variable}={text!r}: entry {entry!r} needs a collective, as in "
                    f"'allreduce:{entry}'; only the first may go without"
                )
            chosen = entry
            continue
        try:
            applies = collective_named(name).name == collective
        except InvalidArgument:
            raise InvalidUsage(
                f"{variable}={text!r}: {name!r} is no collective: one of {', '.join(COLLECTIVES)}"
            ) from None
        if applies:
            chosen = tokens
    if chosen is None:
        return None
    # NCCL writes one ^ before a list to exclude all of it.
    excluded = chosen.startswith("^")
    if not excluded and "^" in chosen:
        raise InvalidUsage(
            f"{variable}={text!r}: a ^ leads the whole list ('^ring,tree' leaves both out); "
            "allowing some and leaving others out cannot be mixed"
        )
    return [(excluded, t.strip().removeprefix("^")) for t in chosen.split(",") if t.strip()]


def _allowed(
    text: str | None,
    collective: str,
    variable: str,
    names: Iterable[str],
    known: Iterable[str],
    matches: Callable[[str, str], bool],
) -> list[str]:
    every = list(names)
    parsed = _list_for(text, collective, variable) if text and text.strip() else None
    if parsed is None:
        return every
    expected = sorted(set(known))
    for _, token in parsed:
        if token not in {k.lower() for k in expected}:
            raise InvalidUsage(
                f"{variable}={text!r}: {token!r} is not known: one of {', '.join(expected)}"
            )
    if any(excluded for excluded, _ in parsed):
        return [n for n in every if not any(matches(n, t) for _, t in parsed)]
    return [n for n in every if any(matches(n, t) for _, t in parsed)]


def allowed_algorithms(text: str | None, collective: str) -> list[str]:
    """Return the names of the algorithms of `collective` that `text` (NCCL_ALGO) allows.

    May be empty; the caller says so. Raises InvalidUsage for a token that is not known.
    """
    family = {a.name: a.family for a in ALGORITHMS if a.collective == collective}
    known = [*FAMILIES, *(a.name for a in ALGORITHMS), *_ELSEWHERE]
    return _allowed(
        text,
        collective,
        "NCCL_ALGO",
        family,
        known,
        lambda name, token: token in (name, family[name]),
    )


def allowed_protocols(text: str | None, collective: str) -> list[str]:
    """Return the names of the protocols `text` (NCCL_PROTO) allows for `collective`."""
    return _allowed(
        text,
        collective,
        "NCCL_PROTO",
        PROTOCOLS,
        PROTOCOLS,
        lambda name, token: name.lower() == token,
    )
