// What becomes of the workers' output.
#include "launcher/ddp_run/flag_reader.h"

namespace ddp::run {

void read_output_flags(FlagReader& reader, Options& options) {
  if (const GivenFlag* given = reader.find("log-dir");
      given != nullptr && given->value != "/dev/null") {
    if (given->value.empty())
      reader.wrong(given->shown, "the folder is empty; write for example --log-dir logs");
    options.log_dir = given->value;
  }
  for (const char* name : {"redirects", "tee"}) {
    const GivenFlag* given = reader.find(name);
    if (given != nullptr && given->value != "0") {
      reader.wrong(given->shown,
                   "not supported; --log-dir DIR writes every worker's output to files and leaves "
                   "it on the console");
    }
  }
}

}  // namespace ddp::run
