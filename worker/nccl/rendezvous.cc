#include "worker/nccl/rendezvous.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/errc.h"
#include "worker/nccl/failure_text.h"

namespace ddp::nccl {
namespace {

// How long to wait for a key before checking whether another rank has failed.
constexpr std::chrono::milliseconds kSlice{200};
// Messages name at most this many ranks.
constexpr std::size_t kNamed = 16;

std::chrono::milliseconds left_until(TimePoint deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
  return std::max(left, std::chrono::milliseconds(0));
}

std::string list_of(const std::vector<Rank>& ranks) {
  const std::size_t named = std::min(ranks.size(), kNamed);
  std::string text = fmt::format(
      "{} {}", ranks.size() == 1 ? "rank" : "ranks",
      fmt::join(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(named), ", "));
  if (named < ranks.size()) text += fmt::format(" and {} more", ranks.size() - named);
  return text;
}

}  // namespace

std::string encode_failure(const Failure& failure) {
  // Codes of other categories are system errors.
  const bool ours = failure.code.category() == make_error_code(Errc::kIo).category();
  return fmt::format("{} {} {}", ours ? failure.code.value() : static_cast<int>(Errc::kIo),
                     failure.suspect, failure.text);
}

Failure decode_failure(const std::string& bytes) {
  Failure failure;
  failure.told = true;
  int code = 0;
  int begin = 0;
  if (std::sscanf(bytes.c_str(), "%d %d%n", &code, &failure.suspect, &begin) < 2 || code <= 0 ||
      code > static_cast<int>(Errc::kMismatch)) {
    return {Errc::kProtocol, -1, "the store holds a malformed failure: " + bytes, true};
  }
  failure.code = static_cast<Errc>(code);
  const auto text = std::min(bytes.size(), static_cast<std::size_t>(begin) + 1);
  failure.text = bytes.substr(text);
  return failure;
}

NcclRendezvous::NcclRendezvous(std::shared_ptr<Store> store, Round round, std::string name,
                               Rank rank, int size)
    : store_(std::move(store)),
      round_(round),
      name_(std::move(name)),
      prefix_(fmt::format("ddp_nccl/{}/{}/", round_, name_)),
      rank_(rank),
      size_(size) {}

std::string NcclRendezvous::group_text() const {
  return fmt::format("NCCL group '{}' of round {}", name_, round_);
}

Failure NcclRendezvous::store_failure(const Error& error) const {
  return {error.code, -1, fmt::format("{}: rank {}: {}", group_text(), rank_, error.message)};
}

Outcome NcclRendezvous::exchange_id(const NcclLibrary& library, TimePoint deadline,
                                    std::chrono::milliseconds timeout, nccl::api::UniqueId& id) {
  if (auto set = store_->set(key(fmt::format("arrived/{}", rank_)), "1"); !set) {
    return store_failure(set.error());
  }
  const auto failed = rank_ == 0 ? publish_id(library, id) : read_id(deadline, timeout, id);
  return failed ? failed : await_all(deadline, timeout);
}

Outcome NcclRendezvous::read_id(TimePoint deadline, std::chrono::milliseconds timeout,
                                nccl::api::UniqueId& id) {
  for (;;) {
    const auto slice = std::min(left_until(deadline), kSlice);
    const auto value = store_->get(key("id"), slice);
    if (value && value->size() == sizeof(id.bytes)) {
      std::memcpy(id.bytes, value->data(), sizeof(id.bytes));
      return std::nullopt;
    }
    if (value) {
      return Failure{Errc::kProtocol, 0,
                     fmt::format("{}: rank {}: the id under {} has {} bytes, not {}", group_text(),
                                 rank_, key("id"), value->size(), sizeof(id.bytes))};
    }
    if (value.error().code != Errc::kTimeout) return store_failure(value.error());
    if (auto told = told_failure()) return told;
    if (Clock::now() >= deadline) {
      return Failure{
          Errc::kTimeout, 0,
          fmt::format(
              "{}: rank {} waited {} ms for the id that rank 0 makes: rank 0 has not arrived",
              group_text(), rank_, timeout.count())};
    }
  }
}

Outcome NcclRendezvous::publish_id(const NcclLibrary& library, nccl::api::UniqueId& id) {
  const nccl::api::Result made = library.nccl().get_unique_id(&id);
  if (made != nccl::api::kSuccess) {
    Failure failure = nccl_failure(library, "ncclGetUniqueId", made, rank_);
    failure.text = fmt::format("{}: {}", group_text(), failure.text);
    return failure;
  }
  const std::string bytes(id.bytes, sizeof(id.bytes));
  const auto held = store_->compare_set(key("id"), "", bytes);
  if (!held) return store_failure(held.error());
  if (*held == bytes) return std::nullopt;
  return Failure{Errc::kExists, rank_,
                 fmt::format("{} has been made before: give each group of a round a different name",
                             group_text())};
}

Outcome NcclRendezvous::await_all(TimePoint deadline, std::chrono::milliseconds timeout) {
  const auto arrivals = store_->add(key("arrivals"), 1);
  if (!arrivals) return store_failure(arrivals.error());
  if (*arrivals == size_) {
    if (auto set = store_->set(key("all"), "1"); !set) return store_failure(set.error());
    return std::nullopt;
  }
  for (;;) {
    const auto there = store_->wait({key("all")}, std::min(left_until(deadline), kSlice));
    if (there) return std::nullopt;
    if (there.error().code != Errc::kTimeout) return store_failure(there.error());
    if (auto told = told_failure()) return told;
    if (Clock::now() >= deadline) return not_connected(timeout);
  }
}

Outcome NcclRendezvous::told_failure() {
  const auto there = store_->check({key("failed")});
  if (!there || !*there) return std::nullopt;
  const auto value = store_->get(key("failed"), kSlice);
  if (!value) return std::nullopt;
  return decode_failure(*value);
}

void NcclRendezvous::tell(const Failure& failure) {
  // If the store is gone, the others still have their deadlines.
  (void)store_->compare_set(key("failed"), "", encode_failure(failure));
}

Failure NcclRendezvous::not_connected(std::chrono::milliseconds timeout) {
  std::vector<Rank> missing;
  for (Rank rank = 0; rank < size_; ++rank) {
    const auto there = store_->check({key(fmt::format("arrived/{}", rank))});
    if (!there) return store_failure(there.error());
    if (!*there) missing.push_back(rank);
  }
  const std::string waited = fmt::format("{}: rank {} waited {} ms for the communicator",
                                         group_text(), rank_, timeout.count());
  if (missing.empty()) {
    return {Errc::kTimeout, -1,
            waited +
                ": all ranks have arrived, but NCCL is still connecting them; NCCL_DEBUG=INFO "
                "shows what it does, NCCL_SOCKET_IFNAME chooses the network"};
  }
  return {Errc::kTimeout, missing.front(),
          fmt::format("{}: not arrived: {}", waited, list_of(missing))};
}

Result<std::vector<std::string>> NcclRendezvous::gather(const std::string& call,
                                                        const std::string& value,
                                                        TimePoint deadline) {
  const std::string all = key(call + "/all");
  if (rank_ != 0) {
    if (auto set = store_->set(key(fmt::format("{}/{}", call, rank_)), value); !set) {
      return set.error();
    }
  } else {
    std::string joined = value;
    for (Rank rank = 1; rank < size_; ++rank) {
      auto got = store_->get(key(fmt::format("{}/{}", call, rank)), left_until(deadline));
      if (!got) {
        return make_error(got.error().code, "{}: {}: rank {} has not arrived: {}", group_text(),
                          call, rank, got.error().message);
      }
      joined += '\n' + *got;
    }
    if (auto set = store_->set(all, joined); !set) return set.error();
  }
  auto joined = store_->get(all, left_until(deadline));
  if (!joined) {
    return make_error(joined.error().code,
                      "{}: {}: no answer from rank 0, which waits for all ranks: {}", group_text(),
                      call, joined.error().message);
  }
  std::vector<std::string> values(1);
  for (const char each : *joined) {
    if (each == '\n') {
      values.emplace_back();
    } else {
      values.back() += each;
    }
  }
  return values;
}

Outcome NcclRendezvous::monitored_barrier(const std::string& call,
                                          std::chrono::milliseconds timeout, bool wait_all_ranks) {
  const std::string released = key(call + "/released");
  if (rank_ == 0) {
    Outcome failure = collect_arrivals(call, timeout, wait_all_ranks);
    const auto set = store_->set(released, failure ? encode_failure(*failure) : "");
    if (!failure && !set) return store_failure(set.error());
    return failure;
  }
  const auto set = store_->set(key(fmt::format("{}/{}", call, rank_)), "1");
  if (!set) return store_failure(set.error());
  // Let rank 0 report first: it knows who is missing.
  const auto value = store_->get(released, timeout + std::chrono::milliseconds(1000));
  if (!value && value.error().code != Errc::kTimeout) return store_failure(value.error());
  if (!value) {
    return Failure{Errc::kTimeout, 0,
                   fmt::format("monitored_barrier: timed out after {} ms on rank {}: not arrived: "
                               "rank 0",
                               timeout.count(), rank_)};
  }
  if (value->empty()) return std::nullopt;
  return decode_failure(*value);
}

Outcome NcclRendezvous::collect_arrivals(const std::string& call, std::chrono::milliseconds timeout,
                                         bool wait_all_ranks) {
  const TimePoint deadline = Clock::now() + timeout;
  std::vector<Rank> missing;
  for (Rank rank = 1; rank < size_; ++rank) {
    const auto value = store_->get(key(fmt::format("{}/{}", call, rank)), left_until(deadline));
    if (value) continue;
    if (value.error().code != Errc::kTimeout) return store_failure(value.error());
    missing.push_back(rank);
    if (!wait_all_ranks) break;
  }
  if (missing.empty()) return std::nullopt;
  return Failure{Errc::kTimeout, missing.front(),
                 fmt::format("monitored_barrier: timed out after {} ms on rank 0: not arrived: {}",
                             timeout.count(), list_of(missing))};
}

}  // namespace ddp::nccl
