#include "launcher/node/job_trace.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "common/config/output_spec.h"
#include "launcher/server/trace_sink.h"

namespace ddp::node {
namespace {

constexpr std::size_t kNextSteps = 20;

}  // namespace

JobTrace::JobTrace(const plan::JobPlan& plan, Say notice, Say complaint)
    : job_id_(plan.spec.job_id),
      host_(plan.spec.host),
      file_(plan.trace_file),
      folder_(plan.spec.log_dir.empty() ? "." : plan.spec.log_dir),
      notice_(std::move(notice)),
      complaint_(std::move(complaint)) {}

bool JobTrace::is_free(const config::JobSpec& spec) {
  return spec.checkpoint_signal != kSignal &&
         std::find(spec.signals.begin(), spec.signals.end(), kSignal) == spec.signals.end();
}

void JobTrace::whole_job(server::Server& server, bool took_over) {
  if (file_.empty() || std::exchange(traces_whole_job_, true)) return;
  const std::string file = took_over ? fmt::format("{}.{}", file_, host_) : file_;
  server.trace(job_id_,
               std::make_shared<server::TraceFile>(file, 0, [this, file](const std::string& error) {
                 if (error.empty()) return;
                 complaint_(fmt::format("--trace {}: {}", file, error));
               }));
}

void JobTrace::next_steps(server::Server& server) {
  const std::string file =
      fmt::format("{}/trace-{}-{}.json", folder_, config::job_folder_name(job_id_), ++traces_);
  server.trace(
      job_id_,
      std::make_shared<server::TraceFile>(file, kNextSteps, [this, file](const std::string& error) {
        notice_(error.empty() ? fmt::format("the trace is in {}; open it at "
                                            "ui.perfetto.dev",
                                            file)
                              : fmt::format("no trace in {}: {}", file, error));
      }));
}

}  // namespace ddp::node
