// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <boost/context/fiber.hpp>
#include <boost/context/pooled_fixedsize_stack.hpp>
#include <cstring>
#include <exception>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cuda_runtime.h"

namespace emulation {
namespace {

namespace context = boost::context;

struct Barrier {
  unsigned arrived = 0, passed = 0;
};

// Of a thread, where it has not been let go on.
struct Wait {
  const Barrier* at = nullptr;
  unsigned passed = 0;
  bool lasts() const { return at != nullptr && at->passed == passed; }
};

struct Warp {
  Barrier barrier;
  unsigned lanes = 32;
  alignas(16) std::byte slots[32][64];
};

unsigned seed = 1;

// Of compute capability 9.0.
constexpr std::size_t kMostShared = 227 << 10, kSharedUnasked = 48 << 10;

// The threads of one block, which run all blocks of the grid one after the other.
class Threads {
 public:
  Threads(const Shape& shape, const std::function<void()>& thread)
      : shape_(shape),
        thread_(thread),
        count_(shape.block.x * shape.block.y),
        blocks_(std::size_t{shape.grid.x} * shape.grid.y * shape.grid.z),
        warps_((count_ + 31) / 32),
        random_(seed),
        waits_(count_),
        shared(shape.shared) {
    warps_.back().lanes = count_ - 32 * (static_cast<unsigned>(warps_.size()) - 1);
    clear_shared();
  }

  void run() {
    context::pooled_fixedsize_stack stacks(std::size_t{1} << 16);
    fibers_.reserve(count_);
    for (unsigned t = 0; t < count_; ++t) {
      fibers_.emplace_back(std::allocator_arg, stacks, [this](context::fiber&& back) {
        back_ = std::move(back);
        try {
          while (block_ < blocks_) {
            thread_();
            wait(end_, count_);
          }
        } catch (const std::exception&) {
          failure_ = std::current_exception();
        }
        ++progress_;
        return std::move(back_);
      });
    }
    unsigned left = count_;
    while (left > 0) {
      const std::uint64_t before = progress_;
      const auto first = static_cast<unsigned>(random_() % warps_.size());
      for (unsigned w = 0; w < warps_.size(); ++w)
        left -= run_warp((first + w) % static_cast<unsigned>(warps_.size()), flip());
      if (progress_ == before) {
        throw std::runtime_error("block " + std::to_string(blockIdx.x) + ", " + std::to_string(blockIdx.y) +
                                 ": threads wait at a barrier that others do not reach");
      }
    }
  }

  void wait(Barrier& barrier, unsigned expected) {
    const unsigned passed = barrier.passed;
    ++progress_;
    if (++barrier.arrived == expected) {
      barrier.arrived = 0;
      ++barrier.passed;
      if (&barrier == &end_) {
        ++block_;
        clear_shared();
      }
    }
    const unsigned thread = self;
    while (barrier.passed == passed) {
      waits_[thread] = {&barrier, passed};
      back_ = std::move(back_).resume();
    }
    waits_[thread] = {};
    place();
  }

  Warp& warp() { return warps_[self / 32]; }

  void declare_shared(void* memory, std::size_t bytes) {
    if (std::find(declared_.begin(), declared_.end(), memory) != declared_.end()) return;
    declared_.push_back(memory);
    declared_bytes_ += bytes;
    const std::size_t all = shared.size() + declared_bytes_,
                      most = shape_.asks ? kMostShared : kSharedUnasked;
    if (all > most || declared_bytes_ > kSharedUnasked) {
      throw std::runtime_error("a block shares " + std::to_string(all) +
                               " bytes, of which its kernel declares " + std::to_string(declared_bytes_) +
                               ": it gets " + std::to_string(most));
    }
    std::memset(memory, 0xff, bytes);
  }

  unsigned self = 0;  // the thread that runs
  Barrier block;

 private:
  // As far ahead of the others as it gets: what lacks a barrier of the block is found out. Returns how many
  // of its threads ended.
  unsigned run_warp(unsigned warp, bool down) {
    const unsigned lanes = warps_[warp].lanes;
    unsigned ended = 0;
    for (std::uint64_t before = progress_ - 1; before != progress_;) {
      before = progress_;
      for (unsigned i = 0; i < lanes; ++i) {
        self = 32 * warp + (down ? lanes - 1 - i : i);
        if (!fibers_[self] || waits_[self].lasts()) continue;
        place();
        fibers_[self] = std::move(fibers_[self]).resume();
        if (failure_) std::rethrow_exception(failure_);
        if (!fibers_[self]) ++ended;
      }
    }
    return ended;
  }

  void place() const {
    threadIdx = {self % shape_.block.x, self / shape_.block.x, 0};
    blockDim = shape_.block;
    gridDim = shape_.grid;
    const auto b = static_cast<unsigned>(block_ % std::max<std::size_t>(1, blocks_));
    blockIdx = {b % shape_.grid.x, b / shape_.grid.x % shape_.grid.y, b / shape_.grid.x / shape_.grid.y};
  }
  bool flip() { return (random_() >> 8 & 1) != 0; }
  void clear_shared() {
    std::fill(shared.begin(), shared.end(), std::byte{0xff});
    declared_.clear();
    declared_bytes_ = 0;
  }

  const Shape shape_;
  const std::function<void()>& thread_;
  unsigned count_;
  std::size_t blocks_, block_ = 0;
  std::vector<Warp> warps_;
  std::minstd_rand random_;
  std::vector<Wait> waits_;  // by thread: to resume one in vain takes longer than to look
  std::vector<context::fiber> fibers_;
  context::fiber back_;
  Barrier end_;
  std::vector<void*> declared_;  // by the block that runs
  std::size_t declared_bytes_ = 0;
  std::uint64_t progress_ = 0;
  std::exception_ptr failure_;

 public:
  unsigned count() const { return count_; }
  std::vector<std::byte> shared;
};

thread_local Threads* now = nullptr;

}  // namespace

void set_seed_of_threads(unsigned value) {
  seed = value;
}

cudaError_t refusal(const Shape& s) {
  constexpr unsigned kMostThreads = 1024, kMostAlongY = 65535;
  const bool fits = s.block.x * s.block.y <= kMostThreads && s.grid.x <= 0x7fffffffU &&
                    s.grid.y <= kMostAlongY && s.shared <= kMostShared;
  return fits ? cudaSuccess : cudaErrorInvalidConfiguration;
}

void run(const Shape& shape, const std::function<void()>& thread) {
  Threads threads(shape, thread);
  now = &threads;
  threads.run();
  now = nullptr;
}

std::byte* dynamic_shared() {
  return now->shared.data();
}
void declare_shared(void* memory, std::size_t bytes) {
  now->declare_shared(memory, bytes);
}
void block_barrier() {
  now->wait(now->block, now->count());
}
void warp_barrier() {
  now->wait(now->warp().barrier, now->warp().lanes);
}
std::byte* warp_slot(unsigned l) {
  return now->warp().slots[l];
}
unsigned lane() {
  return now->self % 32;
}
unsigned lanes() {
  return now->warp().lanes;
}

}  // namespace emulation
