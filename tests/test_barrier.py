"""Rounds: dissemination, the barrier it makes, and binomial trees."""

from __future__ import annotations

import json

import numpy as np
import pytest
from helpers import built

import rccl_py as rccl
from rccl_py import load, lower
from rccl_py.check import check
from rccl_py.cli.plan import main
from rccl_py.planner.barrier import plan_barrier


@pytest.mark.parametrize("n", [1, 2, 3, 5, 7, 8, 9, 31, 32, 33, 69])
def test_after_rounds_of_doubling_distance_every_rank_has_heard_from_every_other(n):
    schedule, distances = built("allgather", "dissemination", n), []
    check(schedule, steps=n < 10)
    for step in schedule:
        far = step.src != step.dst
        distances += sorted(set(((step.dst - step.src) % n)[far].tolist()))
        assert len(step.src) <= 2 * n
    assert distances == [1 << k for k in range((n - 1).bit_length())]


@pytest.mark.parametrize("name, nodes", [("mi300x-8", 1), ("h100-8", 4), ("mi300x-8-x128-rails", 1),
                                         ("gb200-nvl72", 1)])  # fmt: skip
def test_a_barrier_takes_its_rounds_of_hops_and_messages_or_one_of_all_to_all(name, nodes):
    fabric = lower(load(name, nodes=nodes) if nodes > 1 else load(name))
    found, n = plan_barrier(fabric), fabric.nranks
    assert found.rounds == (1 if found.algorithm == "direct" else (n - 1).bit_length())
    ranks = np.arange(n, dtype=np.int32)
    hop = min(fabric.latency(ranks, (ranks + 1) % n).min(axis=1))
    assert found.seconds >= fabric.launch + found.rounds * hop
    by_rounds = (n - 1).bit_length() * max(
        fabric.latency(ranks, (ranks + (1 << k)) % n)[0].max()
        + fabric.message(ranks, (ranks + (1 << k)) % n).max() for k in range((n - 1).bit_length())
    )  # fmt: skip
    assert found.seconds <= fabric.launch + by_rounds * (1 + 1e-9)


def test_one_rank_waits_for_nobody():
    fabric = lower(load("mi300x-8"), 1)
    assert plan_barrier(fabric).seconds == pytest.approx(fabric.launch)


@pytest.mark.parametrize("algo", [None, "tree", "nvls"])
def test_a_communicator_waits_as_long_whatever_algorithms_it_is_held_to(algo):
    comms = rccl.Communicator.init_all("h100-8", algo=algo)
    with rccl.group():
        for comm in comms:
            comm.barrier()
    wanted = plan_barrier(lower(load("h100-8"))).seconds
    assert [comm.elapsed for comm in comms] == pytest.approx([wanted] * 8)


def test_the_command_says_how_long_and_how(capsys):
    assert main(["barrier", "--topology", "h100-8", "--nodes", "4"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == "# barrier on h100-8, 32 ranks" and second.startswith("direct/")
    assert main(["barrier", "--topology", "h100-8", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["collective"], told["topology"], told["nranks"]) == ("barrier", "h100-8", 8)
    assert told["seconds"] == pytest.approx(plan_barrier(lower(load("h100-8"))).seconds)


@pytest.mark.parametrize("collective", ["broadcast", "reduce", "gather", "scatter"])
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 12, 31, 32, 33])
def test_in_a_binomial_round_a_rank_has_one_partner_and_the_farthest_comes_at_the_roots_end(
    collective, n
):
    root = n // 3
    rounds = [step for step in built(collective, "binomial", n, root)
              if (step.src != step.dst).any()]  # fmt: skip
    assert len(rounds) == (n - 1).bit_length()
    distances = []
    for step in rounds:
        busy = np.bincount(np.concatenate([step.src, step.dst]), minlength=n)
        assert busy.max() == 1
        (distance,) = {abs((d - root) % n - (s - root) % n) for s, d in zip(step.src, step.dst)}
        distances.append(int(distance))
    falling = [1 << k for k in reversed(range((n - 1).bit_length()))]
    assert distances == (falling if collective in ("broadcast", "scatter") else falling[::-1])
