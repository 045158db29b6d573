#pragma once

#include <string>

namespace ddp::run {

// Writes the root cause where a launcher that has started this ddp-run as its worker looks for it
// (TORCHELASTIC_ERROR_FILE); nothing where there is none. `error` is an error file of torchelastic,
// empty if there is only a summary.
void tell_launcher_above(int exit_code, const std::string& summary, const std::string& error);

}  // namespace ddp::run
