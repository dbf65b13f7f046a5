"""Where the flight records of several ranks part: who called something else, who waits for whom.

Owns the check of records that were read, and their comparison, a pure function. Knows nothing of
how records are kept (`recorder`) or of communicators.

Calls 1, 2, 3 of one communicator; what counts is the first column that is not alike:

    rank 0   allreduce(4)  broadcast(8)  allreduce(4)
    rank 1   allreduce(4)  broadcast(8)  allreduce(4)
    rank 2   allreduce(4)  allreduce(4)                 <- call 2: rank 2 differs
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import FormatError
from .recorder import FIELDS, FORMAT, KINDS, STATES, VERSION

__all__ = ["Disagreement", "first_disagreement", "ranks_text", "read_record"]

_AGREED = ("collective", *FIELDS)
"""What ranks of one collective must agree on."""
_MOST_RANKS = 1 << 20  # no file may make us list more
_SHOWN = 8  # ranks or waits told one by one before "and n more"

Record = Mapping[str, Any]


# ---- reading --------------------------------------------------------------------------------


def _expect(fits: bool, where: str, key: str, value: object, expected: str) -> None:
    if not fits:
        raise FormatError(f"{where}: {key} is {value!r:.60}: {expected} was expected")


def _is_count(value: object, low: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= low


def _checked_call(call: object, where: str, k: int) -> None:
    at = f"calls[{k}]"
    if not isinstance(call, dict):
        raise FormatError(f"{where}: {at} is {call!r:.60}: an object was expected")
    _expect(_is_count(call.get("seq")), where, f"{at}.seq", call.get("seq"), "a number from 0")
    for key in ("call", "collective"):
        _expect(isinstance(call.get(key), str), where, f"{at}.{key}", call.get(key), "a text")
    for key, known in (("kind", KINDS), ("state", STATES)):
        expected = f"one of {', '.join(known)}"
        _expect(call.get(key) in known, where, f"{at}.{key}", call.get(key), expected)
    for key in FIELDS:
        fits = isinstance(call.get(key), (str, int, float, type(None)))
        _expect(fits, where, f"{at}.{key}", call.get(key), "a number, a text or null")
    for key in ("site", "note"):
        fits = isinstance(call.get(key), (str, type(None)))
        _expect(fits, where, f"{at}.{key}", call.get(key), "a text or null")


def _checked(record: object, where: str) -> dict[str, Any]:
    """Return `record` if it is one; raise FormatError naming `where` and the key if not."""
    if not isinstance(record, dict):
        raise FormatError(f"{where}: an object with the keys of a flight record was expected")
    held = record.get
    _expect(held("format") == FORMAT, where, "format", held("format"), repr(FORMAT))
    _expect(held("version") == VERSION, where, "version", held("version"), str(VERSION))
    fits = isinstance(held("communicator"), str)
    _expect(fits, where, "communicator", held("communicator"), "a name")
    fits = _is_count(held("nranks"), 1) and record["nranks"] <= _MOST_RANKS
    _expect(fits, where, "nranks", held("nranks"), f"a number from 1 to {_MOST_RANKS}")
    fits = _is_count(held("rank")) and record["rank"] < record["nranks"]
    _expect(fits, where, "rank", held("rank"), f"a number from 0 to {record['nranks'] - 1}")
    fits = isinstance(held("reason"), (str, type(None)))
    _expect(fits, where, "reason", held("reason"), "a text or null")
    _expect(isinstance(held("calls"), list), where, "calls", held("calls"), "a list")
    n = len(record["calls"])
    _expect(_is_count(held("total"), n), where, "total", held("total"), f"a number from {n}")
    for k, call in enumerate(record["calls"]):
        _checked_call(call, where, k)
    return record


def read_record(path: Path) -> dict[str, Any]:
    """Return the record in a file; raise FormatError naming file and key if there is none."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror}") from None
    except json.JSONDecodeError as error:
        raise FormatError(f"{path}:{error.lineno}: not JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: not JSON: {error}") from None
    return _checked(found, str(path))


