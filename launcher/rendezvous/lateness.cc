#include "launcher/rendezvous/lateness.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace ddp::rendezvous {
namespace {

// Of a step, in milliseconds: nothing is faster, so that ratios are numbers.
constexpr double kInstant = 1e-3;
// A pause of one rank must not hide for long who is late.
constexpr double kLargestChange = 1;

// The median of all values but `own`, which is one of them. Of two middle values the larger one:
// with few ranks, one that is fast makes none of the others late.
class OthersMedian {
 public:
  explicit OthersMedian(std::vector<double> values) : middle_((values.size() - 1) / 2) {
    // Only these two can be asked for.
    const auto at = values.begin() + static_cast<std::ptrdiff_t>(middle_);
    std::nth_element(values.begin(), at, values.end());
    lower_ = *at;
    upper_ = *std::min_element(at + 1, values.end());
  }
  double without(double own) const { return own <= lower_ ? upper_ : lower_; }

 private:
  std::size_t middle_;
  double lower_ = 0;
  double upper_ = 0;
};

}  // namespace

double Lateness::Late::ratio() const { return computes_ms / others_ms; }

void Lateness::begin_round(TimePoint now, int world_size) {
  accounts_.assign(static_cast<std::size_t>(std::max(world_size, 0)), {});
  advanced_ = 0;
  block_began_ = now;
  blocks_ = 0;
  noise_ = 0;
  late_.clear();
}

std::optional<Lateness::Changes> Lateness::report(TimePoint now, Rank rank, std::int64_t step,
                                                  double computed_ms) {
  const auto index = static_cast<std::size_t>(rank);
  if (rank < 0 || index >= accounts_.size() || step < 0 || !std::isfinite(computed_ms))
    return std::nullopt;
  Account& account = accounts_[index];
  const bool had_advanced = account.advanced();
  account.step = step;
  account.ms = computed_ms;
  // Its first report, or those of another process.
  if (account.first_step < 0 || step < account.first_step || computed_ms < account.first_ms) {
    account.first_step = step;
    account.first_ms = computed_ms;
  }
  if (account.advanced() && !had_advanced) ++advanced_;
  if (!account.advanced() && had_advanced) --advanced_;
  if (accounts_.size() < 2 || advanced_ < accounts_.size() || now - block_began_ < kBlock)
    return std::nullopt;
  return end_block(now);
}

Lateness::Changes Lateness::end_block(TimePoint now) {
  std::vector<double> times;
  times.reserve(accounts_.size());
  for (const Account& account : accounts_) times.push_back(std::max(account.per_step(), kInstant));
  const OthersMedian median(times);
  Changes changes;
  double change = 0;
  for (std::size_t i = 0; i < accounts_.size(); ++i) {
    const double others = median.without(times[i]);
    judge(static_cast<Rank>(i), times[i], others, changes);
    const double log_ratio = std::log(times[i] / others);
    change += std::min(std::abs(log_ratio - accounts_[i].log_ratio), kLargestChange);
    accounts_[i].log_ratio = log_ratio;
    accounts_[i].first_step = accounts_[i].step;
    accounts_[i].first_ms = accounts_[i].ms;
  }
  // The first block changes nothing. Then it is the mean of all, and later of about the last ten.
  if (blocks_ > 0) {
    noise_ +=
        (change / static_cast<double>(accounts_.size()) - noise_) / std::min(blocks_, kBlocks);
  }
  ++blocks_;
  advanced_ = 0;
  block_began_ = now;
  return changes;
}

void Lateness::judge(Rank rank, double computes_ms, double others_ms, Changes& changes) {
  Account& account = accounts_[static_cast<std::size_t>(rank)];
  Late now{.rank = rank, .computes_ms = computes_ms, .others_ms = others_ms, .since = {}};
  const auto known = late_.find(rank);
  const bool counts_as_late = known != late_.end();
  const double least = counts_as_late ? kRatio : std::max(kRatio, std::exp(kNoise * noise_));
  const bool is_over = now.ratio() >= least && computes_ms - others_ms >= kDifference;
  account.beyond = limit_ > 0 && is_over && now.ratio() >= limit_ ? account.beyond + 1 : 0;
  if (counts_as_late) {
    now.since = known->second.since;
    known->second = now;
  }
  if (is_over == counts_as_late) {
    account.against = 0;
    return;
  }
  if (account.against++ == 0) account.against_since = block_began_;
  if (account.against < kBlocks) return;
  account.against = 0;
  if (counts_as_late) {
    changes.ended.push_back(now);
    late_.erase(known);
  } else {
    now.since = account.against_since;
    changes.began.push_back(now);
    late_.emplace(rank, now);
  }
}

std::optional<Lateness::Late> Lateness::beyond_limit() const {
  std::optional<Late> worst;
  for (const auto& [rank, late] : late_) {
    if (accounts_[static_cast<std::size_t>(rank)].beyond < kBlocksBeyond) continue;
    if (!worst || late.ratio() > worst->ratio()) worst = late;
  }
  return worst;
}

}  // namespace ddp::rendezvous
