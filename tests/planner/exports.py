# SPDX-License-Identifier: Apache-2.0
"""Exports to torchtitan, MaxText, Kubernetes and SkyPilot, read as those read them and held against facts about
their fields (tests/data/launchers). Usage: exports.py ORRERY SOURCE"""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
import unittest

import yaml

PROGRAM, SOURCE = sys.argv.pop(1), sys.argv.pop(1)


def facts(name):
    with open(os.path.join(SOURCE, "tests/data/launchers", name + ".json"), encoding="utf-8") as file:
        return json.load(file)


TYPES = {
    "text": lambda v: isinstance(v, str) and v != "",
    "integer": lambda v: isinstance(v, int) and not isinstance(v, bool),
    "number": lambda v: isinstance(v, (int, float)) and not isinstance(v, bool),
    "boolean": lambda v: isinstance(v, bool),
    "null": lambda v: v is None,
    "texts": lambda v: isinstance(v, list) and all(isinstance(x, str) for x in v),
    "lists of texts": lambda v: isinstance(v, list) and all(TYPES["texts"](x) for x in v),
}


def leaves(value, fields, at=""):
    """(pointer, value) of every leaf; a list is one where the facts say so."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, fields, at + "/" + key.replace("/", "~1"))
    elif isinstance(value, list) and at not in fields:
        for i, inner in enumerate(value):
            yield from leaves(inner, fields, "%s/%d" % (at, i))
    else:
        yield at, value


def problems(value, fields):
    out = []
    for at, leaf in leaves(value, fields):
        if at not in fields:
            out.append("no such field: " + at)
        elif isinstance(fields[at], list):
            if leaf not in fields[at]:
                out.append("%s: %r is none of %s" % (at, leaf, fields[at]))
        elif not TYPES[fields[at]](leaf):
            out.append("%s: %r is no %s" % (at, leaf, fields[at]))
    return out


def scenario(model="llama-3.1-8b", nodes=2, cluster="p5", batch=64, plan=None, **training):
    return {"model": model, "cluster": {"topology": cluster, "nodes": nodes},
            "training": {"global_batch": batch, "sequence": 8192, "tokens": 1e12, **training},
            "plan": plan or {}}


def export(target, question):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "s.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(question, file)
        done = subprocess.run([PROGRAM, "export", path, "--to", target, "--json", "--force"], capture_output=True,
                              text=True)
    if done.returncode != 0:
        return done.returncode, done.stderr
    return 0, json.loads(done.stdout)["text"]


FSDP = {"dp": 16, "zero": 3, "micro_batches": 4, "recompute": "selective", "recompute_parts": ["core-attn"]}
TITAN_FSDP = {**FSDP, "recompute_parts": ["core-attn", "layernorm", "mlp"]}
PIPELINE = {"tp": 2, "sequence_parallel": True, "pp": 4, "dp": 2, "zero": 1, "micro_batches": 32, "schedule": "1f1b",
            "chunk_layers": [7, 9, 9, 7]}


class Torchtitan(unittest.TestCase):
    fields = facts("torchtitan")["fields"]

    def config(self, question):
        code, text = export("torchtitan", {**question, "stack": "torchtitan"})
        self.assertEqual(code, 0, text)
        return tomllib.loads(text)

    def test_fields_are_those_of_its_version(self):
        for question in (scenario(plan=TITAN_FSDP), scenario(plan=PIPELINE),
                         scenario(plan={**TITAN_FSDP, "recompute": "full", "recompute_parts": []}, math="fp8"),
                         scenario(plan={"dp": 4, "cp": 4, "cp_keys": "ring", "zero": 3, "micro_batches": 16}),
                         scenario(model="qwen3-8b", plan=TITAN_FSDP)):
            config = self.config(question)
            self.assertEqual(problems(config, self.fields), [])
            for section in ("model", "optimizer", "training", "parallelism"):  # a misspelt field is noticed
                name = next(iter(config[section]))
                wrong = {**config, section: {**config[section], name + "x": config[section][name]}}
                self.assertNotEqual(problems(wrong, self.fields), [])

    def test_says_the_plan(self):
        config = self.config(scenario(plan=TITAN_FSDP))
        p = config["parallelism"]
        self.assertEqual((p["data_parallel_shard_degree"], p["data_parallel_replicate_degree"]), (16, 1))
        self.assertEqual(p["fsdp_reshard_after_forward"], "always")
        t = config["training"]
        # 64 sequences are 16 ranks x 1 x 4 steps of accumulation.
        self.assertEqual((t["local_batch_size"], t["global_batch_size"], t["seq_len"]), (1, 64, 8192))
        self.assertEqual(t["steps"], -(-int(1e12) // (64 * 8192)))
        for clip in (0.01, 0.25, 1, 0):
            got = self.config(scenario(plan=TITAN_FSDP, clip=clip))["training"]["max_norm"]
            self.assertIsInstance(got, float)
            self.assertEqual(got, clip if clip > 0 else 1e9)
        self.assertEqual(config["activation_checkpoint"], {"mode": "selective", "selective_ac_option": "op"})
        self.assertEqual((config["model"]["name"], config["model"]["flavor"]), ("llama3", "8B"))

        config = self.config(scenario(plan=PIPELINE))
        p = config["parallelism"]
        self.assertEqual((p["tensor_parallel_degree"], p["pipeline_parallel_degree"]), (2, 4))
        parts = p["module_fqns_per_model_part"]
        self.assertEqual([sum(m.startswith("layers.") for m in part) for part in parts], [7, 9, 9, 7])
        self.assertEqual(parts[0][0], "tok_embeddings")
        self.assertEqual(parts[-1][-2:], ["norm", "output"])
        self.assertEqual([m for part in parts for m in part][1:-2], ["layers.%d" % i for i in range(32)])
        self.assertEqual(config["training"]["local_batch_size"], 32)  # of a replica, in micro-batches of 1
        self.assertEqual(p["pipeline_parallel_microbatch_size"], 1)

    def test_refuses_what_it_has_not(self):
        code, text = export("torchtitan", {**scenario(model="gpt3-175b", plan={"tp": 8, "dp": 2, "sequence_parallel": True, "micro_batches": 32}), "stack": "orrery"})
        self.assertEqual(code, 3)
        for plan, field in (({**TITAN_FSDP, "zero": 0, "dp": 8, "cp": 2, "micro_batches": 8}, "/plan/zero"),
                            ({**TITAN_FSDP, "recompute_parts": ["layernorm"]}, "/plan/recompute_parts")):
            code, text = export("torchtitan", {**scenario(plan=plan), "stack": "torchtitan"})
            self.assertEqual(code, 3, text)
            self.assertIn(field + ": torchtitan", text)
        code, text = export("torchtitan", {**scenario(model="llama-3-8b", plan=TITAN_FSDP), "stack": "torchtitan"})
        self.assertIn("/model: torchtitan v0.2.2 scales rotary positions", text)
        code, text = export("torchtitan", {**scenario(model="llama-2-7b", plan=TITAN_FSDP), "stack": "torchtitan"})
        self.assertEqual(code, 3)
        self.assertIn('/model: torchtitan v0.2.2 has no model like "llama-2-7b"', text)


class Maxtext(unittest.TestCase):
    fields = facts("maxtext")["fields"]

    def config(self, question):
        code, text = export("maxtext", {**question, "stack": "maxtext"})
        self.assertEqual(code, 0, text)
        words = shlex.split(text[text.index("python3 -m"):].replace("\\\n", " "))
        self.assertEqual(words[2], "maxtext.trainers.pre_train.train")
        pairs = [word.split("=", 1) for word in words[4:]]
        self.assertEqual(len({name for name, _ in pairs}), len(pairs))
        out = {}
        for name, value in pairs:
            if re.fullmatch(r"\$\{[A-Z_]+:\?.*\}", value):
                value = "given"
            out[name] = yaml.safe_load(value) if not re.fullmatch(r"[0-9.]+e[-+][0-9]+", value) else float(value)
        return out

    def test_fields_are_those_of_its_version(self):
        for question in (scenario(plan=FSDP), scenario(plan={"tp": 2, "dp": 8, "micro_batches": 8, "zero": 1}),
                         scenario(plan={**FSDP, "recompute": "full", "recompute_parts": [], "loss_chunks": 8}, math="fp8"),
                         scenario(model="qwen3-8b", plan=FSDP)):
            config = self.config(question)
            self.assertEqual(problems(config, self.fields), [])
            self.assertNotEqual(problems({**config, "ici_fsdp_paralelism": 8}, self.fields), [])

    def test_axes_fill_nodes_and_batches_add_up(self):
        for plan in (FSDP, {"tp": 2, "dp": 8, "micro_batches": 8}, {"tp": 4, "sequence_parallel": True, "dp": 4, "zero": 3,
                                                                    "shard_group": 2, "micro_batches": 16}):
            config = self.config(scenario(plan=plan))
            inside = between = 1
            for name, value in config.items():
                inside *= value if name.startswith("ici_") else 1
                between *= value if name.startswith("dcn_") else 1
            self.assertEqual((inside, between), (8, 2), plan)
            sequences = config["per_device_batch_size"] * 16 * config["gradient_accumulation_steps"]
            self.assertEqual(sequences, 64)

    def test_refuses_other_models(self):
        code, text = export("maxtext", {**scenario(model="gpt3-175b", plan={"tp": 8, "dp": 2, "micro_batches": 32}, sequence=2048), "stack": "maxtext"})
        self.assertEqual(code, 3)
        self.assertIn("/model", text)


class Cloud(unittest.TestCase):
    facts = facts("cloud")
    question = {**scenario(plan={"tp": 2, "sequence_parallel": True, "dp": 8, "zero": 1, "micro_batches": 8}), "name": "Llama 8B!"}

    def test_kubernetes(self):
        code, text = export("kubernetes", self.question)
        self.assertEqual(code, 0, text)
        service, job = yaml.safe_load_all(text)
        self.assertEqual(problems(service, self.facts["service"]), [])
        self.assertEqual(problems(job, self.facts["job"]), [])
        self.assertNotEqual(problems({**job, "spec": {**job["spec"], "paralelism": 2}}, self.facts["job"]), [])
        self.assertEqual(service["metadata"]["name"], "llama-8b")
        self.assertEqual((job["spec"]["parallelism"], job["spec"]["completions"]), (2, 2))
        container = job["spec"]["template"]["spec"]["containers"][0]
        self.assertEqual(container["resources"]["limits"]["nvidia.com/gpu"], 8)
        self.check_script(container["args"][0])
        self.assertIn('"${MEGATRON:?set MEGATRON', container["args"][0])

    def test_skypilot(self):
        code, text = export("skypilot", self.question)
        self.assertEqual(code, 0, text)
        task = yaml.safe_load(text)
        self.assertEqual(problems(task, self.facts["task"]), [])
        self.assertEqual((task["resources"]["accelerators"], task["num_nodes"]), ("H100:8", 2))
        self.check_script(task["run"])
        code, text = export("skypilot", {**self.question, "cluster": {"topology": "mi300x", "nodes": 2}})
        self.assertEqual(code, 3)
        self.assertIn("/cluster", text)

    def check_script(self, script):
        done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("--tensor-model-parallel-size 2", script)
        self.assertIn("torchrun --nnodes=2 --nproc_per_node=8", script)


if __name__ == "__main__":
    unittest.main()
