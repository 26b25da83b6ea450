#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Predicts what it measures: runs plans on the machine it stands on, fits a profile on some of them, and compares
the predicted step of the others, which the fit has not seen, with the measured one.

Usage: loop.py ORRERY OUTPUT_FOLDER [--plans gpu|processor|small] [--backend cpu|cuda] [--device PROFILE]
               [--repeats N] [--bound SHARE]
Plans of "gpu" need a GPU, those of "processor" have one rank or two and take minutes, those of "small" one and
seconds. Two ranks that share a processor's memory are slower than one alone, so plans of as many ranks have a
profile of their own. Leaves profile.json (profile-2.json of two ranks) and loop.json in the folder; prints a table.
Repeats pass over all plans, those that are fitted and those that are not, one after the other, so that a machine
that grows slower is slower for both. The measured time is the median over repeats; noise is half of what the
repeats spread over, as a share of it. An error is within bounds where it is at most the larger of --bound and twice
the noise; exit code 1 where one is not and a bound was given. Gaps: how long the device computed nothing in the
measured step.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

MIXTURE = {"preset": "tiny-llama", "blocks": [{"times": 4, "blocks": [
    {"layers": ["attention", {"experts": {"experts": 8, "top_k": 2, "ffn_hidden": 96}}]}]}]}
MODELS = {"tiny-mixture": MIXTURE}


def case(model, sequence, micro_batch, micro_batches=1, **plan):
    return {"model": model, "sequence": sequence,
            "plan": {"micro_batch": micro_batch, "micro_batches": micro_batches, **plan}}


FULL = {"recompute": "full"}
FIT_PASSES = 3  # at least: a run leaves the trace of one step, and one instance may be an outlier
PLANS = {
    "gpu": {
        "fit": [case("gpt2-124m", 1024, 8), case("gpt2-350m", 1024, 4, 2), case("gpt2-124m", 1024, 32, **FULL)],
        "held_out": [case("gpt2-124m", 1024, 16), case("gpt2-124m", 1024, 4, 4), case("gpt2-124m", 1024, 16, 2, **FULL),
                     case("gpt2-350m", 1024, 8), case("gpt2-350m", 1024, 8, 2, **FULL), case("gpt2-774m", 1024, 4),
                     case("gpt2-350m", 1024, 16), case("gpt2-774m", 1024, 8, **FULL)]},
    "processor": {
        "fit": [case("gpt2-124m", 128, 1), case("tiny-llama", 64, 4, 2), case("tiny-mixture", 64, 4, 2),
                case("gpt2-124m", 128, 1, 2, pp=2), case("gpt2-124m", 128, 1, dp=2, zero=1),
                case("gpt2-124m", 64, 1, tp=2, sequence_parallel=True),
                case("tiny-llama", 64, 4, 2, tp=2, sequence_parallel=True), case("tiny-llama", 64, 8, dp=2, zero=3),
                case("tiny-mixture", 64, 8, dp=2, ep=2)],
        "held_out": [case("gpt2-124m", 128, 2), case("gpt2-124m", 128, 1, 2, **FULL), case("gpt2-124m", 256, 1),
                     case("gpt2-124m", 128, 1, tp=2, sequence_parallel=True), case("gpt2-124m", 128, 1, dp=2, zero=2),
                     case("gpt2-124m", 128, 1, 4, pp=2), case("tiny-llama", 64, 8, 2),
                     case("tiny-llama", 64, 4, 2, dp=2, zero=3), case("tiny-mixture", 64, 8, 2),
                     case("tiny-mixture", 64, 4, 2, dp=2, ep=2)]},
    "small": {"fit": [case("tiny-gpt", 64, 4, 2), case("tiny-llama", 64, 8, **FULL)],
              "held_out": [case("tiny-gpt", 64, 8), case("tiny-llama", 64, 4, 4)]}}


def scenario(of, gpu, cluster, stack="orrery"):
    plan = of["plan"]
    model = MODELS.get(of["model"], of["model"])
    if gpu and of["model"].startswith("gpt2"):
        model = {"preset": of["model"], "vocab": 50304}  # whole vectors, as llm.c pads it
    return {
        "schema": "orrery.scenario/1",
        "name": name_of(of),
        "model": model,
        "cluster": cluster,
        "training": {"global_batch": plan["micro_batch"] * plan["micro_batches"] * plan.get("dp", 1),
                     "sequence": of["sequence"], "precision": "mixed" if gpu else "fp32",
                     "math": "bf16" if gpu else "fp32"},
        "stack": stack,
        "plan": plan,
    }


def name_of(of):
    plan = of["plan"]
    words = [f"{key}{plan[key]}" for key in ("tp", "pp", "dp", "ep", "zero") if key in plan]
    words.append(f"{plan['micro_batch']}x{plan['micro_batches']}")
    if plan.get("recompute", "none") != "none":
        words.append(plan["recompute"])
    return f"{of['model']} {of['sequence']} {' '.join(words)}"


def ranks(of):
    return of["plan"].get("tp", 1) * of["plan"].get("pp", 1) * of["plan"].get("dp", 1)


