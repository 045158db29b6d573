#include "worker/runtime/rank_board.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "common/base/errc.h"
#include "common/base/parse_number.h"

namespace ddp::runtime {
namespace {

constexpr Rank kAskedAtOnce = 64;

// Texts one after the other, each as "<bytes>:<text>".
std::string joined(const std::vector<std::string>& texts) {
  std::string list;
  for (const std::string& text : texts) list += fmt::format("{}:{}", text.size(), text);
  return list;
}

// Takes such a list apart. Returns whether it has as many texts as `texts` has elements.
bool divided(std::string_view list, std::vector<std::string>& texts) {
  for (std::string& text : texts) {
    const std::size_t colon = list.find(':');
    if (colon == std::string_view::npos) return false;
    const auto bytes = parse_whole_number<std::size_t>(list.substr(0, colon));
    list.remove_prefix(colon + 1);
    if (!bytes || *bytes > list.size()) return false;
    text = list.substr(0, *bytes);
    list.remove_prefix(*bytes);
  }
  return list.empty();
}

}  // namespace

RankBoard::RankBoard(const Meeting& meeting, int world_size, std::string what, TimePoint deadline)
    : in_use_(meeting.in_use),
      lock_(*in_use_),
      store_(meeting.store),
      prefix_(meeting.prefix),
      world_size_(world_size),
      what_(std::move(what)),
      deadline_(deadline) {}

Outcome RankBoard::publish(const std::string& key, const std::string& value) {
  auto set = store_->set(prefix_ + key, value);
  if (!set) return Failure{set.error().code, -1, set.error().message};
  return {};
}

Outcome RankBoard::read(const std::string& key, std::string& value) {
  auto got = store_->get(prefix_ + key, left());
  if (!got) return explain(got.error());
  value = std::move(*got);
  return {};
}

Outcome RankBoard::read(const std::vector<std::string>& keys, std::vector<std::string>& values) {
  std::vector<std::string> whole;
  for (const std::string& key : keys) whole.push_back(prefix_ + key);
  auto got = store_->multi_get(whole, left());
  if (!got) return explain(got.error());
  values = std::move(*got);
  return {};
}

Duration RankBoard::left() const {
  return std::max(std::chrono::ceil<Duration>(deadline_ - Clock::now()), Duration(1));
}

Outcome RankBoard::exchange(const std::string& name, int index, int count, const std::string& own,
                            std::vector<std::string>& all) {
  const std::string joined_key = name + "/all";
  if (index >= 0) {
    if (auto failure = publish(fmt::format("{}/{}", name, index), own)) return failure;
  }
  if (index == 0) {
    std::vector<std::string> keys;
    for (int each = 0; each < count; ++each) keys.push_back(fmt::format("{}/{}", name, each));
    if (auto failure = read(keys, all)) return failure;
    return publish(joined_key, joined(all));
  }
  std::string text;
  if (auto failure = read(joined_key, text)) return failure;
  all.resize(static_cast<std::size_t>(count));
  if (divided(text, all)) return {};
  return Failure{Errc::kProtocol, 0,
                 fmt::format("{} is made by ranks of different versions of ddp-run: {}{} is not a "
                             "list of {} texts",
                             what_, prefix_, joined_key, count)};
}

bool RankBoard::has(const std::string& key) {
  const auto there = store_->check({prefix_ + key});
  return there && *there;
}

Failure RankBoard::explain(const Error& error) {
  if (error.code == Errc::kTimeout) return missing(error.message);
  if (error.code == Errc::kAborted) return {Errc::kAborted, -1, "the round is over"};
  return {error.code, -1, error.message};
}

Result<bool> RankBoard::are_present(Rank begin, Rank end) {
  std::vector<std::string> keys;
  for (Rank rank = begin; rank < end; ++rank)
    keys.push_back(fmt::format("{}/{}/{}", prefix_, presence_, rank));
  return store_->check(keys);
}

Failure RankBoard::missing(const std::string& reason) {
  std::string list;
  Rank first = -1;
  for (Rank rank = 0; rank < world_size_; ++rank) {
    // Most are there, and all ranks ask at the same time.
    if (rank % kAskedAtOnce == 0) {
      const auto there = are_present(rank, std::min(rank + kAskedAtOnce, world_size_));
      if (!there) break;  // The store is gone; each further question could take seconds.
      if (*there) {
        rank += kAskedAtOnce - 1;
        continue;
      }
    }
    const auto there = are_present(rank, rank + 1);
    if (!there) break;
    if (*there) continue;
    if (first < 0) first = rank;
    list += fmt::format("{}{}", list.empty() ? "" : ", ", rank);
  }
  if (first < 0) return {Errc::kTimeout, -1, reason};
  return {Errc::kTimeout, first,
          fmt::format("{} is not complete: of {} ranks, rank {} did not arrive; {}", what_,
                      world_size_, list, reason)};
}

}  // namespace ddp::runtime
