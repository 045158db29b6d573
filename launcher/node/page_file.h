#pragma once

#include <functional>
#include <string>

#include <nlohmann/json.hpp>

#include "common/base/result.h"
#include "launcher/plan/job_plan.h"
#include "launcher/server/server.h"

namespace ddp::node {

// The page of a job that is over, made by the ddp-run with the rendezvous: as one file with
// --page-file, and for the browsers that look at that moment. One thread.
class PageFile {
 public:
  explicit PageFile(const plan::JobPlan& plan) : path_(plan.page_file), job_id_(plan.spec.job_id) {}

  // The user stops the job. The coordinator forgets a job that its last node leaves, so what the
  // page shows now is kept. Only the first call counts.
  void job_is_stopped(const server::Server& server);
  // The job is over. Does nothing without --page-file. kIo if the file cannot be written; the
  // message names the flag.
  Result<void> write(const server::Server& server, int exit_code, const std::string& summary) const;
  // The job is over. Calls back when the browsers have been sent how, see Server::finish_feeds().
  void show(server::Server& server, int exit_code, const std::string& summary,
            std::function<void()> done) const;

 private:
  nlohmann::json document(const server::Server& server, int exit_code,
                          const std::string& summary) const;

  const std::string path_;
  const std::string job_id_;
  nlohmann::json before_stop_;
};

}  // namespace ddp::node
