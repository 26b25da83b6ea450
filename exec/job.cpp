// SPDX-License-Identifier: Apache-2.0
#include "exec/job.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <tuple>

#include "core/error.h"
#include "core/json.h"
#include "core/text.h"
#include "exec/checkpoint.h"
#include "exec/terms.h"
#include "program/expert_spans.h"
#include "program/live.h"

namespace orrery::exec {
namespace {

using program::Op;
using program::RankClass;

// By rank and stream.
using AllMeasured = std::vector<std::array<std::vector<Measured>, program::kMostStreams>>;

Timeline make_timeline(const program::Program& program, Backend backend, const AllMeasured& measured) {
  Timeline t;
  t.source = fmt::format("measured: {}", name_of(backend));
  t.program_hash = program.hash();
  t.axes = program::axes_of(program.mesh);
  for (const program::Stream& s : program.communication.streams) t.streams.push_back(s.name);
  for (const char* s : program::kSegmentNames) t.segments.emplace_back(s);
  Clock::time_point origin = Clock::time_point::max();
  for (const auto& rank : measured) {
    for (const auto& stream : rank) {
      if (!stream.empty()) origin = std::min(origin, stream.front().start);
    }
  }
  const auto since = [&](Clock::time_point p) {
    return Time{std::chrono::duration_cast<std::chrono::nanoseconds>(p - origin).count() * 1000};
  };
  std::map<std::string, std::int32_t> names;
  for (std::size_t r = 0; r < measured.size(); ++r) {
    const auto rank_number = static_cast<std::int64_t>(r);
    t.rank_labels.push_back(fmt::format("rank {} ({})", r, coordinates_text(program.mesh, rank_number)));
    const RankClass& rank = program.classes[static_cast<std::size_t>(program.stage_of(rank_number))];
    const program::OpNumbers number(rank);
    std::vector<Time> starts(number.size());
    for (const auto& stream : measured[r]) {
      for (const Measured& m : stream) {
        starts[number(m.step, m.op)] = since(m.start);
        const program::Step& step = rank.steps[static_cast<std::size_t>(m.step)];
        const program::Segment& segment = rank.segments[static_cast<std::size_t>(step.segment)];
        const Op& op = segment.ops[static_cast<std::size_t>(m.op)];
        const auto [name, added] = names.try_emplace(op.name, static_cast<std::int32_t>(t.names.size()));
        if (added) t.names.push_back(op.name);
        t.slices.push_back({name->second, static_cast<std::int32_t>(segment.kind),
                            rank.chunks[static_cast<std::size_t>(segment.chunk)], step.micro_batch,
                            static_cast<std::int32_t>(r), op.stream, since(m.start), since(m.start),
                            since(m.active), since(m.end)});
      }
    }
    const auto points = program::live_bytes(rank, static_cast<std::int32_t>(r), starts);
    t.memory.insert(t.memory.end(), points.begin(), points.end());
  }
  return t;
}

// Of each rank, the choices that it counted (Rank::choices).
ExpertCounts make_counts(const program::Program& program, const Timeline& timeline,
                         const std::vector<std::vector<std::vector<std::int32_t>>>& choices) {
  ExpertCounts out;
  const std::int64_t counted = program::counted_micro_batches(program);
  out.left_out = static_cast<std::int32_t>(program.plan.micro_batches - counted);
  std::map<std::vector<std::int64_t>, std::int32_t> known;
  std::vector<std::int32_t> group_of;  // by rank
  for (std::int64_t r = 0; r < std::ssize(choices); ++r) {
    const auto [group, added] =
        known.try_emplace(program::expert_group(program, r), static_cast<std::int32_t>(out.groups.size()));
    if (added) out.groups.push_back(group->first);
    group_of.push_back(group->second);
  }
  using Key = std::tuple<std::int32_t, std::int32_t, std::int32_t, std::int32_t>;
  std::map<Key, ExpertTokens> sums;  // of a group's ranks
  std::vector<std::size_t> next(choices.size(), 0);
  for (const program::ExpertSpan& span : program::expert_spans(program, timeline)) {
    const auto rank = static_cast<std::size_t>(span.process);
    if (span.micro_batch >= counted || next[rank] == choices[rank].size()) continue;
    const std::vector<std::int32_t>& tokens = choices[rank][next[rank]++];
    const std::int32_t group = group_of[rank];
    const auto [sum, added] =
        sums.try_emplace(Key{group, span.layer, span.of_block, span.micro_batch},
                         ExpertTokens{group, span.layer, span.micro_batch, span.start, span.end, {}});
    ExpertTokens& all = sum->second;
    all.tokens.resize(tokens.size());
    all.start = std::min(all.start, span.start);
    all.end = std::max(all.end, span.end);
    for (std::size_t e = 0; e < tokens.size(); ++e) all.tokens[e] += tokens[e];
  }
  for (auto& [key, sum] : sums) out.of.push_back(std::move(sum));
  out.tidy();
  return out;
}

// Whether ranks that compute on this host's processor have less than a core each. Launchers may bind each
// process to a core of its own. Other hosts are taken to be like that of rank 0.
bool crowded(const RunOptions& options, std::int64_t ranks) {
  if (options.backend != Backend::kCpu) return false;
  if (options.local_ranks > 0) return options.local_ranks > ::get_nprocs();
  cpu_set_t mine;
  CPU_ZERO(&mine);
  return ::sched_getaffinity(0, sizeof mine, &mine) == 0 && ranks > CPU_COUNT(&mine);
}

}  // namespace

Job::Job(const program::Program& program, const RunOptions& options, const Dataset& data, std::int64_t rank,
         const ExecutorFactory& make, Communicator& communicator, Abort& abort, RankIs is,
         MemoryCheckpoints* memory)
    : program_(program),
      options_(options),
      exchange_(communicator, rank, program.mesh.ranks()),
      abort_(abort),
      is_(is),
      clock_offset_(communicator.clock_offset()),
      link_(options.link.bandwidth.value > 0 ? emulate_link(communicator, options.link, options.deadline)
                                             : nullptr),
      memory_(memory),
      rank_(program, options, data, options.validation, rank, make, link_ ? *link_ : communicator, abort),
      data_(data),
      saved_(Clock::now()),
      released_(saved_),
      watch_(rank == 0 ? std::make_unique<Watch>(program, data.sequences(), options.steps,
                                                 crowded(options, program.mesh.ranks()))
                       : nullptr) {
  if (memory_ == nullptr) return;
  constexpr std::size_t kPassed = std::size_t{2} << 20;  // bytes of all ranks at a time
  passing_.emplace(link_ ? *link_ : communicator, rank, program.mesh.ranks(),
                   std::max(Exchange::kPart, kPassed / static_cast<std::size_t>(program.mesh.ranks())));
}

bool Job::is_due(std::int64_t every, std::int64_t done) const {
  return every > 0 && (done % every == 0 || done == options_.steps);
}

RunResult Job::run(const std::optional<RestoredState>& stored) {
  rank_.initialise();
  std::optional<RestoredState> kept;
  if (memory_ != nullptr) kept = memory_->restore(*passing_, program_);
  const bool from_memory = kept && (!stored || kept->step >= stored->step);
  const RestoredState* const restored = from_memory ? &*kept : stored ? &*stored : nullptr;
  if (restored != nullptr) rank_.restore(*restored);
  RunResult result;
  result.from_memory = from_memory;
  result.first_step = restored ? restored->step : 0;
  if (restored && restored->recipe.steps != options_.steps && options_.decay_to != 1.0F) {
    alerts_.push_back(
        fmt::format("the learning rate decays until step {}; it was to decay until step {} when the "
                    "checkpoint was written",
                    options_.steps, restored->recipe.steps));
  }
  if (restored && options_.force) {
    for (const Difference& d : differences(restored->recipe, recipe_of(program_, options_, data_)))
      alerts_.push_back(fmt::format("the checkpoint was trained with {} {}, and this run has {}",
                                    d.pointer.substr(1), d.first, d.second));
  }
  meet(result.first_step);
  compare_algorithms(restored);
  kept.reset();
  if (exchange_.rank() == 0)
    result.steps.reserve(
        static_cast<std::size_t>(std::max<std::int64_t>(0, options_.steps - result.first_step)));
  for (std::int64_t s = result.first_step; s < options_.steps; ++s) {
    const std::int64_t done = s + 1;
    if (memory_ != nullptr && dies(options_.faults, exchange_.rank(), done)) memory_->clear();
    strike(options_.faults, exchange_.rank(), done, is_, abort_);
    const auto begin = Clock::now();
    record_.result = rank_.step(s);
    const auto stepped = Clock::now();
    record_.seconds = std::chrono::duration<double>(stepped - begin).count();
    record_.validation_loss = 0;
    const bool validates = options_.validation != nullptr && is_due(options_.validate_every, done);
    for (std::int64_t b = 0; validates && b < options_.validation_batches; ++b)
      record_.validation_loss += rank_.evaluate(b).loss;
    const double validating_s = seconds_since(stepped);
    record_.stop = options_.stop ? options_.stop() : 0;
    record_.save = options_.checkpoint_seconds > 0 && seconds_since(saved_) >= options_.checkpoint_seconds;
    record_.written = saving_ != nullptr && saving_->done();
    StepReport report = combine(validates);
    report.validating_s = validates ? validating_s : 0;
    const auto spoken = Clock::now();
    if (done < options_.steps) result.stopped_by = stopped_by();
    keep(done, report);
    const auto kept_at = Clock::now();
    report.keeping_s = std::chrono::duration<double>(kept_at - spoken).count();
    save(done, result.stopped_by, report);
    report.saving_s = seconds_since(kept_at);
    const bool told = exchange_.rank() == 0 || is_ == RankIs::kProcess;
    if (told && options_.on_step) options_.on_step(s, report);
    if (exchange_.rank() == 0) result.steps.push_back(std::move(report));
    if (options_.timelines && s > result.first_step) {
      Timeline of_step = measured();
      if (exchange_.rank() == 0) result.timelines.push_back(std::move(of_step));
    }
    if (result.stopped_by != 0) break;
  }
  collect(result);
  return result;
}

// All ranks begin the same run.
void Job::meet(std::int64_t first_step) {
  const Json mine = write_fields(terms_of(program_, options_, data_, first_step));
  const std::vector<std::string> all = exchange_.gather("begin", mine.dump());
  for (std::size_t r = 1; r < all.size(); ++r) {
    const auto other = differences(mine, Json::parse(all[r]));
    if (other.empty()) continue;
    // The program follows from some of the other terms, which say more than its hash.
    const auto named =
        std::find_if(other.begin(), other.end(), [](const Difference& d) { return d.pointer != "/program"; });
    if (named == other.end()) {
      throw Error(
          abort_.raise(fmt::format("rank 0 runs program {}, rank {} runs {}: their models, plans, precisions "
                                   "or stacks differ",
                                   other[0].first, r, other[0].second)));
    }
    constexpr std::string_view kRecipe = "/recipe";
    const std::string_view pointer = named->pointer;
    const auto name = pointer.substr(pointer.starts_with(kRecipe) ? kRecipe.size() + 1 : 1);
    throw Error(abort_.raise(fmt::format("rank 0 has {} {}, rank {} has {}: they must be equal", name,
                                         named->first, r, named->second)));
  }
}

std::string Job::algorithms() {
  return fmt::format("{:016x}", rank_.executor().algorithms());
}

// Other ranks than the checkpoint's sum in another order anyway.
void Job::compare_algorithms(const RestoredState* restored) {
  algorithms_ = exchange_.all_texts("algorithms", algorithms());
  if (exchange_.rank() != 0 || restored == nullptr) return;
  if (restored->algorithms.size() != algorithms_.size() || restored->algorithms == algorithms_) return;
  alerts_.push_back(
      "products run by other algorithms than when the checkpoint was written: what follows agrees, but not "
      "to the bit; --gemm-cache keeps algorithms");
}

// What any rank was asked in the step that all have just spoken of.
int Job::stopped_by() const {
  int signal = 0;
  for (const Record& of : records_) signal = std::max(signal, of.stop);
  return signal;
}

// What all ranks say of a step.
StepReport Job::combine(bool validated) {
  exchange_.all_gather("step", record_, records_);
  StepReport report;
  report.mtp_loss.resize(static_cast<std::size_t>(program_.model.mtp_layers));
  double validation = 0, waited = 0;
  for (std::size_t r = 0; r < records_.size(); ++r) {
    const Record& of = records_[r];
    if (program_.mesh.coordinate(static_cast<std::int64_t>(r), "tp") == 0) {
      report.loss += of.result.loss;
      for (std::size_t k = 0; k < report.mtp_loss.size(); ++k) report.mtp_loss[k] += of.result.mtp_loss[k];
      validation += of.validation_loss;
    }
    waited += of.result.times.waited_s;
    report.seconds = std::max(report.seconds, of.seconds);
    report.waited_for_data_s = std::max(report.waited_for_data_s, of.result.waited_for_data_s);
    if (watch_) {
      watch_->see(static_cast<std::int64_t>(r),
                  {of.result.times.computing_s, of.result.waited_for_data_s, of.result.batch});
    }
  }
  if (watch_) watch_->end_step(report.seconds);
  const auto rows = static_cast<double>(program_.rows_of_loss * program_.plan.islands);
  report.loss /= rows;
  for (double& loss : report.mtp_loss) loss /= rows;
  report.gradient_norm = records_[0].result.gradient_norm;
  report.loss_scale = records_[0].result.loss_scale;
  report.skipped = records_[0].result.skipped;
  report.waiting = waited / static_cast<double>(records_.size()) / report.seconds;
  if (validated)
    report.validation_loss = validation / (rows * static_cast<double>(options_.validation_batches));
  return report;
}

bool Job::saves_after(std::int64_t done, int stopped_by) const {
  return options_.saves() && (is_due(options_.checkpoint_every, done) || done == options_.steps ||
                              records_[0].save || stopped_by != 0);
}

namespace {

std::string attempt(const std::function<void()>& what) {
  try {
    what();
    return {};
  } catch (const std::exception& e) {
    return printable(e.what());
  }
}

}  // namespace

CheckpointIndex Job::index_of(std::int64_t done) {
  CheckpointIndex out;
  out.step = done;
  out.recipe = recipe_of(program_, options_, data_);
  out.states = state_arrays(program_);
  if (program_.training.scales_loss()) out.loss_scale = rank_.loss_scale().state();
  return out;
}

// A checkpoint in memory, where one is due. Steps wait for it.
void Job::keep(std::int64_t done, StepReport& report) {
  report.kept = memory_ != nullptr && is_due(options_.memory_every, done);
  if (!report.kept) return;
  MemoryPart own;
  own.file = pack_rank(program_, exchange_.rank(), rank_.snapshot(false).units,
                       [&](std::string_view bytes) { own.bytes += bytes; });
  CheckpointIndex index = index_of(done);
  index.algorithms = algorithms_;
  memory_->keep(*passing_, program_, std::move(index), std::move(own));
}

// Where it could not be begun, rank 0 says why.
void Job::begin_saving(std::int64_t done, StepReport& report) {
  saved_ = Clock::now();
  std::string failure;
  if (exchange_.rank() == 0) failure = attempt([&] { begin_checkpoint(options_.checkpoints, done); });
  std::vector<char> begun;
  exchange_.all_gather("checkpoint", static_cast<char>(failure.empty()), begun);
  if (begun[0] == 0) return report.set_unsaved(done, failure);
  index_ = index_of(done);
  saving_ =
      std::make_unique<Saving>(partial_checkpoint(options_.checkpoints, done), program_, exchange_.rank(),
                               rank_.snapshot(options_.async_checkpoints), options_.async_checkpoints,
                               disk_fails(options_.faults, exchange_.rank(), done));
}

// All ranks wait for what they write; rank 0 completes the checkpoint, or says why there is none.
void Job::end_saving(StepReport& report) {
  if (!saving_) return;
  const bool beside = options_.async_checkpoints && released_ > saved_;
  saving_->wait();
  const Json told = {
      {"file", write_fields(saving_->file())}, {"failure", saving_->failure()}, {"algorithms", algorithms()}};
  saving_ = nullptr;
  const std::vector<std::string> all = exchange_.gather("checkpoint", told.dump());
  if (exchange_.rank() != 0) return;
  const std::int64_t done = index_.step;
  std::string failure;
  for (std::size_t r = 0; r < all.size(); ++r) {
    const Json of = Json::parse(all[r]);
    if (const std::string why = of.at("failure"); !why.empty() && failure.empty())
      failure = fmt::format("rank {}: {}", r, why);
    index_.files.push_back(read_fields<CheckpointFile>(of.at("file"), Cursor{"checkpoint"}));
    index_.algorithms.push_back(of.at("algorithms"));
  }
  if (failure.empty())
    failure = attempt([&] { finish_checkpoint(options_.checkpoints, program_, std::move(index_)); });
  if (!failure.empty()) {
    drop_partial(options_.checkpoints, done);
    return report.set_unsaved(done, failure);
  }
  if (beside) report.settled_s = seconds_since(released_);
  if (const std::string why =
          attempt([&] { keep_newest(options_.checkpoints, done, options_.keep_checkpoints); });
      !why.empty())
    alerts_.push_back(why);
}

// The steps' own messages say when all ranks have written what they write beside steps.
void Job::save(std::int64_t done, int stopped_by, StepReport& report) {
  const bool due = saves_after(done, stopped_by), last = done == options_.steps || stopped_by != 0;
  const bool written =
      std::all_of(records_.begin(), records_.end(), [](const Record& r) { return r.written; });
  if (due || last || written) end_saving(report);
  report.saved = due;
  if (!due) return;
  begin_saving(done, report);
  if (last || !options_.async_checkpoints) end_saving(report);
  released_ = Clock::now();
}

// What all ranks measured of the last step, on rank 0; an empty timeline elsewhere.
Timeline Job::measured() {
  const auto n = static_cast<std::size_t>(exchange_.ranks());
  AllMeasured all_measured(exchange_.rank() == 0 ? n : 0);
  for (std::size_t s = 0; s < program_.communication.streams.size(); ++s) {
    std::vector<Measured> mine = rank_.executor().measured[s];
    for (Measured& m : mine) {
      for (Clock::time_point* t : {&m.start, &m.active, &m.end}) *t += clock_offset_;
    }
    const auto all = exchange_.gather(
        "timeline", {reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(Measured)});
    for (std::size_t r = 0; r < all.size(); ++r) {
      all_measured[r][s].resize(all[r].size() / sizeof(Measured));
      std::copy_n(all[r].data(), all[r].size(), reinterpret_cast<char*>(all_measured[r][s].data()));
    }
  }
  // By rank, its choices one after the other: how many experts each is of, and their tokens.
  std::vector<std::int32_t> mine;
  for (const std::vector<std::int32_t>& tokens : rank_.choices) {
    mine.push_back(static_cast<std::int32_t>(tokens.size()));
    mine.insert(mine.end(), tokens.begin(), tokens.end());
  }
  const std::vector<std::string> all = exchange_.gather(
      "choices of experts", {reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(std::int32_t)});
  if (exchange_.rank() != 0) return {};
  Timeline out = make_timeline(program_, options_.backend, all_measured);
  std::vector<std::vector<std::vector<std::int32_t>>> choices;
  for (const std::string& text : all) {
    std::vector<std::int32_t> flat(text.size() / sizeof(std::int32_t));
    std::copy_n(text.data(), text.size(), reinterpret_cast<char*>(flat.data()));
    auto& of_rank = choices.emplace_back();
    for (auto at = flat.begin(); at != flat.end(); at += *at + 1) of_rank.emplace_back(at + 1, at + 1 + *at);
  }
  out.experts = make_counts(program_, out, choices);
  return out;
}

// The sum over all ranks, on rank 0.
void Job::count_experts(RunResult& result) {
  Json mine = Json::object();
  for (const auto& [block, tokens] : rank_.expert_tokens) mine[std::to_string(block)] = tokens;
  const std::vector<std::string> all = exchange_.gather("tokens of experts", mine.dump());
  std::map<std::int64_t, std::vector<std::int64_t>> sums;
  for (const std::string& text : all) {
    const Json of_rank = Json::parse(text);
    for (const auto& [block, tokens] : of_rank.items()) {
      std::vector<std::int64_t>& sum = sums[std::stoll(block)];
      sum.resize(tokens.size());
      for (std::size_t e = 0; e < sum.size(); ++e) sum[e] += tokens[e].get<std::int64_t>();
    }
  }
  for (auto& [block, sum] : sums) result.expert_tokens.push_back(std::move(sum));
}

// Where documents of the data are others than those of the scenario by more than chance explains.
void Job::odd_documents(std::vector<std::string>& alerts) const {
  constexpr double kOdd = 0.2, kStandardErrors = 4;
  const Rank::PairShares& s = rank_.pair_shares;
  if (s.sequences < 2) return;
  const auto n = static_cast<double>(s.sequences);
  const double mean = s.sum / n, planned = program_.training.within_documents(0);
  const double error = std::sqrt(std::max(0.0, s.squares / n - mean * mean) / (n - 1));
  if (std::abs(mean / planned - 1) <= kOdd || std::abs(mean - planned) <= kStandardErrors * error) return;
  alerts.push_back(
      fmt::format("documents in the data leave {:.1f} % of the pairs of tokens to attention; the scenario's "
                  "lengths, which "
                  "predictions use, leave {:.1f} % (`orrery documents` writes the data's lengths)",
                  100 * mean, 100 * planned));
}

// Memory of all ranks, the last timeline, and what was odd.
void Job::collect(RunResult& result) {
  std::vector<double> waited;
  exchange_.all_gather("data", rank_.waited_for_data_s(), waited);
  result.waited_for_data_s = *std::max_element(waited.begin(), waited.end());
  exchange_.all_gather("memory", rank_.executor().scratch_bytes(), result.scratch_bytes);
  result.timeline = measured();
  if (options_.expert_load) count_experts(result);
  if (exchange_.rank() != 0) return;
  result.alerts = std::move(alerts_);
  for (std::string& alert : watch_->alerts()) result.alerts.push_back(std::move(alert));
  if (options_.end_token) odd_documents(result.alerts);
  for (std::int64_t r = 0; r < exchange_.ranks(); ++r) {
    const auto stage = program_.stage_of(r);
    const RankClass& c = program_.classes[static_cast<std::size_t>(stage)];
    result.arena_bytes.push_back(c.arena_peak.value);
    result.host_bytes.push_back(c.host_bytes.value);
    result.drive_bytes.push_back(c.drive_bytes.value);
    auto& by_class = result.class_bytes.emplace_back();
    for (std::size_t k = 0; k < by_class.size(); ++k) by_class[k] = c.at_peak[k].value;
  }
}

}  // namespace orrery::exec
