"""MSCCL++ plans for tests: operands, operations, whole plans, and the same plan told otherwise."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
from helpers import is_right

from rccl_py.formats.mscclpp_json import read_mscclpp_text

MEMORY, PORT = {"channel_type": "memory"}, {"channel_type": "port"}


def near(kind: str, index: int, size: int = 1) -> dict:
    """Return an operand of the gpu's own."""
    return {"type": kind, "index": index, "size": size}


def far(number: int, index: int, size: int = 1) -> dict:
    """Return an operand of another gpu: remote buffer `number` of the thread block."""
    return {"buffer_id": number, "index": index, "size": size}


def op(name: str, src=(), dst=(), **more) -> dict:
    """Return an operation."""
    found = {"name": name, **more}
    if src:
        found["src_buff"] = list(src)
    if dst:
        found["dst_buff"] = list(dst)
    return found


def signal(name: str, *channels: int, kind: str = "memory") -> dict:
    """Return a signal, or a wait, on memory channels; a flush of port channels."""
    return {"name": name, "channel_ids": list(channels), "channel_type": kind}


def plan_of(programs: list[list[list[dict]]], collective: str = "allreduce", chunks=(1, 1, 4),
            groups: bool = False, semaphores: int = 1, **more) -> dict:  # fmt: skip
    """Return a plan: for every gpu, thread blocks, each a list of operations.

    Channel k of a gpu, memory or port, leads to its k-th other gpu; remote buffers are i, o and s
    of each of them.
    """
    n, gpus = len(programs), []
    for rank, thread_blocks in enumerate(programs):
        others = [r for r in range(n) if r != rank]
        channels = [{**kind, "connected_to": others} for kind in (MEMORY, PORT)]
        entries = [{**kind, "channel_ids": list(range(len(others)))} for kind in (MEMORY, PORT)]
        if groups:
            group = {"size": n, "ranks": list(range(n))}
            channels.append({"channel_type": "switch", "buffer_type": "i", "rank_groups": [group]})
            entries.append({"channel_type": "switch", "channel_ids": [0]})
        refs = [
            {"access_channel_type": kind, "remote_buffer_ids": list(range(3 * len(others)))}
            for kind in ("memory", "port")
        ]
        gpus.append({
            "id": rank, "input_chunks": chunks[0], "output_chunks": chunks[1],
            "scratch_chunks": chunks[2], "channels": channels,
            "semaphores": [{"init_value": 0}] * semaphores,
            "remote_buffers": [{"rank": r, "type": t, "access_channel_types": ["memory", "port"]}
                               for r in others for t in "ios"],
            "threadblocks": [{"id": k, "ops": ops, "channels": entries, "remote_buffer_refs": refs}
                             for k, ops in enumerate(thread_blocks)],
        })  # fmt: skip
    return {"name": "test", "collective": collective, "protocol": "Simple", "inplace": True,
            "reuse_resources": False, "gpus": gpus, "num_threads_per_block": 1024,
            "use_double_scratch_buffer": False, "buffer_alignment": 16, "min_message_size": 0,
            "max_message_size": 2**64 - 1, **more}  # fmt: skip


def read(plan: dict):
    """Return the schedule of a plan."""
    return read_mscclpp_text(json.dumps(plan).encode(), Path("a.json"))


def works(plan: dict) -> bool:
    """Return whether the schedule does its collective on numbers, out of place and in place."""
    schedule = read(plan).schedule
    return all(is_right(schedule, np.random.default_rng(0), in_place) for in_place in (False, True))


PUT = [
    [[op("put", [near("i", 0)], [far(2, r)], **MEMORY), signal("signal", 0), signal("wait", 0),
      op("re", [near("i", 0), near("s", 1 - r)], [near("i", 0)])]]
    for r in range(2)
]  # fmt: skip
"""An allreduce of two gpus: put into the other's scratch, signal, wait, add."""


def reordered(plan: dict, orders: list[list[int]]) -> dict:
    """Return the same plan with the thread blocks of gpu r in the order `orders[r]`."""
    plan = copy.deepcopy(plan)
    for gpu, order in zip(plan["gpus"], orders):
        old = gpu["threadblocks"]
        gpu["threadblocks"] = [old[k] | {"id": new} for new, k in enumerate(order)]
    return plan


def renumbered(plan: dict, to: list[int]) -> dict:
    """Return the same allreduce with gpu r called to[r]."""
    plan = copy.deepcopy(plan)
    for gpu in plan["gpus"]:
        gpu["id"] = to[gpu["id"]]
        for channel in gpu["channels"]:
            if "connected_to" in channel:
                channel["connected_to"] = [to[r] for r in channel["connected_to"]]
            for group in channel.get("rank_groups", []):
                group["ranks"] = [to[r] for r in group["ranks"]]
        for buffer in gpu["remote_buffers"]:
            buffer["rank"] = to[buffer["rank"]]
    return plan
