#pragma once

#include <string>
#include <string_view>

namespace ddp::run {

// Whether `path` is there and is for `python3 -u PATH` rather than for the kernel: a folder with
// __main__.py, a zip archive, a file of byte code, or a text, unless it is executable and names its
// interpreter (#!). A text that names a shell is a shell's script that lacks its permission.
bool is_for_python(const std::string& path);

// The interpreter that the file's first line names (#!), as the line has it, if its name begins
// with `name`; else empty.
std::string interpreter_in(const std::string& path, std::string_view name);

}  // namespace ddp::run
