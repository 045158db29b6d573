#include <fmt/format.h>

#include "common/base/exit_codes.h"
#include "worker/checkpoint/tool/arguments.h"
#include "worker/checkpoint/tool/commands.h"
#include "worker/checkpoint/tool/output_file.h"
#include "worker/checkpoint/tool/pytorch_file.h"
#include "worker/checkpoint/tool/tensor_set.h"

namespace ddp::checkpoint {

const char kExportHelp[] =
    "usage: ddp-checkpoint export PATH FILE [--format pytorch|safetensors] [--module NAME]\n"
    "Writes the parameters and buffers of a module of the checkpoint PATH (or of the newest valid "
    "one\n"
    "in the folder PATH) to one FILE, under the names that the module has in PyTorch.\n"
    "  --format          pytorch: torch.load(FILE, weights_only=True) gives a dict for\n"
    "                    load_state_dict; safetensors: safetensors.torch.load_file(FILE) does.\n"
    "                    Default: by FILE's extension (.pt, .pth or .safetensors)\n"
    "  --module NAME     which module, if there are several (`ddp-checkpoint show` lists them)\n"
    "Exit status 64 if the module does not exist or a tensor does not fit the format, 65 if there "
    "is\n"
    "no valid checkpoint, 68 if FILE exists or cannot be written.\n";

namespace {

Result<std::string> format_of(const Arguments& arguments) {
  const std::string given = arguments.value("format");
  if (given == "pytorch" || given == "safetensors") return given;
  if (!given.empty()) {
    return make_error(Errc::kInvalidArgument, "--format is \"{}\"; expected pytorch or safetensors",
                      given);
  }
  const std::string& file = arguments.paths[1];
  if (file.ends_with(".pt") || file.ends_with(".pth")) return std::string("pytorch");
  if (file.ends_with(".safetensors")) return std::string("safetensors");
  return make_error(Errc::kInvalidArgument,
                    "{} does not end in .pt, .pth or .safetensors; give --format", file);
}

}  // namespace

int run_export(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
  auto parsed = parse_arguments({{"PATH", "FILE"}, {"format", "module"}}, arguments);
  if (!parsed) return report_usage("export", parsed.error(), err);
  auto format = format_of(*parsed);
  if (!format) return report("export", format.error(), kExitInvalidValue, err);
  auto set = open_module(parsed->paths[0], parsed->value("module"), err);
  if (!set) {
    const bool is_unclear = set.error().code == Errc::kInvalidArgument;
    return report("export", set.error(), is_unclear ? kExitInvalidValue : kExitDataInvalid, err);
  }
  std::vector<TensorView> tensors;
  std::uint64_t bytes = 0;
  for (const SetTensor& tensor : set->tensors) {
    tensors.push_back({tensor.name, tensor.type, tensor.shape, tensor.data.bytes});
    bytes += tensor.data.bytes.size();
  }
  const std::string& file = parsed->paths[1];
  auto made =
      make_file(posix_file_system(), file, [&](const std::string& temporary) -> Result<void> {
        if (*format == "pytorch") {
          return write_pytorch(posix_file_system(), temporary, tensors);
        }
        auto written =
            write_safetensors(posix_file_system(), temporary, tensors, {{"format", "pt"}});
        if (!written) return written.error();
        return {};
      });
  if (!made) {
    const bool does_not_fit = made.error().code == Errc::kInvalidArgument;
    return report("export", made.error(),
                  does_not_fit ? kExitInvalidValue : kExitCheckpointUnwritable, err);
  }
  out << fmt::format("{}: {} tensors, {} bytes of {}, as {}\n", file, tensors.size(), bytes,
                     set->path, *format);
  return kExitSuccess;
}

}  // namespace ddp::checkpoint
