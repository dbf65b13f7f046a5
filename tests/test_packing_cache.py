"""Forests on disk: what others left in the folder never becomes a plan, nor stops one."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers import recipe_of
from hypothesis import given, settings
from hypothesis import strategies as st

from rccl_py.algorithms import Forest, algorithms_of
from rccl_py.check import check
from rccl_py.fabric import Fabric
from rccl_py.planner.packing import forests
from rccl_py.planner.packing.build import Packed, load_of, packed
from rccl_py.planner.packing.cache import _digest, kept, key_of, remember
from rccl_py.planner.packing.columns import Problem
from rccl_py.planner.packing.synthesis import problem_of
from rccl_py.planner.packing.ways import ways_of
from rccl_py.topology import load, lower

MACHINE, N = "mi250x-4", 8
COLLECTIVES = ("allgather", "allreduce", "broadcast")


@pytest.fixture(scope="module")
def fabric() -> Fabric:
    return lower(load(MACHINE), N)


@pytest.fixture(scope="module")
def problems(fabric) -> dict[str, Problem]:
    return {name: problem_of(ways_of(fabric), name) for name in COLLECTIVES}


@pytest.fixture(scope="module")
def found(problems) -> dict[str, list[Packed]]:
    """Return the forests of each problem."""
    return {name: packed(problem, np.arange(N)) for name, problem in problems.items()}


def same(one: list[Packed] | None, two: list[Packed]) -> bool:
    """Return whether two lists of forests are equal."""
    return one is not None and len(one) == len(two) and all(
        np.array_equal(a.forest.parents, b.forest.parents)
        and np.array_equal(a.forest.weights, b.forest.weights)
        and (a.seconds, a.proof, a.depth) == (b.seconds, b.proof, b.depth)
        for a, b in zip(one, two)
    )  # fmt: skip


def body_of(arrays: dict[str, np.ndarray]) -> bytes:
    """Return an archive of arrays, objects among them too."""
    body = io.BytesIO()
    np.savez_compressed(body, allow_pickle=True, **arrays)
    return body.getvalue()


def arrays_of(packings: list[Packed]) -> dict[str, np.ndarray]:
    """Return the arrays of a good file."""
    found = {"numbers": np.array([(p.seconds, p.proof, p.depth) for p in packings], dtype="<f8")}
    for k, one in enumerate(packings):
        found[f"parents{k}"] = one.forest.parents.astype("<i4")
        found[f"weights{k}"] = one.forest.weights.astype("<i4")
    return found


def signed(folder: Path, key: str, body: bytes) -> Path:
    """Write a file whose digest is right, whatever is in it."""
    path = folder / f"{key}.npz"
    path.write_bytes(_digest(key, body) + body)
    return path


def bytes_of(**entries: bytes) -> bytes:
    """Return an archive of raw entries."""
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries.items():
            archive.writestr(f"{name}.npy", data)
    return body.getvalue()


def header(text: str, version: bytes = b"\x01\x00") -> bytes:
    """Return an .npy of this header and no data."""
    return b"\x93NUMPY" + version + len(text).to_bytes(2, "little") + text.encode()


def test_a_file_signed_again_as_it_was_is_read(tmp_path, problems, found):
    for name, problem in problems.items():
        key = key_of(problem, np.arange(N))
        signed(tmp_path, key, body_of(arrays_of(found[name])))
        assert same(kept(tmp_path, key, problem), found[name])


def row(k: int, column: int, value: float):
    """Return a change of a number: 0 the seconds, 1 the proof, 2 the depth."""

    def change(a):
        a["numbers"][k, column] = value

    return change


def put(name: str, value):
    """Return a change of an array into another."""
    return lambda a: a.update({name: value(a[name])})


def at(name: str, where, value: int):
    """Return a change of entries of an array."""

    def change(a):
        a[name][where] = value

    return change


def loop(a) -> None:
    one = a["parents0"][0]
    far = np.flatnonzero(one >= 0)[:2]
    one[far] = far[::-1]


def chain(a) -> None:
    """Trees that span, through pairs that may not be joined, and said to be as fast as before."""
    for tree in a["parents0"]:
        order = np.roll(np.arange(N), -int(tree.argmin()))
        tree[order[0]], tree[order[1:]] = -1, order[:-1]


SIGNED = {
    "a loop": loop,
    "chains said to be as fast": chain,
    "two roots": at("parents0", (0, slice(0, 2)), -1),
    "no root": at("parents0", 0, 0),
    "a rank too far": at("parents0", (0, -1), N),
    "a rank below": at("parents0", (0, -1), -2),
    "the least number": at("parents0", 0, -(1 << 31)),
    "fewer ranks": put("parents0", lambda p: p[:, :-1]),
    "more ranks": put("parents0", lambda p: np.hstack([p, p[:, :1] * 0])),
    "no trees": lambda a: a.update(parents0=a["parents0"][:0], weights0=a["weights0"][:0]),
    "a weight too few": put("weights0", lambda w: w[:-1]),
    "weights of 0": put("weights0", lambda w: w * 0),
    "weights below 0": put("weights0", lambda w: -w),
    "huge weights": put("weights0", lambda w: np.full_like(w, (1 << 31) - 1)),
    "many shares": put("weights0", lambda w: w * 100_000),
    "parents of int64": put("parents0", lambda p: p.astype("<i8")),
    "parents of the other byte order": put("parents0", lambda p: p.astype(">i4")),
    "parents of float": put("parents0", lambda p: p.astype("<f8")),
    "parents that are texts": put("parents0", lambda p: p.astype("U2")),
    "parents that are objects": put("parents0", lambda p: p.astype(object)),
    "parents of three dimensions": put("parents0", lambda p: p[None]),
    "parents of one": put("parents0", lambda p: p.ravel()),
    "no parents": lambda a: a.pop("parents0"),
    "no weights": lambda a: a.pop("weights0"),
    "no numbers": lambda a: a.pop("numbers"),
    "numbers of nothing": put("numbers", lambda x: x[:0]),
    "numbers one dimension less": put("numbers", lambda x: x[0]),
    "a column too few": put("numbers", lambda x: x[:, :2]),
    "a column too many": put("numbers", lambda x: np.hstack([x, x])),
    "forests that are not there": put("numbers", lambda x: np.vstack([x, x[:1]])),
    "10^5 forests": put("numbers", lambda x: np.repeat(x[:1], 100_000, axis=0)),
    "said to be faster": row(0, 0, 1e-30),
    "said to be slower": row(0, 0, 1.0),
    "proven to be slower than it is": row(0, 1, 1.0),
    "NaN seconds": row(0, 0, np.nan),
    "NaN proof": row(0, 1, np.nan),
    "NaN depth": row(0, 2, np.nan),
    "endless seconds": row(0, 0, np.inf),
    "seconds below 0": row(0, 0, -1.0),
    "half a level deeper": row(0, 2, 2.5),
    "no depth": row(0, 2, 0.0),
    "depth 10^300": row(0, 2, 1e300),
}


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_wrong_content_with_a_right_digest_counts_as_missing(collective, tmp_path, problems, found):
    problem, good = problems[collective], found[collective]
    key, kinds = key_of(problem, np.arange(N)), set()
    for name, change in SIGNED.items():
        arrays = {k: v.copy() for k, v in arrays_of(good).items()}
        change(arrays)
        if body_of(arrays) == body_of(arrays_of(good)):
            continue  # trees of this collective are so already
        signed(tmp_path, key, body_of(arrays))
        assert kept(tmp_path, key, problem) is None, name
        kinds.add(name)
    assert len(kinds) >= len(SIGNED) - 2


BODIES = {
    "nothing": b"",
    "no archive": b"\x00" * 1000,
    "an empty archive": bytes_of(),
    "entries that are no arrays": bytes_of(numbers=b"7", parents0=b"", weights0=b"\x93NUMPY"),
    "a header that nests": bytes_of(numbers=header("(" * 9000 + ")" * 9000)),
    "a header that nests, old": bytes_of(numbers=header("{'a':" * 3000)),
    "a header that never ends": bytes_of(numbers=header("{'descr': '''")),
    "a header too long": bytes_of(numbers=header("1" * 60_000)),
    "a header of an unknown version": bytes_of(numbers=header("{}", b"\x09\x09")),
    "an array of 10^15": bytes_of(numbers=header(
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000000, 3)}")),
    "an array of fewer than none": bytes_of(numbers=header(
        "{'descr': '<f8', 'fortran_order': False, 'shape': (-1, 3)}")),
    "a pickle": bytes_of(numbers=b"cos\nsystem\n(S'false'\ntR."),
    "an archive in an archive": bytes_of(numbers=bytes_of(numbers=b"")),
    "70 MB of zeros": bytes_of(numbers=b"", parents0=bytes(70 << 20)),
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
def test_what_is_no_archive_of_arrays_counts_as_missing_though_signed(name, tmp_path, problems):
    key = key_of(problems["allreduce"], np.arange(N))
    signed(tmp_path, key, BODIES[name])
    assert kept(tmp_path, key, problems["allreduce"]) is None


@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_any_bytes_changed_and_signed_again_give_nothing_or_a_right_forest(
    data, tmp_path_factory, problems, found
):
    problem, folder = problems["allgather"], tmp_path_factory.getbasetemp()
    key = key_of(problem, np.arange(N))
    if data.draw(st.booleans()):
        body = bytearray(body_of(arrays_of(found["allgather"])))
        for _ in range(data.draw(st.integers(1, 4))):
            body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
        body = body[: data.draw(st.sampled_from([len(body), len(body) // 2, len(body) - 1]))]
    else:  # the numbers themselves: archives notice changed bytes
        arrays = {k: v.copy() for k, v in arrays_of(found["allgather"]).items()}
        array = arrays[data.draw(st.sampled_from(sorted(arrays)))].reshape(-1)
        array[data.draw(st.integers(0, len(array) - 1))] = data.draw(st.integers(-2, N + 1))
        body = body_of(arrays)
    signed(folder, key, bytes(body))
    build = next(a for a in algorithms_of("allgather") if a.needs == "forest").build
    for one in kept(folder, key, problem) or []:
        check(build(replace(recipe_of(N), forest=one.forest)))
        assert load_of(one.forest, problem.ways, own=True).max() == pytest.approx(one.seconds)


def test_a_forest_over_pairs_that_nothing_joins_counts_as_missing(tmp_path, problems):
    problem = problems["broadcast"]
    parents = np.zeros((1, N), dtype=np.int32)
    parents[0, 0] = -1
    star = Forest(parents, np.array([1], dtype=np.int32))
    busy = float(load_of(star, problem.ways, own=False).max())
    key = key_of(problem, np.arange(N))
    remember(tmp_path, key, [Packed(star, busy, 0.0, 1)])
    assert kept(tmp_path, key, problem) is not None
    apart = problem.ways.joined.copy()
    apart[0, 5] = False
    assert kept(tmp_path, key, replace(problem, ways=replace(problem.ways, joined=apart))) is None


# ---- the folder ---------------------------------------------------------------------------------


@pytest.fixture
def fresh(monkeypatch, found) -> list[int]:
    """Give what a search for a broadcast gives, and note how often it is asked for."""
    asked: list[int] = []

    def search(*_problem):
        asked.append(1)
        return found["broadcast"]

    monkeypatch.setattr("rccl_py.planner.packing.synthesis.packed", search)
    return asked


def anew(fabric: Fabric, folder: Path, fresh: list[int], found) -> bool:
    """Return whether a folder has a broadcast's forests searched for, and nothing else."""
    fresh.clear()
    return same(forests(fabric, "broadcast", folder=folder), found["broadcast"]) and len(fresh) == 1


