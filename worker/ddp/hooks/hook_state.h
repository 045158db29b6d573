#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "worker/ddp/averaging/comm_hook.h"
#include "worker/ddp/hooks/bucket_cache.h"

namespace ddp {

// Reads a hook's saved state, which comes from a file. On bad state every function throws
// std::invalid_argument that says whose state it is, which part, and what is wrong.
class HookStateReader {
 public:
  HookStateReader(std::string who, const CommHookState& state);

  // Checks that values["options"] equals `options`.
  void expect_options(const nlohmann::json& options) const;
  // A number of values that is not negative.
  std::int64_t count(const char* key) const;
  // Copies the tensors below each prefix into its place. A tensor below no prefix is an error.
  void take(const std::map<std::string, at::Tensor>& tensors,
            const std::vector<std::pair<std::string, NamedTensors*>>& places) const;

 private:
  [[noreturn]] void refuse(const std::string& text) const;

  std::string who_;
  const CommHookState& state_;
};

}  // namespace ddp
