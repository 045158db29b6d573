#include "worker/train/initial_weights.h"

#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "common/base/exit_codes.h"
#include "worker/ddp/state/checkpointer.h"
#include "worker/train/training_failure.h"

namespace ddp::train {
namespace {

// Turns --init-names into patterns for a checkpoint's names, which begin with "model/".
LoadOptions loading_of(const Options& options) {
  LoadOptions loading;
  std::string_view rest = options.init_names.empty() ? "*" : std::string_view(options.init_names);
  while (!rest.empty()) {
    const std::string_view name = rest.substr(0, rest.find(','));
    rest.remove_prefix(name.size() < rest.size() ? name.size() + 1 : name.size());
    loading.names.push_back(fmt::format("model/{}", name));
  }
  return loading;
}

}  // namespace

void load_initial_weights(const Options& options, const std::shared_ptr<ProcessGroup>& group,
                          Model& model, const std::function<void(const std::string&)>& say) {
  Checkpointer source({.directory = options.init_from}, group);
  source.add_module("model", model);
  const auto report = source.load_latest(loading_of(options));
  const std::string flag = fmt::format("--init-from {}: ", options.init_from);
  if (!report) {
    const bool is_other = report.error().code == Errc::kMismatch;
    throw TrainingFailure(is_other ? kExitInvalidValue : kExitDataInvalid,
                          flag + report.error().message +
                              (is_other ? "; --init-names PATTERN,... loads only some" : ""));
  }
  for (const std::string& line : report->skipped) say("warning: " + line);
  if (report->step < 0) {
    throw TrainingFailure(kExitDataInvalid, flag + "there is no valid checkpoint in this folder");
  }
  for (const std::string& line : report->notes) say("note: " + line);
  say(fmt::format("begins with the weights of step {} ({})", report->step, report->path));
}

}  // namespace ddp::train
