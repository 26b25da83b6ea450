// SPDX-License-Identifier: Apache-2.0
#include "trace/pickle.h"

#include <fmt/format.h>

#include <bit>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "core/error.h"

namespace orrery::trace {
namespace {

// Of Lib/pickletools.py; all others would make objects.
enum class Code : unsigned char {
  kMark = '(',
  kStop = '.',
  kBinaryInt = 'J',
  kBinaryInt1 = 'K',
  kBinaryInt2 = 'M',
  kNone = 'N',
  kUnicode = 'X',
  kAppend = 'a',
  kAppends = 'e',
  kGet = 'h',
  kLongGet = 'j',
  kPut = 'q',
  kLongPut = 'r',
  kSetItem = 's',
  kTuple = 't',
  kSetItems = 'u',
  kEmptyDict = '}',
  kEmptyList = ']',
  kEmptyTuple = ')',
  kBinaryFloat = 'G',
  kProtocol = 0x80,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kTrue = 0x88,
  kFalse = 0x89,
  kLong1 = 0x8a,
  kShortUnicode = 0x8c,
  kMemoize = 0x94,
  kFrame = 0x95,
};

// A value that others may refer to, too.
struct Value {
  Json plain;  // null of lists and dictionaries
  bool list = false, dictionary = false;
  std::vector<Value*> items;
  std::vector<Value*> keys;  // of a dictionary's items
};
using Shared = Value*;

class Unpickling {
 public:
  Unpickling(std::string_view bytes, const std::string& file) : bytes_(bytes), file_(file) {}

  Json value() {
    for (;;) {
      const std::size_t at = at_;
      const auto code = static_cast<Code>(byte());
      if (code == Code::kStop) break;
      if (!run(code))
        fail(at, fmt::format("code {:#04x} is not of plain values", static_cast<unsigned char>(bytes_[at])));
      if (++values_ > kMostValues) fail(at, "holds too many values");
    }
    if (stack_.size() != 1) fail(at_, "does not end with one value");
    values_ = 0;
    return json_of(*stack_.back(), 0);
  }

 private:
  static constexpr std::size_t kMostValues = 4'000'000, kMostText = 1 << 27;
  static constexpr int kDeepest = 64;

  // What is shared is written out wherever it stands; a value within itself is too deep.
  void count(const Value& v) {
    if (++values_ > kMostValues) fail(at_, "repeats too many values");
    if (v.plain.is_string()) text_ += v.plain.get_ref<const std::string&>().size();
    if (text_ > kMostText) fail(at_, "repeats too much text");
  }
  Json json_of(const Value& v, int depth) {
    if (depth > kDeepest) fail(at_, "is nested too deeply");
    count(v);
    if (v.list) {
      Json out = Json::array();
      for (const Value* item : v.items) out.push_back(json_of(*item, depth + 1));
      return out;
    }
    if (v.dictionary) {
      Json out = Json::object();
      for (std::size_t i = 0; i < v.items.size(); ++i) {
        count(*v.keys[i]);
        const Json& key = v.keys[i]->plain;
        append(out, key.is_string() ? key.get<std::string>() : key.dump(), json_of(*v.items[i], depth + 1));
      }
      return out;
    }
    return v.plain;
  }

  [[noreturn]] void fail(std::size_t at, const std::string& what) const {
    throw InputError(file_, fmt::format("byte {}", at), what,
                     "allowed: a pickle of dictionaries, lists and numbers");
  }
  unsigned char byte() {
    if (at_ >= bytes_.size()) fail(at_, "the file ends early");
    return static_cast<unsigned char>(bytes_[at_++]);
  }
  std::uint64_t little(std::size_t size) {
    std::uint64_t out = 0;
    for (std::size_t i = 0; i < size; ++i) out |= std::uint64_t{byte()} << (8 * i);
    return out;
  }
  std::string text(std::size_t size) {
    if (size > bytes_.size() - at_) fail(at_, "the file ends early");
    std::string out(bytes_.substr(at_, size));
    at_ += size;
    return out;
  }
  void push(Json plain) { stack_.push_back(&values_of_file_.emplace_back(Value{.plain = std::move(plain)})); }
  void push_container(bool list) {
    stack_.push_back(&values_of_file_.emplace_back(Value{.list = list, .dictionary = !list}));
  }
  Shared pop() {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) fail(at_, "takes a value that is not there");
    const Shared out = stack_.back();
    stack_.pop_back();
    return out;
  }
  // What stands above the last mark.
  std::vector<Shared> marked() {
    if (marks_.empty()) fail(at_, "has no mark");
    const std::size_t from = marks_.back();
    marks_.pop_back();
    std::vector<Shared> out(stack_.begin() + static_cast<std::ptrdiff_t>(from), stack_.end());
    stack_.resize(from);
    return out;
  }
  Value& top() {
    if (stack_.empty()) fail(at_, "changes a value that is not there");
    return *stack_.back();
  }
  void add(const std::vector<Shared>& items) {
    Value& list = top();
    if (!list.list) fail(at_, "appends to what is no list");
    list.items.insert(list.items.end(), items.begin(), items.end());
  }
  void set(const std::vector<Shared>& items) {
    Value& dictionary = top();
    if (!dictionary.dictionary) fail(at_, "sets an item of what is no dictionary");
    if (items.size() % 2 != 0) fail(at_, "has a key without a value");
    for (std::size_t i = 0; i < items.size(); i += 2) {
      const Json& key = items[i]->plain;
      if (!key.is_string() && !key.is_number_integer())
        fail(at_, "has a key that is neither a text nor a number");
      dictionary.keys.push_back(items[i]);
      dictionary.items.push_back(items[i + 1]);
    }
  }
  void tuple(std::size_t size) {
    std::vector<Shared> items(size);
    for (std::size_t i = size; i > 0; --i) items[i - 1] = pop();
    push_container(true);
    add(items);
  }
  void put(std::uint64_t key) {
    if (stack_.empty()) fail(at_, "keeps a value that is not there");
    memo_[key] = stack_.back();
  }
  void get(std::uint64_t key) {
    const auto kept = memo_.find(key);
    if (kept == memo_.end()) fail(at_, fmt::format("refers to value {}, which is not kept", key));
    stack_.push_back(kept->second);
  }

