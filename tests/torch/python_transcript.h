#pragma once

#include <chrono>
#include <cstdlib>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/python_torch.h"

namespace ddp::test {

// The output of a script in tests/torch that runs PyTorch itself, so that results are compared with
// those of the release on this machine. Throws if the script fails.
inline std::string python_transcript(const std::string& script) {
  const char* const source = std::getenv("DDP_SOURCE_DIR");
  const std::string path = std::string(source == nullptr ? "." : source) + "/tests/torch/" + script;
  const Finished python =
      run({kPython, path}, {{{"PYTHONDONTWRITEBYTECODE", "1"}}, ""}, std::chrono::minutes(4));
  if (python.status != 0) {
    throw std::runtime_error(script + " ended with " + std::to_string(python.status) + ":\n" +
                             python.err);
  }
  return python.out;
}

// What gloo_transcript.py's transcribe() prints: by size of the world and name, what each rank
// recorded.
using Transcript = std::map<std::pair<int, std::string>, std::map<int, std::vector<float>>>;

inline Transcript transcript_of(const std::string& script) {
  std::istringstream lines(python_transcript(script));
  Transcript result;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    int world = 0;
    int rank = 0;
    std::string name;
    words >> world >> rank >> name;
    std::vector<float>& values = result[{world, name}][rank];
    for (float value = 0; words >> value;) values.push_back(value);
  }
  return result;
}

}  // namespace ddp::test
