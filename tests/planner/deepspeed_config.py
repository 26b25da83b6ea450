#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's own parser reads exported configurations, and must find the plan that was exported in them.

ORRERY_DEEPSPEED is a checkout of DeepSpeed v0.19.5, whose Python (with pydantic, hjson, numpy, packaging, psutil,
py-cpuinfo, msgpack, einops, tqdm, filelock and setuptools) may be named by ORRERY_DEEPSPEED_PYTHON. A stand-in takes the
place of PyTorch: configurations are parsed and checked, nothing is computed. ORRERY_RANDOM_PLANS sets how many plans of random
scenarios are read (12), drawn with ORRERY_SEED (or the time's), which is printed.
Usage: deepspeed_config.py ORRERY. Exit 77 (skipped) without a checkout.
"""
import contextlib
import io
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path

from stand_ins import StandIns


def parse_cases(checkout):
    """Reads {name, config, ranks, means} from standard input, a line each; prints what the parser says of each."""
    os.environ.update(DS_ACCELERATOR="cpu", DS_BUILD_OPS="0")
    sys.path.insert(0, checkout)
    sys.meta_path.insert(0, StandIns("torch"))
    import torch
    torch.__version__ = "2.9.0"
    torch.version = types.SimpleNamespace(cuda=None, hip=None, xpu=None)
    torch.distributed.is_available = lambda: True
    torch.cuda.is_available = lambda: False
    torch.dtype = type("dtype", (), {})
    for name in ("float16", "bfloat16", "float32", "half", "float", "int8", "uint8"):
        setattr(torch, name, torch.dtype())
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        from deepspeed.runtime.config import DeepSpeedConfig
    for line in sys.stdin:
        case = json.loads(line)
        ranks = types.SimpleNamespace(get_data_parallel_world_size=lambda: case["ranks"])
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                from deepspeed import comm
                comm.get_rank = lambda: 0
                config = DeepSpeedConfig(case["config"], mpu=ranks)
            found = {"train_batch_size": config.train_batch_size, "stage": int(config.zero_optimization_stage),
                     "micro_batch": config.train_micro_batch_size_per_gpu, "micro_batches": config.gradient_accumulation_steps,
                     "bf16": config.bfloat16_config.enabled, "fp16": config.float16_config.enabled,
                     "clip": config.gradient_clipping, "shards": config.mics_shard_size,
                     "tensor": config.tensor_parallel_config.autotp_size}
            problem = "; ".join(f"{name} is {found[name]} and should be {expected}"
                                for name, expected in case["means"].items() if found[name] != expected)
        except BaseException as e:
            problem = f"{type(e).__name__}: {e}"
        print(json.dumps({"name": case["name"], "problem": problem}), flush=True)


def random_scenarios(count, seed):
    random.seed(seed)
    print(f"{count} random scenarios, seed {seed}")
    for _ in range(count):
        yield {"model": random.choice(["gpt2-350m", "megatron-1.7b", "llama-2-7b", "qwen2.5-7b"]),
               "cluster": {"topology": random.choice(["dgx-a100", "dgx-h100", "p4d", "p5"]), "nodes": random.choice([1, 2, 3, 4, 8])},
               "training": {"global_batch": random.choice([8, 32, 48, 128]), "sequence": random.choice([256, 512, 1024]),
                            "tokens": random.choice([0, 1e9, 1e12]), "clip": random.choice([0, 1]),
                            **random.choice([{"precision": "mixed", "math": "bf16"}, {"precision": "megatron", "math": "bf16"},
                                             {"precision": "mixed", "math": "fp16"}, {"precision": "fp32", "math": "tf32"}])},
               "search": random.choice([{}, {"tp": [2, 4]}, {"pp": [2, 4]}, {"zero": [2]}, {"zero": [3], "shard_group": [0, 8]},
                                        {"recompute": ["full"]}, {"micro_batch": [2]}]),
               "stack": "deepspeed"}


def meaning_of(plan, scenario):
    training = scenario["training"]
    own = plan["tp"] > 1 and plan["pp"] == 1 and not plan["sequence_parallel"]
    zero = plan["zero"] if plan["dp"] > 1 else 0
    shards = plan.get("shard_group") or plan["dp"]
    return {"train_batch_size": plan["micro_batch"] * plan["micro_batches"] * plan["dp"], "stage": zero,
            "micro_batch": plan["micro_batch"], "micro_batches": plan["micro_batches"],
            "bf16": training["math"] == "bf16", "fp16": training["math"] == "fp16",
            "clip": training["clip"], "shards": shards if zero > 0 and shards < plan["dp"] else -1,
            "tensor": plan["tp"] if own else 0}


def main(orrery):
    checkout = os.environ.get("ORRERY_DEEPSPEED")
    if not checkout:
        print("skipped: ORRERY_DEEPSPEED names no checkout of DeepSpeed")
        sys.exit(77)
    cases = []
    count, seed = int(os.environ.get("ORRERY_RANDOM_PLANS", 12)), int(os.environ.get("ORRERY_SEED", time.time()))
    with tempfile.TemporaryDirectory() as folder:
        asked, file = Path(folder) / "asked.json", Path(folder) / "plan.json"
        for i, scenario in enumerate(random_scenarios(count, seed)):
            asked.write_text(json.dumps(scenario))
            out = subprocess.run([orrery, "plan", asked, "-o", file], capture_output=True, text=True)
            assert out.returncode in (0, 4), json.dumps(scenario) + out.stderr
            if out.returncode == 4:
                continue
            out = subprocess.run([orrery, "export", file, "--to", "deepspeed", "--force"], capture_output=True, text=True)
            assert out.returncode == 0, out.stderr
            plan = json.loads(subprocess.run([orrery, "simulate", file, "--json"], capture_output=True, text=True, check=True).stdout)["plan"]
            cases.append({"name": f"random{i}", "config": json.loads(out.stdout), "ranks": plan["dp"],
                          "means": meaning_of(plan, scenario)})
    assert len(cases) > count / 2
    # Negative controls: a batch that does not fit the ranks, a field that DeepSpeed does not have, another plan.
    batch, field, plan = (json.loads(json.dumps(cases[-1])) for _ in range(3))
    plan["means"]["micro_batches"] += 1
    batch["config"]["train_batch_size"] = 7 * batch["means"]["train_batch_size"] + 1
    field["config"]["zero_optimization"]["no_such_field"] = 1
    cases += [{**batch, "name": "another batch"}, {**field, "name": "unknown field"}, {**plan, "name": "another plan"}]
    out = subprocess.run([os.environ.get("ORRERY_DEEPSPEED_PYTHON", sys.executable), __file__, "--parse", checkout],
                         input="".join(json.dumps(c) + "\n" for c in cases), capture_output=True, text=True)
    answers = {a["name"]: a["problem"] for a in map(json.loads, out.stdout.splitlines())}
    assert len(answers) == len(cases), out.stderr[-2000:]
    assert "train_batch_size" in answers.pop("another batch") and "no_such_field" in answers.pop("unknown field")
    assert "micro_batches is" in answers.pop("another plan")
    for name, problem in answers.items():
        print(f"{name}: {problem or 'ok'}")
    sys.exit(1 if any(answers.values()) else 0)


if sys.argv[1] == "--parse":
    parse_cases(sys.argv[2])
else:
    main(sys.argv[1])
