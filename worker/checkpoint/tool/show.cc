#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/exit_codes.h"
#include "common/base/json_text.h"
#include "worker/checkpoint/target.h"
#include "worker/checkpoint/tool/arguments.h"
#include "worker/checkpoint/tool/commands.h"

namespace ddp::checkpoint {

const char kShowHelp[] =
    "usage: ddp-checkpoint show PATH\n"
    "Prints the contents of the checkpoint PATH, or of the newest valid one in the folder PATH: "
    "step,\n"
    "values, optimizers with their hyper-parameters, files, and every tensor with its type and "
    "shape.\n"
    "First checks every byte against its checksum. Exit status 65 if there is no valid "
    "checkpoint.\n";

namespace {

void print(const Entry& entry, const Manifest& manifest, std::ostream& out) {
  out << fmt::format("path: {}\nstep: {}\nepoch: {}\nworld size: {}\nround: {}\n", entry.path,
                     manifest.step, manifest.epoch, manifest.world_size, manifest.round);
  out << "state: " << dump_json(manifest.state, 2) << '\n';
  for (std::size_t rank = 0; rank < manifest.rank_state.size(); ++rank) {
    out << fmt::format("state of rank {}: {}\n", rank, dump_json(manifest.rank_state[rank]));
  }
  out << "files:\n";
  for (const FileRecord& file : manifest.files) {
    out << fmt::format("  {:<28} {:>14} bytes  {}\n", file.name, file.bytes, file.checksum);
  }
  out << "tensors:\n";
  for (const TensorRecord& tensor : manifest.tensors) {
    const std::string owner =
        tensor.rank == kReplicated ? "" : fmt::format("  rank {}", tensor.rank);
    out << fmt::format("  {} {} [{}]{}\n", tensor.name, tensor_type_name(tensor.type),
                       fmt::join(tensor.shape, ", "), owner);
  }
}

}  // namespace

int run_show(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
  auto parsed = parse_arguments({{"PATH"}, {}}, arguments);
  if (!parsed) return report_usage("show", parsed.error(), err);
  auto target = find_target(parsed->paths[0]);
  if (!target) return report("show", target.error(), kExitDataInvalid, err);
  auto found = newest_valid(*target, err);
  if (!found) return report("show", found.error(), kExitDataInvalid, err);
  print(found->entry, found->manifest, out);
  return kExitSuccess;
}

}  // namespace ddp::checkpoint
