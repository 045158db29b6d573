#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "launcher/rendezvous/job_status.h"
#include "launcher/server/refusals.h"
#include "launcher/server/store_front.h"

// The daemon's two pages. Pure: facts in, text out.
namespace ddp::server {

struct DaemonFacts {
  std::vector<rendezvous::JobStatus> jobs;
  StoreFigures store;
  std::size_t running_jobs = 0;
  std::uint64_t finished_jobs = 0;
  std::uint64_t rounds = 0;
  std::size_t agents = 0;
  std::size_t connections = 0;  // All kinds together.
  std::uint64_t turned_away = 0;
  std::array<std::uint64_t, kRefusalCount> refused{};  // By reason.
};

// GET /status: {"jobs": [...], "store": {...}, "connections": n}, indented, with a newline at the
// end.
std::string status_page(const DaemonFacts& facts);
// GET /history: {"jobs": [...]}, of RendezvousCore::history(); in one line, with a newline at the
// end.
std::string history_page(const nlohmann::json& jobs);
// GET /metrics, in Prometheus' text format.
std::string metrics_page(const DaemonFacts& facts);

}  // namespace ddp::server
