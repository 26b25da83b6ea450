#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tokens per second of plans on one device, and the ops that take the time of a measured step.

Usage: rate.py ORRERY OUTPUT_FOLDER CASE...   (a case: model[@sequence],micro-batch,micro-batches,recompute,stack)
Leaves rate.json in the folder. The median step counts, of those that neither warm up nor are measured op by op.
"""
import collections
import json
import pathlib
import re
import subprocess
import sys

from loop import case as plan_case, gaps, one_node, scenario

STEPS = 12
WARM_UP = 3  # steps: the first is issued op by op, the second captures a graph


def by_op(trace):
    """Milliseconds of the compute stream by op, layers and micro-batches added up."""
    sums = collections.Counter()
    for e in json.loads(trace.read_text())["traceEvents"]:
        if e["ph"] == "X" and e["tid"] == 0:
            sums[e["cat"] + " " + re.sub(r"\d+", "*", e["name"])] += e["dur"] / 1e3
    return sums


def main():
    orrery, out, *cases = sys.argv[1:]
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    cluster = one_node(out, "h100-sxm")
    rows = []
    for case in cases:
        model, micro_batch, micro_batches, recompute, stack = case.split(",")
        model, _, sequence = model.partition("@")
        of = plan_case(model, int(sequence or 1024), int(micro_batch), int(micro_batches), recompute=recompute)
        plan = scenario(of, True, {"topology": cluster.name}, stack)
        (out / "plan.json").write_text(json.dumps(plan))
        trace = out / "step.trace.json"
        done = subprocess.run([orrery, "run", out / "plan.json", "--backend", "cuda", "--steps", str(STEPS), "--json",
                               "--trace", trace], capture_output=True, text=True)
        if done.returncode != 0:
            print(f"{case}: exit {done.returncode}\n{done.stderr}", flush=True)
            rows.append({"case": case, "error": done.stderr})
            continue
        run = json.loads(done.stdout)
        seconds = sorted(s["seconds"] for s in run["steps"][WARM_UP:-1])
        median = seconds[len(seconds) // 2]
        tokens = plan["training"]["global_batch"] * plan["training"]["sequence"]
        ops = by_op(trace)
        rows.append({"case": case, "seconds": seconds, "tokens_per_s": tokens / median, "gaps": gaps(trace),
                     "loss": [s["loss"] for s in run["steps"]], "ops_ms": dict(ops)})
        print(f"{case}: {tokens / median:.0f} tokens/s, step {1e3 * median:.2f} ms ({1e3 * seconds[0]:.2f} to "
              f"{1e3 * seconds[-1]:.2f}), gaps {100 * rows[-1]['gaps']:.1f} %, loss {run['steps'][0]['loss']:.3f} -> "
              f"{run['steps'][-1]['loss']:.3f}", flush=True)
        for name, ms in ops.most_common(24):
            print(f"  {ms:9.3f} ms  {name}", flush=True)
    (out / "rate.json").write_text(json.dumps(rows, indent=1))
    sys.exit(1 if any("error" in r for r in rows) else 0)


if __name__ == "__main__":
    main()
