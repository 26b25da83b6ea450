// SPDX-License-Identifier: Apache-2.0
#include "core/rotary.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>

namespace orrery {
namespace {

constexpr double kTurn = 2 * std::numbers::pi;

// Waves of original / low positions and more are divided by the factor, waves of fewer than original / high
// positions stay.
double llama3(const Rotary& r, double frequency) {
  const double original = static_cast<double>(r.original_positions), wave = kTurn / frequency;
  if (wave < original / r.high_frequency_factor) return frequency;
  if (wave >= original / r.low_frequency_factor) return frequency / r.factor;
  const double kept =
      (original / wave - r.low_frequency_factor) / (r.high_frequency_factor - r.low_frequency_factor);
  return (1 - kept) * frequency / r.factor + kept * frequency;
}

// The pair, as a real number, whose frequency makes so many turns over the original context.
double pair_of_turns(const Rotary& r, double width, double turns) {
  return width * std::log(static_cast<double>(r.original_positions) / (turns * kTurn)) /
         (2 * std::log(r.base));
}

void scale_yarn(const Rotary& r, std::vector<double>& frequencies) {
  const double width = 2 * static_cast<double>(frequencies.size());
  const double begin = pair_of_turns(r, width, r.beta_fast), end = pair_of_turns(r, width, r.beta_slow);
  const double first = std::max(0.0, r.rounded_ramp ? std::floor(begin) : begin);
  const double last = std::min(width - 1, r.rounded_ramp ? std::ceil(end) : end);
  for (std::size_t j = 0; j < frequencies.size(); ++j) {
    // 0 where a frequency stays, 1 where it is scaled whole; the guard is for a ramp of no length.
    const double scaled =
        std::clamp((static_cast<double>(j) - first) / std::max(last - first, 0.001), 0.0, 1.0);
    frequencies[j] *= scaled / r.factor + (1 - scaled);
  }
}

// Scaling as Hugging Face writes it; a field that is not named here may change the frequencies, and is
// refused.
struct HuggingFaceRope {
  std::string rope_type, type;  // the newer and the older name
  std::optional<double> rope_theta, partial_rotary_factor, factor, low_freq_factor, high_freq_factor,
      beta_fast, beta_slow, attention_factor, mscale, mscale_all_dim;
  std::optional<std::int64_t> original_max_position_embeddings;
  std::optional<bool> truncate;
  std::vector<double> short_factor, long_factor;
};
template <class V>
void describe(V& v, HuggingFaceRope& r) {
  v(Field{.name = "rope_type", .help = "kind of scaling"}, r.rope_type);
  v(Field{.name = "type", .help = "kind of scaling"}, r.type);
  v(Field{.name = "rope_theta", .help = "base of the frequencies", .min = 1.0001, .max = 1e15}, r.rope_theta);
  v(Field{.name = "partial_rotary_factor", .help = "share of a head", .min = 0.001, .max = 1},
    r.partial_rotary_factor);
  v(Field{.name = "factor", .help = "of the context", .min = 1, .max = 1e6}, r.factor);
  v(Field{.name = "low_freq_factor", .help = "llama3", .min = 1e-3, .max = 1e6}, r.low_freq_factor);
  v(Field{.name = "high_freq_factor", .help = "llama3", .min = 1e-3, .max = 1e6}, r.high_freq_factor);
  v(Field{.name = "beta_fast", .help = "yarn", .min = 1e-3, .max = 1e6}, r.beta_fast);
  v(Field{.name = "beta_slow", .help = "yarn", .min = 1e-3, .max = 1e6}, r.beta_slow);
  v(Field{.name = "attention_factor", .help = "yarn, longrope", .min = 1e-3, .max = 1e3}, r.attention_factor);
  v(Field{.name = "mscale", .help = "yarn", .min = 0, .max = 1e3}, r.mscale);
  v(Field{.name = "mscale_all_dim", .help = "yarn", .min = 0, .max = 1e3}, r.mscale_all_dim);
  v(Field{.name = "original_max_position_embeddings", .help = "not of linear", .min = 1, .max = 1 << 30},
    r.original_max_position_embeddings);
  v(Field{.name = "truncate", .help = "yarn"}, r.truncate);
  v(Field{.name = "short_factor", .help = "longrope", .min = 1e-3, .max = 1e6}, r.short_factor);
  v(Field{.name = "long_factor", .help = "longrope", .min = 1e-3, .max = 1e6}, r.long_factor);
}

const char* name_of_type(const HuggingFaceRope& r) {
  return r.rope_type.empty() && !r.type.empty() ? "type" : "rope_type";
}

RotaryScaling scaling_of(const HuggingFaceRope& r, const Cursor& at) {
  static const std::vector<std::string> kKnown = {"default", "linear", "llama3", "yarn", "longrope"};
  const std::string& given = r.rope_type.empty() ? r.type : r.rope_type;
  // As it was called at first, and by Phi-3 for a while.
  const bool by_pair = given == "su" || (given == "yarn" && !r.short_factor.empty());
  const std::string name = by_pair ? "longrope" : given;
  if (name.empty() || name == "default") return RotaryScaling::kNone;
  const auto found = enum_from<RotaryScaling>(name);
  if (!found || found == RotaryScaling::kNone) {
    at.child(name_of_type(r)).fail(shown(Json(given)) + " cannot be imported", allowed_names(name, kKnown));
  }
  if (found == RotaryScaling::kLongRope) {
    if (r.short_factor.empty() || r.long_factor.empty())
      at.fail("longrope needs short_factor and long_factor");
    return *found;
  }
  if (!r.factor) at.fail("the field \"factor\" is missing");
  if (found == RotaryScaling::kLlama3 &&
      (!r.low_freq_factor || !r.high_freq_factor || !r.original_max_position_embeddings)) {
    at.fail("llama3 needs low_freq_factor, high_freq_factor and original_max_position_embeddings");
  }
  return *found;
}

double amplitude(const Rotary& r) {
  switch (r.scaling) {
    case RotaryScaling::kNone:
    case RotaryScaling::kLinear:
    case RotaryScaling::kLlama3:
      return 1;
    case RotaryScaling::kYarn:
      return r.amplitude > 0 ? r.amplitude : 0.1 * std::log(r.factor) + 1;
    case RotaryScaling::kLongRope:
      return r.amplitude > 0
                 ? r.amplitude
                 : std::sqrt(1 + std::log(r.factor) / std::log(static_cast<double>(r.original_positions)));
  }
  throw std::logic_error("a scaling without its amplitude");
}

}  // namespace

void check_rotary(const Rotary& r, std::int64_t head, const std::function<Cursor(std::string_view)>& place) {
  if (const std::int64_t turned = r.turned(head); turned < 2 || turned % 2 != 0 || turned > head) {
    place("rotary/fraction")
        .fail(fmt::format("{} of a head of {} is {} elements", r.fraction, head, turned),
              "allowed: an even number of elements, at least 2, of the head");
  }
  if (r.scaling == RotaryScaling::kNone && r.factor != 1)
    place("rotary/factor")
        .fail(fmt::format("{} has no effect with scaling \"none\"", r.factor), "allowed: 1");
  if (r.scaling == RotaryScaling::kLlama3 && r.low_frequency_factor > r.high_frequency_factor) {
    place("rotary/low_frequency_factor")
        .fail(fmt::format("{} is larger than high_frequency_factor", r.low_frequency_factor),
              fmt::format("allowed: up to {}", r.high_frequency_factor));
  }
  const auto check_factors = [&](const char* field, const std::vector<double>& factors) {
    if (r.scaling != RotaryScaling::kLongRope) {
      if (!factors.empty())
        place(field).fail(fmt::format("they have no effect with scaling \"{}\"", name_of(r.scaling)),
                          "allowed: none of them");
    } else if (std::ssize(factors) != r.turned(head) / 2) {
      place(field).fail(
          fmt::format("there are {} of them", factors.size()),
          fmt::format("allowed: {}, one for each pair of elements that turn", r.turned(head) / 2));
    }
  };
  check_factors("rotary/short_factors", r.short_factors);
  check_factors("rotary/long_factors", r.long_factors);
  if (r.scaling == RotaryScaling::kLongRope && r.original_positions < 2)
    place("rotary/original_positions").fail(fmt::format("{}", r.original_positions), "allowed: 2 or more");
  if (r.scaling == RotaryScaling::kYarn && r.beta_slow >= r.beta_fast) {
    place("rotary/beta_slow")
        .fail(fmt::format("{} is not smaller than beta_fast", r.beta_slow),
              fmt::format("allowed: less than {}", r.beta_fast));
  }
}

Rotary import_rotary(const Json& config, const Cursor& at, std::int64_t longest, ImportedFields& places) {
  Rotary out;
  const auto number = [&](const char* name, double least, double most, double& to) {
    if (const auto found = config.find(name); found != config.end() && !found->is_null())
      read_value(*found, at.child(name), Field{name, "", least, most}, to);
  };
  number("rope_theta", 1.0001, 1e15, out.base);
  number("partial_rotary_factor", 0.001, 1, out.fraction);
  places["rotary/base"] = at.child("rope_theta");
  places["rotary/fraction"] = at.child("partial_rotary_factor");
  for (const char* const name : {"rope_scaling", "rope_parameters"}) {
    const auto found = config.find(name);
    if (found == config.end() || found->is_null()) continue;
    const Cursor here = at.child(name);
    const auto r = read_fields<HuggingFaceRope>(*found, here);
    out.base = r.rope_theta.value_or(out.base);
    out.fraction = r.partial_rotary_factor.value_or(out.fraction);
    if (r.rope_theta) places["rotary/base"] = here.child("rope_theta");
    if (r.partial_rotary_factor) places["rotary/fraction"] = here.child("partial_rotary_factor");
    out.scaling = scaling_of(r, here);
    places["rotary"] = here;
    places["rotary/scaling"] = here.child(name_of_type(r));
    places["rotary/factor"] = here.child("factor");
    places["rotary/low_frequency_factor"] = here.child("low_freq_factor");
    places["rotary/beta_slow"] = here.child("beta_slow");
    if (out.scaling == RotaryScaling::kNone) continue;
    out.original_positions = r.original_max_position_embeddings.value_or(longest);
    if (out.scaling == RotaryScaling::kLongRope) {
      // The original context stands beside the scaling, and the factor follows from the two.
      if (const auto original = config.find("original_max_position_embeddings");
          original != config.end() && !original->is_null()) {
        read_value(*original, at.child("original_max_position_embeddings"),
                   Field{"original_max_position_embeddings", "", 2, 1 << 30}, out.original_positions);
      }
      const double grown = static_cast<double>(longest) / static_cast<double>(out.original_positions);
      out.factor = r.factor.value_or(std::max(1.0, grown));
      out.amplitude = r.attention_factor.value_or(0);
      out.short_factors = r.short_factor;
      out.long_factors = r.long_factor;
      places["rotary/short_factors"] = here.child("short_factor");
      places["rotary/long_factors"] = here.child("long_factor");
      continue;
    }
    out.factor = *r.factor;
    out.low_frequency_factor = r.low_freq_factor.value_or(out.low_frequency_factor);
    out.high_frequency_factor = r.high_freq_factor.value_or(out.high_frequency_factor);
    out.beta_fast = r.beta_fast.value_or(out.beta_fast);
    out.beta_slow = r.beta_slow.value_or(out.beta_slow);
    out.rounded_ramp = r.truncate.value_or(true);
    out.amplitude = r.attention_factor.value_or(0);
    // DeepSeek's: of cosines and sines the one over the other; scores have the square of the other.
    const auto size = [&](double m) { return 0.1 * m * std::log(out.factor) + 1; };
    if (r.mscale.has_value() != r.mscale_all_dim.has_value())
      here.child(r.mscale ? "mscale" : "mscale_all_dim").fail("the one is given without the other");
    if (out.scaling == RotaryScaling::kYarn && r.mscale)
      out.amplitude = size(*r.mscale) / size(*r.mscale_all_dim);
  }
  return out;
}

std::vector<double> rotary_frequencies(const Rotary& r, std::int64_t head, std::int64_t sequence) {
  const std::int64_t width = r.turned(head);
  std::vector<double> out;
  for (std::int64_t j = 0; j < width / 2; ++j)
    out.push_back(std::pow(r.base, -2.0 * static_cast<double>(j) / static_cast<double>(width)));
  switch (r.scaling) {
    case RotaryScaling::kNone:
      break;
    case RotaryScaling::kLinear:
      for (double& f : out) f /= r.factor;
      break;
    case RotaryScaling::kLlama3:
      for (double& f : out) f = llama3(r, f);
      break;
    case RotaryScaling::kYarn:
      scale_yarn(r, out);
      break;
    case RotaryScaling::kLongRope: {
      const std::vector<double>& factors = sequence > r.original_positions ? r.long_factors : r.short_factors;
      for (std::size_t j = 0; j < out.size(); ++j) out[j] /= factors[j];
      break;
    }
  }
  return out;
}

RotaryTables rotary_tables(const Rotary& r, std::int64_t head, std::int64_t sequence) {
  const std::vector<double> frequencies = rotary_frequencies(r, head, sequence);
  const double size = amplitude(r);
  RotaryTables out;
  for (std::int64_t position = 0; position < sequence; ++position) {
    for (const double f : frequencies) {
      const double angle = static_cast<double>(position) * f;
      out.cosine.push_back(static_cast<float>(size * std::cos(angle)));
      out.sine.push_back(static_cast<float>(size * std::sin(angle)));
    }
  }
  return out;
}

double QueryGrowth::at(std::int64_t position) const {
  return 1 + rate * std::log1p(static_cast<double>((position + 1) / positions));
}

RotaryTables growth_tables(const QueryGrowth& g, std::int64_t head, std::int64_t sequence) {
  RotaryTables out;
  for (std::int64_t p = 0; p < sequence; ++p)
    out.cosine.insert(out.cosine.end(), static_cast<std::size_t>(head / 2), static_cast<float>(g.at(p)));
  out.sine.assign(out.cosine.size(), 0);
  return out;
}

}  // namespace orrery
