#include "worker/nccl/nccl_group.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include <fmt/format.h>

#include "common/base/errc.h"
#include "worker/nccl/argument_checks.h"
#include "worker/nccl/failure_hub.h"
#include "worker/nccl/failure_text.h"
#include "worker/nccl/nccl_engine.h"
#include "worker/nccl/rendezvous.h"

namespace ddp {
namespace {

// How often a connecting rank checks whether another one has failed.
constexpr Duration kFailureLook{100};

}  // namespace

std::shared_ptr<NcclGroup> NcclGroup::make(std::shared_ptr<const NcclLibrary> library,
                                           std::shared_ptr<Store> store,
                                           const NcclGroupOptions& options) {
  nccl::require_options(options);
  auto hub = std::make_shared<nccl::FailureHub>(
      [host = options.host_group, on_abort = options.on_abort](const Failure& failure) {
        if (host && !failure.told) host->abort_with(failure);
        if (on_abort) on_abort(failure);
      });
  const std::shared_ptr<NcclGroup> group(new NcclGroup(std::move(library), std::move(store),
                                                       options, std::move(hub),
                                                       std::make_shared<std::mutex>()));
  group->connect();
  group->start_relay();
  return group;
}

NcclGroup::NcclGroup(std::shared_ptr<const NcclLibrary> library, std::shared_ptr<Store> store,
                     NcclGroupOptions options, std::shared_ptr<nccl::FailureHub> hub,
                     std::shared_ptr<std::mutex> store_mutex)
    : library_(std::move(library)),
      store_(std::move(store)),
      options_(std::move(options)),
      hub_(std::move(hub)),
      rendezvous_(std::make_unique<nccl::NcclRendezvous>(store_, options_.round, options_.name,
                                                         options_.rank, options_.size)),
      store_mutex_(std::move(store_mutex)) {}

NcclGroup::~NcclGroup() {
  if (engine_) engine_->close();
}

void NcclGroup::connect() {
  const auto timeout = std::min<Duration>(options_.connect_timeout, nccl::kLongestTimeout);
  const TimePoint deadline = Clock::now() + timeout;
  nccl::NcclEngineOptions engine;
  engine.rank = options_.rank;
  engine.size = options_.size;
  engine.device = options_.device;
  engine.high_priority = options_.high_priority;
  engine.abort_grace = options_.abort_grace;
  engine.close_timeout = options_.close_timeout;
  // Before it is connected, the caller gets the failure, and the others learn of it from the store.
  const auto connected = std::make_shared<std::atomic<bool>>(false);
  engine.on_failure = [hub = hub_, connected](const Failure& failure) {
    if (connected->load()) hub->failed(failure);
  };
  if (options_.host_group) {
    engine.failure_elsewhere = [host = options_.host_group] { return host->failure(); };
  }
  engine_ = nccl::NcclEngine::start(library_, std::move(engine));
  using Stage = nccl::NcclEngine::Stage;
  const auto await = [&](Stage stage) {
    while (!engine_->wait_for(stage, std::min(deadline, Clock::now() + kFailureLook))) {
      if (auto failure = engine_->failure()) {
        failure->text = fmt::format("NCCL group '{}' of round {}: {}", options_.name,
                                    options_.round, failure->text);
        fail_connecting(std::move(*failure), true);
      }
      if (auto told = rendezvous_->told_failure()) fail_connecting(std::move(*told), false);
      if (Clock::now() >= deadline) fail_connecting(rendezvous_->not_connected(timeout), true);
    }
  };
  await(Stage::kPrepared);
  nccl::api::UniqueId id{};
  if (auto failure = rendezvous_->exchange_id(*library_, deadline, timeout, id)) {
    fail_connecting(std::move(*failure), true);
  }
  engine_->connect(id);
  await(Stage::kReady);
  hub_->add(engine_);
  connected->store(true);
}

void NcclGroup::start_relay() {
  if (!options_.abort_store) return;
  hub_->set_relay(std::make_unique<nccl::AbortRelay>(
      options_.abort_store, rendezvous_->key("aborted"), options_.abort_interval,
      [weak = std::weak_ptr(hub_)](const Failure& failure) {
        if (const auto told = weak.lock()) told->fail_all(failure);
      }));
}

void NcclGroup::fail_connecting(Failure failure, bool tell) {
  if (tell) rendezvous_->tell(failure);
  if (engine_) engine_->fail(failure, nccl::NcclEngine::Tell::kNo);
  throw CollectiveError(failure);
}

// ---- The group as a whole.

std::shared_ptr<std::byte> NcclGroup::allocate(std::size_t bytes) {
  const nccl::DeviceGuard guard(library_->cuda(), options_.device);
  void* memory = nullptr;
  if (library_->cuda().malloc(&memory, std::max<std::size_t>(bytes, 1)) != cuda::kSuccess) {
    return nullptr;
  }
  return {static_cast<std::byte*>(memory),
          [library = library_](std::byte* end) { library->cuda().free(end); }};
}

Outcome NcclGroup::failure() const { return engine_->failure(); }

cuda::Stream NcclGroup::stream() const { return engine_->stream(); }

void NcclGroup::throw_if_failed() const {
  if (const auto known = failure()) throw CollectiveError(*known);
}

void NcclGroup::monitored_barrier(std::chrono::milliseconds timeout, bool wait_all_ranks) {
  nccl::require(timeout.count() >= 0,
                fmt::format("monitored_barrier: the timeout is {} ms, but must not be negative",
                            timeout.count()));
  throw_if_failed();
  const std::lock_guard lock(*store_mutex_);
  const auto limit =
      std::min<Duration>(timeout.count() > 0 ? timeout : options_.timeout, nccl::kLongestTimeout);
  auto failure = rendezvous_->monitored_barrier(fmt::format("monitored_barrier{}", calls_++), limit,
                                                wait_all_ranks);
  if (!failure) return;
  const auto tell = failure->told ? nccl::NcclEngine::Tell::kNo : nccl::NcclEngine::Tell::kYes;
  if (failure->told) hub_->fail_all(*failure);
  engine_->fail(*failure, tell);
  throw_if_failed();
}

std::shared_ptr<ProcessGroup> NcclGroup::new_group(std::span<const Rank> ranks) {
  nccl::require_members(ranks, options_.size);
  throw_if_failed();
  const std::lock_guard lock(*store_mutex_);
  return sub_group(fmt::format("group{}", calls_++), {ranks.begin(), ranks.end()});
}

std::shared_ptr<ProcessGroup> NcclGroup::split(int color, int key) {
  throw_if_failed();
  const std::lock_guard lock(*store_mutex_);
  const std::string call = fmt::format("split{}", calls_++);
  const auto all = rendezvous_->gather(call, fmt::format("{} {}", color, key),
                                       Clock::now() + options_.connect_timeout);
  if (!all) throw CollectiveError(all.error().message, all.error().code, -1);
  std::vector<std::pair<int, Rank>> members;  // Key and rank, of this color.
  for (std::size_t rank = 0; rank < all->size(); ++rank) {
    int its_color = 0;
    int its_key = 0;
    if (std::sscanf((*all)[rank].c_str(), "%d %d", &its_color, &its_key) != 2) {
      throw CollectiveError(fmt::format("split: rank {} gave '{}'", rank, (*all)[rank]),
                            Errc::kProtocol, static_cast<Rank>(rank));
    }
    if (its_color == color) members.emplace_back(its_key, static_cast<Rank>(rank));
  }
  if (color < 0) return nullptr;
  std::sort(members.begin(), members.end());
  std::vector<Rank> ranks;
  for (const auto& [unused, rank] : members) ranks.push_back(rank);
  return sub_group(fmt::format("{}.{}", call, color), ranks);
}

std::shared_ptr<NcclGroup> NcclGroup::sub_group(const std::string& call,
                                                const std::vector<Rank>& members) {
  NcclGroupOptions options = options_;
  const auto own = std::find(members.begin(), members.end(), options_.rank);
  if (own == members.end()) return nullptr;
  options.rank = static_cast<Rank>(own - members.begin());
  options.size = static_cast<int>(members.size());
  options.name = fmt::format("{}/{}", options_.name, call);
  const std::shared_ptr<NcclGroup> group(
      new NcclGroup(library_, store_, options, hub_, store_mutex_));
  group->connect();
  return group;
}

void NcclGroup::abort(const std::string& reason) {
  abort_with({Errc::kAborted, options_.rank,
              fmt::format("rank {} aborted the group: {}", options_.rank, reason)});
}

void NcclGroup::abort_with(const Failure& cause) {
  engine_->fail(cause, nccl::NcclEngine::Tell::kYes);
}

void NcclGroup::abort_from_peer(const Failure& failure) {
  Failure told = failure;
  told.told = true;
  engine_->fail(told, nccl::NcclEngine::Tell::kNo);
  hub_->fail_all(told);
}

}  // namespace ddp
