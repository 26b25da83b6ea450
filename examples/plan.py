# SPDX-License-Identifier: Apache-2.0
"""Which of two clusters trains Llama 3.1 8B on 15 T tokens sooner, and for how much?

    PYTHONPATH=build/release/python python3 examples/plan.py report.html
"""

import sys

import orrery

QUESTION = dict(model="llama-3.1-8b", nodes=4, batch=1024, sequence=8192, tokens=15e12, top=1)

answers = {name: orrery.plan(cluster=name, **QUESTION) for name in ("p4de", "p5")}
for name, answer in answers.items():
    best = answer.best["predicted"]
    print(f"{name}: {answer.best['name']}: {best['step_time_s']:.1f} s a step, {best['days']:.0f} days, "
          f"${best['cost_usd'] / 1e6:.2f} M")
if len(sys.argv) > 1:
    min(answers.values(), key=lambda answer: answer.best["predicted"]["days"]).report(sys.argv[1])