# ---- comparing ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Disagreement:
    """Where ranks part: what kind of parting, at which call, which ranks are the odd ones.

    kind: "differs" (ranks made different calls as number seq), "missing" (the odd ranks have not
    made call seq that others wait in), or "waits" (only sends and receives are unfinished; seq is
    None). fields: what differs. ranks: the odd ones; of two halves, those without the lowest rank.
    """

    kind: str
    communicator: str
    seq: int | None
    ranks: tuple[int, ...]
    fields: tuple[str, ...]
    text: str


_Call = Mapping[str, Any]


def ranks_text(ranks: Iterable[int]) -> str:
    """Return ranks as people write them: ``rank 3``, ``ranks 0, 2, 5-9``."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    parts = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return f"rank{'s' if sum(map(len, runs)) > 1 else ''} {', '.join(parts)}"


def _at(call: _Call) -> str:
    note = f" ({call['note']})" if call["note"] else ""
    return (f" at {call['site']}" if call["site"] else "") + note


def _limited(lines: Sequence[str], of: str) -> list[str]:
    more = len(lines) - _SHOWN
    return [*lines[:_SHOWN], *([f"  and {more} more {of}"] if more > 0 else [])]


def _unrecorded(group: Mapping[int, Record]) -> list[int]:
    nranks = next(iter(group.values()))["nranks"]
    return [rank for rank in range(nranks) if rank not in group]


def _waits(name: str, group: Mapping[int, Record]) -> list[tuple[str, int, str]]:
    """Return (communicator, rank, text) for each send or receive that is not done."""
    found = []
    for rank, record in sorted(group.items()):
        for call in record["calls"]:
            if call["kind"] == "p2p" and call["state"] != "done":
                peer = re.search(r"\bpeer=(\d+)", call["call"])
                whom = f" for rank {peer[1]}" if peer else ""
                said = f"  communicator {name!r}: rank {rank} waits{whom} in {call['call']}, "
                found.append((name, rank, f"{said}{call['state']}{_at(call)}"))
    return found


def _differs(name: str, seq: int, calls: Mapping[int, _Call], lines: list[str]) -> Disagreement:
    groups: dict[tuple[Any, ...], list[int]] = {}
    for rank, call in calls.items():
        groups.setdefault(tuple(call[key] for key in _AGREED), []).append(rank)
    # Stable: of groups as large as each other, the one with the lowest rank leads.
    usual, *others = sorted(groups.values(), key=len, reverse=True)
    split = tuple(key for k, key in enumerate(_AGREED) if len({made[k] for made in groups}) > 1)
    odd = tuple(sorted(rank for ranks in others for rank in ranks))
    clear = len(usual) > len(others[0])
    said = []
    for ranks in (usual, *others):
        call = calls[ranks[0]]
        mark = "   <-- odd" if clear and ranks is not usual else ""
        said.append(f"  {ranks_text(ranks)} called {call['call']}{_at(call)}{mark}")
    told = [f"communicator {name!r}, call {seq}: ranks disagree on {', '.join(split)}"]
    told += [*_limited(said, "different calls"), *lines]
    return Disagreement("differs", name, seq, odd, split, "\n".join(told))


def _missing(
    name: str,
    seq: int,
    calls: Mapping[int, _Call],
    absent: Sequence[int],
    group: Mapping[int, Record],
    waits: Sequence[tuple[str, int, str]],
) -> Disagreement:
    unrecorded = _unrecorded(group)
    odd = tuple(absent or unrecorded)
    by_state: dict[str, list[int]] = {}
    for rank, call in calls.items():
        if call["state"] != "done":
            by_state.setdefault(call["state"], []).append(rank)
    who = f"{ranks_text(odd)} {'have' if len(odd) > 1 else 'has'} not made it"
    if not absent:
        who = f"no record says that {ranks_text(odd)} made it"
    told = [f"communicator {name!r}, call {seq}: {who}, others wait in it"]
    for state, ranks in by_state.items():
        call = calls[ranks[0]]
        verb = "wait" if len(ranks) > 1 else "waits"
        told.append(f"  {ranks_text(ranks)} {verb} in {call['call']}, {state}{_at(call)}")
    last = []
    for rank in absent:
        made = group[rank]["calls"]
        if made:
            told_last = f"{made[-1]['call']}, {made[-1]['state']}{_at(made[-1])}"
            last.append(f"  {ranks_text([rank])} last called {told_last}")
        else:
            last.append(f"  {ranks_text([rank])} has called nothing")
    told += _limited(last, "ranks")
    told += [f"  no record of {ranks_text(unrecorded)}"] if unrecorded else []
    told += _limited([said for _, _, said in waits], "sends and receives")
    return Disagreement("missing", name, seq, odd, (), "\n".join(told))


def _of_collectives(
    name: str, group: Mapping[int, Record], waits: Sequence[tuple[str, int, str]]
) -> Disagreement | None:
    """Return the first disagreement of one communicator's records, {rank: record}."""
    made: dict[int, dict[int, _Call]] = {}
    kept_from: dict[int, float] = {}
    for rank, record in sorted(group.items()):
        # Of two calls with one number (one was withdrawn) the later counts.
        calls = {c["seq"]: c for c in record["calls"] if c["kind"] == "collective"}
        made[rank] = calls
        # Before the first that is still held, a ring that lost entries says nothing.
        lost = record["total"] > len(record["calls"])
        kept_from[rank] = min(calls, default=float("inf")) if lost else -1
    unrecorded = _unrecorded(group)
    lines = [f"  no record of {ranks_text(unrecorded)}"] if unrecorded else []
    in_doubt: Disagreement | None = None
    for seq in sorted({seq for calls in made.values() for seq in calls}):
        now = {rank: calls[seq] for rank, calls in made.items() if seq in calls}
        if len({tuple(call[key] for key in _AGREED) for call in now.values()}) > 1:
            return _differs(name, seq, now, lines)
        if all(call["state"] == "done" for call in now.values()):
            continue
        absent = [r for r, calls in made.items() if seq not in calls and seq >= kept_from[r]]
        if absent:
            return _missing(name, seq, now, absent, group, waits)
        if unrecorded and in_doubt is None:
            # What a missing record may explain gives way to what the others show later.
            in_doubt = _missing(name, seq, now, [], group, waits)
    return in_doubt


