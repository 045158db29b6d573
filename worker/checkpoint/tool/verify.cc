#include <fmt/format.h>

#include "common/base/exit_codes.h"
#include "worker/checkpoint/target.h"
#include "worker/checkpoint/tool/arguments.h"
#include "worker/checkpoint/tool/commands.h"

namespace ddp::checkpoint {

const char kVerifyHelp[] =
    "usage: ddp-checkpoint verify PATH\n"
    "Checks every byte of the checkpoint PATH, or of all checkpoints in the folder PATH, against "
    "the\n"
    "checksums of files and tensors, and prints whether each is good. Exit status 65 if one is "
    "damaged\n"
    "or if there is none.\n";

int run_verify(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
  auto parsed = parse_arguments({{"PATH"}, {}}, arguments);
  if (!parsed) return report_usage("verify", parsed.error(), err);
  auto target = find_target(parsed->paths[0]);
  if (!target) return report("verify", target.error(), kExitDataInvalid, err);
  if (target->entries.empty()) {
    return report("verify",
                  make_error(Errc::kNotFound, "there is no checkpoint at {}", target->path),
                  kExitDataInvalid, err);
  }
  int status = kExitSuccess;
  for (const Entry& entry : target->entries) {
    auto manifest = target->directory.verify(entry);
    if (manifest) {
      out << fmt::format("{}: good, {} tensors, {} bytes\n", entry.path, manifest->tensors.size(),
                         bytes_of(*manifest));
    } else {
      status = kExitDataInvalid;
      err << fmt::format("{}: damaged: {}\n", entry.path, manifest.error().message);
    }
  }
  return status;
}

}  // namespace ddp::checkpoint
