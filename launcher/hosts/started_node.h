#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <asio/io_context.hpp>

#include "common/base/result.h"
#include "launcher/flags/flags.h"
#include "launcher/hosts/parent_link.h"
#include "launcher/plan/job_plan.h"

namespace ddp::hosts {

// One node of a job with --hosts, in the node's own ddp-run. The ddp-run that started it (the
// launcher) says which node it is. The node's result goes back there instead of to a terminal.
class StartedNode {
 public:
  // Receives the order, applies its folder and environment, and reports that the host is reached.
  // Returns the exit status instead if there is nothing left to do: the order was for several hosts
  // and all have ended, or it cannot be followed.
  static std::variant<std::unique_ptr<StartedNode>, int> start();

  // ddp-run's, without argv[0].
  const std::vector<std::string>& arguments() const { return link_->order().arguments; }
  // The environment for reading flags. This host's PET_NAME and SLURM variables do not count.
  static const char* environment(const char* name);
  // Fills in what is this node's own.
  void complete(flags::Options& options) const;
  void complete(plan::JobPlan& plan);

  // From now on, raises in this process the signals that the launcher sends, and SIGHUP, or another
  // signal that ends it, when the launcher is gone.
  void watch(asio::io_context& io);
  void stop_watching() { link_->stop_watching(); }  // Call it before `io` is destroyed.
  void tell_end(int exit_code, const std::string& summary, const std::string& report,
                const std::string& error) const;

 private:
  explicit StartedNode(std::unique_ptr<ParentLink> link) : link_(std::move(link)) {}

  std::unique_ptr<ParentLink> link_;
  int hang_up_ = 0;  // What ends this process when the launcher is gone.
};

}  // namespace ddp::hosts
