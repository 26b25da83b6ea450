# SPDX-License-Identifier: Apache-2.0
"""Valid inputs of every format that `orrery` reads, and the command that reads each.

A Format has the text (or bytes) of a valid file, the name that the mutated file gets in the folder of its case, the
other files that stand beside it there, and the arguments of commands that read it. "written" among them is a file that
does not exist yet.
"""
import dataclasses
import gzip
import json
import pathlib
import pickle
import sqlite3
import struct
import subprocess
import sys
import tempfile


@dataclasses.dataclass
class Format:
    name: str
    kind: str          # "json", "lines", "timeline", "safetensors", "bytes" or "arguments": how it is mutated
    seed: bytes
    file: str
    arguments: list    # of orrery: several commands, of which a case takes one
    beside: dict = dataclasses.field(default_factory=dict)
    environment: dict = dataclasses.field(default_factory=dict)
    weight: int = 4
    exit_code: int = 0  # of the seed


EDGES = b"""# two leaves of two nodes
port0.0 leafA 400Gb/s
port1.0 leafA 400Gb/s
port2.0 leafB 400Gb/s
port3.0 leafB 400Gb/s
leafA spine1 400Gb/s 500ns
leafB spine1 400Gb/s 500ns
"""

NCCL_XML = b"""<system version="1">
<cpu numaid="0" vendor="AuthenticAMD" modelid="1">
<pci busid="0:1" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">
<pci busid="0:2" link_speed="16.0 GT/s PCIe" link_width="16"><gpu dev="0" sm="80"><nvlink target="0:3" count="2"/></gpu></pci>
<pci busid="0:3" link_speed="16.0 GT/s PCIe" link_width="16"><gpu dev="1" sm="80"><nvlink target="0:2" count="2"/></gpu></pci>
<pci busid="0:4" link_speed="8.0 GT/s PCIe" link_width="16"><nic><net name="mlx5_0" speed="100000"/></nic></pci>
</pci>
</cpu>
<cpu numaid="1"><pci busid="1:2" link_speed="16.0 GT/s PCIe" link_width="16"><gpu dev="2" sm="80"/></pci></cpu>
</system>
"""

NVIDIA_SMI = (b"\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\x1b[0m\n"
              b"GPU0\t X \tNV12\tNV12\tPIX\t0-3\nGPU1\tNV12\t X \tNV12\tSYS\nGPU2\tNV12\tNV12\t X \tSYS\n"
              b"NIC0\tPIX\tSYS\tSYS\t X \n")

NCCL_TESTS = b"""# nThread 1 nGpus 1 minBytes 8 maxBytes 1048576 step: 2(factor)
# all_reduce_perf
# Using devices
#  Rank  0 Group  0 Pid 1 on a device  0 [0x1b] NVIDIA H100
#  Rank  1 Group  0 Pid 2 on a device  1 [0x43] NVIDIA H100
#       size         count      type   redop    root     time   algbw   busbw #wrong
        1024           256     float     sum      -1    11.50    0.09    0.09      0
       65536         16384     float     sum      -1    13.20    4.96    4.96      0
     1048576        262144     float     sum      -1    21.80   48.10   48.10      0
"""

SWF = b"""; Version: 2.2
; MaxProcs: 32
1 100 -1 3600 16 -1 -1 32 7200 -1 1 7 2 -1 3 -1 -1 -1
2 160 5 60 8 -1 -1 -1 -1 -1 1 9 2 -1 3 -1 -1 -1
3 170 5 90 1 -1 -1 1 900 -1 0 9 2 -1 3 -1 -1 -1
"""

TRACE_CSV = b"""job_id,user,vc,gpu_num,cpu_num,state,submit_time,duration,queue
77,ann,vc1,8,64,COMPLETED,2020-02-29 23:59:30,120,0
78,"bob, jr",vc2,16,64,COMPLETED,2020-02-29 23:59:40,120,0
79,ann,vc2,1,6,CANCELLED,2020-03-01T00:00:30,0.5,0
"""

