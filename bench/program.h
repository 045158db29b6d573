#pragma once

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

namespace ddp::bench {

// main() of a program whose work is `run`: 0, or 1 after what run threw is on stderr, with the
// program's name before it.
inline int run_program(const char* name, void (*run)(int, char**), int argc, char** argv) {
  try {
    run(argc, argv);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", name, error.what());
    return 1;
  }
}

// Whether NAME=1 is in the environment.
inline bool is_asked_for(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && std::string(value) == "1";
}

}  // namespace ddp::bench
