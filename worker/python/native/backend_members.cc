#include <unistd.h>

#include <algorithm>
#include <utility>

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "common/base/errc.h"
#include "common/base/parse_number.h"
#include "common/base/random_hex.h"
#include "worker/python/native/backend.h"
#include "worker/python/native/interruptible.h"
#include "worker/python/native/store_adapter.h"
#include "worker/runtime/met_group.h"
#include "worker/runtime/worker_environment.h"
#include "worker/transport/tcp.h"

// Who is in a DdpBackend: how its ranks meet, how other groups are made of them, how they leave.
namespace ddp::python {
namespace {

// Every backend of this process that may be alive.
class Backends {
 public:
  void add(const c10::intrusive_ptr<DdpBackend>& backend) {
    const std::lock_guard lock(mutex_);
    std::erase_if(backends_, [](const auto& each) { return each.expired(); });
    backends_.emplace_back(backend);
  }
  std::vector<c10::intrusive_ptr<DdpBackend>> alive() {
    const std::lock_guard lock(mutex_);
    std::vector<c10::intrusive_ptr<DdpBackend>> alive;
    for (const auto& each : backends_) {
      if (auto backend = each.lock()) alive.push_back(std::move(backend));
    }
    return alive;
  }

 private:
  std::mutex mutex_;
  std::vector<c10::weak_intrusive_ptr<DdpBackend>> backends_;
};

Backends& backends() {
  // Never destroyed: a thread of a group may outlive static objects.
  static auto* const instance = new Backends;
  return *instance;
}

// Where other machines reach this one: by the way to the store of rank 0, if the environment says
// where that is.
std::vector<std::string> own_addresses() {
  const auto address = process_variable("MASTER_ADDR");
  const auto port =
      parse_whole_number<int>(process_variable("MASTER_PORT").value_or(""), 1, 65'535);
  if (!address || address->empty() || !port) return transport::reachable_addresses("127.0.0.1", 1);
  return ddp::own_addresses(*address, *port);
}

// A name that the store has not seen: it may have served an earlier group.
std::string name_in(Store& store, int rank) {
  const auto count = store.add(fmt::format("joined/{}", rank), 1);
  if (!count) throw CollectiveError(count.error().message, count.error().code, rank);
  return fmt::format("ddp/{}", *count);
}

ProcessGroupOptions group_options(const BackendOptions& options) {
  ProcessGroupOptions group;
  group.timeout = options.timeout;
  group.connect_timeout = options.timeout;
  return group;
}

std::shared_ptr<runtime::Group> meet(std::shared_ptr<Store> store, const std::string& name,
                                     int rank, int size, const BackendOptions& options) {
  runtime::Meeting meeting;
  meeting.store = std::move(store);
  meeting.prefix = name;
  meeting.addresses = own_addresses();
  const auto engine = engine_of(process_variable("DDP_LINK"));
  if (!engine) throw std::invalid_argument(engine.error().message);
  meeting.engine = *engine;
  meeting.group = options.group_name;
  meeting.world_ranks.assign(options.global_ranks.begin(), options.global_ranks.end());
  return runtime::make_met_group(rank, size, std::move(meeting), Clock::now() + options.timeout,
                                 group_options(options));
}

// Null in PyTorch 2.6, whose options have no name.
template <typename Options>
std::string* group_name_in(Options& options) {
  if constexpr (requires { options.group_name; }) {
    return &options.group_name;
  } else {
    return nullptr;
  }
}

}  // namespace

c10::intrusive_ptr<DdpBackend> DdpBackend::make(c10::intrusive_ptr<c10d::Store> store, int rank,
                                                int size, BackendOptions options) {
  Members members;
  if (!options.waits_for_reconfigure) members = meet_members(store, rank, size, options);
  auto backend = c10::make_intrusive<DdpBackend>(std::move(store), rank, size, std::move(options),
                                                 std::move(members));
  backends().add(backend);
  return backend;
}

c10::intrusive_ptr<DdpBackend> DdpBackend::make_over(c10::intrusive_ptr<c10d::Store> store,
                                                     std::shared_ptr<runtime::Group> group,
                                                     BackendOptions options) {
  const int rank = group->rank();
  const int size = group->size();
  const auto own_store = std::make_shared<StoreAdapter>(store);
  Members members;
  members.devices = std::make_shared<DeviceGroups>(own_store, name_in(*own_store, rank), group,
                                                   group_options(options));
  members.host = std::move(group);
  auto backend = c10::make_intrusive<DdpBackend>(std::move(store), rank, size, std::move(options),
                                                 std::move(members));
  backends().add(backend);
  return backend;
}

DdpBackend::DdpBackend(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                       BackendOptions options, Members members)
    : Backend(rank, size),
      store_(std::move(store)),
      options_(std::move(options)),
      timeout_(options_.timeout),
      members_(std::move(members)) {}

DdpBackend::Members DdpBackend::meet_members(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                             int size, const BackendOptions& options) {
  return interruptible([&] {
    const auto own_store = std::make_shared<StoreAdapter>(store);
    const std::string name = name_in(*own_store, rank);
    Members members;
    members.host = meet(own_store, name, rank, size, options);
    members.devices =
        std::make_shared<DeviceGroups>(own_store, name, members.host, group_options(options));
    return members;
  });
}

c10::intrusive_ptr<c10d::Backend::Options> DdpBackend::getBackendOptions() {
  auto options = c10::make_intrusive<Options>(getBackendName(), timeout_.load());
  if (std::string* const name = group_name_in(*options)) *name = options_.group_name;
  return options;
}

c10::intrusive_ptr<c10d::Backend> DdpBackend::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                    const std::vector<int>& ranks,
                                                    const c10::intrusive_ptr<Options>& options) {
  const auto own = std::find(ranks.begin(), ranks.end(), rank_);
  if (own == ranks.end()) return {};
  BackendOptions of_part = of_ranks(ranks, options);
  return make(store, static_cast<int>(own - ranks.begin()), static_cast<int>(ranks.size()),
              std::move(of_part));
}

c10::intrusive_ptr<c10d::Backend> DdpBackend::shrink(const std::vector<std::int64_t>& excluded,
                                                     int flags,
                                                     const c10::intrusive_ptr<Options>& options) {
  std::vector<int> left;
  for (int rank = 0; rank < size_; ++rank) {
    if (std::find(excluded.begin(), excluded.end(), rank) == excluded.end()) left.push_back(rank);
  }
  const auto own = std::find(left.begin(), left.end(), rank_);
  TORCH_CHECK_VALUE(own != left.end(), "shrink: rank ", rank_,
                    " is among the ranks to exclude; only those that stay may call it");
  constexpr int kAbortFirst = 1;  // PyTorch's SHRINK_ABORT.
  if ((flags & kAbortFirst) != 0) abort();
  BackendOptions of_left = of_ranks(left, options);
  // The ranks have other numbers in it, so their keys must be others.
  auto store = c10::make_intrusive<c10d::PrefixStore>(
      fmt::format("without/{}", fmt::join(excluded, ",")), store_);
  return make(std::move(store), static_cast<int>(own - left.begin()), static_cast<int>(left.size()),
              std::move(of_left));
}

BackendOptions DdpBackend::of_ranks(const std::vector<int>& ranks,
                                    const c10::intrusive_ptr<Options>& options) const {
  BackendOptions part{timeout_.load(), options_.group_name, {}, false};
  if (options) {
    part.timeout = options->timeout;
    const std::string* const name = group_name_in(*options);
    if (name != nullptr && !name->empty()) part.group_name = *name;
  }
  for (const int rank : ranks) {
    part.global_ranks.push_back(options_.global_ranks.empty()
                                    ? rank
                                    : options_.global_ranks[static_cast<std::size_t>(rank)]);
  }
  return part;
}

#ifdef C10D_BACKEND_HAS_RECONFIGURE
DdpBackend::WorkHandle DdpBackend::reconfigure(const c10d::ReconfigureOptions& options) {
  std::vector<std::string> handles;
  if (const auto* const set =
          std::get_if<std::unordered_set<c10d::ReconfigureHandle>>(&options.handles)) {
    handles.assign(set->begin(), set->end());
    std::sort(handles.begin(), handles.end());
  } else {
    handles = std::get<std::vector<c10d::ReconfigureHandle>>(options.handles);
  }
  const auto own = std::find(handles.begin(), handles.end(), handle_);
  TORCH_CHECK_VALUE(own != handles.end(), "reconfigure: this rank's handle, ", handle_,
                    ", is not among the ", handles.size(), " handles");
  shutdown();
  {
    const std::lock_guard lock(mutex_);
    is_being_reconfigured_ = true;
  }
  BackendOptions members = options_;
  members.global_ranks.clear();  // Ranks of the world have no meaning for ranks that change.
  if (options.timeout) members.timeout = *options.timeout;
  auto store =
      c10::make_intrusive<c10d::PrefixStore>(fmt::format("reconfigured/{}", options.uuid), store_);
  const int rank = static_cast<int>(own - handles.begin());
  const int size = static_cast<int>(handles.size());
  Members made = meet_members(std::move(store), rank, size, members);
  {
    const std::lock_guard lock(mutex_);
    rank_ = rank;
    size_ = size;
    sequence_ = 0;
    members_ = std::move(made);
    is_being_reconfigured_ = false;
  }
  auto work = c10::make_intrusive<BackendWork>(rank, c10d::OpType::UNKNOWN, "ddp:reconfigure", 0,
                                               Operands("reconfigure"), std::vector<Tensors>());
  work->finish_now();
  return work;
}
#endif

DdpBackend::~DdpBackend() { shutdown(); }

void DdpBackend::shutdown() {
  Members members;
  {
    const std::lock_guard lock(mutex_);
    members = std::exchange(members_, {});
  }
  if (::getpid() != process_) {
    // A forked child has none of the groups' threads, and is no member.
    new Members(std::move(members));
    return;
  }
  const WithoutGil without_gil;
  members.devices.reset();
  members.host.reset();
}

void shut_down_all() {
  for (const auto& backend : backends().alive()) backend->shutdown();
}

void DdpBackend::abort() {
  Members members;
  {
    const std::lock_guard lock(mutex_);
    members = members_;
  }
  if (!members.host) return;
  members.host->abort("abort() was called");
  const Failure cause = *members.host->failure();
  for (const auto& device : members.devices->made()) device->group().abort_from_peer(cause);
}

DdpBackend::Members DdpBackend::live() const {
  const std::lock_guard lock(mutex_);
  TORCH_CHECK_WITH(DistBackendError, members_.host != nullptr, "the process group ",
                   options_.group_name,
                   is_being_reconfigured_
                       ? " has no members; call torch.distributed._reconfigure() on each of them"
                       : " has been destroyed");
  return members_;
}

}  // namespace ddp::python
