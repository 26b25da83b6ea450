# SPDX-License-Identifier: Apache-2.0
"""Exports to torchtitan, MaxText, Megatron Bridge, Axolotl, Slurm, Kubernetes and SkyPilot, read as those read them and held against facts about
their fields (tests/data/launchers). Usage: exports.py ORRERY SOURCE"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
import types
import unittest
import unittest.mock

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
    "number or name": lambda v: TYPES["number"](v) or isinstance(v, str) and v.isupper(),
    "null": lambda v: v is None,
    "texts": lambda v: isinstance(v, list) and all(isinstance(x, str) for x in v),
    "env": lambda v: all(set(x) == {"name", "value"} and isinstance(x["value"], str) or
                         set(x) == {"name", "valueFrom"} and set(x["valueFrom"]) == {"fieldRef"} for x in v),
    "numbers": lambda v: isinstance(v, list) and all(TYPES["number"](x) for x in v),
    "nulls": lambda v: all(x is None for x in v.values()),
    "lists of texts": lambda v: isinstance(v, list) and all(TYPES["texts"](x) for x in v),
}


def leaves(value, fields, at=""):
    """(pointer, value) of every leaf; a list or an object is one where the facts say so."""
    if isinstance(value, dict) and at not in fields:
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


def export(target, question, launcher=None):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "s.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(question, file)
        done = subprocess.run([PROGRAM, "export", path, "--to", target, "--json", "--force"] +
                              (["--launcher", launcher] if launcher else []), capture_output=True, text=True)
    if done.returncode != 0:
        return done.returncode, done.stderr
    return 0, json.loads(done.stdout)["text"]


def shellcheck(script):
    """What ShellCheck warns of; nothing where Debian's shellcheck is missing."""
    if not shutil.which("shellcheck"):
        return ""
    return subprocess.run(["shellcheck", "-s", "bash", "-S", "warning", "-"], input=script, text=True, capture_output=True).stdout


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


class Part:
    """A part of a configuration that has these fields."""

    def __init__(self, fields):
        self.__dict__.update(dict.fromkeys(fields))


def BLOCKS():
    """Stands in for what makes the layers one by one."""


