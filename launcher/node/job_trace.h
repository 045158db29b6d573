#pragma once

#include <signal.h>

#include <functional>
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

  // Writes the whole job from here on, if --trace wants that. Only the first call counts.
  // `took_over`: another daemon has written the beginning, and its file may be in the same folder.
  void whole_job(server::Server& server, bool took_over);
  void next_steps(server::Server& server);

 private:
  const std::string job_id_;
  const std::string host_;
  const std::string file_;    // Empty: no --trace.
  const std::string folder_;  // Where traces go that nobody has named.
  Say notice_;
  Say complaint_;
  bool traces_whole_job_ = false;
  int traces_ = 0;  // At the signal.
};

}  // namespace ddp::node
