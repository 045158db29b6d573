#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <asio/io_context.hpp>

#include "common/base/result.h"
#include "launcher/ddp_run/flags.h"
#include "launcher/ddp_run/job_plan.h"
#include "launcher/hosts/parent_link.h"

namespace ddp::run {

// One node of a job on --hosts, seen from its own ddp-run: who it is comes from the ddp-run that
// has started it, and how it ended goes there instead of to a terminal.
class StartedNode {
 public:
  // Takes the order and what it says of folder and environment, and tells that the host is reached.
  // The exit status instead, where everything is done already: the order was for several hosts and
  // they have ended, or it cannot be obeyed.
  static std::variant<std::unique_ptr<StartedNode>, int> start();

  // ddp-run's, without argv[0].
  const std::vector<std::string>& arguments() const { return link_->order().arguments; }
  // What the flags are completed with: neither PET_NAME nor SLURM's variables of this host count.
  static const char* environment(const char* name);
  // What of them is this node's own.
  void complete(Options& options) const;
  void complete(JobPlan& plan) const;

  // From now on signals come from the launcher as if they were sent to this process, and SIGHUP
  // when it is gone.
  void watch(asio::io_context& io);
  void stop_watching() { link_->stop_watching(); }  // Before `io` goes.
  void tell_end(int exit_code, const std::string& summary, const std::string& report,
                const std::string& error) const;

 private:
  explicit StartedNode(std::unique_ptr<hosts::ParentLink> link) : link_(std::move(link)) {}

  std::unique_ptr<hosts::ParentLink> link_;
};

}  // namespace ddp::run