JOBS = {
    "policy": {"order": "priority", "backfill": "easy", "backfill_depth": 10, "preemption": "lower-priority",
               "placement": "spread", "half_life": "1 day"},
    "tenants": [{"name": "a", "share": 2, "quota": 32}, {"name": "b"}],
    "jobs": [{"name": "x", "tenant": "a", "devices": 16, "duration": "4 h", "requested": "5 h", "count": 3, "network": 0.2,
              "checkpoint": {"interval": "1 h", "cost": "1 min"}, "restart": "2 min"},
             {"name": "y", "tenant": "b", "submit": "2 h", "nodes": 3, "duration": "1 h", "priority": 5, "image": "i:1",
              "command": "true"},
             {"tenant": "a", "scenario": "llama2-7b-8k-a100", "nodes": 2, "steps": 100}]}

NCCL_TESTS_JSON = {
    "version": 1, "args": ["all_reduce_perf", "-J", "x.json"], "devices": [{"rank": 0}, {"rank": 1}],
    "results": [{"size": 1024, "count": 256, "type": "float", "redop": "sum", "root": -1,
                 "out_of_place": {"time": 11.5, "alg_bw": 0.09, "bus_bw": 0.09, "nwrong": 0}},
                {"size": 65536, "out_of_place": {"time": 13.2}}]}

