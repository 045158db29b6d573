#include "worker/checkpoint/tool.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/exit_codes.h"
#include "worker/checkpoint/directory.h"

namespace ddp::checkpoint {
namespace {

constexpr const char* kUsage =
    "usage: ddp-checkpoint COMMAND PATH\n"
    "  ls DIR        lists the checkpoints of a folder, newest first, by a quick look\n"
    "  verify PATH   reads every byte of a checkpoint, or of all in a folder, against its "
    "checksums\n"
    "  show PATH     prints what is in a checkpoint, or in the newest valid one of a folder\n"
    "Exit status: 0, 2 for a command line that cannot be read, 65 if something is missing or "
    "damaged.\n";

// A path is one checkpoint if its last part is named like one, else a folder of them.
struct Target {
  Directory directory;
  std::vector<Entry> entries;
};

Result<Target> find_target(const std::string& given) {
  std::string path = given;
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  const std::string name = path.substr(path.rfind('/') + 1);
  if (auto entry = parse_entry_name(name)) {
    auto there = posix_file_system().list(path);
    if (!there) return there.error();
    entry->path = path;
    return Target{Directory(posix_file_system(), parent_path(path)), {std::move(*entry)}};
  }
  auto there = posix_file_system().list(path);
  if (!there) return there.error();
  Target target{Directory(posix_file_system(), path), {}};
  auto entries = target.directory.list();
  if (!entries) return entries.error();
  target.entries = std::move(*entries);
  return target;
}

std::uint64_t bytes_of(const Manifest& manifest) {
  std::uint64_t bytes = 0;
  for (const FileRecord& file : manifest.files) bytes += file.bytes;
  return bytes;
}

int list(const Target& target, std::ostream& out) {
  int status = kExitSuccess;
  out << fmt::format("{:<24} {:>10} {:>6} {:>6} {:>8} {:>14}  {}\n", "name", "step", "epoch",
                     "world", "tensors", "bytes", "state");
  for (const Entry& entry : target.entries) {
    auto manifest = target.directory.inspect(entry);
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

int verify(const Target& target, std::ostream& out, std::ostream& err) {
  int status = kExitSuccess;
  for (const Entry& entry : target.entries) {
    auto manifest = target.directory.verify(entry);
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

void print(const Entry& entry, const Manifest& manifest, std::ostream& out) {
  out << fmt::format("path: {}\nstep: {}\nepoch: {}\nworld size: {}\nround: {}\n", entry.path,
                     manifest.step, manifest.epoch, manifest.world_size, manifest.round);
  constexpr auto kReplace = nlohmann::json::error_handler_t::replace;
  out << "state: " << manifest.state.dump(2, ' ', false, kReplace) << '\n';
  for (std::size_t rank = 0; rank < manifest.rank_state.size(); ++rank) {
    out << fmt::format("state of rank {}: {}\n", rank,
                       manifest.rank_state[rank].dump(-1, ' ', false, kReplace));
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

int show(const std::string& path, Target& target, std::ostream& out, std::ostream& err) {
  for (const Entry& entry : target.entries) {
    auto manifest = target.directory.verify(entry);
    if (manifest) {
      print(entry, *manifest, out);
      return kExitSuccess;
    }
    err << fmt::format("{} passed over: {}\n", entry.path, manifest.error().message);
  }
  err << fmt::format("ddp-checkpoint: there is no valid checkpoint at {}\n", path);
  return kExitDataInvalid;
}

}  // namespace

int run_tool(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
  if (arguments == std::vector<std::string>{"--help"}) {
    out << kUsage;
    return kExitSuccess;
  }
  const std::vector<std::string> commands = {"ls", "verify", "show"};
  if (arguments.size() != 2 ||
      std::find(commands.begin(), commands.end(), arguments[0]) == commands.end()) {
    err << kUsage;
    return kExitUsage;
  }
  const std::string& path = arguments[1];
  auto target = find_target(path);
  if (!target) {
    err << fmt::format("ddp-checkpoint: {}\n", target.error().message);
    return kExitDataInvalid;
  }
  if (arguments[0] == "ls") return list(*target, out);
  if (arguments[0] == "verify") return verify(*target, out, err);
  return show(path, *target, out, err);
}

}  // namespace ddp::checkpoint
