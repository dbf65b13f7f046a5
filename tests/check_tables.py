"""Graphs of the machines that papers on synthesis of collectives use, by their figures in GB/s."""

from __future__ import annotations

from itertools import combinations, product

from rccl_py.fabric.graph import Graph

DGX1 = ["02112000", "20120100", "11020020", "12200001", "20000211", "01002012", "00201102",
        "00011220"]  # NVLinks between every two GPUs  # fmt: skip
MI250 = ("0-1:4 0-4:2 0-8:1 1-5:1 1-9:1 1-10:1 2-3:4 2-6:1 2-9:1 2-10:1 3-7:2 3-11:1 4-5:4 4-6:1 "
         "5-6:1 5-7:1 6-7:4 8-9:4 8-12:2 9-13:1 10-11:4 10-14:1 11-15:2 12-13:4 12-14:1 13-14:1 "
         "13-15:1 14-15:4")  # fmt: skip

Edges = list[tuple[str, str, float]]


def both(a: str, b: str, rate: float) -> Edges:
    return [(a, b, rate), (b, a, rate)]


def ranks(boxes: int, gpus: int) -> list[str]:
    return [f"{c}.{i}" for c in range(boxes) for i in range(gpus)]


def graph(edges: Edges, boxes: int, gpus: int, adds: tuple[str, ...] = ()) -> Graph:
    return Graph.of_edges(edges, ranks(boxes, gpus), adds)


def dgx1(rate: float = 25.0, boxes: int = 1) -> Edges:
    return [(f"{c}.{i}", f"{c}.{j}", rate * int(DGX1[i][j])) for c in range(boxes)
            for i in range(8) for j in range(8) if DGX1[i][j] != "0"]  # fmt: skip


def mi250(boxes: int = 1, gcds: int = 16, rate: float = 50.0) -> Edges:
    found: Edges = []
    for pair, lanes in (edge.split(":") for edge in MI250.split()):
        a, b = map(int, pair.split("-"))
        if max(a, b) < gcds:
            for c in range(boxes):
                found += both(f"{c}.{a}", f"{c}.{b}", rate * int(lanes))
    return found


def starred(boxes: int, gpus: int, rate: float, planes: int = 1) -> Edges:
    return [edge for c, i, k in product(range(boxes), range(gpus), range(planes))
            for edge in both(f"{c}.{i}", f"{c}.plane{k}", rate)]  # fmt: skip


def meshed(boxes: int, gpus: int, rate: float) -> Edges:
    return [edge for c in range(boxes) for i, j in combinations(range(gpus), 2)
            for edge in both(f"{c}.{i}", f"{c}.{j}", rate)]  # fmt: skip


def railed(boxes: int, gpus: int, rate: float, rails: int | None = None) -> Edges:
    if boxes == 1:
        return []
    return [edge for c, i in product(range(boxes), range(gpus))
            for edge in both(f"{c}.{i}", f"rail{i % (rails or gpus)}", rate)]  # fmt: skip


def ndv2(boxes: int) -> Graph:
    edges = dgx1(boxes=boxes)
    if boxes == 2:
        edges += [("0.0", "1.1", 12.5), ("1.0", "0.1", 12.5)]
    else:
        edges += [e for c in range(boxes) for e in ((f"{c}.0", "sw", 12.5), ("sw", f"{c}.1", 12.5))]
    return graph(edges, boxes, 8)


def dgx2x2() -> Graph:
    across = [(f"{c}.{i}", f"{1 - c}.{i - 1}", 12.5) for c in (0, 1) for i in range(1, 16, 2)]
    return graph(starred(2, 16, 125) + across, 2, 16)


def a100(boxes: int) -> Graph:
    adds = tuple(f"{c}.plane0" for c in range(boxes))
    return graph(starred(boxes, 8, 300) + railed(boxes, 8, 25, 2), boxes, 8, adds)


def h100(boxes: int, down: int | None = None) -> Graph:
    rails = [e for e in railed(boxes, 8, 50) if down is None or f"0.{down}" not in e[:2]]
    adds = tuple(f"{c}.plane0" for c in range(boxes))
    return graph(starred(boxes, 8, 450) + rails, boxes, 8, adds)


def mi300x(boxes: int, link: float = 64.0, gpus: int = 8) -> Graph:
    """`link`: GB/s of what joins ranks 0 and 1 of box 0; 0 where it is down."""
    edges = [(a, b, link if {a, b} == {"0.0", "0.1"} else rate)
             for a, b, rate in meshed(boxes, gpus, 64)]  # fmt: skip
    edges = [edge for edge in edges if edge[2]] + railed(boxes, gpus, 50)
    return graph(edges, boxes, gpus)


def mi250_boxes(boxes: int, gcds: int = 16) -> Graph:
    return graph(mi250(boxes, gcds) + railed(boxes, gcds, 16, 1), boxes, gcds)


def amd4() -> Graph:
    return graph([e for a, b in ((0, 1), (0, 2), (1, 3), (2, 3))
                  for e in both(f"0.{a}", f"0.{b}", 1.0)], 1, 4)  # fmt: skip


def ualink(pods: int, gpus: int, nic: float = 50.0) -> Graph:
    return graph(starred(pods, gpus, 200, 4) + railed(pods, gpus, nic), pods, gpus)


def grid(dims: tuple[int, ...], rates: tuple[float, ...], wrap: bool) -> Graph:
    """A torus (a mesh without wrap); a ring of two is one link."""
    points = list(product(*map(range, dims)))
    edges: Edges = []
    for point in points:
        for d, size in enumerate(dims):
            there = list(point)
            there[d] = (point[d] + 1) % size
            if size > 1 and (point[d] + 1 < size or (wrap and size > 2)):
                edges += both(str(point), str(tuple(there)), rates[d])
    return Graph.of_edges(edges, [str(point) for point in points])
