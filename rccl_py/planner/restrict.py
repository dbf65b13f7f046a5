"""What NCCL_ALGO and NCCL_PROTO allow, in their own syntax, with no silent fallback.

Owns the parsing: ``ring,tree`` allows these, ``^tree`` all but these, ``ring;allreduce:^tree``
one list for all and another for one collective. A name is that algorithm alone where the
collective has one called so, as in docs/algorithms.md; else all of the family (ring, tree, direct,
...) it names. NCCL's own algorithms that this library does not have leave nothing. Knows no time.
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
    if not text.strip("; \t\n"):
        raise _nothing(text, variable)
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
    chosen = chosen.strip()
    excluded = chosen.startswith("^")
    found = [t.strip().removeprefix("^" if excluded else "") for t in chosen.split(",")]
    if any("^" in token for token in found):
        raise InvalidUsage(
            f"{variable}={text!r}: a ^ leads the whole list ('^ring,tree' leaves both out); "
            "allowing some and leaving others out cannot be mixed"
        )
    named = [(excluded, token) for token in found if token]
    if not named:
        raise _nothing(text, variable)
    return named


def _nothing(text: str, variable: str) -> InvalidUsage:
    """Return the error of a list without a name."""
    some, rest = ("LL,LL128", "^LL") if "proto" in variable.lower() else ("ring,tree", "^ring")
    return InvalidUsage(
        f"{variable}={text!r} names nothing: expected names, as in {some!r}, or a ^ and those to "
        f"leave out, as in {rest!r}; leave it out to allow everything"
    )


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


def allowed_algorithms(text: str | None, collective: str, variable: str = "NCCL_ALGO") -> list[str]:
    """Return the names of the algorithms of `collective` that `text` (NCCL_ALGO) allows.

    May be empty; the caller says so. variable: who said so, for messages. Raises InvalidUsage for a
    name that is not known, or where there is none.
    """
    family = {a.name: a.family for a in ALGORITHMS if a.collective == collective}
    here = {name.lower() for name in family}
    known = [*FAMILIES, *(a.name for a in ALGORITHMS), *_ELSEWHERE]
    return _allowed(
        text,
        collective,
        variable,
        family,
        known,
        lambda name, token: token == (name if token in here else family[name]),
    )


def allowed_protocols(text: str | None, collective: str, variable: str = "NCCL_PROTO") -> list[str]:
    """Return the names of the protocols `text` (NCCL_PROTO) allows for `collective`."""
    return _allowed(
        text,
        collective,
        variable,
        PROTOCOLS,
        PROTOCOLS,
        lambda name, token: name.lower() == token,
    )
