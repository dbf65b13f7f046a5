"""Tuner files: what NCCL's and RCCL's CSV tuner plugin reads, written and read.

Owns the format. One rule a line, the first that matches a call wins, ``-1`` is any, ``#`` opens a
comment, sizes are bytes with both ends in::

    collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff
    allreduce,0,65536,tree,ll,-1,2,16,-1,-1

The plugin takes lower-case names and reads an unknown one as ring, simple or allreduce; here an
unknown name is an error with its line. Knows no plan.

Source: NVIDIA/nccl 2.30 plugins/tuner/example/plugin.cc (columns, names, order of matching).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ...errors import FormatError, InvalidArgument, InvalidUsage
from .choice import Pick, Policy, peer_to_peer, stand_ins
from .graph import Figures

__all__ = ["ALGORITHMS", "HEADER", "Rule", "csv_policy", "read_tuner_csv", "tuner_csv"]

HEADER = (
    "collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,"
    "regBuff"
)
_FIELDS = HEADER.split(",")
_COLLECTIVES = {
    "broadcast": "broadcast",
    "reduce": "reduce",
    "allgather": "allgather",
    "reducescatter": "reduce_scatter",
    "allreduce": "allreduce",
}
ALGORITHMS = {
    "tree": "Tree",
    "ring": "Ring",
    "collnet_direct": "CollNetDirect",
    "collnet_chain": "CollNetChain",
    "nvls": "NVLS",
    "nvls_tree": "NVLSTree",
    "pat": "PAT",
}
"""The plugin's spelling -> the libraries' names."""

_PROTOCOLS = {"ll": "LL", "ll128": "LL128", "simple": "Simple"}
_LARGEST = (1 << 64) - 1  # what the plugin keeps sizes in
_MOST_LINES = 100_000


@dataclass(frozen=True, slots=True)
class Rule:
    """One line. least, most: bytes, both included. None: any, or the library's default.

    algorithm, protocol: as the libraries name them.
    """

    collective: str
    least: int
    most: int
    algorithm: str
    protocol: str
    channels: int | None = None
    nodes: int | None = None
    ranks: int | None = None
    pipe_ops: int | None = None
    registered: int | None = None

    def matches(self, f: Figures, collective: str, size: float) -> bool:
        """Whether a call of `size` bytes takes this rule; calls here are single, not registered."""
        return (
            self.collective == collective
            and self.least <= size <= self.most
            and self.nodes in (None, f.nodes)
            and self.ranks in (None, f.ranks)
            and self.pipe_ops in (None, 1)
            and self.registered in (None, 0)
        )


def tuner_csv(rules: Iterable[Rule], comments: Iterable[str] = ()) -> str:
    """Return the text of a tuner file: comments, the header as a comment, one line a rule."""
    known = {name: spelling for spelling, name in ALGORITHMS.items()}
    collectives = {name: spelling for spelling, name in _COLLECTIVES.items()}
    lines = [f"# {' '.join(comment.split())}" for comment in comments] + [f"# {HEADER}"]
    for rule in rules:
        if rule.algorithm not in known or rule.collective not in collectives:
            raise InvalidArgument(
                f"tuner file: {rule.collective} by {rule.algorithm} has no name there: "
                f"collectives {', '.join(collectives)}; algorithms {', '.join(known)}"
            )
        any_of = (rule.channels, rule.nodes, rule.ranks, rule.pipe_ops, rule.registered)
        numbers = ["-1" if value is None else str(value) for value in any_of]
        names = [known[rule.algorithm], rule.protocol.lower()]
        head = [collectives[rule.collective], str(rule.least), str(rule.most)]
        lines.append(",".join([*head, *names, *numbers]))
    return "\n".join(lines) + "\n"


def read_tuner_csv(path: str | Path) -> tuple[Rule, ...]:
    """Return the rules of a tuner file, in order. Raises FormatError with file and line."""
    try:
        if not Path(path).is_file() and Path(path).exists():
            raise FormatError(f"{path}: cannot be read: it is no plain file")
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise FormatError(f"{path}: cannot be read: {error}") from None
    rules = tuple(_rules(text, str(path)))
    if not rules:
        raise FormatError(f"{path}: no rule in it: expected lines of {HEADER}")
    return rules


def _rules(text: str, path: str) -> Iterator[Rule]:
    for number, line in enumerate(text.splitlines()[:_MOST_LINES], 1):
        content = line.partition("#")[0].strip()
        fields = [field.strip() for field in content.split(",")]
        # The header may stand uncommented: the plugin would take it for a rule that never matches.
        if not content or fields[0].lower() == _FIELDS[0]:
            continue
        yield _rule(fields, f"{path}:{number}")


def _rule(fields: list[str], where: str) -> Rule:
    if not 8 <= len(fields) <= 10:
        raise FormatError(
            f"{where}: {len(fields)} fields: expected 8 to 10, {', '.join(_FIELDS[:8])} and "
            f"perhaps {' and '.join(_FIELDS[8:])}"
        )
    least, most = (_number(fields, k, where, 0) for k in (1, 2))
    if least > most:
        raise FormatError(f"{where}: min_bytes {least} is above max_bytes {most}")
    return Rule(
        _name(_COLLECTIVES, fields, 0, where),
        least,
        most,
        _name(ALGORITHMS, fields, 3, where),
        _name(_PROTOCOLS, fields, 4, where),
        *(_any(fields, k, where, 0 if k == 9 else 1) for k in range(5, 10)),
    )


def _name(known: dict[str, str], fields: list[str], k: int, where: str) -> str:
    found = known.get(fields[k].lower())
    if found is None:
        raise FormatError(
            f"{where}: {_FIELDS[k]} {fields[k][:40]!r} is not known: one of {', '.join(known)}"
        )
    return found


def _number(fields: list[str], k: int, where: str, least: int) -> int:
    text = fields[k]
    if not (text.isascii() and text.isdigit() and least <= int(text[:25]) <= _LARGEST):
        raise FormatError(
            f"{where}: {_FIELDS[k]} {text[:40]!r}: expected a whole number of {least} or more"
        )
    return int(text)


def _any(fields: list[str], k: int, where: str, least: int) -> int | None:
    """Return the number in an optional column, None for -1 or a column that is not there."""
    if k >= len(fields) or fields[k] == "-1":
        return None
    return _number(fields, k, where, least)


def csv_policy(path: str | Path) -> Policy:
    """Return the policy a tuner file is: what its first matching rule says."""
    rules = read_tuner_csv(path)
    return Policy(f"csv:{path}", f"the tuner file {path}", (), partial(_pick, rules, str(path)))


def _pick(rules: tuple[Rule, ...], path: str, f: Figures, collective: str, size: float) -> Pick:
    if collective not in _COLLECTIVES.values():
        return peer_to_peer(collective, size, f.ranks)
    for rule in rules:
        if rule.matches(f, collective, size):
            ours = stand_ins(collective, rule.algorithm, f.nodes)
            return Pick(rule.algorithm, rule.protocol, rule.channels, None, ours)
    raise InvalidUsage(
        f"{path}: no rule for {collective} of {size:.0f} bytes on {f.nodes} node(s), {f.ranks} "
        "ranks: a library would fall back to its own choice; add a line, or name another policy"
    )
