#include "launcher/flags/flags.h"

#include "launcher/flags/flag_reader.h"
#include "launcher/flags/flag_values.h"

namespace ddp::flags {

Result<Options> parse_flags(const std::vector<std::string>& arguments,
                            const GetEnvironment& environment) {
  const auto line = split_command_line(arguments, environment);
  if (!line) return line.error();
  Options options;
  options.help = line->find("help") != nullptr;
  options.version = line->find("version") != nullptr;
  if (options.help || options.version) return options;
  FlagReader reader(*line, environment);
  reader.take(
      "print-completion",
      [](const std::string& text) {
        return parse_word(text, {"bash", "zsh", "tcsh", "fish"});
      },
      options.completion);
  if (!options.completion.empty()) return options;
  options.spec.dry_run = reader.has("dry-run");
  read_size_flags(reader, options);
  read_batch_hosts(reader, options);
  read_host_flags(reader, options);
  // Hosts from --hosts are not the nodes that a scheduler has started ddp-run on.
  if (options.host_list.empty()) {
    read_scheduler_flags(reader, options);
    read_slurm_flags(reader, options);
  }
  read_rendezvous_flags(reader, options);
  read_access_flags(reader, options);
  read_limit_flags(reader, options);
  read_output_flags(reader, options);
  read_program_flags(reader, options);
  if (reader.error()) return *reader.error();
  return options;
}

}  // namespace ddp::flags
