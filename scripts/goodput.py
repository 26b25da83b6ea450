#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a plan with injected faults and compares the goodput of each run with the simulated one, which knows the
run's faults and what a step, a checkpoint, a restart and a detection took in the other runs.

Usage: goodput.py ORRERY OUTPUT_FOLDER [--runs N] [--steps N] [--seed N] [--bound SHARE]
A quarter of the runs has four ranks as threads, a quarter eight, a quarter four as processes with three more that
stand by, and a quarter these with checkpoints in memory too, every 5 steps. Each run draws its faults: up to three, dead, frozen (given up after two seconds) or a full disk, and a
checkpoint every 10, 15 or 20 steps. Leaves the life of each run in the folder; prints a table of each quarter. Exit
code 1 where a bound was given and a prediction is further off.
"""
import argparse
import json
import os
import pathlib
import random
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOUR = {"tp": 1, "pp": 2, "dp": 2, "zero": 1, "micro_batches": 8}
EIGHT = {"tp": 2, "pp": 2, "dp": 2, "zero": 1, "micro_batches": 8}
SPARES = 3
KINDS = ["dead", "frozen", "disk"]
# Title, plan, whether ranks are processes, and more of the command line.
GROUPS = [("4 threads", FOUR, False, []), ("8 threads", EIGHT, False, []),
          (f"4 processes and {SPARES} spares", FOUR, True, []),
          (f"4 processes and {SPARES} spares, with memory", FOUR, True, ["--memory-every", "5"])]


def ranks_of(plan):
    return plan["tp"] * plan["pp"] * plan["dp"]


def faults_of(draw, number, ranks, steps, every):
    """Runs 0, 1 and 2 have a fault of a kind each, and so have 3, 4 and 5: what one measures, another needs."""
    kinds = [KINDS[number % 3]] if number < 6 else []
    kinds += draw.choices(KINDS, weights=[6, 2, 2], k=draw.randint(0 if number >= 6 else 1, 2))
    steps_of = sorted(draw.sample(range(2, steps), len(kinds)))
    out = []
    for kind, step in zip(kinds, steps_of):
        if kind == "disk":
            step = max(every, step // every * every)
        out.append(f"{draw.randrange(ranks)}@{step}:{kind}")
    return out


def run(binary, folder, scenario, name, ranks, processes, more, steps, every, faults):
    checkpoints = folder / f"{name}-checkpoints"
    command = [binary, "run", str(scenario), "--json", "--steps", str(steps), "--checkpoints", str(checkpoints),
               "--checkpoint-every", str(every), "--restarts", "9", "--deadline", "2", "--life",
               str(folder / f"{name}.json"), *more]
    for fault in faults:
        command += ["--fail", fault]
    started = [{}]
    if processes:
        command += ["--spares", str(SPARES)]
        n = ranks + SPARES
        started = [{"RANK": str(r), "LOCAL_RANK": str(r), "WORLD_SIZE": str(n), "LOCAL_WORLD_SIZE": str(n),
                    "TORCHELASTIC_RUN_ID": f"{name}-{os.getpid()}"} for r in range(n)]
    jobs = [subprocess.Popen(command, env={**os.environ, **e}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            for e in started]
    errors = [j.communicate()[1].decode() for j in jobs]
    if not (folder / f"{name}.json").exists():
        sys.exit(f"{' '.join(command)}\n" + "".join(errors))
    subprocess.run(["rm", "-rf", str(checkpoints)], check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("orrery")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bound", type=float)
    o = parser.parse_args()
    o.folder.mkdir(parents=True, exist_ok=True)
    o.orrery = str(pathlib.Path(o.orrery).resolve())
    draw = random.Random(o.seed)
    print(f"seed {o.seed}")
    worst = 0
    for group, (title, plan, processes, more) in enumerate(GROUPS):
        scenario = o.folder / f"scenario{group}.json"
        content = json.loads((ROOT / "scenarios/tiny-cpu.json").read_text())
        content["plan"] = plan
        scenario.write_text(json.dumps(content))
        names = []
        for number in range(o.runs // len(GROUPS)):
            every = draw.choice([10, 15, 20])
            faults = faults_of(draw, number, ranks_of(plan), o.steps, every)
            names.append(f"life{group}-{number}")
            run(o.orrery, o.folder, scenario, names[-1], ranks_of(plan), processes, more, o.steps, every,
                faults)
            print(f"{names[-1]}: checkpoints every {every}, {' '.join(faults) or 'no fault'}", file=sys.stderr)
        print(f"\n{title}", flush=True)
        files = [f"{n}.json" for n in names]
        subprocess.run([o.orrery, "reliability", *files], cwd=o.folder, check=True)
        told = subprocess.run([o.orrery, "reliability", "--json", *files], cwd=o.folder, check=True,
                              capture_output=True)
        worst = max(worst, json.loads(told.stdout)["worst_error"])
    if o.bound is not None and worst > o.bound:
        sys.exit(f"a prediction is {100 * worst:.1f} % off, and {100 * o.bound:.1f} % are allowed")


if __name__ == "__main__":
    main()
