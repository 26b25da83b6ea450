#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a model in PyTorch from a checkpoint of `orrery run` and compares the losses of twenty steps.

The model is written from its definition, not from Orrery's code; only the checkpoint's names and shapes are shared.
The optimizer is torch.optim.AdamW with the scenario's constants.
Usage: torch_reference.py ORRERY SCENARIO gpt|llama FOLDER. Of the scenario's model the rotary fields and the
norms' epsilon are read here too. Exit 77 (skipped) without PyTorch.
"""
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

try:
    import numpy as np
    import torch
    import torch.nn.functional as F
except ImportError as missing:
    print(f"skipped: {missing}; Debian's python3-torch and python3-numpy provide it")
    sys.exit(77)

ORRERY, SCENARIO, KIND, FOLDER = sys.argv[1], Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
STEPS, RATE, DECAY = 20, 3e-3, 0.1
OPTIMIZER = json.loads(SCENARIO.read_text())["training"].get("optimizer", {})
HIDDEN, HEADS, LAYERS, VOCABULARY, BATCH, SEQUENCE = 64, 4, 4, 256, 16, 64
KV_HEADS = 2 if KIND == "llama" else 4
HEAD = HIDDEN // HEADS
MODEL = json.loads(SCENARIO.read_text())["model"]
MODEL = MODEL if isinstance(MODEL, dict) else {}
EPSILON = MODEL.get("norm_epsilon", 1e-5)


def frequencies(rotary):
    """Radians per position of each pair of elements, and the amplitude of cosines and sines."""
    width = int(HEAD * rotary.get("fraction", 1))
    pair = torch.arange(0, width, 2, dtype=torch.float64)
    plain = 1 / rotary.get("base", 10000) ** (pair / width)
    kind, factor = rotary.get("scaling", "none"), rotary.get("factor", 1)
    context = rotary.get("original_positions", 8192)
    if kind == "llama3":
        low, high = rotary.get("low_frequency_factor", 1), rotary.get("high_frequency_factor", 4)
        waves = context * plain / (2 * math.pi)  # in the original context
        kept = ((waves - low) / (high - low)).clamp(0, 1)
        return kept * plain + (1 - kept) * plain / factor, 1.0
    if kind == "yarn":
        # The pair that makes so many turns over the original context.
        of = lambda turns: width * math.log(context / (2 * math.pi * turns)) / (2 * math.log(rotary["base"]))
        first, last = max(0, math.floor(of(32))), min(width - 1, math.ceil(of(1)))
        scaled = ((torch.arange(width // 2, dtype=torch.float64) - first) / (last - first)).clamp(0, 1)
        return plain * (1 - scaled) + plain / factor * scaled, 0.1 * math.log(factor) + 1
    assert kind == "none", kind
    return plain, 1.0


def tensors(folder):
    """Logical tensors of a checkpoint: {name: [parameter, first moment, second moment]}."""
    index = json.loads((folder / "index.json").read_text())
    out = {t["name"]: [np.full((t["rows"], t["cols"]), np.nan, np.float32) for _ in range(index["states"])]
           for t in index["tensors"]}
    for file in index["files"]:
        data = np.fromfile(folder / file["name"], "<f4")
        for piece in file["pieces"]:
            get = lambda key: piece.get(key, 0)
            flat = np.arange(get("begin"), get("end"))
            rows, cols = get("row") + flat // get("cols"), get("col") + flat % get("cols")
            out[piece["tensor"]][get("state")][rows, cols] = data[get("offset"):get("offset") + len(flat)]
    return out


class Net:
    def __init__(self, state):
        squeeze = lambda a: torch.tensor(a[:, 0] if a.shape[1] == 1 else a)
        self.p = {name: squeeze(arrays[0]).requires_grad_() for name, arrays in state.items()}
        decays = lambda t: OPTIMIZER.get("decay", "matrices") == "all" or t.dim() > 1
        groups = [{"params": [t for t in self.p.values() if decays(t) == decayed], "weight_decay": decay}
                  for decayed, decay in ((True, DECAY), (False, 0.0))]
        self.optimizer = torch.optim.AdamW(
            [g for g in groups if g["params"]], lr=RATE, eps=OPTIMIZER.get("epsilon", 1e-8),
            betas=(OPTIMIZER.get("beta1", 0.9), OPTIMIZER.get("beta2", 0.95)))
        for name, arrays in state.items():  # after the first step
            self.optimizer.state[self.p[name]] = {
                "step": torch.tensor(1.0), "exp_avg": squeeze(arrays[1]), "exp_avg_sq": squeeze(arrays[2])}

    def norm(self, x, name):
        if KIND == "gpt":
            return F.layer_norm(x, (HIDDEN,), self.p[name + "/weight"], self.p[name + "/bias"], EPSILON)
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + EPSILON) * self.p[name + "/weight"]

    def linear(self, x, name):
        return F.linear(x, self.p[name + "/weight"], self.p.get(name + "/bias"))

    def rotate(self, x):  # [batch, heads, sequence, head]
        frequency, amplitude = frequencies(MODEL.get("rotary", {}))
        half = len(frequency)
        angle = torch.arange(SEQUENCE, dtype=torch.float64)[:, None] * frequency
        cos, sin = (amplitude * angle.cos()).float(), (amplitude * angle.sin()).float()
        a, b, rest = x[..., :half], x[..., half:2 * half], x[..., 2 * half:]
        return torch.cat([a * cos - b * sin, a * sin + b * cos, rest], -1)

    def attention(self, x, name):
        qkv = self.linear(x, name + "/qkv")
        q, k, v = qkv.split([HEADS * HEAD, KV_HEADS * HEAD, KV_HEADS * HEAD], -1)
        q = q.view(BATCH, SEQUENCE, HEADS, HEAD).transpose(1, 2)
        k, v = (t.view(BATCH, SEQUENCE, KV_HEADS, HEAD).transpose(1, 2) for t in (k, v))
        if KIND == "llama":
            q, k = self.rotate(q), self.rotate(k)
        k, v = (t.repeat_interleave(HEADS // KV_HEADS, 1) for t in (k, v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(HEAD)
        later = torch.ones(SEQUENCE, SEQUENCE, dtype=torch.bool).triu(1)
        out = scores.masked_fill(later, -torch.inf).softmax(-1) @ v
        return self.linear(out.transpose(1, 2).reshape(BATCH, SEQUENCE, HIDDEN), name + "/out")

    def mlp(self, x, name):
        u = self.linear(x, name + "/fc1")
        if KIND == "gpt":
            return self.linear(F.gelu(u, approximate="tanh"), name + "/fc2")
        gate, up = u.chunk(2, -1)
        return self.linear(F.silu(gate) * up, name + "/fc2")

    def loss(self, tokens, targets):
        x = self.p["embedding/weight"][tokens]
        if KIND == "gpt":
            x = x + self.p["embedding/positions"][:SEQUENCE]
        for i in range(LAYERS):
            x = x + self.attention(self.norm(x, f"layer{i}/attn/norm"), f"layer{i}/attn")
            x = x + self.mlp(self.norm(x, f"layer{i}/mlp/norm"), f"layer{i}/mlp")
        head = self.p.get("head/weight", self.p["embedding/weight"])
        return F.cross_entropy((self.norm(x, "head/norm") @ head.T).flatten(0, 1), targets.flatten())

    def step(self, tokens, targets):
        """One step of AdamW after clipping to a norm of 1; returns the loss and the norm before clipping."""
        loss = self.loss(tokens, targets)
        loss.backward()
        norm = torch.sqrt(sum((t.grad.double() ** 2).sum() for t in self.p.values()))
        factor = min(1.0, float(1.0 / (norm + 1e-6)))
        for t in self.p.values():
            t.grad.mul_(factor)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(loss), float(norm)


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    # As many sequences as a batch has: every step trains on all of them, in whatever order.
    text = bytes((i * i // 7 + i // 13) % 251 for i in range(BATCH * SEQUENCE + 1))
    shutil.rmtree(FOLDER / "checkpoints", ignore_errors=True)
    (FOLDER / "text").write_bytes(text)
    out = subprocess.run([ORRERY, "run", SCENARIO, "--steps", str(STEPS + 1), "--data", FOLDER / "text",
                          "--learning-rate", str(RATE), "--weight-decay", str(DECAY),
                          "--checkpoints", FOLDER / "checkpoints", "--checkpoint-every", "1",
                          "--keep-checkpoints", "0", "--json"],
                         check=True, capture_output=True, text=True)
    expected = json.loads(out.stdout)["steps"][1:]
    torch.set_num_threads(1)
    net = Net(tensors(FOLDER / "checkpoints" / "step-00000001"))
    data = torch.tensor(list(text))
    tokens, targets = data[:-1].view(BATCH, SEQUENCE), data[1:].view(BATCH, SEQUENCE)
    worst = 0.0
    for i, step in enumerate(expected):
        loss, norm = net.step(tokens, targets)
        off = max(abs(step["loss"] / loss - 1), abs(step["grad_norm"] / norm - 1) / 10)
        worst = max(worst, off)
        print(f"step {i + 2:2}  loss {step['loss']:.7f} PyTorch {loss:.7f}  norm {step['grad_norm']:.6f} PyTorch {norm:.6f}")
    first, last = expected[0]["loss"], expected[-1]["loss"]
    print(f"largest relative difference {worst:.2e} (allowed 1e-4); loss fell from {first:.3f} to {last:.3f}")
    sys.exit(0 if worst < 1e-4 and len(expected) == STEPS and last < first - 0.5 else 1)


main()