def kineto(rank):
    """A step of a rank of two: a product, and an all-reduce of which rank 1 comes late."""
    def kernel(number, name, stream, start, length, **args):
        launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 4000, "tid": 4000,
                  "ts": start - 9.5, "dur": 1, "args": {"correlation": number}}
        return [launch, {"ph": "X", "cat": "kernel", "name": name, "pid": rank, "tid": stream, "ts": start,
                         "dur": length, "args": {"correlation": number, "stream": stream, **args}}]
    group = {"Collective name": "allreduce", "Process Group Name": "0", "Process Group Ranks": "[0, 1]",
             "Group size": 2, "In msg nelems": 1048576, "Out msg nelems": 1048576, "dtype": "BFloat16", "Seq": 7}
    return {"schemaVersion": 1, "baseTimeNanoseconds": 1700000000000000000,
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2},
            "traceEvents": [
                {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "pid": 4000, "tid": 4000, "ts": 900,
                 "dur": 500},
                {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 4000, "tid": 4000, "ts": 1000.5, "dur": 5},
                *kernel(1, "nvjet_tst_128x256", 7, 1001.25, 40.5),
                *kernel(2, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 20, 1050 + 20 * rank, 90.0 - 20 * rank, **group),
                {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD", "pid": rank, "tid": 7, "ts": 1160, "dur": 2}]}


def nsight():
    """An export of Nsight Systems with a kernel of each of two devices."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "run.sqlite"
        db = sqlite3.connect(file)
        db.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL)")
        db.execute("INSERT INTO StringIds VALUES (1, 'gemm'), (2, 'ncclDevKernel_SendRecv')")
        db.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, "
                   "streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER)")
        for device in (0, 1):
            for kernel, name in enumerate((1, 2)):
                db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, 7, ?, ?, ?)",
                           (1000 * kernel, 1000 * kernel + 900, device, kernel, 77 << 24, name))
        db.commit()
        db.close()
        return file.read_bytes()


def flight(rank):
    """What a rank's flight recorder says of two collectives, of which rank 1 has not called the second."""
    def call(number, state):
        return {"process_group": ["0", "default_pg"], "collective_seq_id": number, "p2p_seq_id": 0, "is_p2p": False,
                "profiling_name": "nccl:all_reduce", "input_sizes": [[1024, 8]], "input_dtypes": ["Float"],
                "state": state, "time_created_ns": 1700000000000000000 + number}
    return {"version": "2.10", "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
            "entries": [call(3, "completed"), *([call(4, "scheduled")] if rank == 0 else [])]}


COLLECTIVES = [
    {"id": "a", "system": "DGX H100, NVLink", "collective": "all_reduce", "algo": None, "gpus": 8, "nodes": 1,
     "message_bytes": 1 << 30, "time_us": 4000.5, "basis": "measured"},
    {"id": "b", "system": "A100 4x200G", "collective": "alltoall", "algo": "Ring", "gpus": 16, "nodes": 2,
     "message_bytes": 1 << 24, "time_us": 900, "basis": None}]

GEMM = (b"gpu,dtype,m,n,k,ms,kernel\nA100-SXM4-80GB,bf16,4096,4096,4096,0.6,a\n"
        b"H100-SXM5-80GB,fp16,8192,8192,1024,0.3,b\n")
ATTENTION = (b"gpu,dtype,batch,seq,heads,kv_heads,head_dim,ms,kernel\nA100-SXM4-80GB,bf16,4,4096,32,8,128,2.5,a\n")

CONFIG = {"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
          "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "head_dim": None,
          "max_position_embeddings": 8192, "rope_theta": 500000.0, "tie_word_embeddings": False}

TOKENS = struct.pack("<256i", 20240520, 1, 400, *([0] * 253)) + bytes(i % 256 if i % 2 == 0 else 0 for i in range(800))

ARGUMENTS = [
    ["simulate", "plan.json", "--slow", "3:1.3", "--fold", "ranks"],
    ["simulate", "plan.json", "--trace", "written", "--window", "0s:5ms"],
    ["plan", "scenario.json", "--top", "2", "--goal", "time", "--threads", "1"],
    ["topology", "show", "p4d", "--nodes", "4", "--json"],
    ["topology", "import", "edges.txt", "--device", "h100-sxm", "--intra", "900 GB/s", "--nic", "3200 Gb/s",
     "--devices-per-node", "8", "--name", "mine", "--format", "edges", "-o", "written"],
    ["links", "import", "nccl.txt", "--base", "nvlink4-h100", "--name", "mine", "--ranks", "8", "--collective",
     "all-gather", "--system", "a node", "-o", "written"],
    ["collective", "dgx-h100", "--nodes", "4", "--ranks", "16", "--stride", "2", "--bytes", "64 MiB", "--collective",
     "all-to-all", "--algorithm", "direct", "--chunks", "4", "--shuffle", "3", "--imbalance", "1.5"],
    ["run", "plan.json", "--steps", "1", "--seed", "1", "--learning-rate", "0.01", "--warm-up", "2", "--decay-to", "0.5",
     "--weight-decay", "0.1", "--held-out", "0.05", "--link", "200 MB/s", "--link-latency", "20 us", "--slow", "0:1.1",
     "--collectives", "ring", "--deadline", "20"],
    ["compare", "chrome.json", "chrome.json", "--top", "3"],
    ["export", "plan.json", "--to", "megatron"],
    ["reliability", "scenario.json", "--rates", "llama-3", "--runs", "20", "--seed", "3", "--deadline", "1 h", "--confidence",
     "0.8", "--advice-runs", "20", "--threads", "1"],
    ["model", "show", "llama-3-8b"],
    ["schema", "plan"]]


def read_json(path):
    return json.loads(pathlib.Path(path).read_text())


def encoded(value):
    return json.dumps(value).encode()


def formats(orrery, root, folder):
    """All formats. Those that orrery writes itself are made in `folder` first."""
    root, folder = pathlib.Path(root), pathlib.Path(folder)
    scenario = read_json(root / "scenarios/tiny-cpu.json")
    tiny = root / "scenarios/tiny-cpu.json"

    def make(*arguments):
        subprocess.run([orrery, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, timeout=300)

    plan, chrome, binary = folder / "plan.json", folder / "trace.json", folder / "trace.timeline"
    checkpoints, proxy = folder / "checkpoints", folder / "proxy.json"
    make("plan", tiny, "--threads", "1", "-o", plan)
    make("simulate", plan, "--trace", chrome)
    make("simulate", plan, "--trace", binary)
    make("run", tiny, "--steps", "2", "--checkpoints", checkpoints)
    make("run", tiny, "--steps", "1", "--proxy", proxy)
    weights = folder / "weights.safetensors"
    make("model", "export", tiny, "--checkpoints", checkpoints, "-o", weights)
    (step,) = [p for p in checkpoints.iterdir() if p.is_dir()]

    cluster = read_json(root / "topologies/laptop-cpu.json")
    cluster.update({"device": "device.json", "links": "links.json", "nodes": 4, "devices_per_node": 4})
    cluster.pop("intra_bandwidth", None)
    device = read_json(root / "profiles/cpu-reference.json")
    links = read_json(root / "profiles/links/nvlink3-a100.json")
    links["measured"] = links["measured"][:2]
    stack = read_json(root / "profiles/stacks/orrery.json")
    whole = dict(scenario, cluster={"topology": "cluster.json"}, stack="stack.json")
    beside = {"cluster.json": encoded(cluster), "device.json": encoded(device), "links.json": encoded(links),
              "stack.json": encoded(stack), "scenario.json": encoded(whole)}
    graph = dict(cluster, fabric={
        "kind": "graph", "routing": "minimal", "faults": [{"from": "leafA", "to": "spine", "remaining": 0.5}],
        "cables": [{"from": f"port{n}.{r}", "to": "leaf" + "AB"[n // 2], "bandwidth": "50 GB/s", "latency": "1 us"}
                   for n in range(4) for r in range(cluster.get("nics", 1))] +
                  [{"from": f"leaf{l}", "to": "spine", "bandwidth": "50 GB/s"} for l in "AB"]})
    inside = dict(cluster, inside=[{"from": f"gpu{g}", "to": "plx", "bandwidth": "20 GB/s"} for g in range(4)] +
                  [{"from": "nic0", "to": "plx", "bandwidth": "12 GB/s"}], nics=1)
    trees = dict(cluster, nodes=32, fabric={
        "kind": "rail-optimized", "levels": 3, "leaf_nodes": 4, "pod_leaves": 2, "oversubscription": 2,
        "pod_oversubscription": 1, "routing": "ecmp", "seed": 7, "sites": 2, "site_bandwidth": "800 Gb/s",
        "site_latency": "1 ms", "switch_latency": "500 ns", "port_cost": "$500"})
    torus = dict(cluster, nodes=16, fabric={"kind": "torus", "routing": "minimal", "dimensions": [4, 2, 2]})
    dragonfly = dict(cluster, nodes=32, fabric={"kind": "dragonfly", "routing": "adaptive", "router_nodes": 2,
                                                "group_routers": 4, "oversubscription": 2})

    rows = read_json(root / "tests/data/training_runs.json")
    rows = [r for r in rows if r["outcome"] == "ok" and not r.get("consistency_issues")][::40][:3]
    out = []

    def add(*arguments, **options):
        out.append(Format(*arguments, **options))

    def others(name):
        return {k: v for k, v in beside.items() if k != name}

    simulate = [["simulate", "scenario.json"], ["simulate", "scenario.json", "--trace", "written"]]
    add("scenario", "json", beside["scenario.json"], "scenario.json",
        simulate + [["plan", "scenario.json", "--threads", "1", "--top", "1", "-o", "written"],
                    ["export", "scenario.json", "--to", "megatron", "--launcher", "slurm"]], others("scenario.json"), weight=8)
    operated = dict(whole, training=dict(whole["training"], tokens=1e9), node_hour="$3", reliability={
        "rates": "rates.json", "step_time": "2 s", "steps": 20000,
        "failures": {"hardware_per_node_day": 0.5, "software_per_job_day": 0.1, "detection": "60 s", "repair": "6 h"},
        "silent": {"per_node_day": 0.05}, "restart": {"hardware": "hot-spare", "software": "in-place"},
        "checkpoint": {"kind": "memory", "interval": "30 min", "memory_interval": "1 min", "bytes": "20 GB", "replicas": 2},
        "spares": {"nodes": 1}, "stragglers": {"slow_per_node_day": 0.3, "rank_noise": 0.02, "imbalance": 1.1},
        "maintenance": {"every": "3 days", "lasts": "1 h"}, "preemption": {"per_node_day": 0.5, "notice": "2 min"},
        "prices": {"payment": "spot", "spot_node_hour": "$1", "reserved_node_hour": "$2", "reserved_term": "10 days",
                   "spot_prices": "prices.csv"},
        "ownership": {"node": "$300000", "switch_port": "$1000", "switch_ports": 8, "lifetime": "1461 days", "residual": 0.1,
                      "maintenance": 0.05, "interest": 0.05, "used": 0.9, "hosting_kw_month": "$150", "staff_node_year": "$2000"},
        "energy": {"device_watts": 300, "kwh": "$0.1", "carbon_g_per_kwh": 400}})
    rates = read_json(root / "profiles/reliability/byterobust-moe.json")
    reliability = [["reliability", "scenario.json", "--runs", "20", "--no-advice", "--threads", "1"],
                   ["reliability", "scenario.json", "--runs", "20", "--advice-runs", "20", "--json"]]
    prices = b"time,price\n2024-05-01 00:00:00,1.5\n2024-05-01 06:00:00,0.9\n2024-05-02 00:00:00,0.9\n"
    aside = dict(beside, **{"scenario.json": encoded(operated), "rates.json": encoded(rates), "prices.csv": prices})

    def without(name):
        return {k: v for k, v in aside.items() if k != name}

    add("reliability of a scenario", "json", encoded(operated), "scenario.json", reliability, without("scenario.json"),
        weight=6)
    add("reliability profile", "json", encoded(rates), "rates.json", reliability, without("rates.json"))
    add("spot prices", "lines", prices, "prices.csv", reliability, without("prices.csv"))
    loading = dict(whole, training=dict(whole["training"], tokens=1e9), loading={
        "sample_bytes": "100 kB", "storage_bandwidth": "20 MB/s", "node_bandwidth": "10 MB/s", "worker_bandwidth": "5 MB/s",
        "latency": "2 ms", "samples_per_read": 4, "cpu_time": "3 ms", "cores": 4, "workers": 2, "prefetch": 2, "batch": "step",
        "variation": 0.5, "readers": "rank", "shuffle": "shard", "dataset_bytes": "10 GB", "cache_bytes": "1 GB",
        "bandwidth_month": "$500"})
    add("loading of a scenario", "json", encoded(loading), "scenario.json",
        simulate + [["plan", "scenario.json", "--threads", "1", "--top", "1"]], others("scenario.json"), weight=6)
    life = {"schema": "orrery.life/1", "program": "1", "ranks": 4, "steps": 20, "checkpoint_every": 4, "failures": 2,
            "memory_every": 2, "memory_replicas": 2,
            "faults": [{"kind": "disk", "rank": 0, "step": 4}, {"kind": "dead", "rank": 1, "step": 7}],
            "times": {"total": "50 s", "progress": "40 s"},
            "measured": {"step": "2 s", "checkpoint": "0.5 s", "memory_checkpoint": "0.1 s", "restart": "7 s", "detection_dead": "1 s"}}
    add("life of a run", "json", encoded(life), "life.json", [["reliability", "life.json"], ["reliability", "life.json", "--json"]])
    serving = dict(whole, serving={
        "input_tokens": 64, "output_tokens": 8, "input_spread": 0.5, "output_spread": 0.2, "requests_per_s": 3, "arrivals": "poisson",
        "ttft": "5 s", "tpot": "1 s", "percentile": 0.9, "weights": "bf16", "cache": "bf16", "pass_tokens": 512, "disaggregated": False,
        "memory_share": 0.9, "stack": "vllm"})
    serving.pop("plan", None)
    listed = dict(serving, serving={"requests": [{"at": "0 s", "input": 9, "output": 3}, {"at": "2 s", "input": 5, "output": 1}]})
    serve = [["serve", "scenario.json", "--top", "1", "--requests", "10"],
             ["serve", "scenario.json", "--top", "1", "--requests", "10", "--json"]]
    add("serving of a scenario", "json", encoded(serving), "scenario.json", serve, others("scenario.json"), weight=4)
    add("requests of a scenario", "json", encoded(listed), "scenario.json", serve, others("scenario.json"))
    plain = json.loads(plan.read_text())
    add("plan", "json", encoded(plain), "plan.json",
        [["simulate", "plan.json"], ["export", "plan.json", "--to", "megatron"]], weight=8)
    add("device", "json", beside["device.json"], "device.json", simulate, others("device.json"), weight=6)
    add("links", "json", beside["links.json"], "links.json", simulate, others("links.json"), weight=6)
    add("stack", "json", beside["stack.json"], "stack.json", simulate, others("stack.json"), weight=6)
    add("cluster", "json", beside["cluster.json"], "cluster.json", simulate, others("cluster.json"), weight=6)
    for name, value in {"graph": graph, "inside": inside, "trees": trees, "torus": torus,
                        "dragonfly": dragonfly}.items():
        add(f"cluster of {name}", "json", encoded(value), "cluster.json",
            [["topology", "show", "./cluster.json"], ["topology", "check", "./cluster.json"],
             ["topology", "show", "./cluster.json", "--dot"], ["topology", "show", "./cluster.json", "--json"],
             ["collective", "./cluster.json", "--bytes", "1 MiB"]], others("cluster.json"))
    add("config.json", "json", encoded(CONFIG), "config.json", [["model", "import", "config.json"]], weight=6)
    add("proxy", "json", proxy.read_bytes(), "proxy.json", [["simulate", "proxy.json"]])
    compare = [["compare", "mutated", "other.json"], ["compare", "other.json", "mutated", "--json"]]
    trace = {"other.json": chrome.read_bytes()}
    small = json.loads(chrome.read_text())
    events = small["traceEvents"]
    small["traceEvents"] = events[:8] + [e for e in events if e["ph"] == "X"][:8] + events[-4:]
    small["otherData"]["experts"] = {"groups": [[0]], "tokens": [[0, 1, 0, 0, 1000, 3, 5], [0, 1, 1, 2000, 3000, 4, 4]]}
    add("Chrome timeline", "json", encoded(small), "mutated", compare, trace, weight=8, exit_code=5)
    theirs = [["merge", "mutated", "rank1.json", "-o", "written"], ["merge", "mutated", "--json"],
              ["compare", "other.json", "mutated", "rank1.json"],
              ["links", "import", "--traces", "mutated", "rank1.json", "--base", "nvlink4-h100", "--name", "x"]]
    add("Kineto trace", "json", encoded(kineto(0)), "mutated", theirs, dict(trace, **{"rank1.json": encoded(kineto(1))}),
        weight=8)
    add("packed trace", "bytes", gzip.compress(encoded(kineto(0)), mtime=0), "mutated", theirs[:1],
        {"rank1.json": encoded(kineto(1))}, weight=2)
    add("Nsight export", "bytes", nsight(), "mutated", [["merge", "mutated", "-o", "written"]])
    dumps = [["flight-recorder", "dump_0", "dump_1"], ["flight-recorder", "dump_0", "--json"]]
    add("flight recorder", "json", encoded(flight(0)), "dump_0", dumps, {"dump_1": encoded(flight(1))})
    add("flight recorder's pickle", "bytes", pickle.dumps(flight(0), 2), "dump_0", dumps,
        {"dump_1": pickle.dumps(flight(1), 4)})
    add("binary timeline", "timeline", binary.read_bytes(), "mutated", compare, trace, weight=8)
    imported = ["--device", "h100-sxm", "--intra", "900 GB/s", "--nic", "3200 Gb/s"]
    for name, text in {"edges": EDGES, "nccl": NCCL_XML, "nvidia-smi": NVIDIA_SMI}.items():
        add(name, "lines", text, "mutated",
            [["topology", "import", "mutated", *imported], ["topology", "import", "mutated", *imported, "-o", "written"],
             ["topology", "import", "mutated", *imported, "--format", name]], weight=8)
    curves = [["links", "import", "mutated", "--base", "nvlink4-h100", "--name", "x", *more]
              for more in ([], ["-o", "written"], ["--collective", "all-gather", "--ranks", "4"])]
    schedule = [["schedule", "jobs.json", "dgx-a100", "--nodes", "6", "--json", "--each-job"],
                ["schedule", "jobs.json", "dgx-a100", "--nodes", "6", "--trace", "written"]]
    add("jobs", "json", encoded(JOBS), "jobs.json", schedule, weight=6)
    add("SWF trace", "lines", SWF, "trace.swf", [["schedule", "trace.swf", "dgx-a100", "--nodes", "4"]])
    add("trace of columns", "lines", TRACE_CSV, "trace.csv", [["schedule", "trace.csv", "dgx-a100", "--nodes", "4"]])
    add("nccl-tests", "lines", NCCL_TESTS, "mutated", curves, weight=6)
    add("nccl-tests -J", "json", encoded(NCCL_TESTS_JSON), "mutated", curves)
    add("training runs", "json", encoded(rows), "rows.json", [["validate", "rows.json", "--rows"]], weight=8)
    add("collectives", "json", encoded(COLLECTIVES), "rows.json", [["validate", "rows.json", "--rows"]], weight=6)
    add("gemm table", "lines", GEMM, "gemm.csv", [["validate", "gemm.csv"]])
    add("attention table", "lines", ATTENTION, "attention.csv", [["validate", "attention.csv"]])
    kept = {f"checkpoints/{step.name}/{p.name}": p.read_bytes() for p in step.iterdir() if p.name != "index.json"}
    kept["scenario.json"] = tiny.read_bytes()
    add("checkpoint index", "json", (step / "index.json").read_bytes(), f"checkpoints/{step.name}/index.json",
        [["run", "scenario.json", "--steps", "3", "--checkpoints", "checkpoints", "--resume", "--deadline", "20"]],
        kept)
    add("token file", "bytes", TOKENS, "tokens.bin",
        [["run", "scenario.json", "--steps", "1", "--data", "tokens.bin", "--deadline", "20"]],
        {"scenario.json": encoded(dict(scenario, model={"preset": "tiny-llama", "vocab": 50257}))})
    start = [["run", "scenario.json", "--steps", "1", "--deadline", "20", "--weights", "w.safetensors"],
             ["generate", "scenario.json", "--tokens", "1", "--weights", "w.safetensors"]]
    add("weights", "safetensors", weights.read_bytes(), "w.safetensors", start, {"scenario.json": tiny.read_bytes()})
    add("index of weights", "json", encoded({"weight_map": {"transformer.wte.weight": "w.safetensors"}}), "w.json",
        [[*start[0][:-1], "w.json"]], {"scenario.json": tiny.read_bytes(), "w.safetensors": weights.read_bytes()})
    add("rendezvous", "lines", b"localhost 1\n0123456789abcdef\n", "address",
        [["run", "scenario.json", "--steps", "1", "--rendezvous", "file:address", "--deadline", "1"]],
        {"scenario.json": tiny.read_bytes()},
        {"RANK": "1", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "8"}, weight=1, exit_code=1)
    add("command line", "arguments", b"", "", ARGUMENTS,
        {"plan.json": encoded(plain), "scenario.json": tiny.read_bytes(), "edges.txt": EDGES, "nccl.txt": NCCL_TESTS,
         "chrome.json": chrome.read_bytes()}, weight=10)
    return out


def frame(kind, payload, description):
    """A message of a rank to the hub (exec/tcp_frame.h)."""
    return struct.pack("<IIQQII", 0x4f525932, kind, 7, payload, len(description), 0) + description


def collective_frame(elements, kind, payload):
    name = b"layer0/all-reduce"
    return frame(0, payload, struct.pack("<Qqqq", 3, 0, 1, 2) + struct.pack("<QBBBQQQ", 5, kind, 0, 0, 0, elements, len(name)) + name)


def message_frame(kind, payload):
    name = b"pipeline/send"
    return frame(kind, payload, struct.pack("<qiQQ", 2, 1, 8, len(name)) + name)


def write_corpora(orrery, root, folder):
    """The seeds and the shipped files, by libFuzzer target (fuzz_NAME.cpp says what its first byte chooses)."""
    root, folder = pathlib.Path(root), pathlib.Path(folder)
    made = folder / "made"
    made.mkdir(parents=True, exist_ok=True)
    seeds = {f.name: f.seed for f in formats(orrery, root, made)}
    corpora = {
        "scenario": [seeds["scenario"], seeds["proxy"], *(p.read_bytes() for p in (root / "scenarios").glob("*.json"))],
        "topology": [s for n, s in seeds.items() if n.startswith("cluster")] +
                    [p.read_bytes() for p in (root / "topologies").glob("*.json")],
        "model": [seeds["config.json"], encoded({"text_config": CONFIG}), encoded(dict(CONFIG, model_type="gpt2"))],
        "import": [b"\0" + EDGES, b"\1" + NCCL_XML, b"\2" + NVIDIA_SMI],
        "links": [b"\0" + NCCL_TESTS, b"\0" + seeds["nccl-tests -J"],
                  *(b"\1" + p.read_bytes() for p in (root / "profiles/links").glob("*.json")),
                  *(b"\2" + p.read_bytes() for p in (root / "profiles").glob("*.json")),
                  *(b"\3" + p.read_bytes() for p in (root / "profiles/stacks").glob("*.json"))],
        "pickle": [seeds["flight recorder's pickle"], pickle.dumps(flight(1), 4)],
        "timeline": [seeds["Chrome timeline"], seeds["Kineto trace"], seeds["binary timeline"]],
        "dataset": [b"\0" + seeds["training runs"], b"\0" + seeds["collectives"], b"\1" + GEMM, b"\1" + ATTENTION],
        "frame": [collective_frame(2, 0, 8), collective_frame(1, 4, 0), message_frame(1, 8), message_frame(2, 0)]}
    for name, texts in corpora.items():
        (folder / name).mkdir(exist_ok=True)
        for i, text in enumerate(texts):
            (folder / name / str(i)).write_bytes(text)


if __name__ == "__main__":
    write_corpora(*sys.argv[1:])
