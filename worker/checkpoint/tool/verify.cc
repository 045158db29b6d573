#include <fmt/format.h>

#include "common/base/exit_codes.h"
#include "worker/checkpoint/tool/arguments.h"
#include "worker/checkpoint/tool/commands.h"
#include "worker/checkpoint/tool/target.h"

namespace ddp::checkpoint {

const char kVerifyHelp[] =
    "usage: ddp-checkpoint verify PATH\n"
    "Reads every byte of the checkpoint PATH, or of all in the folder PATH, against the checksums "
    "of\n"
    "files and tensors, and says of each whether it is good. Exit status 65 if one is damaged or "
    "if\n"
    "there is none.\n";

int run_verify(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
  auto parsed = parse_arguments({"verify", {"PATH"}, {}, {}}, arguments);
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
