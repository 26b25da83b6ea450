#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A real run learns: a byte-level GPT of 10 M parameters, trained on the text of the C++ standard library's
headers, beats an order-3 n-gram of the same bytes on text that neither saw; under every plan alike.

    learn.py ORRERY [STEPS]

Takes some 40 minutes on two cores, so ctest runs it only when configured with ORRERY_LONG_TESTS.
"""
import collections
import glob
import json
import math
import os
import subprocess
import sys
import tempfile

ORDER, SEQUENCE, BATCH, HELD_OUT = 3, 128, 8, 0.02
PLANS = {
    "serial": {"micro_batch": 8, "micro_batches": 1},
    "TP2 PP2 DP2": {"tp": 2, "pp": 2, "dp": 2, "zero": 1, "micro_batch": 2, "micro_batches": 2},
    "ZeRO-3": {"dp": 2, "zero": 3, "micro_batch": 4, "micro_batches": 1},
}


def ngram_loss(train, held_out, order):
    """Mean negative log-likelihood per byte of an interpolated Witten-Bell n-gram: each byte after order-1."""
    counts = [collections.Counter() for _ in range(order + 1)]
    for k in range(1, order + 1):
        for i in range(len(train) - k + 1):
            counts[k][train[i:i + k]] += 1
    total = [collections.Counter() for _ in range(order + 1)]
    kinds = [collections.Counter() for _ in range(order + 1)]
    for k in range(1, order + 1):
        for gram, c in counts[k].items():
            total[k][gram[:-1]] += c
            kinds[k][gram[:-1]] += 1
    loss = 0.0
    for i in range(order - 1, len(held_out)):
        p = 1 / 256
        for k in range(1, order + 1):
            context = held_out[i - k + 1:i]
            n, t = total[k][context], kinds[k][context]
            if n > 0:
                p = (counts[k][context + held_out[i:i + 1]] + t * p) / (n + t)
        loss -= math.log(p)
    return loss / (len(held_out) - order + 1)


def main():
    orrery, steps = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    files = sorted(glob.glob("/usr/include/c++/*/bits/*.h"))
    if not files:
        print("skipped: there are no C++ headers to read")
        return 77
    text = b"".join(open(f, "rb").read() for f in files)
    sequences = (len(text) - 1) // SEQUENCE
    held = int(HELD_OUT * sequences)
    border = (sequences - held) * SEQUENCE
    bar = ngram_loss(text[:border], text[border:], ORDER)
    print(f"{len(text)} bytes, {held} sequences held out; order-{ORDER} n-gram: {bar:.4f} nats per byte", flush=True)
    ok = True
    with tempfile.TemporaryDirectory() as folder:
        data = os.path.join(folder, "text")
        open(data, "wb").write(text)
        for name, plan in PLANS.items():
            scenario = {
                "schema": "orrery.scenario/1", "name": name, "cluster": {"topology": "laptop-cpu"},
                "model": {"layers": 3, "hidden": 512, "heads": 8, "vocab": 256, "max_positions": SEQUENCE,
                          "norm": "layernorm", "activation": "gelu", "positions": "learned", "bias": True,
                          "tied_embeddings": False},
                "training": {"global_batch": BATCH, "sequence": SEQUENCE, "precision": "fp32", "math": "fp32"},
                "stack": "orrery", "plan": plan}
            path = os.path.join(folder, "scenario.json")
            json.dump(scenario, open(path, "w"))
            out = subprocess.run(
                [orrery, "run", path, "--json", "--data", data, "--steps", str(steps), "--learning-rate", "0.001",
                 "--warm-up", "40", "--decay-to", "0.05", "--held-out", str(HELD_OUT), "--validate-every",
                 str(steps), "--validation-batches", str(held // BATCH)], check=True, stdout=subprocess.PIPE)
            last = json.loads(out.stdout)["steps"][-1]
            beats = last["validation_loss"] < bar
            ok = ok and beats
            print(f"{name}: validation loss {last['validation_loss']:.4f} after {steps} steps, "
                  f"{'below' if beats else 'NOT below'} {bar:.4f}", flush=True)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
