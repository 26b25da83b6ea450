// SPDX-License-Identifier: Apache-2.0
#include "exec/rank.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/error.h"
#include "exec/crc32c.h"
#include "exec/hugging_face_weights.h"
#include "exec/parameters.h"
#include "kernels/cpu/fast.h"
#include "kernels/cpu/moments.h"
#include "program/expert_spans.h"
#include "program/state/units.h"

namespace orrery::exec {

using program::Op;
using program::Ref;

Rank::Rank(const program::Program& program, const RunOptions& options, const Dataset& training,
           const Dataset* validation, std::int64_t rank, const ExecutorFactory& make,
           Communicator& communicator, Abort& abort)
    : program_(program),
      options_(options),
      place_(program, rank),
      class_(place_.rank_class),
      executor_(make(place_, options, communicator, abort)),
      loss_scale_(program.training.scales_loss() ? options.loss_scale : 1, options.loss_scale_window) {
  counted_ = program::counted_micro_batches(program);
  if (!class_.feeds.empty()) {
    const Plan& p = program.plan;
    Loader::Shape shape{p.micro_batch, p.micro_batches, place_.at.replica, p.replicas(), {}};
    shape.further = program.model.mtp_layers;
    if (program.training.packs()) {
      if (options.end_token)
        shape.end_token = options.end_token;
      else
        shape.documents.emplace(*program.training.documents);
    }
    shape.documents_alone = std::all_of(class_.feeds.begin(), class_.feeds.end(), [](const program::Feed& f) {
      return f.of == program::Feed::Of::kDocuments;
    });
    for (const program::Feed& f : program::feeds_of(program.model, program.training)) {
      if (f.of != program::Feed::Of::kInput) continue;
      shape.inputs.push_back(f.elements);
      if (f.type != DType::kInt32) shape.of = Loader::Shape::Of::kImages;
    }
    if (program.model.bags() != nullptr) shape.of = Loader::Shape::Of::kIds;
    loader_ = std::make_unique<Loader>(training, options.seed, shape, options.loader);
    if (validation != nullptr) validation_ = std::make_unique<Loader>(*validation, options.seed, shape);
  }
}

// --- memory and data -------------------------------------------------------------------------------

// Where the moments of a unit stand: after the master copy, where there is one.
std::int64_t Rank::moments(std::size_t index) const {
  const program::Unit& unit = class_.units[index];
  return place_.offset({unit.optimizer_buffer}, 0) +
         unit.shard * bytes_per_parameter(program_.training.precision).master;
}

void Rank::initialise() {
  executor_->clear();
  write_initial(*executor_, place_, options_.seed,
                options_.weights == nullptr ? nullptr : &options_.weights->tensors);
  gradients.resize(class_.units.size());
  parameters.resize(class_.units.size());
}

void Rank::restore(const RestoredState& state) {
  if (!state.states.empty()) write_trained(*executor_, place_, state.states.front());
  for (std::size_t u = 0; u < class_.units.size(); ++u) {
    if (!is_trained(place_, u)) continue;
    const auto values_of = [&](std::size_t array) {
      return unit_values(place_, u, [&](const program::Parameter& p) {
        return [&tensor = tensor_of(place_, state.states[array], p.name)](std::int64_t logical) {
          return element_of(tensor, logical);
        };
      });
    };
    const std::int64_t array_bytes = class_.units[u].shard * static_cast<std::int64_t>(sizeof(float));
    const auto outer = static_cast<std::size_t>(arrays_before_outer(program_));
    const auto moments_end = static_cast<std::size_t>(1 + moment_arrays(program_, class_.units[u].muon));
    const MomentLayout layout =
        program_.training.bytes_of(class_.units[u].muon).moments_of(class_.units[u].shard);
    std::vector<std::byte> stored(static_cast<std::size_t>(layout.bytes()));
    for (std::size_t i = 1; i < std::min(moments_end, state.states.size()); ++i) {
      const std::vector<float> values = values_of(i);
      kernels::narrow_moments(layout, static_cast<std::int64_t>(i) - 1, own_shard(place_, u, values).data(),
                              0, layout.elements(), stored.data());
    }
    if (state.states.size() > 1) executor_->write(moments(u), stored);
    // A checkpoint of one island has no outer state, and one of another recipe may have no outer momentum.
    if (class_.units[u].outer_buffer < 0) continue;
    const auto arrays = static_cast<std::size_t>(state_arrays(program_));
    for (std::size_t i = outer; i < std::min(arrays, state.states.size()); ++i)
      executor_->write(place_.offset({class_.units[u].outer_buffer}, 0) +
                           static_cast<std::int64_t>(i - outer) * array_bytes,
                       std::as_bytes(own_shard(place_, u, values_of(i))));
  }
  if (program_.training.scales_loss() && state.loss_scale.scale > 0) loss_scale_.restore(state.loss_scale);
}

Snapshot Rank::snapshot(bool copied) {
  const BytesPerParameter bytes = bytes_per_parameter(program_.training.precision);
  Snapshot out;
  out.copies.resize(3 * class_.units.size());
  for (std::size_t u = 0; u < class_.units.size(); ++u) {
    const program::Unit& unit = class_.units[u];
    if (!is_trained(place_, u)) {
      out.units.push_back({});
      continue;
    }
    const bool has_master = bytes.master > 0 && !bytes.splits_master();
    const Ref own = has_master ? Ref{unit.optimizer_buffer}
                               : Ref{unit.parameter_buffer, 0, unit.gathered_buffer < 0 ? unit.shard : 0,
                                     unit.of_experts};
    DType type = has_master ? DType::kFloat32 : place_.buffer(own).type;
    const auto n = static_cast<std::size_t>(unit.shard);
    const auto see = [&](std::int64_t offset, std::size_t size, std::vector<std::byte>& space) {
      const std::byte* const at = executor_->view(offset, size, space);
      if (copied && at != space.data()) space.assign(at, at + size);
      return copied ? space.data() : at;
    };
    const std::byte* parameter = see(place_.offset(own, 0), n * bytes_of(type), out.copies[3 * u]);
    if (bytes.splits_master()) {
      std::vector<std::byte> space, joined(4 * n);
      const std::byte* const beside =
          executor_->view(place_.offset({unit.optimizer_buffer}, 0), 2 * n, space);
      auto* const wide = reinterpret_cast<float*>(joined.data());
      kernels::widen(type, unit.shard, parameter, wide);
      kernels::join_master(unit.shard, wide, reinterpret_cast<const std::int16_t*>(beside), wide);
      out.copies[3 * u] = std::move(joined);
      parameter = out.copies[3 * u].data();
      type = DType::kFloat32;
    }
    const MomentLayout layout = program_.training.bytes_of(unit.muon).moments_of(unit.shard);
    const std::byte* state = see(moments(u), static_cast<std::size_t>(layout.bytes()), out.copies[3 * u + 1]);
    if (layout.value_bytes() < 4) {
      std::vector<std::byte> wide(4 * n * static_cast<std::size_t>(layout.count()));
      for (std::int64_t i = 0; i < layout.count(); ++i)
        kernels::widen_moments(layout, i, state, 0, unit.shard,
                               reinterpret_cast<float*>(wide.data()) + i * unit.shard);
      out.copies[3 * u + 1] = std::move(wide);
      state = out.copies[3 * u + 1].data();
    }
    const std::byte* outer = nullptr;
    if (unit.outer_buffer >= 0)
      outer =
          see(place_.offset({unit.outer_buffer}, 0),
              n * static_cast<std::size_t>(program::outer_bytes(program_.training)), out.copies[3 * u + 2]);
    out.units.push_back(
        {parameter, type, reinterpret_cast<const float*>(state), reinterpret_cast<const float*>(outer)});
  }
  return out;
}

// Micro-batch m is copy m of what the loader feeds.
void Rank::load(Loader* loader, std::int64_t number) {
  if (loader == nullptr) return;
  const Loader::Batch& batch = loader->step(number);
  batch_ = 0;
  const auto see = [&](const auto& data) {
    batch_ = crc32c({reinterpret_cast<const char*>(data.data()), data.size() * sizeof(data[0])}, batch_);
  };
  for (const Loader::Batch::Input& input : batch.inputs) {
    see(input.tokens);
    see(input.values);
  }
  see(batch.documents);
  if (loader == loader_.get()) count_pairs(batch.documents);
  for (const program::Feed& f : class_.feeds) {
    if (f.type != DType::kInt32) {
      load_values(f, batch.inputs[static_cast<std::size_t>(f.number)].values);
      continue;
    }
    std::span<const std::int32_t> from;
    const std::int64_t tokens = f.local_elements(program_.plan);
    std::int64_t stride = f.elements, further = 0;
    kernels::TokenShare share = place_.at.token_share(tokens);
    switch (f.of) {
      case program::Feed::Of::kInput:
        from = batch.inputs[static_cast<std::size_t>(f.number)].tokens;
        break;
      case program::Feed::Of::kTargets:
        from = batch.targets;
        stride += program_.model.mtp_layers;
        further = f.number;
        break;
      case program::Feed::Of::kDocuments:
        from = batch.documents;
        share = {};
        break;
    }
    for (std::int64_t m = 0; m < program_.plan.micro_batches; ++m) {
      own_tokens_.clear();
      for (std::int64_t s = 0; s < program_.plan.micro_batch; ++s) {
        const std::int32_t* const sample =
            from.data() + (m * program_.plan.micro_batch + s) * stride + further;
        const auto copy = [&](std::int64_t row, std::int64_t count) {
          own_tokens_.insert(own_tokens_.end(), sample + share.position(row),
                             sample + share.position(row) + count);
        };
        copy(0, share.half);
        copy(share.half, tokens - share.half);
      }
      executor_->write(place_.offset({f.buffer}, m), std::as_bytes(std::span(own_tokens_)));
    }
  }
}

// This tensor rank's columns, in the feed's type.
void Rank::load_values(const program::Feed& f, const std::vector<float>& values) {
  const std::int64_t tp = program_.plan.tp, columns = f.columns / tp;
  const std::int64_t each = program_.plan.micro_batch * f.local_elements(program_.plan);
  std::vector<float> own(static_cast<std::size_t>(each));
  std::vector<std::uint16_t> narrow(is_half(f.type) ? own.size() : 0);
  for (std::int64_t m = 0; m < program_.plan.micro_batches; ++m) {
    const float* const from =
        values.data() + m * program_.plan.micro_batch * f.elements + place_.at.tp * columns;
    for (std::int64_t row = 0; row * columns < each; ++row)
      std::copy_n(from + row * f.columns, columns, own.begin() + row * columns);
    if (is_half(f.type)) kernels::narrow(f.type, each, own.data(), narrow.data());
    executor_->write(place_.offset({f.buffer}, m),
                     is_half(f.type) ? std::as_bytes(std::span(narrow)) : std::as_bytes(std::span(own)));
  }
}

void Rank::count_pairs(std::span<const std::int32_t> first_of_document) {
  const auto sequence = static_cast<std::size_t>(program_.training.sequence);
  for (std::size_t s = 0; s < first_of_document.size(); s += sequence) {
    double within = 0, all = 0;
    for (std::size_t t = 0; t < sequence; ++t) {
      within += static_cast<double>(t + 1) - first_of_document[s + t];
      all += static_cast<double>(t + 1);
    }
    const double share = within / all;
    ++pair_shares.sequences;
    pair_shares.sum += share;
    pair_shares.squares += share * share;
  }
}

// Tensor ranks that do not share the tokens route all of them alike.
void Rank::count(const Op& route, std::int32_t micro_batch, std::span<const std::int32_t> tokens) {
  if (!std::get<program::ops::Route>(route.kind).sharded && place_.at.tp != 0) return;
  if (options_.expert_load) {
    std::vector<std::int64_t>& sum = expert_tokens[route.layer];
    sum.resize(tokens.size());
    for (std::size_t e = 0; e < tokens.size(); ++e) sum[e] += tokens[e];
  }
  if (options_.timeline && micro_batch < counted_) choices.emplace_back(tokens.begin(), tokens.end());
}

void Rank::capture(std::size_t u, const Ref& from, double scale, UnitShard& into) {
  const DType type = place_.buffer(from).type;
  const std::int64_t elements = class_.units[u].shard;
  const auto n = static_cast<std::size_t>(elements);
  std::vector<std::byte> bytes(n * bytes_of(type));
  executor_->read(place_.offset(from, 0), bytes);
  into[u].resize(n);
  if (is_half(type))
    kernels::widen(type, elements, bytes.data(), into[u].data());
  else
    std::memcpy(into[u].data(), bytes.data(), bytes.size());
  for (float& x : into[u]) x = static_cast<float>(x / scale);
}

// --- steps -----------------------------------------------------------------------------------------

Rank::StepResult Rank::step(std::int64_t number) {
  const double waited = waited_for_data_s();
  load(loader_.get(), number);
  Pass pass{.number = number,
            .measured = options_.timeline,
            .learning_rate = learning_rate(options_, number),
            .updates = number + 1 - loss_scale_.skipped(),
            .loss_scale = loss_scale_.scale()};
  if (options_.capture && !stepped_)
    pass.before_update = [&](const Op& op) {
      capture(static_cast<std::size_t>(program::update_begun(op.kind)), op.reads[0], loss_scale_.scale(),
              gradients);
    };
  const bool last = options_.capture && number + 1 == options_.steps;
  if (last)
    pass.after_update = [&](const Op& op) {
      capture(static_cast<std::size_t>(program::update_ended(op.kind)), op.writes[0], 1, parameters);
    };
  choices.clear();
  if (options_.expert_load || options_.timeline) {
    pass.routed = [this](const Op& op, std::int32_t micro_batch, std::span<const std::int32_t> tokens) {
      count(op, micro_batch, tokens);
    };
  }
  StepResult out = run(pass);
  out.waited_for_data_s = waited_for_data_s() - waited;
  out.batch = batch_;
  if (program_.training.scales_loss()) loss_scale_.update(out.skipped);
  stepped_ = true;
  if (exchanges_after(number + 1)) {
    const PassTimes times = executor_->run({.number = number, .what = PassOf::kExchange});
    out.times.waited_s += times.waited_s;
    out.times.computing_s += times.computing_s;
    for (std::size_t u = 0; last && u < class_.units.size(); ++u) {
      const program::Unit& unit = class_.units[u];
      const bool sharded = unit.gathered_buffer >= 0;
      if (unit.outer_buffer >= 0)
        capture(u, {unit.parameter_buffer, 0, sharded ? 0 : unit.shard, unit.of_experts}, 1, parameters);
    }
  }
  return out;
}

Rank::StepResult Rank::compute_gradients(std::int64_t number, UnitShard& units) {
  load(loader_.get(), number);
  StepResult out = run({.number = number, .what = PassOf::kGradients, .loss_scale = loss_scale_.scale()});
  units.resize(class_.units.size());
  for (std::size_t u = 0; u < class_.units.size(); ++u) {
    if (!is_trained(place_, u)) continue;
    const Ref from{class_.units[u].gradient_buffer};
    const program::Buffer& buffer = place_.buffer(from);
    stored_.resize(static_cast<std::size_t>(buffer.bytes.value));
    units[u].resize(stored_.size() / bytes_of(buffer.type));
    executor_->read(place_.offset(from, 0), stored_);
    if (is_half(buffer.type))
      kernels::widen(buffer.type, std::ssize(units[u]), stored_.data(), units[u].data());
    else
      std::memcpy(units[u].data(), stored_.data(), stored_.size());
    std::fill(stored_.begin(), stored_.end(), std::byte{0});
    executor_->write(place_.offset(from, 0), stored_);
  }
  return out;
}

Rank::StepResult Rank::update(std::int64_t number, const UnitShard& units) {
  for (std::size_t u = 0; u < class_.units.size(); ++u) {
    if (!is_trained(place_, u)) continue;
    const Ref to{class_.units[u].gradient_buffer};
    const program::Buffer& buffer = place_.buffer(to);
    stored_.resize(static_cast<std::size_t>(buffer.bytes.value));
    if (is_half(buffer.type))
      kernels::narrow(buffer.type, std::ssize(units[u]), units[u].data(),
                      reinterpret_cast<std::uint16_t*>(stored_.data()));
    else
      std::memcpy(stored_.data(), units[u].data(), stored_.size());
    executor_->write(place_.offset(to, 0), stored_);
  }
  return run({.number = number,
              .what = PassOf::kUpdate,
              .learning_rate = learning_rate(options_, number),
              .updates = number + 1,
              .loss_scale = loss_scale_.scale()});
}

void Rank::read_parameters(StoredUnits& out) {
  out.resize(class_.units.size());
  for (std::size_t u = 0; u < class_.units.size(); ++u) {
    if (!is_trained(place_, u)) continue;
    const program::Ref from{class_.units[u].parameter_buffer};
    out[u].resize(static_cast<std::size_t>(place_.buffer(from).bytes.value));
    executor_->read(place_.offset(from, 0), out[u]);
  }
}

void Rank::write_parameters(const StoredUnits& from) {
  for (std::size_t u = 0; u < class_.units.size(); ++u) {
    if (is_trained(place_, u))
      executor_->write(place_.offset({class_.units[u].parameter_buffer}, 0), from[u]);
  }
}

bool Rank::exchanges_after(std::int64_t done) const {
  return program_.plan.islands > 1 && done % program_.training.outer.value().every == 0;
}

Rank::StepResult Rank::evaluate(std::int64_t batch) {
  load(validation_.get(), batch);
  return run({.number = batch, .what = PassOf::kForward});
}

Rank::StepResult Rank::run(const Pass& pass) {
  StepResult out;
  const auto at = [&](std::int32_t buffer) { return place_.offset({buffer}, 0); };
  const bool has_loss = class_.loss >= 0, has_norm = class_.gradient_norm >= 0;
  const auto loss_of = [&](std::size_t k) { return at(k == 0 ? class_.loss : class_.mtp_losses[k - 1]); };
  const auto losses = [&](auto use) {
    for (std::size_t k = 0; has_loss && k <= class_.mtp_losses.size(); ++k)
      use(loss_of(k), k == 0 ? out.loss : out.mtp_loss[k - 1]);
  };
  losses([&](std::int64_t offset, double& value) {
    executor_->write(offset, std::as_bytes(std::span(&value, 1)));
  });
  out.times = executor_->run(pass);
  GradientNorm norm{};
  losses([&](std::int64_t offset, double& value) {
    executor_->read(offset, std::as_writable_bytes(std::span(&value, 1)));
  });
  if (has_norm) executor_->read(at(class_.gradient_norm), std::as_writable_bytes(std::span(&norm, 1)));
  // An executor that checks while it goes on has said so already, and where.
  const auto require_finite = [&](double value, const char* what) {
    if (std::isfinite(value)) return;
    throw Error(fmt::format("the {} of step {} ({}) is not a finite number", what, pass.number + 1,
                            coordinates_text(program_.mesh, place_.rank)));
  };
  require_finite(out.loss, "loss");
  for (const double loss : out.mtp_loss) require_finite(loss, "loss of multi-token prediction");
  if (!program_.training.scales_loss()) require_finite(norm.norm, "gradient norm");
  out.gradient_norm = norm.norm;
  out.skipped = norm.overflowed != 0;
  if (program_.training.scales_loss()) out.loss_scale = loss_scale_.scale();
  return out;
}

}  // namespace orrery::exec
