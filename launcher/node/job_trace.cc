#include "launcher/node/job_trace.h"

#include <unistd.h>

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

// If another daemon has written the beginning, its file may be in the same folder.
std::string JobTrace::whole_file(bool took_over) {
  const int number = ++whole_files_;
  if (number == 1) return took_over ? fmt::format("{}.{}", file_, host_) : file_;
  return fmt::format("{}.{}.{}", file_, host_, number);
}

void JobTrace::whole_job(server::Server& server) {
  using server::TraceFile;
  if (file_.empty() || std::exchange(traces_whole_job_, true)) return;
  const auto file = [this, &server] { return whole_file(server.took_over()); };
  const auto on_end = [this, alive = std::weak_ptr<bool>(alive_)](const TraceFile::End& end) {
    if (alive.expired()) return;
    traces_whole_job_ = false;
    if (!end.error.empty()) complaint_(fmt::format("--trace {}: {}", end.path, end.error));
  };
  server.trace(job_id_, std::make_shared<TraceFile>(file, 0, on_end));
}

void JobTrace::next_steps(server::Server& server) {
  using server::TraceFile;
  std::string file;
  do {  // An earlier run may have left some in the same folder.
    file = fmt::format("{}/trace-{}-{}.json", folder_, config::job_folder_name(job_id_), ++traces_);
  } while (::access(file.c_str(), F_OK) == 0);
  const auto on_end = [this, file, alive = std::weak_ptr<bool>(alive_)](const TraceFile::End& end) {
    if (alive.expired()) return;
    if (!end.error.empty()) return notice_(fmt::format("no trace in {}: {}", file, end.error));
    notice_(end.path.empty() ? "no trace: no rank has done anything"
                             : fmt::format("the trace is in {}; open it at ui.perfetto.dev", file));
  };
  server.trace(job_id_, std::make_shared<TraceFile>([file] { return file; }, kNextSteps, on_end));
}

}  // namespace ddp::node