def _grouped(records: Iterable[Record]) -> dict[str, dict[int, Record]]:
    """Return {communicator: {rank: record}}; one record a rank, and all of one size."""
    groups: dict[str, dict[int, Record]] = {}
    for record in records:
        name, rank = record["communicator"], record["rank"]
        group = groups.setdefault(name, {})
        if rank in group:
            raise FormatError(
                f"communicator {name!r}: rank: two records of rank {rank}: pass one run's files"
            )
        for other in group.values():
            if other["nranks"] != record["nranks"]:
                raise FormatError(
                    f"communicator {name!r}: nranks: {other['nranks']} at rank {other['rank']}, "
                    f"{record['nranks']} at rank {rank}: pass one run's files"
                )
            break
        group[rank] = record
    return groups


def first_disagreement(dumps: Sequence[Record]) -> Disagreement | None:
    """Return where the ranks' records part first, or None when they agree.

    dumps: what Recorder.dump returned (or read_record read) on any of the ranks, of any number of
    communicators. A call made differently is told before one that is missing, and that before
    sends and receives that are merely unfinished. Calls that a full ring has lost are not judged.
    Raises FormatError for what is no record.
    """
    checked = [_checked(dump, f"record {k}") for k, dump in enumerate(dumps)]
    groups = dict(sorted(_grouped(checked).items()))
    waits = [wait for name, group in groups.items() for wait in _waits(name, group)]
    each = (_of_collectives(name, group, waits) for name, group in groups.items())
    found = [one for one in each if one is not None]
    if found:
        return next((one for one in found if one.kind == "differs"), found[0])
    if not waits:
        return None
    told = ["collectives agree; sends and receives are not done:"]
    told += _limited([said for _, _, said in waits], "sends and receives")
    name = waits[0][0]
    odd = tuple(sorted({rank for of, rank, _ in waits if of == name}))
    return Disagreement("waits", name, None, odd, (), "\n".join(told))
