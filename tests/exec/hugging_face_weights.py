#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Starts `orrery run` from weights under Hugging Face's names and compares the first loss with that of the model in
PyTorch; trains a step, and compares the weights that `orrery model export` writes with the ones it started from.

The models (GPT-2, Llama, Qwen2, Qwen3, its experts, Mixtral, OLMo 2 and Granite) are written from the definitions in Hugging Face's transformers, in its
names and conventions; the files are written and read here, in the safetensors format.
Usage: hugging_face_weights.py ORRERY FOLDER. Exit 77 (skipped) without PyTorch.
"""
import json
import os
import shutil
import struct
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

ORRERY, FOLDER = sys.argv[1], Path(sys.argv[2])
HIDDEN, HEADS, KEYS, LAYERS, VOCABULARY, BATCH, SEQUENCE, EPSILON = 64, 4, 2, 3, 259, 8, 32, 1e-5
HEAD, FFN, EXPERTS, TOP = 16, 96, 4, 2
SEED = 20261128

LLAMA = {"hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "head_dim": HEAD,
         "num_key_value_heads": KEYS, "intermediate_size": FFN, "vocab_size": VOCABULARY, "rms_norm_eps": EPSILON,
         "max_position_embeddings": SEQUENCE, "rope_theta": 10000.0, "hidden_act": "silu",
         "tie_word_embeddings": False}
CONFIGS = {
    "gpt2": {"model_type": "gpt2", "n_embd": HIDDEN, "n_layer": LAYERS, "n_head": HEADS, "n_positions": SEQUENCE,
             "vocab_size": VOCABULARY, "layer_norm_epsilon": EPSILON, "activation_function": "gelu_new",
             "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "llama": LLAMA | {"model_type": "llama"},
    "qwen2": LLAMA | {"model_type": "qwen2"},
    "qwen3_moe": LLAMA | {"model_type": "qwen3_moe", "num_experts": EXPERTS, "num_experts_per_tok": TOP,
                          "moe_intermediate_size": FFN, "norm_topk_prob": True, "router_aux_loss_coef": 0.0,
                          "decoder_sparse_step": 1, "mlp_only_layers": []},
    "qwen3": LLAMA | {"model_type": "qwen3", "tie_word_embeddings": True},
    "mixtral": LLAMA | {"model_type": "mixtral", "num_local_experts": EXPERTS, "num_experts_per_tok": TOP,
                        "router_aux_loss_coef": 0.0},
    "olmo2": LLAMA | {"model_type": "olmo2"},
    "granite": LLAMA | {"model_type": "granite", "embedding_multiplier": 12.0, "attention_multiplier": 0.1,
                        "residual_multiplier": 0.22, "logits_scaling": 4.0},
}


# Of the layer, and of an expert's gate, its other half, and what follows.
EXPERT_NAMES = {"mixtral": ("block_sparse_moe", "w1", "w3", "w2"),
                "qwen3_moe": ("mlp", "gate_proj", "up_proj", "down_proj")}


def shapes(kind):
    """Names and shapes of a checkpoint."""
    out = {}
    if kind == "gpt2":
        out = {"transformer.wte.weight": [VOCABULARY, HIDDEN], "transformer.wpe.weight": [SEQUENCE, HIDDEN]}
        for i in range(LAYERS):
            h = f"transformer.h.{i}."
            for norm in ("ln_1", "ln_2"):
                out |= {h + norm + ".weight": [HIDDEN], h + norm + ".bias": [HIDDEN]}
            for name, n, m in (("attn.c_attn", HIDDEN, 3 * HIDDEN), ("attn.c_proj", HIDDEN, HIDDEN),
                               ("mlp.c_fc", HIDDEN, 4 * HIDDEN), ("mlp.c_proj", 4 * HIDDEN, HIDDEN)):
                out |= {f"{h}{name}.weight": [n, m], f"{h}{name}.bias": [m]}
        return out | {"transformer.ln_f.weight": [HIDDEN], "transformer.ln_f.bias": [HIDDEN]}
    out = {"model.embed_tokens.weight": [VOCABULARY, HIDDEN], "model.norm.weight": [HIDDEN]}
    if kind != "qwen3":
        out["lm_head.weight"] = [VOCABULARY, HIDDEN]
    for i in range(LAYERS):
        h = f"model.layers.{i}."
        first = "post_feedforward_layernorm" if kind == "olmo2" else "input_layernorm"
        out |= {f"{h}{first}.weight": [HIDDEN], h + "post_attention_layernorm.weight": [HIDDEN],
                h + "self_attn.q_proj.weight": [HEADS * HEAD, HIDDEN],
                h + "self_attn.k_proj.weight": [KEYS * HEAD, HIDDEN],
                h + "self_attn.v_proj.weight": [KEYS * HEAD, HIDDEN],
                h + "self_attn.o_proj.weight": [HIDDEN, HEADS * HEAD]}
        if kind == "qwen2":
            out |= {f"{h}self_attn.{n}_proj.bias": [c * HEAD] for n, c in (("q", HEADS), ("k", KEYS), ("v", KEYS))}
        if kind == "olmo2":
            out |= {h + "self_attn.q_norm.weight": [HEADS * HEAD], h + "self_attn.k_norm.weight": [KEYS * HEAD]}
        if kind.startswith("qwen3"):
            out |= {h + "self_attn.q_norm.weight": [HEAD], h + "self_attn.k_norm.weight": [HEAD]}
        if kind in EXPERT_NAMES:
            name, gate, up, down = EXPERT_NAMES[kind]
            out[f"{h}{name}.gate.weight"] = [EXPERTS, HIDDEN]
            for e in range(EXPERTS):
                of = f"{h}{name}.experts.{e}."
                out |= {f"{of}{gate}.weight": [FFN, HIDDEN], f"{of}{down}.weight": [HIDDEN, FFN],
                        f"{of}{up}.weight": [FFN, HIDDEN]}
        else:
            out |= {h + "mlp.gate_proj.weight": [FFN, HIDDEN], h + "mlp.up_proj.weight": [FFN, HIDDEN],
                    h + "mlp.down_proj.weight": [HIDDEN, FFN]}
    return out


def values(kind):
    """Far from symmetric, so that parts in another order or transposed give another loss."""
    random = np.random.default_rng(SEED)
    out = {}
    for name, shape in shapes(kind).items():
        scale = 0.3 if len(shape) == 2 and shape[-1] > 1 else 0.1
        about = 1.0 if len(shape) == 1 and not name.endswith("bias") else 0.0
        out[name] = (about + scale * random.standard_normal(shape)).astype(np.float32)
    return out


def save(path, tensors, kind="F32", more={}):
    header, offset, data = {}, 0, b""
    for name, t in more.items():
        header[name] = {"dtype": "BOOL", "shape": list(t.shape), "data_offsets": [offset, offset + len(t)]}
        offset += len(t)
        data += t.tobytes()
    for name, t in tensors.items():
        raw = t.tobytes() if kind == "F32" else (t.view(np.uint32) >> 16).astype(np.uint16).tobytes()
        header[name] = {"dtype": kind, "shape": list(t.shape), "data_offsets": [offset, offset + len(raw)]}
        offset += len(raw)
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def load(path):
    raw = path.read_bytes()
    (n,) = struct.unpack("<Q", raw[:8])
    out = {}
    for name, t in json.loads(raw[8:8 + n]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + n + o for o in t["data_offsets"])
        assert t["dtype"] == "F32", t
        out[name] = np.frombuffer(raw[begin:end], np.float32).reshape(t["shape"])
    return out


def rotate(x):
    """rotate_half of modeling_llama."""
    angle = torch.arange(SEQUENCE)[:, None] * 10000.0 ** (-torch.arange(0, HEAD, 2) / HEAD)
    cos, sin = torch.cat([angle, angle], -1).cos(), torch.cat([angle, angle], -1).sin()
    half = torch.cat([-x[..., HEAD // 2:], x[..., :HEAD // 2]], -1)
    return x * cos + half * sin


def attention(q, k, v, scale=HEAD ** -0.5):
    groups = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(groups, 1) for t in (k, v))
    unseen = torch.ones(SEQUENCE, SEQUENCE, dtype=torch.bool).triu(1)
    scores = (q @ k.transpose(-1, -2) * scale).masked_fill(unseen, -torch.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2).reshape(BATCH, SEQUENCE, HEADS * HEAD)


def heads(x, n):
    return x.view(BATCH, SEQUENCE, n, HEAD).transpose(1, 2)


def gpt2(p, x):
    def norm(x, name):
        return F.layer_norm(x, (HIDDEN,), p[name + ".weight"], p[name + ".bias"], EPSILON)

    def conv1d(x, name):
        return x @ p[name + ".weight"] + p[name + ".bias"]

    x = p["transformer.wte.weight"][x] + p["transformer.wpe.weight"]
    for i in range(LAYERS):
        h = f"transformer.h.{i}."
        q, k, v = conv1d(norm(x, h + "ln_1"), h + "attn.c_attn").split(HIDDEN, -1)
        x = x + conv1d(attention(heads(q, HEADS), heads(k, HEADS), heads(v, HEADS)), h + "attn.c_proj")
        u = F.gelu(conv1d(norm(x, h + "ln_2"), h + "mlp.c_fc"), approximate="tanh")
        x = x + conv1d(u, h + "mlp.c_proj")
    return norm(x, "transformer.ln_f") @ p["transformer.wte.weight"].T


def llama(p, x, kind):
    def norm(x, name):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + EPSILON) * p[name + ".weight"]

    def linear(x, name):
        return x @ p[name + ".weight"].T + p.get(name + ".bias", 0.0)

    def mlp(x, gate, up, down):
        return linear(F.silu(linear(x, gate)) * linear(x, up), down)

    def moe(x, name, gate, up, down):
        scores = linear(x, name + ".gate").softmax(-1)
        best, chosen = scores.topk(TOP, -1)
        best = best / best.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for e in range(EXPERTS):
            of = f"{name}.experts.{e}."
            share = (best * (chosen == e)).sum(-1, keepdim=True)
            out = out + share * mlp(x, of + gate, of + up, of + down)
        return out

    config = CONFIGS[kind]
    added, behind = config.get("residual_multiplier", 1), kind == "olmo2"  # norms stand behind the layers
    x = p["model.embed_tokens.weight"][x] * config.get("embedding_multiplier", 1)
    for i in range(LAYERS):
        h = f"model.layers.{i}."
        a = h + "self_attn."
        y = x if behind else norm(x, h + "input_layernorm")
        q, k, v = (linear(y, a + n + "_proj") for n in "qkv")
        if behind:
            q, k = norm(q, a + "q_norm"), norm(k, a + "k_norm")
        q, k, v = heads(q, HEADS), heads(k, KEYS), heads(v, KEYS)
        if a + "q_norm.weight" in p and not behind:
            q, k = norm(q, a + "q_norm"), norm(k, a + "k_norm")
        y = linear(attention(rotate(q), rotate(k), v, config.get("attention_multiplier", HEAD ** -0.5)), a + "o_proj")
        x = x + added * (norm(y, h + "post_attention_layernorm") if behind else y)
        y = x if behind else norm(x, h + "post_attention_layernorm")
        m = h + "mlp."
        y = (mlp(y, m + "gate_proj", m + "up_proj", m + "down_proj") if m + "up_proj.weight" in p
             else moe(y, h + EXPERT_NAMES[kind][0], *EXPERT_NAMES[kind][1:]))
        x = x + added * (norm(y, h + "post_feedforward_layernorm") if behind else y)
    logits = norm(x, "model.norm") @ p.get("lm_head.weight", p["model.embed_tokens.weight"]).T
    return logits / config.get("logits_scaling", 1)


def orrery(*arguments, code=0):
    out = subprocess.run([ORRERY, *map(str, arguments)], capture_output=True, text=True)
    assert out.returncode == code, f"{arguments}: {out.returncode}\n{out.stderr}"
    return json.loads(out.stdout) if code == 0 else out.stderr


def check(kind, config, plan):
    folder = FOLDER / kind
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    weights = values(kind)
    save(folder / "model.safetensors", weights)
    text = bytes((i * i // 7 + i // 13) % 251 for i in range(BATCH * SEQUENCE + 1))
    (folder / "text").write_bytes(text)
    scenario = folder / "scenario.json"
    scenario.write_text(json.dumps({
        "model": {"config": "config.json"},
        "training": {"global_batch": BATCH, "sequence": SEQUENCE, "precision": "fp32", "math": "fp32"},
        "stack": "orrery", "cluster": {"topology": "laptop-cpu"}, "plan": plan}))

    data = torch.tensor(list(text))
    inputs, targets = (t.view(BATCH, SEQUENCE) for t in (data[:-1], data[1:]))
    forward = gpt2 if kind == "gpt2" else lambda p, x: llama(p, x, kind)
    double = lambda w: {n: torch.tensor(t, dtype=torch.float64) for n, t in w.items()}
    logits = forward(double(weights), inputs)
    expected = float(F.cross_entropy(logits.flatten(0, 1), targets.flatten()))

    def run(file, *more):
        return orrery("run", scenario, "--json", "--steps", 1, "--data", folder / "text", "--held-out", 0,
                      "--weights", file, *more)["steps"][0]["loss"]

    # A step that moves nothing: what comes out is what went in, to the bit.
    loss = run(folder, "--learning-rate", 0, "--checkpoints", folder / "still")
    print(f"{kind}: loss {loss:.7f}, PyTorch {expected:.7f}")
    assert abs(loss / expected - 1) < 2e-6, (loss, expected)
    out = folder / "out.safetensors"
    orrery("model", "export", scenario, "--checkpoints", folder / "still", "-o", out, "--json")
    written = load(out)
    assert sorted(written) == sorted(weights), set(written) ^ set(weights)
    for name, t in weights.items():
        assert np.array_equal(written[name], t), name
    assert run(out) == loss

    # In two files with an index, and in 16 bits.
    names = list(weights)
    parts = {f"model-0000{i + 1}-of-00002.safetensors": names[i::2] for i in range(2)}
    for file, own in parts.items():
        save(folder / file, {n: weights[n] for n in own})
    index = folder / "two.json"
    index.write_text(json.dumps({"weight_map": {n: f for f, own in parts.items() for n in own}}))
    assert run(index) == loss
    save(folder / "half.safetensors", weights, "BF16")
    narrow = {n: torch.tensor((t.view(np.uint32) & 0xFFFF0000).view(np.float32), dtype=torch.float64)
              for n, t in weights.items()}
    rounded = float(F.cross_entropy(forward(narrow, inputs).flatten(0, 1), targets.flatten()))
    assert abs(run(folder / "half.safetensors") / rounded - 1) < 2e-6
    assert rounded != expected

    # Wrong weights are refused by name.
    less = dict(weights)
    gone = names[len(names) // 2]
    del less[gone]
    save(folder / "wrong.safetensors", less)
    wrong = lambda: orrery("run", scenario, "--steps", 1, "--weights", folder / "wrong.safetensors", code=3)
    assert gone in wrong(), wrong()
    save(folder / "wrong.safetensors", weights | {gone: weights[gone][..., :-1].copy()})
    assert gone in wrong() and "and the model's is [" in wrong(), wrong()
    raw = (folder / "model.safetensors").read_bytes()
    for bad in (raw[:5], raw[:200], struct.pack("<Q", 2 ** 63) + raw[8:], raw[:8] + b"[" + raw[9:], raw[:-4]):
        (folder / "wrong.safetensors").write_bytes(bad)
        assert "wrong.safetensors" in wrong()
    (folder / "wrong.safetensors").unlink()
    os.mkfifo(folder / "wrong.safetensors")
    assert "is not a regular file" in wrong(), wrong()
    (folder / "wrong.safetensors").unlink()
    save(folder / "wrong.safetensors", weights | {gone: np.full_like(weights[gone], np.nan)})
    assert "not a finite number" in wrong(), wrong()
    # What the model has no use for may be of any type.
    save(folder / "more.safetensors", weights, more={"mask": np.zeros(4, np.bool_)})
    assert run(folder / "more.safetensors") == loss
    # An answer is the likeliest token, here by both.
    answer = orrery("generate", scenario, "--ids", ",".join(map(str, text[:SEQUENCE // 2])), "--tokens", 1, "--weights",
                    folder, "--json")["tokens"][0]
    prompt = torch.tensor(list(text[:SEQUENCE]))[None].repeat(BATCH, 1)
    assert answer == int(forward(double(weights), prompt)[0, SEQUENCE // 2 - 1].argmax()), answer
    # A run goes on only from what it started from.
    told = orrery("run", scenario, "--steps", 2, "--data", folder / "text", "--held-out", 0, "--learning-rate", 0,
                  "--checkpoints", folder / "still", "--resume", code=3)
    assert "/recipe/weights" in told, told


torch.set_num_threads(1)
print(f"seed {SEED}")
check("gpt2", CONFIGS["gpt2"], {"tp": 2, "micro_batches": 2, "micro_batch": 4})
check("llama", CONFIGS["llama"], {"pp": 2, "dp": 2, "zero": 1, "micro_batches": 4})
check("qwen3", CONFIGS["qwen3"], {"dp": 2, "zero": 3, "micro_batches": 4})
check("qwen2", CONFIGS["qwen2"], {"tp": 2, "pp": 3, "micro_batches": 8})
check("qwen3_moe", CONFIGS["qwen3_moe"], {"tp": 2, "dp": 2, "zero": 1, "micro_batches": 4})
check("olmo2", CONFIGS["olmo2"], {"pp": 3, "dp": 2, "zero": 1, "micro_batches": 4})
check("granite", CONFIGS["granite"], {"tp": 2, "sequence_parallel": True, "micro_batches": 8})
check("mixtral", CONFIGS["mixtral"], {"dp": 2, "ep": 2, "micro_batches": 4})

# Models that these names do not fit.
for change, word in (({"model_type": "gemma", "hidden_act": "gelu_pytorch_tanh"}, "embedding/weight"),):
    config = LLAMA | change
    folder = FOLDER / "gemma"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    save(folder / "model.safetensors", values("qwen3"))
    (folder / "scenario.json").write_text(json.dumps({
        "model": {"config": "config.json"}, "training": {"global_batch": 8, "sequence": 32, "precision": "fp32", "math": "fp32"},
        "stack": "orrery", "cluster": {"topology": "laptop-cpu"}, "plan": {"micro_batches": 8}}))
    told = orrery("run", folder / "scenario.json", "--steps", 1, "--weights", folder, code=3)
    assert word in told and "has no name" in told, told
