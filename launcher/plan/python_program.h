#pragma once

#include <string>

namespace ddp::plan {

// Whether `path` exists and must run under `python3 -u PATH`: a folder with __main__.py, a zip
// archive, a byte code file, or a text. A text that is executable and names its interpreter (#!)
// runs directly instead. A text that names a shell is a shell script whose execute permission is
// missing, not Python.
bool is_for_python(const std::string& path);

// The interpreter in the file's #! line, as written; empty if there is no such line.
std::string interpreter_of(const std::string& path);

// Whether the name is a Python interpreter's: "python3", "/opt/venv/bin/python3.13".
bool is_python(const std::string& name);

}  // namespace ddp::plan
