// Flags about the program that runs as a worker.
#include <algorithm>
#include <string_view>

#include "common/base/template_text.h"
#include "launcher/flags/flag_reader.h"
#include "launcher/flags/flag_values.h"

namespace ddp::flags {
namespace {

bool names_local_rank(const std::string& text) {
  const auto parts = template_parts(text);
  return std::any_of(parts.begin(), parts.end(),
                     [](const TemplatePart& part) { return part.name == "local_rank"; });
}

void check_local_ranks(FlagReader& reader, const Options& options) {
  if (options.spec.standby == 0) return;
  for (const std::string& argument : options.arguments) {
    if (!names_local_rank(argument)) continue;
    return reader.wrong(argument,
                        "contradicts --standby, whose workers have no local rank before they take "
                        "a place; leave one of them out, or read LOCAL_RANK in the program");
  }
}

}  // namespace

void read_program_flags(FlagReader& reader, Options& options) {
  if (const GivenFlag* given = reader.find("role"); given != nullptr)
    options.spec.role = given->value;
  reader.value<std::string>("start-method", [](const std::string& text) {
    return parse_word(text, {"spawn", "fork", "forkserver"});
  });
  options.module = reader.has("module");
  options.no_python = reader.has("no-python");
  options.run_path = reader.has("run-path");
  if (options.module && options.no_python && !options.run_path) {
    reader.wrong("--module with --no-python", "a module needs Python; leave one of them out");
  }
  if (const char* python = reader.environment("PYTHON_EXEC"); python != nullptr && *python != '\0')
    options.python = python;
  const char* not_shared = reader.environment("TORCH_DISABLE_SHARE_RDZV_TCP_STORE");
  options.spec.own_store = not_shared != nullptr && std::string_view(not_shared) == "1";
  if (const char* path = reader.environment("PATH"); path != nullptr) options.search_path = path;
  if (!reader.line().has_program && options.module) {
    return reader.fail(
        exit_error(kExitUsage,
                   "--module: the module is missing; write for example: ddp-run -m package.train"));
  }
  if (!reader.line().has_program) {
    return reader.fail(
        exit_error(kExitUsage,
                   "no program to run; write for example: ddp-run --standalone --nproc-per-node 2 "
                   "train.py. --help lists all flags"));
  }
  if (reader.line().program.empty()) {
    return reader.fail(
        exit_error(kExitUsage, "the program's name is empty; --help lists all flags"));
  }
  options.spec.program = reader.line().program;
  options.arguments = reader.line().arguments;
  check_local_ranks(reader, options);
}

}  // namespace ddp::flags
