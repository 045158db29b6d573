#pragma once

#include <string_view>

namespace ddp {

// The release of ddp-run that this program belongs to: "0.1.0". What releases understand of each
// other is in common/wire/PROTOCOL.md ("Releases together").
std::string_view release();

}  // namespace ddp
