#include "worker/runtime/init_process_group.h"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "common/base/errc.h"
#include "common/base/parse_number.h"
#include "common/store/file_store.h"
#include "common/store/tcp_store.h"
#include "worker/runtime/init_method.h"
#include "worker/runtime/met_group.h"
#include "worker/runtime/store_daemon.h"
#include "worker/runtime/worker_environment.h"
#include "worker/runtime/world_group.h"
#include "worker/transport/tcp.h"

namespace ddp {
namespace {

// An error message looks up at most this many ranks.
constexpr int kMostExamined = 1'024;

[[noreturn]] void refuse(const std::string& text) { throw std::invalid_argument(text); }

[[noreturn]] void fail(const Error& error, const std::string& what) {
  throw CollectiveError(fmt::format("{}: {}", what, error.message), error.code, -1);
}

template <typename T>
T value_or_fail(Result<T> result, const std::string& what) {
  if (!result) fail(result.error(), what);
  return *std::move(result);
}

Duration left_until(TimePoint deadline) {
  return std::max(std::chrono::ceil<Duration>(deadline - Clock::now()), Duration(1));
}

// One call of init_process_group().
class Initialization {
 public:
  explicit Initialization(const InitProcessGroupOptions& options)
      : options_(options), deadline_(Clock::now() + options.group.connect_timeout) {}

  std::shared_ptr<ProcessGroup> run();

 private:
  std::shared_ptr<ProcessGroup> from_environment();
  std::shared_ptr<ProcessGroup> over_tcp(const HostPort& endpoint, bool may_serve);
  std::shared_ptr<ProcessGroup> over_file(const std::string& path);
  std::shared_ptr<ProcessGroup> meet(runtime::Meeting meeting);
  void read_arguments();
  void check_place();
  void remove_when_all_have_it(Store& store, const std::string& path);
  // Explains why ranks may miss each other: some have used this store more often than others.
  std::string counts_of(Store& store, std::int64_t own_count);
  std::string base() const {
    return "ddp/" + (options_.group_name.empty() ? "default_pg" : options_.group_name);
  }
  std::string joined_key(Rank rank) const { return fmt::format("{}/joined/{}", base(), rank); }
  std::string who() const { return fmt::format("rank {} at {}", *rank_, options_.init_method); }

