// SPDX-License-Identifier: Apache-2.0
#include "exec/labelled_data.h"

#include "exec/data_file.h"
#include "exec/logical.h"

namespace orrery::exec {
namespace {

// The image that a model begins with, or null.
const PatchInput* image_of(const Model& model) {
  for (const Input& input : model.inputs) {
    if (const auto* image = std::get_if<PatchInput>(&input.is)) return image;
  }
  return nullptr;
}

// A value between -1 and 1.
float value_of(std::uint64_t key) {
  return static_cast<float>(hash_mix(key) >> 40) / static_cast<float>(1 << 23) - 1;
}

class BuiltInImages final : public Dataset {
 public:
  BuiltInImages(std::uint64_t seed, std::int64_t classes) : seed_(seed), classes_(classes) {}
  std::int64_t sequences() const override { return std::int64_t{1} << 40; }
  std::int64_t vocabulary() const override { return classes_; }
  std::string identity() const override { return fmt::format("built-in images, {} classes", classes_); }
  void read(std::int64_t i, std::span<float> values, std::int32_t& of) const override {
    const std::uint64_t key = hash_mix(seed_ ^ hash_mix(static_cast<std::uint64_t>(i)));
    of = static_cast<std::int32_t>(key % static_cast<std::uint64_t>(classes_));
    const std::uint64_t pattern = hash_mix(static_cast<std::uint64_t>(of));
    for (std::size_t j = 0; j < values.size(); ++j)
      values[j] = (value_of(pattern + j) + value_of(key + j)) / 2;
  }

 private:
  std::uint64_t seed_;
  std::int64_t classes_;
};

class ImageFile final : public Dataset {
 public:
  ImageFile(const std::string& path, const PatchInput& image, std::int64_t classes)
      : path_(path),
        file_(path),
        image_(image),
        classes_(classes),
        bytes_(static_cast<std::size_t>(1 + image.patches() * image.values())) {
    images_ = static_cast<std::int64_t>(file_.bytes() / bytes_);
    if (images_ < 1 || file_.bytes() % bytes_ != 0)
      throw InputError(path, "",
                       fmt::format("holds {} bytes, and a record of an image of {} x {} x {} has {}",
                                   file_.bytes(), image.channels, image.image, image.image, bytes_));
  }
  std::int64_t sequences() const override { return images_; }
  std::int64_t vocabulary() const override { return std::min<std::int64_t>(classes_, 256); }
  std::string identity() const override {
    return fmt::format("images, {} bytes, CRC-32C {:08x}", file_.bytes(), file_.checksum());
  }
  void read(std::int64_t i, std::span<float> values, std::int32_t& of) const override {
    std::vector<std::byte> record(bytes_);
    file_.read(static_cast<std::size_t>(i) * bytes_, record);
    of = std::to_integer<std::int32_t>(record[0]);
    if (of >= classes_)
      throw Error(fmt::format("{}: image {} is of class {}, and the model has {}", path_, i, of, classes_));
    const std::int64_t side = image_.image, patch = image_.patch;
    std::size_t out = 0;
    for (std::int64_t top = 0; top < side; top += patch) {
      for (std::int64_t left = 0; left < side; left += patch) {
        for (std::int64_t channel = 0; channel < image_.channels; ++channel) {
          for (std::int64_t y = top; y < top + patch; ++y) {
            for (std::int64_t x = left; x < left + patch; ++x) {
              const auto at = static_cast<std::size_t>(1 + (channel * side + y) * side + x);
              values[out++] = (static_cast<float>(std::to_integer<int>(record[at])) / 255 - 0.5F) / 0.5F;
            }
          }
        }
      }
    }
  }

