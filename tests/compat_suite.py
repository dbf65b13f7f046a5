"""Run mpi4py's own tests on rccl_py.compat.mpi: in this process of an MPI job, or as threads.

    python compat_suite.py prepare SOURCE TARGET
    mpirun -np 3 python compat_suite.py processes TARGET test_cco_buf test_cco_vec ...
    python compat_suite.py threads:3 TARGET test_cco_buf ...

SOURCE is the folder ``test`` of mpi4py's source archive; the copies in TARGET differ in what they
import as MPI. Prints one line a rank: how many ran and were skipped, and which failed.
"""

import importlib
import sys
import unittest
from pathlib import Path

import rccl_py as rccl
from rccl_py.compat import mpi as MPI

BACKENDS = ("ArrayArray", "ArrayNumPy")
"""Buffers the tests are run with. Not: DLPackArray and DLPackNumPy, whose tensors die with their
capsule, before NumPy gives them back; FakeGPU..., which say they were memory of a GPU."""
NOT_OFFERED = {
    "testPersistent": "persistent requests",
    "testProcNullPersistent": "persistent requests",
    "testConstructor": "persistent requests",
    "testISendrecv": "MPI 4",
    "testISendrecvReplace": "MPI 4",
    "testProcNullISendrecv": "MPI 4",
    "testCommLock": "internals of mpi4py",
}
CHANGES = {
    "from mpi4py import MPI": "from rccl_py.compat import mpi as MPI",
    '"mpi4py.MPI"': '"rccl_py.compat.mpi"',
}


def prepare(source, target):
    """Copy the tests, importing ours."""
    for path in Path(source).glob("*.py"):
        text = path.read_text()
        for theirs, ours in CHANGES.items():
            text = text.replace(theirs, ours)
        (Path(target) / path.name).write_text(text)


def load(folder, names):
    """Return a suite with modules of its own: they keep state that ranks must not share."""
    for path in Path(folder).glob("*.py"):
        sys.modules.pop(path.stem, None)
    backends = importlib.import_module("arrayimpl")
    backends.ArrayBackends[:] = [b for b in backends.ArrayBackends if b.__name__ in BACKENDS]
    suite = unittest.TestSuite()
    for name in names:
        for case in unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(name)):
            suite.addTests(t for t in case if t.id().rsplit(".", 1)[1] not in NOT_OFFERED)
    return suite


def told(rank, suite):
    """Run a suite as one rank and return the line about it."""
    result = unittest.TestResult()
    suite.run(result)
    bad = [(test.id(), text.strip().splitlines()[-1])
           for test, text in result.failures + result.errors]  # fmt: skip
    return f"rank {rank}: {result.testsRun} ran, {len(result.skipped)} skipped, {bad or 'all well'}"


def main(mode, folder, *names):
    if mode == "prepare":
        prepare(folder, *names)
        return
    sys.path.insert(0, folder)
    if mode == "processes":
        print(told(MPI.COMM_WORLD.rank, load(folder, names)), flush=True)
        return
    n = int(mode.split(":")[1])
    suites = [load(folder, names) for _ in range(n)]

    def rank(comm):
        MPI.use(comm)
        return told(comm.rank, suites[comm.rank])

    print("\n".join(rccl.run(rank, "mi300x-8", nranks=n)))


if __name__ == "__main__":
    main(*sys.argv[1:])
