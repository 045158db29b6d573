#include "worker/runtime/worker_environment.h"

#include <cstdint>
#include <cstdlib>
#include <limits>
#include <stdexcept>

#include <fmt/format.h>

#include "common/base/host_port.h"
#include "common/base/parse_number.h"
#include "worker/runtime/mpi_variables.h"
#include "worker/transport/tcp.h"

namespace ddp {
namespace {

[[noreturn]] void refuse(const std::string& name, const std::string& value,
                         const std::string& expected) {
  throw std::invalid_argument(fmt::format("{}={}: expected {}", name, value, expected));
}

template <typename Number>
Number number(const Lookup& lookup, const std::string& name, Number lowest, Number highest,
              std::optional<Number> fallback = {}) {
  const auto text = lookup(name);
  if (!text && fallback) return *fallback;
  if (!text)
    throw std::invalid_argument(fmt::format("{} is not set; start the program with ddp-run", name));
  const auto value = parse_whole_number(*text, lowest, highest);
  if (!value) refuse(name, *text, fmt::format("a number from {} to {}", lowest, highest));
  return *value;
}

std::optional<std::string> set_variable(const std::string& name) {
  const char* value =
      std::getenv(name.c_str());  // NOLINT(concurrency-mt-unsafe): only Python's training thread
                                  // changes variables, between rounds.
  if (value == nullptr) return {};
  return std::string(value);
}

constexpr int kLargestWorld = 1 << 20;
constexpr Round kLargestRound = std::numeric_limits<Round>::max();

}  // namespace

std::vector<std::string> own_addresses(const std::string& host, int port) {
  const auto coordinator =
      is_loopback(host) ? process_variable("DDP_COORDINATOR_ADDR") : std::nullopt;
  const bool is_known = coordinator && !coordinator->empty();
  return transport::reachable_addresses(is_known ? *coordinator : host, port);
}

WorkerEnvironment read_worker_environment(const Lookup& lookup) {
  WorkerEnvironment worker;
  if (!lookup("WORLD_SIZE")) return worker;
  worker.world_size = number<int>(lookup, "WORLD_SIZE", 1, kLargestWorld);
  worker.rank = number<int>(lookup, "RANK", 0, worker.world_size - 1);
  const Round attempt = number<Round>(lookup, "TORCHELASTIC_RESTART_COUNT", 0, kLargestRound, 0);
  worker.round = number<Round>(lookup, "DDP_ROUND", 0, kLargestRound, attempt);
  worker.run_id = lookup("TORCHELASTIC_RUN_ID").value_or("none");
  worker.shm_fd = number<int>(lookup, "DDP_SHM_FD", 0, std::numeric_limits<int>::max(), -1);
  if (worker.shm_fd >= 0) {
    worker.local_size = number<int>(lookup, "LOCAL_WORLD_SIZE", 1, worker.world_size);
    // With --virtual-local-rank, LOCAL_RANK is the number of a device.
    const char* const variable = lookup("DDP_LOCAL_RANK") ? "DDP_LOCAL_RANK" : "LOCAL_RANK";
    worker.local_rank = number<int>(lookup, variable, 0, worker.local_size - 1);
    worker.nodes = number<int>(lookup, "GROUP_WORLD_SIZE", 1, worker.world_size);
    worker.node = number<int>(lookup, "GROUP_RANK", 0, worker.nodes - 1);
    if (worker.nodes == 1 && worker.local_size != worker.world_size) {
      refuse("LOCAL_WORLD_SIZE", std::to_string(worker.local_size),
             fmt::format("WORLD_SIZE ({}), as GROUP_WORLD_SIZE is 1", worker.world_size));
    }
    if (worker.rank < worker.local_rank) {
      refuse("RANK", std::to_string(worker.rank),
             fmt::format("at least LOCAL_RANK ({})", worker.local_rank));
    }
  } else {
    worker.nodes = worker.world_size;
    worker.node = worker.rank;
  }
  worker.virtual_node = lookup("DDP_VIRTUAL_NODE");
  if (worker.virtual_node && worker.virtual_node->empty()) worker.virtual_node.reset();
  const auto engine = engine_of(lookup("DDP_LINK"));
  if (!engine) throw std::invalid_argument(engine.error().message);
  worker.engine = *engine;
  if (worker.nodes > 1 || worker.virtual_node) {
    if (worker.shm_fd < 0 && lookup("TORCHELASTIC_USE_AGENT_STORE").value_or("") != "True") {
      throw std::invalid_argument(fmt::format(
          "WORLD_SIZE={} but neither DDP_SHM_FD nor TORCHELASTIC_USE_AGENT_STORE=True "
          "is set, so there is no store at MASTER_ADDR:MASTER_PORT; start the program with ddp-run",
          worker.world_size));
    }
    // If MASTER_ADDR is for a store that PyTorch's rank 0 makes, DDP_STORE_ADDR names ddp-run's
    // own.
    const bool is_apart =
        lookup("DDP_STORE_ADDR") && lookup("TORCHELASTIC_USE_AGENT_STORE").value_or("") != "True";
    const auto address = lookup(is_apart ? "DDP_STORE_ADDR" : "MASTER_ADDR");
    if (!address || address->empty()) {
      throw std::invalid_argument("MASTER_ADDR is not set; start the program with ddp-run");
    }
    worker.master_addr = *address;
    worker.master_port = number<int>(lookup, is_apart ? "DDP_STORE_PORT" : "MASTER_PORT", 1, 65535);
  }
  return worker;
}

bool is_standby() {
  return process_variable("DDP_STANDBY") == "1" && !process_variable("WORLD_SIZE");
}

bool is_placed_by_mpi() { return runtime::mpi_variable(set_variable, "WORLD_SIZE").has_value(); }

std::optional<std::string> process_variable(const std::string& name) {
  auto value = set_variable(name);
  return value ? value : runtime::mpi_variable(set_variable, name);
}

}  // namespace ddp