def key_of_broadcast(fabric: Fabric) -> str:
    """Return the name of the file of a broadcast from rank 0."""
    order = np.lexsort((fabric.local, fabric.node))
    return key_of(problem_of(ways_of(fabric), "broadcast"), order)


@pytest.mark.parametrize("data", [b"", b"\x00" * 100, b"text", os.urandom(5000)], ids=len)
def test_a_broken_file_is_written_again(data, tmp_path, fabric, fresh, found):
    path = tmp_path / f"{key_of_broadcast(fabric)}.npz"
    path.write_bytes(data)
    assert anew(fabric, tmp_path, fresh, found)
    assert path.read_bytes() != data
    assert not anew(fabric, tmp_path, fresh, found) and not fresh  # read, not searched for
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_read_or_is_none_changes_nothing(
    tmp_path, fabric, fresh, found, monkeypatch
):
    (tmp_path / "file").write_text("a file in place of a folder")
    (tmp_path / "nowhere").symlink_to(tmp_path / "nowhere")
    path = tmp_path / "folder" / f"{key_of_broadcast(fabric)}.npz"
    path.mkdir(parents=True)  # a folder in place of a file
    for name in ("file", "nowhere", "folder", "x" * 300):
        assert anew(fabric, tmp_path / name, fresh, found)
    assert (tmp_path / "file").read_text() == "a file in place of a folder"
    assert [p.name for p in path.parent.iterdir()] == [path.name]  # nothing half written beside it

    def refused(*_args, **_more):
        raise PermissionError(13, "Permission denied")

    for place, name in ((Path, "stat"), (Path, "read_bytes"), (Path, "mkdir"), (os, "replace")):
        remember(tmp_path / "other", key_of_broadcast(fabric), [])  # a file is there to be read
        with monkeypatch.context() as patch:
            patch.setattr(place, name, refused)
            assert anew(fabric, tmp_path / "other", fresh, found)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
