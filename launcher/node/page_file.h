#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "common/base/result.h"
#include "launcher/plan/job_plan.h"
#include "launcher/server/server.h"

namespace ddp::node {

// --page-file: the page of a job as one file, written by the ddp-run with the rendezvous when the
// job is over. Does nothing without the flag. One thread.
class PageFile {
 public:
  explicit PageFile(const plan::JobPlan& plan) : path_(plan.page_file), job_id_(plan.spec.job_id) {}

  // The user stops the job. The coordinator forgets a job that its last node leaves, so what the
  // page shows now is kept. Only the first call counts.
  void job_is_stopped(const server::Server& server);
  // The job is over. kIo if the file cannot be written; the message names the flag.
  Result<void> write(const server::Server& server, int exit_code, const std::string& summary) const;

 private:
  const std::string path_;
  const std::string job_id_;
  nlohmann::json before_stop_;
};

}  // namespace ddp::node
