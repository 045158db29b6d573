#include <unistd.h>

#include <chrono>
#include <map>

#include <fmt/format.h>

#include "common/base/exit_codes.h"
#include "worker/checkpoint/directory_lock.h"
#include "worker/checkpoint/target.h"
#include "worker/checkpoint/tool/arguments.h"
#include "worker/checkpoint/tool/commands.h"
#include "worker/checkpoint/tool/tensor_set.h"

namespace ddp::checkpoint {

const char kImportHelp[] =
    "usage: ddp-checkpoint import FILE DIR --module NAME [--step N]\n"
    "Makes a checkpoint from a safetensors file, such as safetensors.torch.save_file(\n"
    "model.state_dict(), FILE) writes in Python. Makes the folder DIR if it does not exist. The "
    "names\n"
    "in FILE must be those of the module's parameters and buffers. The checkpoint has no "
    "optimizer,\n"
    "values or generators: begin with its weights (ddp-train --init-from DIR), or load it with\n"
    "LoadOptions::strict off, which leaves those unchanged.\n"
    "  --module NAME     the name under which the program registers the module (ddp-train: model)\n"
    "  --step N          step of the checkpoint, at least 0 (default 0). Programs load the "
    "highest\n"
    "                    step in DIR\n"
    "Exit status 64 if DIR already has the step, 65 if FILE is missing or damaged, 68 if DIR "
    "cannot\n"
    "be written or a job is writing there.\n";

namespace {

struct Import {
  std::string directory;
  std::string module;
  std::int64_t step = 0;
};

Result<Manifest> write_shard(const Import& import, const TensorSet& set,
                             const std::string& temporary) {
  constexpr const char* kShard = "shard-00000.safetensors";
  std::vector<TensorView> views;
  for (const SetTensor& tensor : set.tensors) {
    views.push_back({fmt::format("module/{}/{}", import.module, tensor.name), tensor.type,
                     tensor.shape, tensor.data.bytes});
  }
  auto written = write_safetensors(posix_file_system(), join_path(temporary, kShard), views);
  if (!written) return written.error();
  std::map<std::string, std::string> checksums;
  for (auto& tensor : written->tensors) checksums[tensor.name] = std::move(tensor.checksum);
  Manifest manifest;
  manifest.step = import.step;
  manifest.state = {{"values", nlohmann::json::object()}, {"optimizers", nlohmann::json::object()}};
  manifest.rank_state = {{{"values", nlohmann::json::object()}}};
  manifest.files = {{kShard, written->bytes, written->checksum}};
  for (const TensorView& view : views) {
    manifest.tensors.push_back(
        {view.name, kReplicated, kShard, view.type, view.shape, checksums.at(view.name)});
  }
  return manifest;
}

Result<Entry> make_checkpoint(const Import& import, const TensorSet& set, Directory& directory,
                              std::ostream& err) {
  auto entries = directory.list();
  if (!entries) return entries.error();
  for (const Entry& entry : *entries) {
    if (entry.step == import.step) {
      return make_error(Errc::kInvalidArgument, "{} already exists; choose another --step",
                        entry.path);
    }
  }
  if (!entries->empty() && entries->front().step > import.step) {
    err << fmt::format("note: {} is newer, so programs will load that one\n",
                       entries->front().path);
  }
  const auto word = std::chrono::system_clock::now().time_since_epoch().count();
  auto temporary = directory.begin(import.step, fmt::format("import-{}-{}", ::getpid(), word));
  if (!temporary) return temporary.error();
  auto manifest = write_shard(import, set, *temporary);
  auto entry =
      manifest ? directory.publish(*temporary, *manifest) : Result<Entry>(manifest.error());
  if (!entry) {
    (void)directory.discard(*temporary);
    return entry;
  }
  if (auto pointed = directory.update_latest(*entry); !pointed) {
    err << fmt::format("note: {}\n", pointed.error().message);
  }
  return entry;
}

Result<Import> import_of(const Arguments& arguments) {
  auto step = integer_option(arguments, "step", 0, 0);
  if (!step) return step.error();
  Import import{arguments.paths[1], arguments.value("module"), *step};
  if (import.module.empty()) {
    return make_error(Errc::kInvalidArgument,
                      "--module is missing; give the name of the program's module (for ddp-train: "
                      "--module model)");
  }
  if (import.module.find('/') != std::string::npos) {
    return make_error(Errc::kInvalidArgument,
                      "--module is \"{}\"; give the name of the program's module without '/' (for "
                      "ddp-train: --module model)",
                      import.module);
  }
  return import;
}

int fail(const Error& error, int status, std::ostream& err) {
  return report("import", error, status, err);
}

}  // namespace

int run_import(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
  auto parsed = parse_arguments({{"FILE", "DIR"}, {"module", "step"}}, arguments);
  if (!parsed) return report_usage("import", parsed.error(), err);
  auto import = import_of(*parsed);
  if (!import) return fail(import.error(), kExitInvalidValue, err);
  if (posix_file_system().list(parsed->paths[0])) {
    return fail(make_error(Errc::kInvalidArgument,
                           "{} is a folder, not a safetensors file; `ddp-checkpoint export` "
                           "makes such a file from it",
                           parsed->paths[0]),
                kExitInvalidValue, err);
  }
  auto set = open_safetensors(parsed->paths[0]);
  if (!set) return fail(set.error(), kExitDataInvalid, err);
  if (auto made = make_directories(posix_file_system(), import->directory); !made) {
    return fail(made.error(), kExitCheckpointUnwritable, err);
  }
  auto lock = DirectoryLock::acquire(import->directory, fmt::format("import-{}", ::getpid()));
  if (!lock) return fail(lock.error(), kExitCheckpointUnwritable, err);
  if (!lock->warning().empty()) err << fmt::format("note: {}\n", lock->warning());
  Directory directory(posix_file_system(), import->directory);
  if (auto ready = directory.prepare(); !ready) {
    return fail(ready.error(), kExitCheckpointUnwritable, err);
  }
  auto entry = make_checkpoint(*import, *set, directory, err);
  if (!entry) {
    return fail(entry.error(),
                entry.error().code == Errc::kInvalidArgument ? kExitInvalidValue
                                                             : kExitCheckpointUnwritable,
                err);
  }
  out << fmt::format("{}: {} tensors of {} as module \"{}\"\n", entry->path, set->tensors.size(),
                     set->path, import->module);
  return kExitSuccess;
}

}  // namespace ddp::checkpoint
