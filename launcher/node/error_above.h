#pragma once

#include <string>

namespace ddp::node {

// If a launcher has started this ddp-run as its worker, writes the root cause to the file where
// that launcher looks for it (TORCHELASTIC_ERROR_FILE). `error` is the text of a torchelastic error
// file, or empty if there is only a summary.
void tell_launcher_above(int exit_code, const std::string& summary, const std::string& error);

}  // namespace ddp::node