  std::int64_t long_of(std::size_t size) {
    constexpr std::size_t kMost = 8;
    if (size > kMost) fail(at_, "has a number of more than 64 bits");
    std::uint64_t v = little(size);
    if (size > 0 && size < kMost && (v >> (8 * size - 1)) != 0) v |= ~std::uint64_t{0} << (8 * size);
    return static_cast<std::int64_t>(v);
  }

  bool run(Code code) {
    switch (code) {
      case Code::kMark:
        marks_.push_back(stack_.size());
        return true;
      case Code::kBinaryInt:
        push(static_cast<std::int32_t>(little(4)));
        return true;
      case Code::kBinaryInt1:
        push(little(1));
        return true;
      case Code::kBinaryInt2:
        push(little(2));
        return true;
      case Code::kLong1:
        push(long_of(byte()));
        return true;
      case Code::kBinaryFloat: {
        std::uint64_t bits = 0;
        for (int i = 0; i < 8; ++i) bits = bits << 8 | byte();
        push(std::bit_cast<double>(bits));
        return true;
      }
      case Code::kNone:
        push(nullptr);
        return true;
      case Code::kTrue:
        push(true);
        return true;
      case Code::kFalse:
        push(false);
        return true;
      case Code::kUnicode:
        push(text(little(4)));
        return true;
      case Code::kShortUnicode:
        push(text(byte()));
        return true;
      case Code::kEmptyDict:
        push_container(false);
        return true;
      case Code::kEmptyList:
      case Code::kEmptyTuple:
        push_container(true);
        return true;
      case Code::kAppend:
        add({pop()});
        return true;
      case Code::kAppends:
        add(marked());
        return true;
      case Code::kSetItem: {
        const Shared item = pop(), key = pop();
        set({key, item});
        return true;
      }
      case Code::kSetItems:
        set(marked());
        return true;
      case Code::kTuple: {
        const std::vector<Shared> items = marked();
        push_container(true);
        add(items);
        return true;
      }
      case Code::kTuple1:
        tuple(1);
        return true;
      case Code::kTuple2:
        tuple(2);
        return true;
      case Code::kTuple3:
        tuple(3);
        return true;
      case Code::kPut:
        put(byte());
        return true;
      case Code::kLongPut:
        put(little(4));
        return true;
      case Code::kMemoize:
        put(memo_.size());
        return true;
      case Code::kGet:
        get(byte());
        return true;
      case Code::kLongGet:
        get(little(4));
        return true;
      case Code::kProtocol:
        byte();
        return true;
      case Code::kFrame:
        little(8);
        return true;
      case Code::kStop:
        break;
    }
    return false;
  }

  std::string_view bytes_;
  std::string file_;
  std::size_t at_ = 0, values_ = 0, text_ = 0;
  std::deque<Value> values_of_file_;  // which others point to, themselves too
  std::vector<Shared> stack_;
  std::vector<std::size_t> marks_;
  std::map<std::uint64_t, Shared> memo_;
};

}  // namespace

bool is_pickle(std::string_view bytes) {
  return bytes.size() > 2 && static_cast<Code>(static_cast<unsigned char>(bytes[0])) == Code::kProtocol;
}

Json from_pickle(std::string_view bytes, const std::string& file) {
  return Unpickling(bytes, file).value();
}

}  // namespace orrery::trace
