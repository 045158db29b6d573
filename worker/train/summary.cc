#include "worker/train/summary.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include <nlohmann/json.hpp>

#include "common/base/unique_fd.h"
#include "common/process/write_file.h"

namespace ddp::train {
std::string to_json(const Summary& summary) {
  nlohmann::ordered_json object;
  object["model"] = summary.model;
  object["data"] = summary.data;
  object["world_size"] = summary.world_size;
  object["epochs"] = summary.epochs;
  object["steps"] = summary.steps;
  object["train_loss"] = summary.train_loss;
  object["test_accuracy"] = nullptr;
  if (summary.test_accuracy) object["test_accuracy"] = *summary.test_accuracy;
  object["weights_sha256"] = summary.weights_sha256;
  object["samples_per_second"] = summary.samples_per_second;
  object["restarts"] = summary.restarts;
  object["rounds"] = summary.rounds;
  object["resumed_from_step"] = summary.resumed_from_step;
  object["grad_sync"] = summary.grad_sync;
  object["seed"] = summary.seed;
  object["batch_size"] = summary.batch_size;
  object["blas"] = summary.blas;
  object["threads"] = summary.threads;
  return object.dump(2) + "\n";
}

Result<void> check_summary_path(const std::string& path) {
  std::error_code code;
  if (std::filesystem::is_directory(path, code)) return io_error(path, "write", EISDIR);
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  const std::string folder = parent.empty() ? "." : parent.string();
  if (!std::filesystem::is_directory(folder, code)) {
    return io_error(path, "write", std::filesystem::exists(folder, code) ? ENOTDIR : ENOENT);
  }
  if (::access(folder.c_str(), W_OK | X_OK) != 0) return io_error(path, "write", errno);
  return {};
}

Result<void> write_summary(const std::string& path, const Summary& summary) {
  return write_file(path, to_json(summary));
}

}  // namespace ddp::train
