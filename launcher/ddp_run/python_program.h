#pragma once

#include <string>

namespace ddp::run {

// Whether `path` is there and is for `python3 -u PATH` rather than for the kernel: a folder with
// __main__.py, a zip archive, a file of byte code, or a text, unless it is executable and names its
// interpreter (#!). A text that names a shell is a shell's script that lacks its permission.
bool is_for_python(const std::string& path);

// The interpreter that the file's first line names (#!), as the line has it; empty if it names
// none.
std::string interpreter_of(const std::string& path);

// "python3", "/opt/venv/bin/python3.13".
bool is_python(const std::string& name);

}  // namespace ddp::run
