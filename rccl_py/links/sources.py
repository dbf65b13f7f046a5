"""Where the figures of links, switches, devices and registrations come from, by letter."""

from __future__ import annotations

__all__ = ["SOURCES"]

SOURCES: dict[str, str] = {
    "A": 'AMD ROCm blog "MI300X RCCL xGMI" (2025-03-02): TransferBench all-to-all 45.1-47.2, mean '
    "46.55 GB/s a link; all_reduce of 1 KiB 12.8 us launched, 7.5 us in a graph",
    "B": "RCCL tuning tables (gfx90a model 0-4, gfx942 model 5): hop latencies per protocol",
    "C": "OLCF/LUMI osu_bw between the GCDs of one node (ROCm 5.4), arXiv 2302.14827: 142 over 4 "
    "links, 69-76 over 2, 35-39 over 1",
    "D": "oci-gpu-quickstarts: MI355X all_reduce 402-409 GB/s, MI350X 367 GB/s busbw over 7 links",
    "E": "NVIDIA NCCL src/graph/tuning.cc (2.30): hop latencies per protocol",
    "F": "nccl-tests tables: H200 ring 363-367 of 450, B200 678-682 of 900, A100 222 of 300, V100 "
    "134.7 of 150 GB/s (github Panlichen/nccl-tests)",
    "G": "UALink consortium: 93 % effective peak; switch hop <= 150 (25T), < 200 (50T), < 250 ns "
    "(100T) with 400G ports; lanes of 106.25, 128 and 212.5 Gb/s in ports of 1, 2 and 4",
    "H": "PCI-SIG rates; usable part from bandwidth tests (gen 4 25-26, gen 5 52-55, gen 6 ~105 "
    "GB/s x16)",
    "I": "AMD Pollara: all_to_all 45.5 GB/s a NIC on two nodes, 9.2 M messages/s",
    "K": "RCCL/NCCL topology constants (GB/s per link) where nothing better is published",
    "L": "nccl-tests small-message latencies against rank count: intercept = launch, slope = hop",
    "M": "NCCL alltoall latency on H100: 37, 42, 60, 98, 290 us at 2, 4, 8, 16, 32 nodes of 8, so "
    "0.4 to 1.1 us a remote peer (meta-pytorch/autoparallel, fitted to measurements)",
    "N": "data sheets and specifications: raw rate, lanes, memory bandwidth",
    "O": "Broadcom: Tomahawk Ultra 250 ns ball to ball, < 400 ns XPU to XPU, header 46 -> 10 B",
    "P": "arXiv 2508.11298 (MI300A): 81 % of 2 x 64 GB/s between APUs",
    "Q": 'Google Cloud TPU v4 and v5p pages; "How to scale your model": 45 and 90 GB/s a link',
    "R": "usual figures of switch vendors and the trade press: port-to-port latencies",
    "S": "arXiv 2008.08886 (Slingshot): Rosetta about 350 ns port to port",
    "T": "BabelStream copy: MI300X 4.26, MI250 GCD 1.2, MI210 1.23, MI300A 2.9 TB/s",
    "U": "amdgpu kernel driver: SDMA engines (2 and 14 for xGMI on gfx942; 2 and 3 on gfx90a); "
    "TransferBench: 48.35 GB/s an engine over one xGMI link of MI300X",
    "V": "GB300 nvbandwidth: 776 of 900 GB/s by copy engine to one peer; deviceQuery: number of "
    "copy engines",
    "W": "ROCm/mori pull request 679: hipHostRegister of 1.5 TB on MI355X 242 s in 4 KiB and 98 s "
    "in 2 MiB pages",
    "X": "openucx/ucx issue 5098: ucp_mem_map of 144 B 37-92 us, the first 223 us",
    "Y": "eunomia-bpf/bpftime issue 506: cuIpcOpenMemHandle 122-273 us, mean 197 us",
    "Z": "ofiwg/libfabric issue 4738 (256 GB in > 20 s) and kvcache-ai/Mooncake issue 848 (500 GB "
    "in > 87 s): 0.3 to 0.7 us per 4 KiB page",
    "AA": "NVIDIA GPUDirect RDMA documentation: GPU pages of 64 KiB are pinned for a NIC",
    "AB": "nccl-tests on RTX 4090 (no P2P, through host memory): 16.2 or 2.6 GB/s; 2 L40S 20.1",
    "AE": "fitted to published tables: rccl_py/links/fitted.py says which, docs/validation.md how "
    "well",
    "AC": "kvcache-ai/Mooncake pull request 3210: registering GPU memory on EFA (p5.48xlarge)",
}
"""Letter to source; "assumed" in a row means that there is none."""
