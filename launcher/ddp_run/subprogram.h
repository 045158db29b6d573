#pragma once

#include <optional>
#include <string>
#include <vector>

// Words after ddp-run that are programs of their own, beside ddp-run: `ddp-run top` and `ddp-run
// demo`.
namespace ddp::run {

// If `arguments` (without argv[0]) begin with such a word, this process becomes that program; gives
// the exit status if it cannot. Nothing if the line starts a job. To start a program named top,
// write ./top, or put -- before it.
std::optional<int> run_subprogram(const std::vector<std::string>& arguments);

}  // namespace ddp::run
