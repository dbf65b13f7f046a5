"""One contract for ranks in threads and in processes: what NumPy gives, and the same bits.

The contract is contract.py; under mpirun it is run by mpi_contract.py.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import contract
import numpy as np
import pytest
from mpirun import mpirun

import rccl_py as rccl
from rccl_py import Communicator

FULL = (1, 2, 3)
"""Sizes of the whole contract; the others' is shorter."""


@cache
def in_threads(n: int, length: str) -> list[dict[str, str]]:
    """Return every rank's digests of a run in threads."""
    machine, algo = contract.settings(n, length)
    return rccl.run(contract.run, machine, length, nranks=n, algo=algo)


@pytest.mark.parametrize("n", [*range(1, 17), 24, 27])
def test_ranks_in_threads_keep_the_contract(n):
    found = in_threads(n, "full" if n in FULL else "short" if n <= 16 else "few")
    assert len(found) == n and all(list(f) == list(found[0]) for f in found)


JOBS = {
    "1": ("1:full:shared", "1:full:messages"),
    "2": ("2:full:shared", "2:full:messages"),
    "3": ("3:full:shared", "3:full:messages"),
    "4 and 5": ("5:short:shared", "5:short:messages", "4:short:shared", "4:short:messages"),
    "8": ("8:short:shared", "8:short:messages"),
    "16, 24 and 27": ("27:few:shared", "27:few:messages", "24:few:messages", "16:few:shared"),
    "3 on 3 hosts": ("3:short:hosts",),
}  # fmt: skip


@pytest.mark.mpi
@pytest.mark.parametrize("runs", JOBS.values(), ids=JOBS)
def test_processes_keep_the_contract_and_give_the_bits_of_threads(runs, tmp_path: Path):
    """Ranks on several hosts are simulated: MPI is made to say that they share no memory.

    Two network namespaces would need a second PMIx daemon reachable by a launch agent, which this
    mpirun has none of; what the hosts' processes use is the same, board and data as messages.
    """
    most = max(int(run.split(":")[0]) for run in runs)
    program = Path(__file__).with_name("mpi_contract.py")
    done = mpirun(most, str(program), str(tmp_path), *runs, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    for run in runs:
        size, length, _ = run.split(":")
        wanted = in_threads(int(size), length)
        for rank in range(int(size)):
            found = json.loads((tmp_path / f"{run}-{rank}.json").read_text())
            differ = [name for name in wanted[rank] if found.get(name) != wanted[rank][name]]
            assert not differ, f"{run}, rank {rank}: other bits than in threads in {differ}"


# ---- the contract can fail ----------------------------------------------------------------------

WRONG = {
    "a bit of a result": ("allreduce", lambda target: target.view(np.uint8)[-1:].__ixor__(1)),
    "a block in another's place": ("allgather", lambda target: target[:1].__iadd__(1)),
    "a message's last byte": ("recv", lambda target: target.view(np.uint8)[-1:].__ixor__(1)),
}


@pytest.mark.parametrize("name, spoil", WRONG.values(), ids=WRONG)
def test_one_wrong_bit_at_one_rank_breaks_the_contract(name, spoil, monkeypatch):
    right = getattr(Communicator, name)

    def wrong(self, *args, **more):
        result = right(self, *args, **more)
        target = args[0 if name == "recv" else 1]
        if self.rank == 1 and isinstance(target, np.ndarray) and target.size:
            spoil(target)
        return result

    monkeypatch.setattr(Communicator, name, wrong)
    with pytest.raises(AssertionError, match="rank 1: element"):
        in_threads.__wrapped__(2, "short")
