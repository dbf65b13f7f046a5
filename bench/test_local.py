"""The local transport against this machine's own copy bandwidth, in one run."""

import time

import numpy as np

import rccl_py as rccl

RANKS, ELEMENTS = 8, 1 << 24  # 64 MiB of float32 a rank


def copy_bandwidth():
    """Return the best of five B/s (read + write) of numpy.copyto over 256 MiB."""
    source = np.ones(1 << 26, dtype=np.float32)
    target = np.zeros_like(source)
    best = 0.0
    for _ in range(5):
        start = time.perf_counter()
        np.copyto(target, source)
        best = max(best, 2 * source.nbytes / (time.perf_counter() - start))
    return best


def test_allreduce_of_64_mib_moves_data_at_half_of_copy_bandwidth(benchmark):
    comms = rccl.Communicator.init_all("mi300x-8")
    inputs = [np.full(ELEMENTS, r, dtype=np.float32) for r in range(RANKS)]
    outputs = [np.zeros(ELEMENTS, dtype=np.float32) for _ in range(RANKS)]

    def call():
        with rccl.group():
            for comm, x, y in zip(comms, inputs, outputs):
                comm.allreduce(x, y)

    copy = copy_bandwidth()
    benchmark.pedantic(call, rounds=7, warmup_rounds=2)
    assert (outputs[3] == sum(range(RANKS))).all()
    # The least a two-shot allreduce must touch: every input is read once; of every rank's
    # output its own eighth is written once, and the others are read once and written once.
    size = inputs[0].nbytes
    least = RANKS * (size + size / RANKS + 2 * size * (RANKS - 1) / RANKS)
    rate = least / benchmark.stats.stats.median
    benchmark.extra_info.update(
        {"copy GB/s": copy / 1e9, "allreduce GB/s": rate / 1e9, "ratio": rate / copy}
    )
    assert rate >= 0.5 * copy
