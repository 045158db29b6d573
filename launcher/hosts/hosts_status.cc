#include "launcher/hosts/hosts_status.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/terminal/terminal.h"

namespace ddp::hosts {

std::string HostsStatusText::text(TimePoint now, const rendezvous::JobStatus& job) {
  if (job.world_size == 0)
    return job.waiting_for.empty() ? "" : "waiting for " + terminal::harmless(job.waiting_for);
  if (job.round != round_) {
    round_ = job.round;
    const auto nodes = std::count_if(job.nodes.begin(), job.nodes.end(),
                                     [](const auto& node) { return node.group_rank >= 0; });
    text_.begin_round({.round = job.round,
                       .restarts = job.restarts,
                       .max_restarts = job.max_restarts,
                       .nodes = static_cast<int>(nodes),
                       .workers = job.world_size});
  }
  for (const rendezvous::NodeStatus& node : job.nodes) {
    if (node.group_rank < 0 || node.step < 0) continue;
    text_.on_progress(now, node.group_rank, node.step, node.loss, node.total_steps);
  }
  return text_.text(now);
}

HostsStatus::HostsStatus(asio::io_context& io, const server::Server& server, std::string job_id,
                         OutputWriter& terminal)
    : server_(server), job_id_(std::move(job_id)), terminal_(terminal), timer_(io) {
  show();
}

HostsStatus::~HostsStatus() { terminal_.show_status(""); }

void HostsStatus::show() {
  if (const auto job = server_.job_status(job_id_)) {
    terminal_.show_status(text_.text(Clock::now(), *job));
  }
  timer_.after(kPeriod, [this] { show(); });
}

}  // namespace ddp::hosts