def one_node(folder, device, devices=1):
    """Writes a node of so many devices, and returns the cluster's file."""
    path = folder / "one.json"
    path.write_text(json.dumps({
        "schema": "orrery.cluster/1", "name": "one", "device": device, "nodes": 1, "devices_per_node": devices,
        "intra_bandwidth": "100 GB/s", "intra_latency": "5 us", "nics": 1, "nic_bandwidth": "50 GB/s",
        "nic_latency": "5 us"}, indent=2))
    return path


def gaps(trace):
    """The share of the step in which the compute stream of rank 0 did nothing."""
    events = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]
    first = min(e["pid"] for e in events)
    slices = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["pid"] == first and e["tid"] == 0)
    return 1 - sum(end - begin for begin, end in slices) / (slices[-1][1] - slices[0][0])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("orrery")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--plans", choices=PLANS, default="gpu")
    parser.add_argument("--backend", choices=("cpu", "cuda"))
    parser.add_argument("--device")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--bound", type=float)
    o = parser.parse_args()
    o.out.mkdir(parents=True, exist_ok=True)
    backend = o.backend or ("cuda" if o.plans == "gpu" else "cpu")
    gpu = backend == "cuda"

    def orrery(*arguments):
        done = subprocess.run([o.orrery, *map(str, arguments)], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"orrery {' '.join(map(str, arguments))}\n{done.stderr}")
        return done.stdout

    def save(path, value):
        path.write_text(json.dumps(value, indent=2))
        return path

    cluster = one_node(o.out, o.device or ("h100-sxm" if gpu else "cpu-reference"), 1 if gpu else 2)

    def write(of, on=cluster.name):
        return save(o.out / f"{name_of(of).replace(' ', '-')}.json", scenario(of, gpu, {"topology": on}))

    def measure(of, trace=o.out / "step.json"):
        run = json.loads(orrery("run", write(of), "--backend", backend, "--steps", o.steps, "--json", "--trace", trace))
        # The first step warms up, the last is measured op by op.
        return {"seconds": statistics.median(s["seconds"] for s in run["steps"][1:-1]),
                "tokens_per_s": run["tokens_per_s"], "last_s": run["steps"][-1]["seconds"], "gaps": gaps(trace)}

    plans = PLANS[o.plans]
    traces = {}  # plans and traces, by number of ranks
    measured = [[] for _ in plans["held_out"]]
    for repeat in range(max(o.repeats, 1 if o.plans == "small" else FIT_PASSES)):
        for i, of in enumerate(plans["fit"]):
            trace = o.out / f"fit-{i}-{repeat}.json"
            measure(of, trace)
            traces.setdefault(ranks(of), []).extend([write(of), trace])
        for i, of in enumerate(plans["held_out"] if repeat < o.repeats else []):
            measured[i].append(measure(of))
    fitted = {}
    for n, pairs in traces.items():
        suffix = "" if n == 1 else f"-{n}"
        found = json.loads(orrery("calibrate", *pairs, "--name", "measured", "--device", o.out / f"profile{suffix}.json",
                                  "--cluster", o.out / f"fitted{suffix}.json", "--links", o.out / f"links{suffix}.json",
                                  "--json"))
        fitted[n] = {"cluster": f"fitted{suffix}.json", "ops": found["ops"]}
    rows = []
    for of, repeats in zip(plans["held_out"], measured):
        predicted = json.loads(orrery("simulate", write(of, fitted[ranks(of)]["cluster"]), "--json"))["predicted"]["step_time_s"]
        seconds = [m["seconds"] for m in repeats]
        median = statistics.median(seconds)
        last = repeats[-1]
        rows.append({"plan": name_of(of), "predicted_s": predicted, "measured_s": median,
                     "noise": (max(seconds) - min(seconds)) / 2 / median, "measured_with_events_s": last["last_s"],
                     "tokens_per_s": last["tokens_per_s"], "gaps": last["gaps"], "error": predicted / median - 1})
    save(o.out / "loop.json", {"backend": backend, "rows": rows, "ops": {n: f["ops"] for n, f in fitted.items()}})
    print(f"{'plan':<42} {'predicted':>11} {'measured':>11} {'error':>8} {'noise':>7} {'gaps':>7} {'tokens/s':>9}")
    for r in rows:
        print(f"{r['plan']:<42} {1e3 * r['predicted_s']:>8.1f} ms {1e3 * r['measured_s']:>8.1f} ms "
              f"{100 * r['error']:>+6.1f} % {100 * r['noise']:>5.1f} % {100 * r['gaps']:>5.1f} % {r['tokens_per_s']:>9.0f}")
    worst = max(abs(r["error"]) for r in rows)
    print(f"worst error of plans that were not fitted: {100 * worst:.1f} %")
    if o.bound is not None:
        beyond = [r for r in rows if abs(r["error"]) > max(o.bound, 2 * r["noise"])]
        print(f"{len(rows) - len(beyond)} of {len(rows)} are within the larger of {100 * o.bound:.0f} % and twice the noise")
        sys.exit(1 if beyond else 0)


if __name__ == "__main__":
    main()