class MegatronBridge(unittest.TestCase):
    fields = facts("megatron-bridge")["fields"]
    variables = {"TOKENIZER_MODEL": "t", "DATA_PATH": "d", "LR": "0.125", "TRAIN_ITERS": "7"}

    def run_script(self, question, fields=None, environment=None):
        """What the script sets where the library is a stand-in with the fields of its version."""
        code, text = export("megatron-bridge", question)
        self.assertEqual(code, 0, text)
        fields = fields or self.fields
        config = Part({part for part in fields if part != "precision"} | {"mixed_precision"})
        for part, names in fields.items():
            setattr(config, part, Part(names))
        started = []
        names = {
            "torch": {"float32": "float32", "bfloat16": "bfloat16", "nn": Part({"functional"})},
            "megatron.core.fusions.fused_bias_geglu": {"quick_gelu": "quick_gelu"},
            "megatron.core.models.gpt.gpt_layer_specs": {"get_gpt_decoder_block_spec": BLOCKS},
            "megatron.core.activations": {"squared_relu": "squared_relu"},
            "megatron.bridge.models.mla_provider": {"MLAModelProvider": lambda: Part({*fields["model"], "latent"})},
            "megatron.bridge.recipes.gpt.h100.vanilla_gpt": {"vanilla_gpt_pretrain_1gpu_h100_bf16_config": lambda: config},
            "megatron.bridge.training.gpt_step": {"forward_step": "forward_step"},
            "megatron.bridge.training.mixed_precision": {
                "get_mixed_precision_config": lambda name: Part({*fields["precision"], name})},
            "megatron.bridge.training.pretrain": {"pretrain": lambda *given: started.append(given)},
        }
        modules = {}
        for name, values in names.items():
            for i in range(name.count(".") + 1):
                part = ".".join(name.split(".")[:i + 1])
                modules.setdefault(part, types.ModuleType(part))
            modules[name].__dict__.update(values)
        modules["torch"].nn.functional = Part({"silu"})
        modules["torch"].nn.functional.silu = "silu"
        with unittest.mock.patch.dict(sys.modules, modules), \
                unittest.mock.patch.dict(os.environ, self.variables if environment is None else environment):
            exec(compile(text, "script", "exec"), {"__name__": "__main__"})
        self.assertEqual(started, [(config, "forward_step")])
        return config

    def test_says_the_plan(self):
        c = self.run_script(scenario(plan={**PIPELINE, "recompute": "selective", "recompute_parts": ["core-attn", "mlp"]}))
        m = c.model
        self.assertEqual((m.num_layers, m.hidden_size, m.num_query_groups, m.vocab_size), (32, 4096, 8, 128256))
        self.assertEqual((m.tensor_model_parallel_size, m.pipeline_model_parallel_size, m.sequence_parallel), (2, 4, True))
        self.assertEqual(m.pipeline_model_parallel_layout, "Et*7|t*9|t*9|t*7L")
        self.assertEqual((m.activation_func, m.gated_linear_unit, m.add_bias_linear), ("silu", True, False))
        self.assertEqual((m.recompute_granularity, m.recompute_modules), ("selective", ["core_attn", "mlp"]))
        self.assertEqual((m.seq_length, c.dataset.seq_length), (8192, 8192))
        self.assertEqual((c.train.global_batch_size, c.train.micro_batch_size), (64, 1))
        self.assertEqual((c.ddp.use_distributed_optimizer, c.optimizer.use_distributed_optimizer), (True, True))
        self.assertEqual((c.dataset.data_path, c.tokenizer.tokenizer_model, c.checkpoint.save), ("d", "t", "checkpoints"))
        self.assertEqual(c.train.train_iters, -(-int(1e12) // (64 * 8192)))
        self.assertIn("bf16_mixed", c.mixed_precision.__dict__)
        self.assertIs(c.mixed_precision.grad_reduce_in_fp32, False)
        self.assertEqual((c.scheduler.start_weight_decay, c.scheduler.end_weight_decay), (0.1, 0.1))
        self.assertEqual((m.bias_activation_fusion, m.bias_dropout_fusion, m.apply_rope_fusion), (True, True, True))
        self.assertIsNone(m.transformer_layer_spec)  # as the class has it

    def test_says_other_plans(self):
        plain = {"tp": 1, "dp": 16, "micro_batches": 4}
        c = self.run_script(scenario(plan=plain, math="fp8-delayed"))
        self.assertEqual((c.ddp.use_distributed_optimizer, c.optimizer.use_distributed_optimizer), (False, False))
        self.assertEqual((c.mixed_precision.fp8, c.mixed_precision.fp8_recipe), ("hybrid", "delayed"))
        c = self.run_script(scenario(plan={**plain, "zero": 3}))
        self.assertEqual((c.ddp.use_megatron_fsdp, c.dist.use_megatron_fsdp), (True, True))
        self.assertEqual(c.ddp.data_parallel_sharding_strategy, "optim_grads_params")
        self.assertEqual(c.checkpoint.ckpt_format, "fsdp_dtensor")
        for precision, gradients in (("precision-aware", None), ("precision-aware-bf16", "bfloat16")):
            c = self.run_script(scenario(plan={**plain, "zero": 1}, precision=precision))
            self.assertEqual((c.optimizer.use_precision_aware_optimizer, c.optimizer.use_distributed_optimizer), (True, True))
            self.assertEqual((c.optimizer.exp_avg_dtype, c.optimizer.exp_avg_sq_dtype), ("bfloat16", "bfloat16"))
            self.assertEqual(c.mixed_precision.fp8_recipe, "delayed")  # with another one masters are whole
            self.assertEqual((c.optimizer.main_grads_dtype, c.mixed_precision.grad_reduce_in_fp32), (gradients, gradients is None))
        c = self.run_script({**scenario(plan=plain), "training": {"global_batch": 64, "sequence": 8192, "precision": "sgd", "math": "fp32"}})
        self.assertEqual((c.mixed_precision, c.model.params_dtype, c.optimizer.optimizer), (None, "float32", "sgd"))
        self.assertEqual((c.optimizer.lr, c.optimizer.min_lr, c.train.train_iters), (0.125, 0, 7))
        self.assertEqual((c.optimizer.bf16, c.scheduler.start_weight_decay, c.scheduler.end_weight_decay), (False, 0, 0))
        c = self.run_script(scenario(model="qwen3-30b-a3b", plan={"dp": 16, "ep": 8, "micro_batches": 4}))
        self.assertEqual((c.model.num_moe_experts, c.model.moe_router_topk, c.model.expert_model_parallel_size), (128, 8, 8))
        self.assertEqual((c.model.moe_token_dispatcher_type, c.model.qk_layernorm), ("alltoall", True))
        c = self.run_script(scenario(model="moonlight-16b-a3b", plan={"dp": 16, "ep": 8, "micro_batches": 4}))
        self.assertIn("latent", c.model.__dict__)
        self.assertIsNone(c.model.q_lora_rank)  # of Moonlight's queries; the class has 512
        self.assertEqual((c.model.transformer_layer_spec.func, c.model.apply_rope_fusion), (BLOCKS, False))
        self.assertEqual(c.model.moe_layer_freq, [0] + [1] * 26)

    def test_stops_where_a_field_or_a_variable_is_missing(self):
        question = scenario(plan={"dp": 16, "micro_batches": 4})
        fields = {**self.fields, "model": [f for f in self.fields["model"] if f != "kv_channels"]}
        with self.assertRaisesRegex(SystemExit, "no field kv_channels in Part"):
            self.run_script(question, fields)
        with self.assertRaisesRegex(SystemExit, "set DATA_PATH to the prefix"):
            self.run_script(question, environment={"TOKENIZER_MODEL": "t"})

    def test_refuses_what_it_would_train_otherwise(self):
        for question, field in (
                (scenario(model="gpt3-175b", plan={"tp": 8, "dp": 2, "micro_batches": 32}, sequence=1024), "/model"),
                (scenario(plan={"dp": 16, "micro_batches": 4}, muon={"gates": "together"}), "/training/muon")):
            code, text = export("megatron-bridge", question)
            self.assertEqual(code, 3, text)
            self.assertIn(field + ":", text.replace("/model/max_positions", "/model"))


class Axolotl(unittest.TestCase):
    fields = facts("axolotl")["fields"]

    def config(self, question):
        code, text = export("axolotl", {**question, "stack": "fsdp"})
        self.assertEqual(code, 0, text)
        return yaml.safe_load(text)

    def test_fields_are_those_of_its_version(self):
        full = {"dp": 16, "zero": 3, "micro_batches": 4, "recompute": "full"}
        pure = {"precision": "pure-bf16"}
        for question in (scenario(plan=full, **pure), scenario(plan={**full, "loss_chunks": 8}, **pure),
                         scenario(plan=full, adapter={"rank": 8}, math="fp8"),
                         scenario(plan={**full, "shard_group": 8}, precision="pure-bf16-8bit"),
                         scenario(plan={**full, "zero": 2}, precision="fp32", math="tf32"),
                         scenario(plan={**full, "offload": {"activation_layers": 32}}, **pure),
                         scenario(plan={**full, "offload": {"optimizer": 1, "parameters": True}}, **pure),
                         scenario(plan={**full, "zero": 0}, adapter={"rank": 8, "targets": ["q", "v"]}),
                         scenario(plan=full, adapter={"rank": 8, "base": "nf4"})):
            config = self.config(question)
            self.assertEqual(problems(config, self.fields), [])
            # As its validators have it (src/axolotl/utils/schemas/validation.py).
            self.assertFalse(config["optimizer"] == "adamw_bnb_8bit" and "fsdp_config" in config)
            self.assertFalse(config["activation_offloading"] and not config["gradient_checkpointing"])
            self.assertFalse(config["attn_implementation"].startswith("flash") and not config["bf16"])
            self.assertNotEqual(problems({**config, "gradient_acumulation_steps": 4}, self.fields), [])

    def test_says_the_plan(self):
        config = self.config(scenario(plan={"dp": 16, "zero": 3, "shard_group": 8, "micro_batches": 4, "recompute": "full"}, precision="pure-bf16-8bit"))
        self.assertEqual(config["optimizer"], "adamw_torch_8bit")
        self.assertEqual((config["micro_batch_size"], config["gradient_accumulation_steps"], config["sequence_len"]), (1, 4, 8192))
        self.assertEqual((config["dp_shard_size"], config["dp_replicate_size"]), (8, 2))
        self.assertEqual((config["gradient_checkpointing"], config["bf16"], config["adam_epsilon"]), (True, True, 1e-8))
        self.assertIs(config["fsdp_config"]["reshard_after_forward"], True)
        config = self.config(scenario(plan={"dp": 16, "micro_batches": 4}, adapter={"rank": 8, "alpha": 32, "base": "nf4-dq"}))
        self.assertEqual((config["adapter"], config["lora_r"], config["lora_alpha"], config["load_in_4bit"]), ("qlora", 8, 32, True))
        self.assertTrue(config["bnb_config_kwargs"]["bnb_4bit_use_double_quant"])
        self.assertNotIn("fsdp_config", config)
        config = self.config(scenario(plan={"dp": 16, "micro_batches": 4}, adapter={"rank": 8, "targets": ["q", "down"]}))
        self.assertEqual(config["lora_target_modules"], ["q_proj", "down_proj"])

    def test_refuses_what_it_has_not(self):
        for question, field in (
                (scenario(plan={"dp": 16, "micro_batches": 4}), "/plan/zero"),
                (scenario(plan={"dp": 16, "zero": 3, "micro_batches": 4}), "/training/precision"),
                (scenario(plan={"dp": 16, "micro_batches": 4}, adapter={"rank": 8}, math="fp8-delayed"), "/training/math"),
                (scenario(plan={"dp": 16, "micro_batches": 4}, adapter={"rank": 8}, math="fp16"), "/training/math"),
                (scenario(plan={"dp": 16, "zero": 3, "micro_batches": 4, "offload": {"activation_layers": 32}}, precision="pure-bf16"),
                 "/plan/offload/activation_layers"),
                (scenario(plan={"dp": 16, "micro_batches": 4}, adapter={"rank": 8, "alpha": 1.5}), "/training/adapter/alpha"),
                (scenario(plan={"dp": 16, "zero": 3, "micro_batches": 4, "offload": {"activation_layers": 4}}), "/plan/offload/activation_layers")):
            code, text = export("axolotl", {**question, "stack": "fsdp"})
            self.assertEqual(code, 3, text)
            self.assertIn(field + ": Axolotl v0.18.0", text)


class Automodel(unittest.TestCase):
    fields = facts("automodel")["fields"]

    def config(self, question):
        code, text = export("automodel", {**question, "stack": "automodel"})
        self.assertEqual(code, 0, text)
        return yaml.safe_load(text)

    def test_fields_are_those_of_its_version(self):
        full = {"dp": 16, "zero": 3, "micro_batches": 4, "recompute": "full"}
        for question in (scenario(plan=full), scenario(plan={**full, "shard_group": 8}, precision="megatron"),
                         scenario(plan={**full, "zero": 2}, precision="fp32", math="fp32"),
                         scenario(plan={"dp": 16, "micro_batches": 4}, precision="pure-bf16"),
                         scenario(plan={**PIPELINE, "zero": 2}),
                         scenario(plan={**full, "zero": 0}, adapter={"rank": 8, "targets": ["q", "v"]}),
                         scenario(plan=full, adapter={"rank": 8, "base": "nf4"})):
            config = self.config(question)
            self.assertEqual(problems(config, self.fields), [])
            self.assertNotEqual(problems({**config, "clip_grad_norm": {"max_normm": 1}}, self.fields), [])

    def test_says_the_plan(self):
        config = self.config(scenario(plan={"dp": 16, "zero": 3, "shard_group": 8, "micro_batches": 4, "recompute": "full"}))
        d = config["distributed"]
        self.assertEqual((d["strategy"], d["dp_size"], d["dp_replicate_size"], d["reshard_after_forward"]), ("fsdp2", 16, 2, True))
        self.assertIs(d["activation_checkpointing"], True)
        # 64 sequences are 16 ranks x 1 x 4 steps of accumulation; weights are kept in fp32 and computed with in bf16.
        s = config["step_scheduler"]
        self.assertEqual((s["global_batch_size"], s["local_batch_size"], s["max_steps"]), (64, 1, -(-int(1e12) // (64 * 8192))))
        self.assertEqual((config["model"]["torch_dtype"], d["mp_policy"]["param_dtype"]), ("float32", "bfloat16"))
        self.assertEqual(config["packed_sequence"]["packed_sequence_size"], 8192)
        self.assertEqual(config["optimizer"]["eps"], 1e-8)
        for precision, sums in (("mixed", "bfloat16"), ("megatron", "float32")):
            got = self.config(scenario(plan={"dp": 16, "zero": 2, "micro_batches": 4}, precision=precision))["distributed"]
            self.assertEqual((got["mp_policy"]["reduce_dtype"], got["reshard_after_forward"]), (sums, False))
        config = self.config(scenario(plan={**PIPELINE, "zero": 2}))
        d = config["distributed"]
        self.assertEqual((d["tp_size"], d["pp_size"], d["sequence_parallel"]), (2, 4, True))
        parts = d["pipeline"]["module_fqns_per_model_part"]
        self.assertEqual([sum(m.startswith("model.layers.") for m in part) for part in parts], [7, 9, 9, 7])
        self.assertEqual((parts[0][0], parts[-1][-3:-1]), ("model.embed_tokens", ["model.norm", "lm_head"]))
        self.assertEqual(config["step_scheduler"]["local_batch_size"], 32)  # of a replica, in micro-batches of 1
        config = self.config(scenario(plan={"dp": 16, "micro_batches": 4}, adapter={"rank": 8, "alpha": 32, "base": "nf4-dq", "targets": ["q", "down"]}))
        self.assertEqual((config["peft"]["dim"], config["peft"]["target_modules"]), (8, ["*q_proj", "*down_proj"]))
        self.assertTrue(config["quantization"]["bnb_4bit_use_double_quant"])
        self.assertEqual((config["distributed"]["strategy"], config["model"]["torch_dtype"]), ("ddp", "bfloat16"))

    def test_refuses_what_it_has_not(self):
        for question, field in (
                (scenario(plan={"dp": 16, "micro_batches": 4}), "/training/precision"),
                (scenario(plan={"dp": 4, "cp": 4, "zero": 3, "micro_batches": 16}), "/plan/cp"),
                (scenario(plan={"pp": 4, "dp": 4, "zero": 2, "micro_batch": 8, "micro_batches": 2}), "/plan/micro_batches"),
                (scenario(model="mixtral-8x7b", plan={"dp": 16, "zero": 3, "micro_batches": 4}), "/model"),
                (scenario(plan={"dp": 16, "zero": 3, "micro_batches": 4}, precision="fp32", math="tf32"), "/training/math"),
                (scenario(plan={"dp": 16, "micro_batches": 4}, adapter={"rank": 8, "alpha": 1.5}), "/training/adapter/alpha")):
            code, text = export("automodel", {**question, "stack": "automodel"})
            self.assertEqual(code, 3, text)
            self.assertIn(field + ": NeMo AutoModel 36044ad", text)


# Stand-ins: Open MPI's environment reaches processes only by -x; they are called one after the other here.
MPIRUN = r"""
given=()
while [[ $1 == -* ]]; do
  case $1 in
    -x) given+=("$2=${!2-}"); shift 2 ;;
    -np) ranks=$2; shift 2 ;;
    --map-by|--bind-to) shift 2 ;;
    --allow-run-as-root) shift ;;
    *) echo "mpirun: $1 is not known" >&2; exit 2 ;;
  esac
done
for ((i = 0; i < ranks; ++i)); do env -i PATH=/usr/bin:/bin TMPDIR="$TMPDIR" OMPI_COMM_WORLD_RANK=$i "${given[@]}" "$@" || exit 1; done
"""
TORCHRUN = 'echo "$@"\n'


def env_of(container):
    """What the environment of a container says; a field of the pod is that of the second one."""
    return {e["name"]: e.get("value", "1") for e in container.get("env", [])}


def of_container(container):
    return container["args"][0], env_of(container)


def pods(job):
    return job["spec"]["template"]["spec"]["containers"][0]


class Started(unittest.TestCase):
    """Every export as a job of every launcher, played with stand-ins: the last node starts the software with the very
    file that the export writes, and knows the first node."""

    # The plan on one node (on two there are twice as many replicas, and half as many micro-batches), the stack, what is
    # run, and with what: FILE is the export's file, AT what tells nodes of each other.
    TENSOR = {"tp": 2, "sequence_parallel": True, "dp": 4, "zero": 1, "micro_batches": 16}
    cases = {
        "megatron": (TENSOR, "megatron-core", "torchrun", ["AT", "/m/pretrain_gpt.py", "--num-layers", "32", "..."]),
        "megatron-bridge": (TENSOR, "megatron-core", "torchrun", ["AT", "FILE"]),
        "deepspeed": ({"dp": 8, "zero": 3, "micro_batches": 8}, "deepspeed", "torchrun", ["AT", "my", "train.py", "--wd", "0.5", "--config=FILE"]),
        "fsdp": ({"dp": 8, "zero": 3, "micro_batches": 8}, "fsdp", "accelerate",
                 ["launch", "--config_file", "FILE", "MACHINE", "my", "train.py", "--wd", "0.5", "--config=DEEPSPEED_CONFIG"]),
        "axolotl": ({"dp": 8, "zero": 3, "micro_batches": 8, "recompute": "full"}, "fsdp", "axolotl",
                    ["train", "FILE", "--launcher", "torchrun", "--", "AT"]),
        "automodel": ({"dp": 8, "zero": 3, "micro_batches": 8}, "automodel", "torchrun", ["AT", "-m", "nemo_automodel.cli.app", "FILE"]),
        "torchtitan": ({**TITAN_FSDP, "dp": 8, "micro_batches": 8}, "torchtitan", "torchrun",
                       ["AT", "-m", "torchtitan.train", "--job.config_file", "FILE"]),
        "maxtext": ({**FSDP, "dp": 8, "micro_batches": 8}, "maxtext", "python3",
                    ["-m", "maxtext.trainers.pre_train.train", "/mt/src/maxtext/configs/base.yml", "run_name=x", "..."]),
    }
    placeholders = ("BASE_MODEL", "DATASET", "DATASET_TYPE", "OUTPUT_DIR", "HF_ASSETS_PATH")
    # The script, what the launcher says to its last node beside what stands in the file, and the first node's name.
    launchers = {
        "slurm": lambda text, last: (text, {"SLURM_JOB_NODELIST": "x", "SLURM_NODEID": last}, "first"),
        "kubernetes": lambda text, last: (*of_container(pods(list(yaml.safe_load_all(text))[1])), "no-0.no"),
        "jobset": lambda text, last: (*of_container(pods(yaml.safe_load(text)["spec"]["replicatedJobs"][0]["template"])), "no-node-0-0.no"),
        "trainjob": lambda text, last: (*of_container(yaml.safe_load(text)["spec"]["trainer"]),
                                        {"PET_MASTER_ADDR": "first", "PET_NODE_RANK": last}, "first"),
        "pytorchjob": lambda text, last: (*of_container(pods({"spec": yaml.safe_load(text)["spec"]["pytorchReplicaSpecs"]["Worker" if last == "1" else "Master"]})),
                                          {"MASTER_ADDR": "first", "PET_NODE_RANK": last}, "first"),
        "mpijob": lambda text, last: (*of_container(yaml.safe_load(text)["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]), "first"),
        "skypilot": lambda text, last: (yaml.safe_load(text)["run"], {"SKYPILOT_NODE_IPS": "first\nsecond", "SKYPILOT_NODE_RANK": last}, "first"),
    }

    def script_of(self, launcher, text, nodes):
        script, *envs, first = self.launchers[launcher](text, str(nodes - 1))
        env = {k: v for e in envs for k, v in e.items()}
        if "NODE_RANK" in env:
            env["NODE_RANK"] = str(nodes - 1)
        return script, env, first

    def play(self, script, env, nodes=2):
        """Exit code, what is printed to standard error, and each start of the software: its name, arguments, the files among
        them, and what of the environment tells nodes of each other."""
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "hostfile"), "w", encoding="utf-8") as file:
                file.write("".join(name + " slots=1\n" for name in ("first", "second")[:nodes]))
            told = os.path.join(folder, "told.py")
            with open(told, "w", encoding="utf-8") as file:
                file.write("import json, os, sys\n"
                           "name, args, files = sys.argv[1], sys.argv[2:], {}\n"
                           "for a in args:\n"
                           "    path = a.split('=')[-1]\n"
                           "    if os.path.isfile(path):\n"
                           "        files[path] = open(path, encoding='utf-8').read()\n"
                           "env = {k: v for k, v in os.environ.items() if k in ('NNODES', 'NODE_RANK') or k.startswith('JAX')}\n"
                           "print(json.dumps([name, args, files, env]))\n")
            for name in ("torchrun", "accelerate", "axolotl", "python3"):
                with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                    file.write('#!/bin/bash\nexec %s %s %s "$@"\n' % (sys.executable, told, name))
            for name, text in (("srun", 'while [[ $1 == -* ]]; do shift; done\nexec "$@"\n'),
                               ("scontrol", "echo first; echo second\n"), ("mpirun", MPIRUN)):
                with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                    file.write("#!/bin/bash\n" + text)
            for name in os.listdir(folder):
                os.chmod(os.path.join(folder, name), 0o755)
            done = subprocess.run(["bash", "-c", script.replace("/etc/mpi/hostfile", os.path.join(folder, "hostfile"))],
                                  env={"PATH": folder + ":/usr/bin:/bin", "TMPDIR": folder, **env}, capture_output=True, text=True)
        return done.returncode, done.stderr, [json.loads(line) for line in done.stdout.splitlines()]

    given = {"MEGATRON": "/m", "MAXTEXT": "/mt", "TRAIN": "my train.py\n  --wd 0.5 --config=DEEPSPEED_CONFIG",
             **{name: "x" for name in ("TOKENIZER_MODEL", "DATA_PATH", "RUN_NAME", "OUTPUT", "TOKENIZER", "DATASET")}}

    def question(self, target, nodes):
        plan, stack, _, _ = self.cases[target]
        plan = {**plan, "dp": plan["dp"] * nodes, "micro_batches": plan["micro_batches"] // nodes}
        training = {"precision": "pure-bf16"} if target == "axolotl" else {}
        # A name that YAML would take for a boolean, and texts that end here-documents.
        model = "llama-3.1-8b" if target in ("torchtitan", "maxtext") else {"preset": "llama-3.1-8b", "name": "a 'model'\nEND\nEND_ \"$(x)\""}
        return {**scenario(model=model, nodes=nodes, plan=plan, **training), "stack": stack, "name": "No"}

    def test_every_software_by_every_launcher(self):
        for target, (_, _, command, wanted) in self.cases.items():
            for nodes in (1, 2):
                question = self.question(target, nodes)
                code, alone = export(target, question)
                self.assertEqual(code, 0, alone)
                for launcher in self.launchers:
                    with self.subTest(target=target, launcher=launcher, nodes=nodes):
                        self.expect_start(target, launcher, nodes, question, alone, command, wanted)

    def expect_start(self, target, launcher, nodes, question, alone, command, wanted):
        code, text = export(target, question, launcher)
        self.assertEqual(code, 0, text)
        script, env, first = self.script_of(launcher, text, nodes)
        self.assertEqual(shellcheck(script), "")
        left = [name for name in self.placeholders if re.search(r"\b%s\b" % name, alone)] if target in ("axolotl", "automodel", "torchtitan") else []
        if left:
            code, said, starts = self.play(script, {**env, **self.given}, nodes)
            self.assertEqual((code != 0, starts), (True, []))
            self.assertIn("replace %s in the configuration" % left[0], said)
        for name in left:  # where they are in the configuration, not where they are asked for
            script, alone = (re.sub(r"(?<=[:\"] )%s\b|(?<=\")%s\b" % (name, name), "x", t) for t in (script, alone))
        code, said, starts = self.play(script, {**env, **self.given}, nodes)
        self.assertEqual(code, 0, script + said)
        name, got, files, seen = starts[-1]  # of the last node
        self.assertEqual(name, command)
        at = ["--nnodes=%d" % nodes, "--nproc_per_node=8"]
        machine = []
        if nodes > 1:
            at += ["--node_rank=1", "--master_addr=" + first, "--master_port=29500"]
            machine = ["--machine_rank", "1", "--main_process_ip", first, "--main_process_port", "29500"]
        (path,) = list(files) or [None]
        if target == "axolotl":
            at = at[2:] + at[:2]
        expected = []
        for word in wanted:
            expected += at if word == "AT" else machine if word == "MACHINE" else [word.replace("FILE", path or "")]
        if expected[-1] == "...":
            expected.pop()
            got = got[:len(expected)]
        self.assertEqual(got, expected)
        if path:
            self.assertEqual(files[path], alone)
        if target == "maxtext" and nodes > 1:
            self.assertEqual((seen["NNODES"], seen["NODE_RANK"], seen["JAX_COORDINATOR_IP"], seen["JAX_COORDINATOR_PORT"]),
                             ("2", "1", first, "29500"))

    def test_a_training_script_is_asked_for(self):
        code, text = export("deepspeed", self.question("deepspeed", 1), "slurm")
        self.assertEqual(code, 0, text)
        script, env, _ = self.script_of("slurm", text, 1)
        for train, why in (({}, "set TRAIN to your training script"), ({"TRAIN": " \n "}, "set TRAIN to your training script"),
                           ({"TRAIN": "train.py"}, "say DEEPSPEED_CONFIG in TRAIN")):
            code, said, starts = self.play(script, {**env, **train}, 1)
            self.assertEqual((code != 0, starts), (True, []))
            self.assertIn(why, said)

    def test_a_configuration_needs_no_even_nodes(self):
        question = {**scenario(nodes=2, batch=63, plan={"dp": 9, "zero": 1, "micro_batches": 7}), "stack": "deepspeed"}
        self.assertEqual(export("deepspeed", question)[0], 0)
        code, said = export("deepspeed", question, "slurm")
        self.assertEqual(code, 3)
        self.assertIn("9 ranks cannot be spread evenly", said)


class Cloud(unittest.TestCase):
    facts = facts("cloud")
    question = {**scenario(plan={"tp": 2, "sequence_parallel": True, "dp": 8, "zero": 1, "micro_batches": 8}), "name": "Llama 8B!"}

    def objects(self, launcher, question):
        code, text = export("megatron", question, launcher)
        self.assertEqual(code, 0, text)
        return list(yaml.safe_load_all(text))

    def expect_known(self, value, name):
        """Each field is one of the schema, and a misspelt one is noticed."""
        self.assertEqual(problems(value, self.facts[name]), [])
        wrong = next(iter(value["spec"]))
        self.assertNotEqual(problems({**value, "spec": {**value["spec"], wrong + "x": value["spec"][wrong]}},
                                     self.facts[name]), [])

    def expect_started(self, container, variables=("MEGATRON", "TOKENIZER_MODEL", "DATA_PATH")):
        """The container runs the script on eight devices; what the user fills in stands empty."""
        self.assertEqual(container["resources"]["limits"]["nvidia.com/gpu"], 8)
        self.check_script(container["args"][0])
        self.assertIn('"${MEGATRON:?set MEGATRON', container["args"][0])
        self.assertEqual([e["name"] for e in container["env"] if e.get("value") == ""], list(variables))
        return {e["name"]: e.get("value") for e in container["env"] if e.get("value") != ""}

    def test_kubernetes(self):
        service, job = self.objects("kubernetes", self.question)
        self.assertEqual(problems(service, self.facts["service"]), [])
        self.expect_known(job, "job")
        self.assertEqual(service["metadata"]["name"], "llama-8b")
        self.assertEqual((job["spec"]["parallelism"], job["spec"]["completions"]), (2, 2))
        pod = job["spec"]["template"]["spec"]
        self.assertEqual(pod["subdomain"], "llama-8b")
        self.assertEqual(self.expect_started(pod["containers"][0]), {"MASTER_ADDR": "llama-8b-0.llama-8b", "NODE_RANK": None})

    def test_jobset(self):
        (jobs,) = self.objects("jobset", self.question)
        self.expect_known(jobs, "jobset")
        job = jobs["spec"]["replicatedJobs"][0]["template"]["spec"]
        self.assertEqual((job["parallelism"], job["completions"], job["completionMode"]), (2, 2, "Indexed"))
        # The controller's host names are SET-JOB-0-INDEX.SET.
        self.assertEqual(self.expect_started(job["template"]["spec"]["containers"][0])["MASTER_ADDR"],
                         "llama-8b-node-0-0.llama-8b")

    def test_trainjob(self):
        (job,) = self.objects("trainjob", self.question)
        self.expect_known(job, "trainjob")
        trainer = job["spec"]["trainer"]
        self.assertEqual((trainer["numNodes"], trainer["numProcPerNode"]), (2, 8))
        given = self.expect_started({**trainer, "resources": trainer["resourcesPerNode"]})
        self.assertEqual(given, {})  # the operator refuses PET_* here
        self.assertTrue(trainer["args"][0].startswith("export MASTER_ADDR=$PET_MASTER_ADDR NODE_RANK=$PET_NODE_RANK\n"))

    def test_pytorchjob(self):
        (job,) = self.objects("pytorchjob", self.question)
        self.expect_known(job, "pytorchjob")
        specs = job["spec"]["pytorchReplicaSpecs"]
        self.assertEqual({k: v["replicas"] for k, v in specs.items()}, {"Master": 1, "Worker": 1})
        self.assertEqual(job["spec"]["nprocPerNode"], "8")
        for spec in specs.values():
            container = spec["template"]["spec"]["containers"][0]
            self.assertEqual(container["name"], "pytorch")
            self.expect_started(container)
            self.assertTrue(container["args"][0].startswith("export NODE_RANK=$PET_NODE_RANK\n"))
        one = {**self.question, "cluster": {"topology": "p5", "nodes": 1},
               "plan": {**self.question["plan"], "dp": 4, "micro_batches": 16}}
        (job,) = self.objects("pytorchjob", one)
        self.assertEqual(list(job["spec"]["pytorchReplicaSpecs"]), ["Master"])

    def test_mpijob(self):
        (job,) = self.objects("mpijob", self.question)
        self.expect_known(job, "mpijob")
        self.assertEqual(job["spec"]["launcherCreationPolicy"], "WaitForWorkersReady")
        launcher, worker = (job["spec"]["mpiReplicaSpecs"][k] for k in ("Launcher", "Worker"))
        self.assertEqual((launcher["replicas"], worker["replicas"]), (1, 2))
        self.assertEqual(worker["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"], 8)
        script = launcher["template"]["spec"]["containers"][0]["args"][0]
        self.check_script(script)
        # Played with a launcher that starts a process for each rank: each gets its number, the first host and
        # what the user has filled in.
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "hostfile"), "w", encoding="utf-8") as file:
                file.write("llama-8b-worker-0.llama-8b.ns.svc slots=1\nllama-8b-worker-1.llama-8b.ns.svc slots=1\n")
            for name, text in (("mpirun", MPIRUN), ("torchrun", TORCHRUN)):
                path = os.path.join(folder, name)
                with open(path, "w", encoding="utf-8") as file:
                    file.write("#!/bin/bash\n" + text)
                os.chmod(path, 0o755)
            env = {"PATH": folder + ":" + os.environ["PATH"], "TMPDIR": folder, "MEGATRON": "/m", "TOKENIZER_MODEL": "t", "DATA_PATH": "d"}
            script = script.replace("/etc/mpi/hostfile", os.path.join(folder, "hostfile"))
            done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            for rank in (0, 1):
                self.assertIn("--node_rank=%d --master_addr=llama-8b-worker-0.llama-8b.ns.svc" % rank, done.stdout)
            del env["DATA_PATH"]
            done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("set DATA_PATH to", done.stderr)

    def test_asks_for_what_the_scenario_does_not_say(self):
        question = {**self.question, "training": {"global_batch": 64, "sequence": 8192}}
        (jobs,) = self.objects("jobset", question)
        container = jobs["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]
        self.expect_started(container, ("MEGATRON", "TOKENIZER_MODEL", "DATA_PATH", "TRAIN_ITERS"))
        (task,) = self.objects("skypilot", question)
        self.assertEqual(list(task["envs"]), ["MEGATRON", "TOKENIZER_MODEL", "DATA_PATH", "TRAIN_ITERS"])

    @unittest.skipUnless(shutil.which("shellcheck"), "Debian's shellcheck is missing")
    def test_shellcheck_warns(self):
        self.assertIn("SC2155", shellcheck("export HOST=$(hostname)\n"))

    def test_slurm(self):
        code, text = export("megatron", self.question, "slurm")
        self.assertEqual(code, 0, text)
        options = [line.split()[1].split("=")[0] for line in text.splitlines() if re.match("##?SBATCH ", line)]
        for wanted in ("--nodes", "--account", "--partition", "--time", "--container-image"):
            self.assertIn(wanted, options)
        self.assertEqual([o for o in options if o not in self.facts["sbatch"]], [])
        self.check_script(text)

    def test_skypilot(self):
        code, text = export("megatron", self.question, "skypilot")
        self.assertEqual(code, 0, text)
        task = yaml.safe_load(text)
        self.assertEqual(problems(task, self.facts["task"]), [])
        self.assertEqual((task["resources"]["accelerators"], task["num_nodes"]), ("H100:8", 2))
        self.check_script(task["run"])
        code, text = export("megatron", {**self.question, "cluster": {"topology": "mi300x", "nodes": 2}}, "skypilot")
        self.assertEqual(code, 3)
        self.assertIn("/cluster", text)

    def check_script(self, script, launcher="torchrun"):
        done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(shellcheck(script), "")
        self.assertIn("--tensor-model-parallel-size 2", script)
        self.assertIn(launcher + " --nnodes=2 --nproc_per_node=8", script)


if __name__ == "__main__":
    unittest.main()
