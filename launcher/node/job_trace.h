#pragma once

#include <signal.h>

#include <functional>
#include <memory>
#include <string>

#include "launcher/plan/job_plan.h"
#include "launcher/server/server.h"

namespace ddp::node {

// The traces that a ddp-run with the rendezvous writes: --trace FILE, and at kSignal the next
// steps. One thread.
class JobTrace {
 public:
  static constexpr int kSignal = SIGUSR2;

  // `notice` is for people, `complaint` also with LOGLEVEL=ERROR.
  using Say = std::function<void(const std::string& text)>;
  JobTrace(const plan::JobPlan& plan, Say notice, Say complaint);

  // Whether the user has named kSignal for something else.
  static bool is_free(const config::JobSpec& spec);

  // Writes the whole job from here on, if --trace wants that and this does not do it already.
  // `server` may stand by, and take over later.
  void whole_job(server::Server& server);
  void next_steps(server::Server& server);

 private:
  const std::string job_id_;
  const std::string host_;
  const std::string file_;    // Empty: no --trace.
  const std::string folder_;  // Where traces go that nobody has named.
  Say notice_;
  Say complaint_;
  std::string whole_file(bool took_over);

  bool traces_whole_job_ = false;
  int whole_files_ = 0;
  int traces_ = 0;                                              // At the signal.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // For what a server calls.
};

}  // namespace ddp::node
