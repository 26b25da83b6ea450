#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Megatron-LM's own parser reads the arguments of exported scripts.

ORRERY_MEGATRON_LM is a checkout of Megatron-LM core_v0.19.0, whose Python (3.12 or later, with numpy, packaging and
pydantic) may be named by ORRERY_MEGATRON_PYTHON. Stand-ins take the place of PyTorch and Triton: only arguments are
parsed and checked, nothing is computed. What is parsed must be the plan that was exported. ORRERY_RANDOM_PLANS adds so many
plans of random scenarios, drawn with ORRERY_SEED (or the time's), which is printed.
Usage: megatron_lm.py ORRERY SCENARIOS. Exit 77 (skipped) without a checkout.
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
    """Reads {name, argv, environment, ranks} from standard input, a line each; prints what the parser says of each."""
    sys.path.insert(0, checkout)
    sys.meta_path.insert(0, StandIns("torch", "triton"))
    import torch
    import triton
    torch.__version__, triton.__version__ = "2.9.0", "3.5.0"
    torch.is_grad_enabled = lambda: True
    triton.Config = lambda kwargs=None, **others: types.SimpleNamespace(kwargs=kwargs or {}, num_warps=1, num_stages=1)
    silence = io.StringIO()
    with contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence):
        import megatron.training.arguments as arguments
        from megatron.core.models.common.embeddings import rope_utils
        from megatron.core.transformer import transformer_config
        from megatron.training.argument_utils import gpt_config_from_args
    arguments.get_device_arch_version = lambda: 9
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    arguments.is_te_min_version = transformer_config.is_te_min_version = lambda *_: True
    rope_utils.fused_apply_rotary_pos_emb = object()  # Transformer Engine's
    for line in sys.stdin:
        case = json.loads(line)
        os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
        os.environ.update(case["environment"], WORLD_SIZE=str(case["ranks"]), RANK="0")
        sys.argv = ["pretrain_gpt.py"] + case["argv"]
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                args = arguments.parse_args()
                arguments.validate_args(args, {})
                gpt_config_from_args(args)
            problem = ""
            for name, expected in case["means"].items():
                if getattr(args, name) != expected:
                    problem += f"{name} is {getattr(args, name)} and should be {expected}; "
        except BaseException as e:  # argparse exits
            problem = f"{type(e).__name__}: {e} {said.getvalue()[-200:]}"
        print(json.dumps({"name": case["name"], "problem": problem}), flush=True)


def run_script(script, folder):
    """What an exported script hands to torchrun, whose place a stand-in takes."""
    torchrun = folder / "torchrun"
    torchrun.write_text("#!/usr/bin/env python3\nimport json, os, sys\n"
                        "kept = {k: v for k, v in os.environ.items() if k == 'CUDA_DEVICE_MAX_CONNECTIONS'}\n"
                        "print(json.dumps([sys.argv[1:], kept]))\n")
    torchrun.chmod(0o755)
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "MEGATRON": "/m", "TOKENIZER_MODEL": "t", "DATA_PATH": "a b",
                   "LR": "1e-4", "TRAIN_ITERS": "100", "MASTER_ADDR": "h", "NODE_RANK": "0"}
    out = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
    argv, kept = json.loads(out.stdout)
    program = argv.index("/m/pretrain_gpt.py")
    nodes, per_node = (int(argv[i].split("=")[1]) for i in (0, 1))
    return argv[program + 1:], kept, nodes * per_node


def variations():
    """Plans that the shipped scenarios do not have: sharded parameters, 8 bits, uneven chunks, scaled positions."""
    base = {"model": "llama-3-8b", "cluster": {"topology": "dgx-h100", "nodes": 8}, "stack": "megatron-core",
            "training": {"global_batch": 64, "sequence": 8192}, "plan": {"dp": 8, "micro_batches": 8}}
    for changes in ({"plan": {"dp": 8, "zero": 3, "shard_group": 4}}, {"plan": {"tp": 2, "dp": 8, "zero": 2}},
                    {"training": {"precision": "precision-aware-bf16"}, "plan": {"dp": 8, "zero": 1}},
                    {"training": {"precision": "megatron-adam-bf16", "math": "fp8"}, "plan": {"tp": 8, "dp": 1, "micro_batches": 64}},
                    {"training": {"math": "fp8", "tokens": 1e12}}, {"training": {"precision": "sgd", "math": "fp32"}},
                    {"plan": {"tp": 2, "pp": 4, "dp": 2, "vpp": 2, "schedule": "interleaved", "micro_batches": 32,
                              "chunk_layers": [3, 4, 4, 4, 4, 4, 4, 5]}},
                    {"plan": {"pp": 2, "dp": 4, "zero": 1, "micro_batches": 16, "rank_order": "tp-pp-dp"}},
                    {"model": {"preset": "llama-3-8b", "rotary": {"base": 5e5, "scaling": "llama3", "factor": 8}}},
                    {"model": {"preset": "qwen2.5-7b", "rotary": {"base": 1e6, "scaling": "yarn", "factor": 4,
                                                                  "original_positions": 32768}}},
                    {"model": {"preset": "mistral-7b"}}):
        yield {k: {**v, **changes.get(k, {})} if k in ("plan", "training") else changes.get(k, v)
               for k, v in base.items()}


