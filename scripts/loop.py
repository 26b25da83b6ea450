#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Predicts what it then measures: runs plans on one device, fits a profile on some of them, and compares the
predicted step of the others with the measured one.

Usage: loop.py ORRERY OUTPUT_FOLDER [--backend cuda] [--device PROFILE] [--small]
Leaves profile.json and loop.json in the folder; prints a table: beside times, how long the device computed nothing
in the measured step (gaps).
"""
import argparse
import json
import pathlib
import subprocess
import sys

# model, micro-batch, micro-batches, recompute
FIT = [("gpt2-124m", 8, 1, "none"), ("gpt2-350m", 4, 2, "none"), ("gpt2-124m", 32, 1, "full")]
HELD_OUT = [("gpt2-124m", 16, 1, "none"), ("gpt2-124m", 4, 4, "none"), ("gpt2-124m", 16, 2, "full"),
            ("gpt2-350m", 8, 1, "none"), ("gpt2-350m", 8, 2, "full"), ("gpt2-774m", 4, 1, "none"), ("gpt2-350m", 16, 1, "none"),
            ("gpt2-774m", 8, 1, "full")]
# The same with models that a processor trains in seconds.
SMALL_FIT = [("tiny-gpt", 4, 2, "none"), ("tiny-llama", 8, 1, "full")]
SMALL_HELD_OUT = [("tiny-gpt", 8, 1, "none"), ("tiny-llama", 4, 4, "none")]


def scenario(model, micro_batch, micro_batches, recompute, small, cluster, stack="orrery"):
    return {
        "schema": "orrery.scenario/1",
        "name": f"{model}, {micro_batches} micro-batches of {micro_batch}, recompute {recompute}",
        # A vocabulary of whole vectors, as llm.c pads it.
        "model": model if small else {"preset": model, "vocab": 50304},
        "cluster": cluster,
        "training": {"global_batch": micro_batch * micro_batches, "sequence": 64 if small else 1024,
                     "precision": "fp32" if small else "mixed", "math": "fp32" if small else "bf16"},
        "stack": stack,
        "plan": {"micro_batch": micro_batch, "micro_batches": micro_batches, "recompute": recompute},
    }


def one_device(folder, device):
    """Writes a cluster of one device, whose links no plan here uses, and returns its file."""
    path = folder / "one.json"
    path.write_text(json.dumps({
        "schema": "orrery.cluster/1", "name": "one", "device": device, "nodes": 1, "devices_per_node": 1,
        "intra_bandwidth": "100 GB/s", "intra_latency": "5 us", "nics": 1, "nic_bandwidth": "50 GB/s",
        "nic_latency": "5 us"}, indent=2))
    return path


def gaps(trace):
    """The share of the step in which the compute stream did nothing."""
    slices = sorted((e["ts"], e["ts"] + e["dur"]) for e in json.loads(trace.read_text())["traceEvents"]
                    if e["ph"] == "X" and e["tid"] == 0)
    return 1 - sum(end - begin for begin, end in slices) / (slices[-1][1] - slices[0][0])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("orrery")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--device", default="h100-sxm")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--steps", type=int, default=6)
    o = parser.parse_args()
    o.out.mkdir(parents=True, exist_ok=True)

    def orrery(*arguments):
        done = subprocess.run([o.orrery, *map(str, arguments)], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"orrery {' '.join(map(str, arguments))}\n{done.stderr}")
        return done.stdout

    def save(path, value):
        path.write_text(json.dumps(value, indent=2))
        return path

    cluster = one_device(o.out, o.device)

    def write(case):
        return save(o.out / f"{'-'.join(map(str, case))}.json", scenario(*case, o.small, {"topology": cluster.name}))

    def measure(case):
        trace = o.out / "step.json"
        run = json.loads(orrery("run", write(case), "--backend", o.backend, "--steps", o.steps, "--json",
                                "--trace", trace))
        # The first step warms up, the last is measured op by op.
        seconds = sorted(s["seconds"] for s in run["steps"][1:-1])
        return {"seconds": seconds[len(seconds) // 2], "tokens_per_s": run["tokens_per_s"],
                "last_s": run["steps"][-1]["seconds"], "gaps": gaps(trace)}

    fitted = json.loads(orrery("calibrate", *map(write, SMALL_FIT if o.small else FIT), "--backend", o.backend,
                               "--steps", o.steps, "--name", "measured", "--device", o.out / "profile.json",
                               "--cluster", o.out / "fitted.json", "--json"))
    rows = []
    for case in SMALL_HELD_OUT if o.small else HELD_OUT:
        m = measure(case)
        predicted_file = save(o.out / "predicted.json", scenario(*case, o.small, {"topology": "fitted.json"}))
        predicted = json.loads(orrery("simulate", predicted_file, "--json"))["predicted"]["step_time_s"]
        rows.append({"model": case[0], "micro_batch": case[1], "micro_batches": case[2], "recompute": case[3],
                     "predicted_s": predicted, "measured_s": m["seconds"], "measured_with_events_s": m["last_s"],
                     "tokens_per_s": m["tokens_per_s"], "gaps": m["gaps"], "error": predicted / m["seconds"] - 1})
    save(o.out / "loop.json", {"backend": o.backend, "rows": rows, "ops": fitted["ops"]})
    print(f"{'model':<12} {'micro-batch':>12} {'recompute':>9} {'predicted':>10} {'measured':>10} {'error':>7} {'gaps':>6} {'tokens/s':>9}")
    for r in rows:
        print(f"{r['model']:<12} {r['micro_batch']:>5} x {r['micro_batches']:<4} {r['recompute']:>9} "
              f"{1e3 * r['predicted_s']:>7.1f} ms {1e3 * r['measured_s']:>7.1f} ms {100 * r['error']:>+5.1f} % {100 * r['gaps']:>4.1f} % "
              f"{r['tokens_per_s']:>9.0f}")
    worst = max(abs(r["error"]) for r in rows)
    print(f"worst error of plans that were not fitted: {100 * worst:.1f} %")


if __name__ == "__main__":
    main()
