#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "worker/runtime/process_group.h"

// Collective exchanges of short texts, for ranks that must agree on one answer. Each call is
// collective and throws CollectiveError; `tag` is named in it.
namespace ddp {

// Every rank's text, in rank order.
std::vector<std::string> gather_texts(ProcessGroup& group, std::string_view mine,
                                      const std::string& tag);

// The root's text; what the others pass is ignored.
std::string broadcast_text(ProcessGroup& group, std::string_view mine, Rank root,
                           const std::string& tag);

// Success if all ranks succeeded. Otherwise the same error everywhere: that of the lowest rank that
// failed, with its number in front if there are several ranks. Codes outside Errc arrive as kIo.
Result<void> agree(ProcessGroup& group, const Result<void>& mine, const std::string& tag);

}  // namespace ddp
