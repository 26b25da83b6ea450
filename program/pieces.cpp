// SPDX-License-Identifier: Apache-2.0
#include "program/pieces.h"

#include <algorithm>
#include <iterator>

namespace orrery::program {

std::vector<std::int32_t> cuts_of(const Segment& segment, StreamIndex exchanges) {
  std::vector<std::int32_t> out;
  if (follows_chunks(segment.kind)) return out;  // which runs beside nothing
  std::vector<std::int32_t> arriving;  // buffers that exchanges of the piece fill, and collectives after them
  for (std::size_t i = 0; i < segment.ops.size(); ++i) {
    const Op& op = segment.ops[i];
    const auto arrives = [&](const Ref& r) {
      return std::find(arriving.begin(), arriving.end(), r.buffer) != arriving.end();
    };
    const bool takes = std::any_of(op.reads.begin(), op.reads.end(), arrives);
    if (takes && op.stream == kCompute) {
      out.push_back(static_cast<std::int32_t>(i));
      arriving.clear();
    } else if (takes || op.stream == exchanges) {
      for (const Ref& r : op.writes) arriving.push_back(r.buffer);
    }
  }
  return out;
}

std::vector<Cut> cut_segments(RankClass& rank, StreamIndex exchanges) {
  std::vector<Cut> out;
  std::vector<Segment> pieces;
  for (Segment& whole : rank.segments) {
    std::vector<std::int32_t> ends = cuts_of(whole, exchanges);
    ends.push_back(static_cast<std::int32_t>(whole.ops.size()));
    out.push_back({static_cast<std::int32_t>(pieces.size()), static_cast<std::int32_t>(ends.size())});
    auto op = whole.ops.begin();
    for (std::size_t i = 0; i < ends.size(); ++i) {
      Segment& piece = pieces.emplace_back();
      piece.kind = whole.kind;
      piece.chunk = whole.chunk;
      piece.last_micro_batch = whole.last_micro_batch;
      piece.piece = static_cast<std::int32_t>(i);
      const auto end = whole.ops.begin() + ends[i];
      piece.ops.assign(std::make_move_iterator(op), std::make_move_iterator(end));
      op = end;
    }
  }
  rank.segments = std::move(pieces);
  return out;
}

std::vector<Turn> side_by_side(std::size_t forward, std::size_t backward) {
  std::vector<Turn> out;
  std::size_t f = 0, b = 0;
  while (f < forward || b < backward) {
    // b / backward against f / forward
    if (b < backward && (b * forward <= f * backward || f == forward))
      out.push_back({static_cast<std::int32_t>(b++), false});
    else
      out.push_back({static_cast<std::int32_t>(f++), true});
  }
  return out;
}

}  // namespace orrery::program
