"""Forests on disk: found once a machine, not once a process.

Owns the file format and where files lie. A file is named by a hash of everything that decides what
is found: what pairs of ranks cost (whatever links are called or numbered), the question, the
version of this format and of the solver. Files appear whole or not at all; one that cannot be read,
or holds no forest for that question, counts as missing and is written again. Knows no search, and
reads no environment: who does passes it to `cache_folder`.
"""

from __future__ import annotations

import io
import os
import stat
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from hashlib import blake2b, sha256
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np

from ...algorithms import Forest
from ...algorithms.flat import Ints, depths
from .build import Packed, load_of
from .columns import Problem

__all__ = ["cache_folder", "kept", "key_of", "remember"]

_FORMAT = 4
_MOST = 1 << 12  # forests of a file
_LIMIT = 64 << 20  # bytes, packed or unpacked; no forest of ours is larger
_SHARES = 1 << 13  # of what all trees share; of one rank's block an eighth
_EXACT = 1e-6  # of the seconds, that sums in another order may differ by


def cache_folder(environment: Mapping[str, str]) -> Path | None:
    """Return where forests are kept, None for nowhere.

    RCCL_PY_CACHE names the folder, or says "off"; else it is rccl_py in XDG_CACHE_HOME, else in
    .cache of the home folder, if there is one.
    """
    asked = environment.get("RCCL_PY_CACHE", "").strip()
    if asked:
        return None if asked.lower() == "off" else Path(asked)
    above = environment.get("XDG_CACHE_HOME", "").strip()
    if above and Path(above).is_absolute():  # as the XDG specification asks
        return Path(above, "rccl_py")
    with suppress(RuntimeError):  # no home
        return Path.home() / ".cache" / "rccl_py"
    return None


def key_of(problem: Problem, order: Ints) -> str:
    """Return the name of a problem: 40 hexadecimal digits."""
    import scipy

    matrix = problem.ways.distinct.tocsr()
    matrix.sort_indices()
    said = f"{_FORMAT} {scipy.__version__} {np.__version__} {problem.ways.n} {problem.free}"
    digest = blake2b(said.encode(), digest_size=20)
    for column in (problem.roots, order, matrix.indptr, matrix.indices):
        digest.update(np.ascontiguousarray(column, dtype="<i8").tobytes())
    digest.update(np.ascontiguousarray(matrix.data, dtype="<f8").tobytes())
    digest.update(f"{problem.ways.unit:.9e}".encode())
    digest.update(np.packbits(problem.ways.joined).tobytes())
    if problem.ways.dislike is not None:
        digest.update(np.ascontiguousarray(problem.ways.dislike, dtype="<f8").tobytes())
    if problem.ways.odd is not None:
        digest.update(b"odd" + np.packbits(problem.ways.odd).tobytes())
    return digest.hexdigest()


def _spans(forest: Forest, problem: Problem) -> bool:
    """Return whether arrays read from a file are trees over all ranks, from the roots asked for."""
    parents, weights, n = forest.parents, forest.weights, problem.ways.n
    if not len(weights) or parents.shape != (len(weights), n):
        return False
    if (parents < -1).any() or (parents >= n).any() or (weights < 1).any():
        return False
    roots = parents < 0
    at = np.where(roots, np.arange(n), parents)
    for _ in range(n.bit_length()):  # of 1, 2, 4, ... edges towards the root
        at = np.take_along_axis(at, at, axis=1)
    root = roots.argmax(axis=1)
    if (roots.sum(axis=1) != 1).any() or (at != root[:, None]).any():
        return False
    tree, child = np.nonzero(~roots)
    if not problem.ways.joined[parents[tree, child], child].all():
        return False
    total = np.bincount(root, weights=weights, minlength=n)
    if problem.free:
        return bool(total.sum() <= _SHARES)
    asked = np.zeros(n, dtype=bool)
    asked[problem.roots] = True
    most = _SHARES // 8 if _own(problem) else _SHARES
    same = (total[asked] == total[asked][0]).all() and (total[~asked] == 0).all()
    return bool(same and total[asked][0] <= most)


def _own(problem: Problem) -> bool:
    """Return whether every rank's block has trees of its own."""
    return not problem.free and len(problem.roots) > 1


def _is_packed(one: Packed, problem: Problem) -> bool:
    """Return whether trees are what a file says of them: as fast, as deep, and no faster than is
    proven possible.
    """
    if not _spans(one.forest, problem) or one.proof > one.seconds * (1 + _EXACT):
        return False
    busy = float(load_of(one.forest, problem.ways, own=_own(problem)).max())
    deep = int(depths(one.forest.parents).max())
    return deep == one.depth and abs(busy - one.seconds) <= _EXACT * busy


def _digest(key: str, body: bytes) -> bytes:
    """Return what a file begins with: 32 bytes that only its own key and content give."""
    return sha256(f"rccl_py forests {_FORMAT} {key}\n".encode() + body).digest()


def _array(held: Mapping[str, Any], name: str, dtype: str, ndim: int) -> Any:
    """Return an array of a file. Raises ValueError where it is of another kind."""
    found = held[name]
    if found.dtype != np.dtype(dtype) or found.ndim != ndim:
        raise ValueError(f"{name} is {found.dtype}, {found.ndim}-dimensional")
    return found


def _read(held: Mapping[str, Any], k: int, numbers: list[float]) -> Packed:
    """Return forest number k of a file; numbers: its s, the s proven and its depth."""
    parents, weights = _array(held, f"parents{k}", "<i4", 2), _array(held, f"weights{k}", "<i4", 1)
    seconds, proof, depth = numbers
    if not (0 < seconds < np.inf and 0 <= proof < np.inf and 0 <= depth <= parents.shape[1]):
        raise ValueError(f"forest {k} takes {seconds} s at depth {depth}, {proof} s proven")
    return Packed(Forest(parents, weights), float(seconds), float(proof), int(depth))


def kept(folder: Path, key: str, problem: Problem) -> list[Packed] | None:
    """Return what was remembered by `key`, None if that is not exactly what this version wrote."""
    path = folder / f"{key}.npz"
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > _LIMIT:
            return None
        data = path.read_bytes()
        digest, body = data[:32], data[32:]
        if digest != _digest(key, body):
            return None
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > _LIMIT:
                return None
        with np.load(io.BytesIO(body), allow_pickle=False) as held:
            numbers = _array(held, "numbers", "<f8", 2).tolist()
            if len(numbers) > _MOST:
                return None
            forests = [_read(held, k, row) for k, row in enumerate(numbers)]
        good = all(_is_packed(one, problem) for one in forests)
    except Exception:  # whatever reading bytes that anybody wrote may raise
        return None
    return forests if forests and good else None


def remember(folder: Path, key: str, found: list[Packed]) -> None:
    """Write what was found; a folder that cannot be written is left alone."""
    arrays: dict[str, Any] = {}
    arrays |= {f"parents{k}": one.forest.parents.astype("<i4") for k, one in enumerate(found)}
    arrays |= {f"weights{k}": one.forest.weights.astype("<i4") for k, one in enumerate(found)}
    numbers = np.array([(p.seconds, p.proof, p.depth) for p in found], dtype="<f8").reshape(-1, 3)
    body = io.BytesIO()
    np.savez_compressed(body, numbers=numbers, **arrays)
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=folder, prefix=".", suffix=".tmp", delete=False) as file:
            try:
                file.write(_digest(key, body.getvalue()) + body.getvalue())
                file.close()
                os.replace(file.name, folder / f"{key}.npz")
            except OSError:
                os.unlink(file.name)
