#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What PyTorch makes of the shapes of kernels_bench.cpp on this GPU: attention by cuDNN and by FlashAttention,
products by cuBLAS. Random bf16 tensors; the fastest of 20 batches of 5 calls, by events; TFLOP/s counted as there.

Usage: peers.py OUT.json
"""
import json
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

TOKENS, HIDDEN = 16384, 2048


def seconds(call):
    for _ in range(3):
        call()
    best = float("inf")
    for _ in range(20):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(5):
            call()
        end.record()
        torch.cuda.synchronize()
        best = min(best, begin.elapsed_time(end) / 5e3)
    return best


def attention(head, sequence, backend):
    heads = HIDDEN // head
    shape = (TOKENS // sequence, sequence, heads, head)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16).transpose(1, 2).requires_grad_() for _ in range(3))
    flops = 2 * shape[0] * heads * sequence**2 * head
    with sdpa_kernel(backend):
        forward = seconds(lambda: scaled_dot_product_attention(q, k, v, is_causal=True))
        out = scaled_dot_product_attention(q, k, v, is_causal=True)
        d = torch.randn_like(out)
        backward = seconds(lambda: torch.autograd.grad(out, (q, k, v), d, retain_graph=True))
    return flops / forward * 1e-12, 2.5 * flops / backward * 1e-12


def product(m, n, k):
    a, b = torch.randn(m, k, device="cuda", dtype=torch.bfloat16), torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
    return 2 * m * n * k / seconds(lambda: a @ b.T) * 1e-12


def main():
    rows = []
    for head in (64, 128):
        for sequence in (1024, 4096):
            for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION):
                try:
                    forward, backward = attention(head, sequence, backend)
                except RuntimeError as e:
                    print(f"{backend.name} head {head} sequence {sequence}: {e}", flush=True)
                    continue
                rows.append({"backend": backend.name, "head": head, "sequence": sequence, "forward_tflops": forward,
                             "backward_tflops": backward})
                print(f"{backend.name:16} head {head:3} sequence {sequence:4}: forward {forward:6.1f} TFLOP/s, "
                      f"backward {backward:6.1f} TFLOP/s", flush=True)
    for m, n, k in ((8192, 8192, 8192), (16384, 4096, 4096), (16384, 50304, 768), (16384, 3072, 768)):
        rows.append({"m": m, "n": n, "k": k, "tflops": product(m, n, k)})
        print(f"product {m} x {n} x {k}: {rows[-1]['tflops']:.1f} TFLOP/s", flush=True)
    json.dump({"torch": torch.__version__, "device": torch.cuda.get_device_name(), "rows": rows}, open(sys.argv[1], "w"),
              indent=1)


if __name__ == "__main__":
    main()
