#pragma once

#include <cstdint>
#include <string>

namespace ddp {

// Bytes for people: "512.0 KiB", "2.0 GiB".
std::string size_text(std::int64_t bytes);

}  // namespace ddp