  const InitProcessGroupOptions& options_;
  TimePoint deadline_;
  runtime::InitMethod method_;
  std::optional<int> rank_;
  std::optional<int> world_size_;
};

void Initialization::read_arguments() {
  const Result<runtime::InitMethod> method = runtime::parse_init_method(options_.init_method);
  if (!method) refuse(method.error().message);
  method_ = *method;
  if (options_.rank != -1) rank_ = options_.rank;
  if (options_.world_size != -1) world_size_ = options_.world_size;
  for (const auto& [name, given, in_url] :
       {std::tuple("rank", &rank_, &method_.rank),
        std::tuple("world_size", &world_size_, &method_.world_size)}) {
    if (*given && *in_url) {
      refuse(fmt::format("{} is given twice: as {} and in {}; leave one out", name, **given,
                         options_.init_method));
    }
    if (*in_url) *given = *in_url;
  }
}

void Initialization::check_place() {
  if (!world_size_) {
    refuse(
        fmt::format("init_process_group({}): world_size is missing; give it as an argument or "
                    "as ?rank=R&world_size=N",
                    options_.init_method));
  }
  if (!rank_) {
    refuse(
        fmt::format("init_process_group({}): rank is missing; give it as an argument or as "
                    "?rank=R&world_size=N",
                    options_.init_method));
  }
  if (*world_size_ < 1) refuse(fmt::format("world_size={}: expected at least 1", *world_size_));
  if (*rank_ < 0 || *rank_ >= *world_size_) {
    refuse(fmt::format("rank={}: expected a number from 0 to {}, as world_size is {}", *rank_,
                       *world_size_ - 1, *world_size_));
  }
}

std::shared_ptr<ProcessGroup> Initialization::run() {
  read_arguments();
  if (options_.store) {
    if (options_.init_method != "env://") refuse("give either store or init_method, not both");
    check_place();
    runtime::Meeting meeting;
    meeting.store = options_.store;
    return meet(std::move(meeting));
  }
  if (method_.kind == runtime::InitMethod::Kind::kEnvironment) return from_environment();
  check_place();
  if (method_.kind == runtime::InitMethod::Kind::kFile) return over_file(method_.path);
  return over_tcp(method_.endpoint, true);
}

int number_of(const char* name, const std::string& text, int lowest, int highest) {
  const auto number = parse_whole_number(text, lowest, highest);
  if (!number) {
    refuse(fmt::format("{}={}: expected a number from {} to {}", name, text, lowest, highest));
  }
  return *number;
}

std::shared_ptr<ProcessGroup> Initialization::from_environment() {
  if (process_variable("DDP_SHM_FD")) {
    if (rank_ || world_size_) {
      refuse("ddp-run has given this worker its rank and world_size; leave the arguments out");
    }
    return ProcessGroup::from_environment(options_.group);
  }
  const auto rank = process_variable("RANK");
  const auto world_size = process_variable("WORLD_SIZE");
  const bool is_served = process_variable("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True";
  const bool is_alone = !rank && !world_size && !rank_ && !world_size_;
  if (is_alone || (is_served && rank && world_size && !rank_ && !world_size_)) {
    return ProcessGroup::from_environment(options_.group);
  }
  constexpr int kLargestWorld = 1 << 20;
  if (!world_size_ && world_size) {
    world_size_ = number_of("WORLD_SIZE", *world_size, 1, kLargestWorld);
  }
  if (!rank_ && rank) rank_ = number_of("RANK", *rank, 0, world_size_.value_or(kLargestWorld) - 1);
  const auto required = [](const char* name, const char* meaning) {
    const auto value = process_variable(name);
    if (!value || value->empty()) {
      refuse(fmt::format("{} is not set; set it to {}, or start the program with ddp-run", name,
                         meaning));
    }
    return *value;
  };
  if (!world_size_) required("WORLD_SIZE", "the number of processes");
  if (!rank_) required("RANK", "this process's number, from 0");
  check_place();
  if (*world_size_ == 1) return meet({});
  HostPort endpoint;
  endpoint.host = required("MASTER_ADDR", "the address of rank 0's machine");
  endpoint.port = number_of("MASTER_PORT",
                            required("MASTER_PORT", "a free port of rank 0's machine"), 1, 65'535);
  return over_tcp(endpoint, !is_served);
}

std::shared_ptr<ProcessGroup> Initialization::over_tcp(const HostPort& endpoint, bool may_serve) {
  runtime::Meeting meeting;
  if (*world_size_ == 1) return meet(std::move(meeting));
  if (may_serve && *rank_ == 0) {
    const Result<void> served = runtime::serve_store(endpoint.host, endpoint.port, deadline_);
    if (!served) fail(served.error(), who());
  }
  meeting.store = std::shared_ptr<Store>(
      value_or_fail(connect_tcp_store(endpoint.host, endpoint.port, left_until(deadline_)),
                    fmt::format("{} cannot reach the store that rank 0 serves", who())));
  meeting.addresses = own_addresses(endpoint.host, endpoint.port);
  return meet(std::move(meeting));
}

std::shared_ptr<ProcessGroup> Initialization::over_file(const std::string& path) {
  runtime::Meeting meeting;
  if (*world_size_ == 1) return meet(std::move(meeting));
  meeting.store = std::shared_ptr<Store>(value_or_fail(store::open_file_store(path), who()));
  remove_when_all_have_it(*meeting.store, path);
  return meet(std::move(meeting));
}

// The file is removed as soon as the group exists. So a file that is found was left by ranks that
// never became a group.
void Initialization::remove_when_all_have_it(Store& store, const std::string& path) {
  const auto opened = [](Rank rank) { return fmt::format("opened/{}", rank); };
  if (value_or_fail(store.add(opened(*rank_), 1), who()) > 1) {
    throw CollectiveError(
        fmt::format("{}: rank {} has already used this file: an earlier start was cut short, or "
                    "two processes have the same rank; remove {} and start all ranks again",
                    who(), *rank_, path),
        Errc::kExists, *rank_);
  }
  std::vector<std::string> keys;
  for (Rank rank = 0; rank < *world_size_; ++rank) keys.push_back(opened(rank));
  if (*rank_ != 0) keys = {"removed"};
  const Result<void> all = store.wait(keys, left_until(deadline_));
  if (!all) {
    std::string absent;
    Rank first = -1;
    for (Rank rank = 0; rank < std::min(*world_size_, kMostExamined); ++rank) {
      const Result<bool> came = store.check({opened(rank)});
      if (!came || *came) continue;
      if (first < 0) first = rank;
      absent += fmt::format("{}{}", absent.empty() ? "" : ", ", rank);
    }
    if (first < 0) fail(all.error(), who());
    throw CollectiveError(
        fmt::format("{}: of {} ranks, rank {} did not open this file within {} ms; remove it "
                    "before the next start",
                    who(), *world_size_, absent, options_.group.connect_timeout.count()),
        all.error().code, first);
  }
  if (*rank_ != 0) return;
  ::unlink(path.c_str());
  if (Result<void> told = store.set("removed", ""); !told) fail(told.error(), who());
}

std::string Initialization::counts_of(Store& store, std::int64_t own_count) {
  for (Rank rank = 0; rank < std::min(*world_size_, kMostExamined); ++rank) {
    const Result<bool> there = store.check({joined_key(rank)});
    if (!there || !*there) continue;
    const Result<std::int64_t> count = store.add(joined_key(rank), 0);
    if (!count || *count == own_count) continue;
    return fmt::format(
        "; rank {} has used this store {} times and rank {} {} times, so an earlier start was cut "
        "short: use another group_name or restart the store",
        rank, *count, *rank_, own_count);
  }
  return {};
}

std::shared_ptr<ProcessGroup> Initialization::meet(runtime::Meeting meeting) {
  if (*world_size_ == 1) return runtime::make_world_group({}, {}, deadline_, options_.group);
  const Result<EngineKind> engine = engine_of(process_variable("DDP_LINK"));
  if (!engine) refuse(engine.error().message);
  meeting.engine = *engine;
  if (meeting.addresses.empty()) meeting.addresses = transport::reachable_addresses("127.0.0.1", 1);
  const std::shared_ptr<Store> store = meeting.store;
  const std::int64_t count = value_or_fail(store->add(joined_key(*rank_), 1), who());
  meeting.prefix = fmt::format("{}/{}", base(), count);
  const std::string agreed = value_or_fail(
      store->compare_set(meeting.prefix + "/world_size", "", std::to_string(*world_size_)), who());
  if (agreed != std::to_string(*world_size_)) {
    throw CollectiveError(fmt::format("{}: world_size is {} here and {} on another rank", who(),
                                      *world_size_, agreed),
                          Errc::kMismatch, *rank_);
  }
  try {
    return runtime::make_met_group(*rank_, *world_size_, std::move(meeting), deadline_,
                                   options_.group);
  } catch (const CollectiveError& error) {
    const std::string counts =
        error.code == Errc::kTimeout ? counts_of(*store, count) : std::string();
    throw CollectiveError(fmt::format("{}: {}{}", who(), error.what(), counts), error.code,
                          error.suspect_rank);
  }
}

}  // namespace

std::shared_ptr<ProcessGroup> init_process_group(const InitProcessGroupOptions& options) {
  return Initialization(options).run();
}

std::shared_ptr<ProcessGroup> init_process_group(const std::string& init_method, int world_size,
                                                 int rank) {
  InitProcessGroupOptions options;
  options.init_method = init_method;
  options.world_size = world_size;
  options.rank = rank;
  return init_process_group(options);
}

}  // namespace ddp
