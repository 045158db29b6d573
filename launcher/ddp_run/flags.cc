#include "launcher/ddp_run/flags.h"

#include "launcher/ddp_run/flag_reader.h"

namespace ddp::run {

Result<Options> parse_flags(const std::vector<std::string>& arguments,
                            const GetEnvironment& environment) {
  const auto line = split_command_line(arguments, environment);
  if (!line) return line.error();
  Options options;
  options.help = line->find("help") != nullptr;
  options.version = line->find("version") != nullptr;
  if (options.help || options.version) return options;
  FlagReader reader(*line, environment);
  read_size_flags(reader, options);
  read_slurm_flags(reader, options);
  read_rendezvous_flags(reader, options);
  read_access_flags(reader, options);
  read_limit_flags(reader, options);
  read_output_flags(reader, options);
  read_program_flags(reader, options);
  if (reader.error()) return *reader.error();
  return options;
}

}  // namespace ddp::run