 private:
  std::string path_;
  DataFile file_;
  PatchInput image_;
  std::int64_t classes_, images_ = 0;
  std::size_t bytes_;  // of a record
};

std::vector<BagInput> bags_of(const Model& model) {
  std::vector<BagInput> out;
  for (const Input& input : model.inputs) {
    if (const auto* bags = std::get_if<BagInput>(&input.is)) out.push_back(*bags);
  }
  return out;
}

// Each id has one of two traits. The label says whether most ids of both towers have the same, but for every
// sixteenth event or so.
class BuiltInEvents final : public Dataset {
 public:
  BuiltInEvents(std::uint64_t seed, std::vector<BagInput> towers) : seed_(seed), towers_(std::move(towers)) {}
  std::int64_t sequences() const override { return std::int64_t{1} << 40; }
  std::int64_t vocabulary() const override { return 0; }
  std::string identity() const override {
    return fmt::format("built-in events of {} towers", towers_.size());
  }
  void read(std::int64_t i, std::span<const std::span<std::int32_t>> ids,
            std::int32_t& label) const override {
    const std::uint64_t key = hash_mix(seed_ ^ hash_mix(static_cast<std::uint64_t>(i)));
    bool alike = hash_mix(key) % 16 != 0;
    for (std::size_t t = 0; t < ids.size(); ++t) {
      const auto rows = static_cast<std::uint64_t>(towers_[t].rows);
      std::size_t have = 0;
      for (std::size_t k = 0; k < ids[t].size(); ++k) {
        ids[t][k] = static_cast<std::int32_t>(hash_mix(key + (t << 32) + k + 1) % rows);
        have += hash_mix(static_cast<std::uint64_t>(ids[t][k]) + (t << 40)) % 2;
      }
      if (2 * have < ids[t].size()) alike = !alike;
    }
    label = alike ? 1 : 0;
  }

 private:
  std::uint64_t seed_;
  std::vector<BagInput> towers_;
};

class EventFile final : public Dataset {
 public:
  EventFile(const std::string& path, std::vector<BagInput> towers)
      : path_(path), file_(path), towers_(std::move(towers)) {
    for (const BagInput& t : towers_) numbers_ += static_cast<std::size_t>(t.tables * t.ids);
    events_ = static_cast<std::int64_t>(file_.bytes() / (4 * numbers_));
    if (events_ < 1 || file_.bytes() % (4 * numbers_) != 0)
      throw InputError(path, "",
                       fmt::format("holds {} bytes, and an event of {} ids and a label has {}", file_.bytes(),
                                   numbers_ - 1, 4 * numbers_));
  }
  std::int64_t sequences() const override { return events_; }
  std::int64_t vocabulary() const override { return 0; }
  std::string identity() const override {
    return fmt::format("events, {} bytes, CRC-32C {:08x}", file_.bytes(), file_.checksum());
  }
  void read(std::int64_t i, std::span<const std::span<std::int32_t>> ids,
            std::int32_t& label) const override {
    std::size_t at = static_cast<std::size_t>(i) * 4 * numbers_;
    for (std::size_t t = 0; t < ids.size(); ++t) {
      file_.read(at, std::as_writable_bytes(ids[t]));
      at += 4 * ids[t].size();
      for (const std::int32_t id : ids[t]) {
        if (id < 0 || id >= towers_[t].rows)
          throw Error(fmt::format("{}: event {} names row {} of a table of \"{}\" with {} rows", path_, i, id,
                                  towers_[t].tower, towers_[t].rows));
      }
    }
    file_.read(at, std::as_writable_bytes(std::span(&label, 1)));
    if (label != 0 && label != 1)
      throw Error(fmt::format("{}: the label of event {} is {}, neither 0 nor 1", path_, i, label));
  }

 private:
  std::string path_;
  DataFile file_;
  std::vector<BagInput> towers_;
  std::size_t numbers_ = 1;  // of an event
  std::int64_t events_ = 0;
};

}  // namespace

std::unique_ptr<Dataset> built_in_labelled_data(std::uint64_t seed, const Model& model) {
  if (model.bags() != nullptr) return std::make_unique<BuiltInEvents>(seed, bags_of(model));
  if (image_of(model) != nullptr) return std::make_unique<BuiltInImages>(seed, model.head_rows());
  return nullptr;
}

std::unique_ptr<Dataset> open_labelled_data(const std::string& path, const Model& model) {
  if (model.bags() != nullptr) return std::make_unique<EventFile>(path, bags_of(model));
  if (const PatchInput* image = image_of(model))
    return std::make_unique<ImageFile>(path, *image, model.head_rows());
  return nullptr;
}

}  // namespace orrery::exec