@pytest.mark.parametrize("mode", [0o000, 0o500])
def test_a_folder_without_rights_changes_nothing(mode, tmp_path, fabric, fresh, found):
    folder = tmp_path / "kept"
    folder.mkdir(mode=mode)
    assert anew(fabric, folder, fresh, found)
    folder.chmod(0o700)
    assert not list(folder.iterdir())


WRITER = """
import sys
from pathlib import Path
import numpy as np
from rccl_py.algorithms import Forest
from rccl_py.planner.packing.build import Packed
from rccl_py.planner.packing.cache import remember
k, folder = int(sys.argv[1]), Path(sys.argv[2])
one = Forest(np.zeros((1 + k, 50_000), np.int32), np.ones(1 + k, np.int32))
print("ready", flush=True)
sys.stdin.readline()
for _ in range(20):
    remember(folder, "0" * 40, [Packed(one, 1.0 + k, 0.0, 1)])
"""


def test_two_processes_that_write_at_once_leave_one_whole_file(tmp_path):
    run = [subprocess.Popen([sys.executable, "-c", WRITER, str(k), str(tmp_path)], text=True,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
           for k in range(2)]  # fmt: skip
    assert [p.stdout.readline() for p in run] == ["ready\n"] * 2
    for p in run:
        p.stdin.write("\n")
        p.stdin.flush()
    path, running = tmp_path / f"{'0' * 40}.npz", True
    while running:  # and once more at the end
        running = any(p.poll() is None for p in run)
        if path.exists() or not running:
            data = path.read_bytes()
            assert data[:32] == _digest("0" * 40, data[32:])
    assert [p.returncode for p in run] == [0, 0]
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
