#include <fmt/format.h>

#include "common/base/exit_codes.h"
#include "worker/checkpoint/target.h"
#include "worker/checkpoint/tool/arguments.h"
#include "worker/checkpoint/tool/commands.h"

namespace ddp::checkpoint {

const char kLsHelp[] =
    "usage: ddp-checkpoint ls PATH\n"
    "Lists the checkpoints in the folder PATH, newest first, or the checkpoint PATH: step, epoch,\n"
    "world size, number of tensors and bytes. Reads the manifests and the files' sizes, but no\n"
    "tensors; `verify` reads everything. Exit status 65 if one is damaged.\n";

int run_ls(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
  auto parsed = parse_arguments({{"PATH"}, {}}, arguments);
  if (!parsed) return report_usage("ls", parsed.error(), err);
  auto target = find_target(parsed->paths[0]);
  if (!target) return report("ls", target.error(), kExitDataInvalid, err);
  if (target->entries.empty()) {
    err << fmt::format(
        "note: there is no checkpoint in {}; name the folder that --checkpoint-dir names\n",
        parsed->paths[0]);
  }
  int status = kExitSuccess;
  out << fmt::format("{:<24} {:>10} {:>6} {:>6} {:>8} {:>14}  {}\n", "name", "step", "epoch",
                     "world", "tensors", "bytes", "state");
  for (const Entry& entry : target->entries) {
    auto manifest = target->directory.inspect(entry);
    if (manifest) {
      out << fmt::format("{:<24} {:>10} {:>6} {:>6} {:>8} {:>14}  complete\n", entry.name,
                         manifest->step, manifest->epoch, manifest->world_size,
                         manifest->tensors.size(), bytes_of(*manifest));
    } else {
      status = kExitDataInvalid;
      out << fmt::format("{:<24} {:>10} {:>6} {:>6} {:>8} {:>14}  damaged: {}\n", entry.name,
                         entry.step, "-", "-", "-", "-", manifest.error().message);
    }
  }
  return status;
}

}  // namespace ddp::checkpoint