def random_scenarios(count, seed):
    random.seed(seed)
    print(f"{count} random scenarios, seed {seed}")
    for _ in range(count):
        cluster = {"topology": random.choice(["dgx-a100", "dgx-h100", "p4d", "p5", "dgx-b200"]),
                   "nodes": random.choice([1, 2, 3, 4, 8, 16])}
        training = {"global_batch": random.choice([8, 32, 48, 128, 256]), "sequence": random.choice([256, 512, 1024]),
                    "tokens": random.choice([0, 1e9, 1e12]), "clip": random.choice([0, 1]),
                    "precision": random.choice(["mixed", "megatron"])}
        search = random.choice([{}, {"tp": [2, 4, 8]}, {"pp": [2, 4]}, {"schedule": ["interleaved"]}, {"zero": [2, 3], "pp": [1]},
                                {"recompute": ["full"]}, {"micro_batch": [2]}, {"sequence_parallel": [False]}])
        yield {"model": random.choice(["gpt2-350m", "megatron-1.7b", "llama-2-7b", "llama-3-8b", "qwen2.5-7b", "mistral-7b"]),
               "cluster": cluster, "training": training, "search": search, "stack": "megatron-core"}


def meaning_of(orrery, file):
    """What the parsed arguments of the exported plan must be."""
    out = subprocess.run([orrery, "simulate", file, "--json"], capture_output=True, text=True, check=True)
    plan = json.loads(out.stdout)["plan"]
    return {"tensor_model_parallel_size": plan["tp"], "pipeline_model_parallel_size": plan["pp"],
            "virtual_pipeline_model_parallel_size": plan["vpp"] if plan["vpp"] > 1 else None,
            "data_parallel_size": plan["dp"], "micro_batch_size": plan["micro_batch"],
            "global_batch_size": plan["micro_batch"] * plan["micro_batches"] * plan["dp"],
            "sequence_parallel": plan["sequence_parallel"]}


def main(orrery, scenarios):
    checkout = os.environ.get("ORRERY_MEGATRON_LM")
    if not checkout:
        print("skipped: ORRERY_MEGATRON_LM names no checkout of Megatron-LM")
        sys.exit(77)
    cases = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        files = sorted(Path(scenarios).glob("*.json"))
        for i, scenario in enumerate(variations()):
            files.append(folder / f"variation{i}.json")
            files[-1].write_text(json.dumps(scenario))
        for i, scenario in enumerate(random_scenarios(int(os.environ.get("ORRERY_RANDOM_PLANS", 0)),
                                                      int(os.environ.get("ORRERY_SEED", time.time())))):
            asked, plan = folder / f"asked{i}.json", folder / f"random{i}.json"
            asked.write_text(json.dumps(scenario))
            out = subprocess.run([orrery, "plan", asked, "-o", plan], capture_output=True, text=True)
            assert out.returncode in (0, 4), json.dumps(scenario) + out.stderr
            if out.returncode == 0:
                files.append(plan)
        for file in files:
            out = subprocess.run([orrery, "export", file, "--to", "megatron", "--force"], capture_output=True, text=True)
            if out.returncode == 3 and file.parent != folder:
                print(f"{file.stem}: not for Megatron-LM: {out.stderr.strip()[:150]}")
                continue
            assert out.returncode == 0, out.stderr
            argv, environment, ranks = run_script(out.stdout, folder)
            cases.append({"name": file.stem, "argv": argv, "environment": environment, "ranks": ranks,
                          "means": meaning_of(orrery, file)})
    # What the parser must not take: the negative control.
    cases.append({**cases[-1], "name": "broken", "argv": cases[-1]["argv"] + ["--no-such-flag"]})
    out = subprocess.run([os.environ.get("ORRERY_MEGATRON_PYTHON", sys.executable), __file__, "--parse", checkout],
                         input="".join(json.dumps(c) + "\n" for c in cases), capture_output=True, text=True)
    answers = {a["name"]: a["problem"] for a in map(json.loads, out.stdout.splitlines())}
    assert len(answers) == len(cases), out.stderr[-2000:]
    assert "no-such-flag" in answers.pop("broken")
    for name, problem in answers.items():
        print(f"{name}: {problem or 'ok'}")
    sys.exit(1 if any(answers.values()) else 0)


if sys.argv[1] == "--parse":
    parse_cases(sys.argv[2])
else:
    main(sys.argv[1], sys.argv[2])
