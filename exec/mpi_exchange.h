// SPDX-License-Identifier: Apache-2.0
//
// Collectives by messages between the members of an MPI communicator. Internal to exec/.
#pragma once

#include <mpi.h>

#include <functional>
#include <vector>

#include "exec/collective.h"

namespace orrery::exec {

// Throws Error with MPI's words when a call failed.
void check_mpi(int result, const char* what);

// Messages under way.
class Requests {
 public:
  Requests() = default;
  Requests(const Requests&) = delete;
  Requests& operator=(const Requests&) = delete;
  ~Requests();  // what is still open when the job fails must not write into memory that is gone
  void send(const void* from, std::size_t bytes, int to, int tag, MPI_Comm comm);
  void receive(void* to, std::size_t bytes, int from, int tag, MPI_Comm comm);
  std::vector<MPI_Request> all;
  std::vector<int> ends;  // of each request, the other end in its communicator
};

// Member `self` exchanges parts with the others. What it computes is what members who share memory compute.
class Exchanged {
 public:
  // `wait` returns when all requests are done. `scratch` is kept between calls.
  Exchanged(const CollectiveCall& call, std::size_t self, std::size_t members, MPI_Comm comm,
            std::vector<std::byte>& scratch, std::function<void(Requests&)> wait);

  void at_once();  // as do_share: sums in member order
  void in_rounds(const program::Rounds& rounds);

 private:
  const std::byte* input() const { return static_cast<const std::byte*>(call_.input); }
  std::byte* output() const { return static_cast<std::byte*>(call_.output); }
  // Elements [first, first + second) that member m sums.
  std::pair<std::size_t, std::size_t> slice(std::size_t m) const;
  void sum_and_spread();
  void sum_slices();
  template <class From, class To>
  void exchange(From from, To to, std::size_t count);
  void from_root();
  void to_root();

  const CollectiveCall& call_;
  std::size_t self_, n_, size_;
  MPI_Comm comm_;
  std::vector<std::byte>& scratch_;
  std::function<void(Requests&)> wait_;
};

}  // namespace orrery::exec
