// SPDX-License-Identifier: Apache-2.0
//
// A configuration of torchtitan: torchrun .. -m torchtitan.train --job.config_file FILE. torchtitan has
// models by name; a model that is none of them is refused.
#include <algorithm>
#include <array>
#include <optional>

#include "core/text.h"
#include "planner/export/recipe.h"
#include "planner/export/targets.h"

namespace orrery::planner {
namespace {

// torchtitan v0.2.2: torchtitan/models/llama3/__init__.py and qwen3/__init__.py.
struct Flavor {
  const char *name, *flavor;
  std::int64_t hidden, layers, heads, kv_heads, head_dim, ffn_hidden, vocab;
  double rotary_base;
  bool qk_norm, tied;
};
constexpr std::array kFlavors{
    Flavor{"llama3", "8B", 4096, 32, 32, 8, 128, 14336, 128256, 500000, false, false},
    Flavor{"llama3", "70B", 8192, 80, 64, 8, 128, 28672, 128256, 500000, false, false},
    Flavor{"llama3", "405B", 16384, 126, 128, 8, 128, 53248, 128256, 500000, false, false},
    Flavor{"qwen3", "0.6B", 1024, 28, 16, 8, 128, 3072, 151936, 1000000, true, true},
    Flavor{"qwen3", "1.7B", 2048, 28, 16, 8, 128, 6144, 151936, 1000000, true, true},
    Flavor{"qwen3", "4B", 2560, 36, 32, 8, 128, 9728, 151936, 1000000, true, true},
    Flavor{"qwen3", "8B", 4096, 36, 32, 8, 128, 12288, 151936, 1000000, true, false},
    Flavor{"qwen3", "14B", 5120, 40, 40, 8, 128, 17408, 151936, 1000000, true, false},
    Flavor{"qwen3", "32B", 5120, 64, 64, 8, 128, 25600, 151936, 1000000, true, false}};

const Flavor* flavor_of(const Model& m) {
  const auto layers = plain_layers(m);
  if (!layers || m.norm != Norm::kRmsNorm) return nullptr;
  const auto& [a, mlp] = *layers;
  if (m.embedding_scale != 1 || m.residual_scale != 1 || m.logit_scale != 1 || a.chunk > 0 ||
      (a.qk_norm != QkNorm::kNone && a.qk_norm != QkNorm::kPerHead))
    return nullptr;
  if (a.positions != Positions::kRotary || a.bias || a.qkv_bias || a.sliding_window > 0 || a.sinks ||
      !a.causal || mlp.activation != Activation::kSwiglu || mlp.bias)
    return nullptr;
  const auto found = std::find_if(kFlavors.begin(), kFlavors.end(), [&](const Flavor& f) {
    return f.hidden == m.hidden && f.layers == m.layers && f.heads == a.heads && f.kv_heads == a.kv_heads &&
           f.head_dim == a.head_dim && f.ffn_hidden == mlp.ffn_hidden && f.vocab == m.vocab &&
           f.rotary_base == a.rotary.base && f.qk_norm == (a.qk_norm == QkNorm::kPerHead) &&
           f.tied == m.tied_embeddings;
  });
  return found == kFlavors.end() ? nullptr : &*found;
}

const char* schedule_name(Schedule s) {
  switch (s) {
    case Schedule::kGPipe:
      return "GPipe";
    case Schedule::k1F1B:
      return "1F1B";
    case Schedule::kInterleaved:
      return "Interleaved1F1B";
    case Schedule::kZeroBubbleV:
      return "ZBVZeroBubble";
    case Schedule::kDualPipeV:
      return "DualPipeV";
    case Schedule::kNaive:
    case Schedule::kZeroBubbleH1:
    case Schedule::kListed:
      break;
  }
  throw std::logic_error("torchtitan has no such schedule");
}

// Modules of each chunk in model order.
std::string chunks_of(const Plan& p, std::int64_t layers) {
  const std::vector<std::int64_t> of_chunk = layers_by_chunk(p, layers);
  std::string out = "[\n";
  std::int64_t layer = 0;
  for (std::size_t c = 0; c < of_chunk.size(); ++c) {
    std::vector<std::string> modules;
    if (c == 0) modules.emplace_back("\"tok_embeddings\"");
    for (std::int64_t l = 0; l < of_chunk[c]; ++l) modules.push_back(fmt::format("\"layers.{}\"", layer++));
    if (c + 1 == of_chunk.size()) modules.insert(modules.end(), {"\"norm\"", "\"output\""});
    out += fmt::format("  [{}],\n", fmt::join(modules, ", "));
  }
  return out + "]";
}

std::string parallelism(const Plan& p, std::int64_t layers) {
  const std::int64_t shards = p.zero == 0 ? 1 : (p.shard_group > 0 ? p.shard_group : p.dp);
  std::string out = fmt::format(
      "[parallelism]\n"
      "data_parallel_replicate_degree = {}\n"
      "data_parallel_shard_degree = {}\n"
      "fsdp_reshard_after_forward = \"{}\"\n"
      "tensor_parallel_degree = {}\n"
      "pipeline_parallel_degree = {}\n"
      "context_parallel_degree = {}\n",
      p.dp / shards, shards, p.zero == 3 && p.reshards() ? "always" : "never", p.tp, p.pp, p.cp);
  if (p.cp > 1)
    out += fmt::format("context_parallel_rotate_method = \"{}\"\n", p.rings() ? "alltoall" : "allgather");
  if (p.pp > 1) {
    out += fmt::format(
        "pipeline_parallel_schedule = \"{}\"\n"
        "pipeline_parallel_microbatch_size = {}\n"
        "module_fqns_per_model_part = {}\n",
        schedule_name(p.schedule), p.micro_batch, chunks_of(p, layers));
  }
  return out + "\n";
}

// A number that TOML reads as a float.
std::string toml(double x) {
  std::string out = fmt::format("{}", x);
  if (out.find_first_of(".e") == std::string::npos) out += ".0";
  return out;
}

// Its option "op" repeats these at the least (profiles/stacks/torchtitan.json).
constexpr RecomputeParts kRepeatedByOp = RecomputeParts(RecomputePart::kNorms) | RecomputePart::kMlp;

const char* recomputed(Recompute r) {
  switch (r) {
    case Recompute::kNone:
      return "mode = \"none\"\n";
    case Recompute::kSelective:
      return "mode = \"selective\"\nselective_ac_option = \"op\"\n";
    case Recompute::kFull:
      break;
  }
  return "mode = \"full\"\n";
}

// The converter of the model, and its table.
struct Converter {
  const char *name, *recipe;
};
std::optional<Converter> converter_of(Math math) {
  switch (math) {
    case Math::kFp8:
      return Converter{"quantize.linear.float8", "tensorwise"};
    case Math::kFp8Rowwise:
      return Converter{"quantize.linear.float8", "rowwise"};
    case Math::kMxfp8:
      return Converter{"quantize.linear.mx", "mxfp8_cublas"};
    case Math::kBf16:
    case Math::kFp16:
    case Math::kTf32:
    case Math::kFp32:
      return std::nullopt;
    case Math::kFp8Delayed:
    case Math::kFp8Blockwise:
    case Math::kNvfp4:
      break;
  }
  throw std::logic_error("torchtitan has no such format of products");
}

}  // namespace

Exported torchtitan_config(const Problem& problem, const Plan& p, const Cursor& scenario) {
  const Training& t = problem.scenario.training;
  const Model& m = problem.scenario.model;
  const Flavor* const f = flavor_of(m);
  if (f == nullptr) {
    scenario.child("model").fail(fmt::format("torchtitan v0.2.2 has no model like \"{}\"", m.name),
                                 "allowed: Llama 3 8B, 70B and 405B; Qwen 3 0.6B to 32B");
  }
  const bool qwen = std::string_view(f->name) == "qwen3";
  if (qwen && p.pp > 1)
    scenario.child("model").fail("torchtitan v0.2.2 has no pipeline of Qwen 3", "allowed: plans with pp 1");
  if (!qwen && m.rotary.scaling != RotaryScaling::kLlama3) {
    scenario.child("model").fail(
        "torchtitan v0.2.2 scales rotary positions as Llama 3.1 does, and this model does not",
        "allowed: Llama 3.1 and later, Qwen 3");
  }
  if (p.zero == 0 && p.cp > 1) {
    scenario.child("plan").child("zero").fail("torchtitan v0.2.2 shards what context-parallel ranks have",
                                              "allowed: 1 to 3 with cp above 1");
  }
  if (p.recompute == Recompute::kSelective && !kRepeatedByOp.without(p.repeated()).empty()) {
    scenario.child("plan")
        .child("recompute_parts")
        .fail("torchtitan v0.2.2 repeats norms and MLPs selectively, and nothing less",
              "allowed: layernorm and mlp, with or without core-attn");
  }
  const Layout layout = layout_of(problem, p, scenario.child("cluster"));
  const Recipe r = recipe_of(problem);
  const std::optional<Converter> converter = converter_of(t.math);
  std::string text = fmt::format(
      "# {} of {}, for {}.\n"
      "# torchrun --nnodes {} --nproc-per-node {} --rdzv-backend c10d --rdzv-endpoint $HEAD:29500 \\\n"
      "#   -m torchtitan.train --job.config_file THIS_FILE\n\n"
      "[job]\ndescription = \"{}\"\n\n"
      "[model]\nname = \"{}\"\nflavor = \"{}\"\nhf_assets_path = \"HF_ASSETS_PATH\"\n",
      short_name(p), printable(m.name), printable(problem.stack.runs->software), layout.nodes,
      layout.per_node, short_name(p), f->name, f->flavor);
  if (converter) text += fmt::format("converters = [\"{}\"]\n", converter->name);
  text += fmt::format(
      "\n[optimizer]\nname = \"AdamW\"\nlr = {}\nbeta1 = {}\nbeta2 = {}\neps = {}\nweight_decay = {}\n",
      r.learning_rate ? fmt::format("{:.3e}", *r.learning_rate) : "3e-4", toml(t.optimizer.beta1),
      toml(t.optimizer.beta2), toml(t.optimizer.epsilon), toml(kWeightDecay));
  if (p.update_in_backward) text += "early_step_in_backward = true\n";
  text += fmt::format("\n[lr_scheduler]\nwarmup_steps = {}\ndecay_type = \"cosine\"\nmin_lr_factor = {}\n\n",
                      r.warm_up_steps, toml(kLastRate));
  text += fmt::format(
      "[training]\n"
      "local_batch_size = {}\n"
      "global_batch_size = {}\n"
      "seq_len = {}\n"
      "max_norm = {}\n"
      "steps = {}\n"
      "dtype = \"float32\"\n"
      "mixed_precision_param = \"{}\"\n"
      "mixed_precision_reduce = \"float32\"\n"
      "dataset = \"c4\"\n\n",
      p.micro_batch * (p.pp > 1 ? p.micro_batches : 1), t.global_batch, t.sequence,
      toml(t.clip > 0 ? t.clip : 1e9), r.steps > 0 ? r.steps : 10000,
      t.parameter_type() == DType::kFloat32 ? "float32" : "bfloat16");
  text += parallelism(p, m.layers);
  text += fmt::format("[activation_checkpoint]\n{}\n", recomputed(p.recompute));
  if (converter) text += fmt::format("[{}]\nrecipe_name = \"{}\"\n\n", converter->name, converter->recipe);
  text += "[compile]\nenable = true\ncomponents = [\"model\", \"loss\"]\n";
  std::vector<std::string> notes{
      "HF_ASSETS_PATH is to be replaced by the folder with the model's tokenizer, and dataset by yours"};
  if (r.steps == 0) notes.emplace_back("the scenario has no tokens: steps is a placeholder");
  if (!r.learning_rate)
    notes.emplace_back("no learning rate is advised for this optimizer: lr is a placeholder");
  if (p.recompute == Recompute::kSelective)
    notes.emplace_back("selective recomputation by op keeps attention and every second product");
  return {.text = std::move(text),
          .notes = std::move(notes),
          .file = "torchtitan.toml",
          .start =
              [](const Layout& of) {
                return "exec " + torchrun(of) +
                       "  -m torchtitan.train --job.config_file \"$FOLDER/torchtitan.toml\"\n";
              },
          .placeholders = {"HF_ASSETS_PATH"}};
}

}  // namespace orrery::planner
