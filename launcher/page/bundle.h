#pragma once

#include <cstddef>
#include <string_view>

// What bundle.py makes of web/ and d3 at build time.
namespace ddp::page {

extern const char kBundle[];
extern const std::size_t kBundleBytes;
// Content-Security-Policy, with the hash of the page's script, and a line end.
extern const std::string_view kBundleHeaders;

}  // namespace ddp::page
