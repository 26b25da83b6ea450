// SPDX-License-Identifier: Apache-2.0
#include "gui/timeline/axis.h"

#include <algorithm>
#include <cmath>

namespace orrery::gui {
namespace {

constexpr Time kLeast{10'000};

}  // namespace

void TimeAxis::set_limits(Time begin, Time end) {
  begin_ = begin;
  end_ = std::max(end, begin + kLeast);
  show_all();
}

void TimeAxis::set_width(int pixels) {
  width_ = std::max(1, pixels);
}

Time TimeAxis::time_at(int x) const {
  if (x < 0) return from_ - Time{mul_div_up(span().value, -x, width_)};
  return from_ + Time{mul_div(span().value, x, width_)};
}

std::vector<Time> TimeAxis::edges() const {
  std::vector<Time> out;
  out.reserve(static_cast<std::size_t>(width_) + 1);
  // from + span x / width, without a division a column.
  const std::int64_t whole = span().value / width_, rest = span().value % width_;
  std::int64_t at = from_.value, carry = 0;
  for (int x = 0; x <= width_; ++x) {
    out.push_back(Time{at});
    at += whole;
    carry += rest;
    if (carry >= width_) {
      carry -= width_;
      ++at;
    }
  }
  return out;
}

double TimeAxis::x_of(Time t) const {
  return static_cast<double>((t - from_).value) * width_ / static_cast<double>(span().value);
}

void TimeAxis::show(Time from, Time to) {
  const Time span = std::clamp(to - from, kLeast, end_ - begin_);
  from_ = std::clamp(from, begin_, end_ - span);
  to_ = from_ + span;
}

void TimeAxis::zoom(double factor, double x) {
  const double share = x / width_, old = static_cast<double>(span().value);
  const double wide =
      std::clamp(old / factor, static_cast<double>(kLeast.value), static_cast<double>((end_ - begin_).value));
  const Time span{std::llround(wide)};
  const Time from = from_ + Time{std::llround(share * (old - wide))};
  show(from, from + span);
}

void TimeAxis::pan(double pixels) {
  const Time by{std::llround(pixels * static_cast<double>(span().value) / width_)};
  show(from_ + by, to_ + by);
}

}  // namespace orrery::gui
