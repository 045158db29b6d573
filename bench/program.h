#pragma once

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

namespace ddp::bench {

// main() of a program that does `run`. Returns 0; or, if `run` throws, prints the program's name
// and the exception to stderr and returns 1.
inline int run_program(const char* name, void (*run)(int, char**), int argc, char** argv) {
  try {
    run(argc, argv);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", name, error.what());
    return 1;
  }
}

// Whether the environment has NAME=1.
inline bool is_asked_for(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && std::string(value) == "1";
}

}  // namespace ddp::bench
