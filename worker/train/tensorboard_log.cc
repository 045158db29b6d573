#include "worker/train/tensorboard_log.h"

#include <array>

namespace ddp::train {

using tensorboard::EventFile;
using tensorboard::Scalar;

Result<TensorBoardLog> TensorBoardLog::open(const std::string& folder, std::int64_t last_step,
                                            std::int64_t every) {
  auto file = EventFile::open(folder, last_step > 0 ? last_step : EventFile::kKeepNone);
  if (!file) return file.error();
  return TensorBoardLog(*std::move(file), every);
}

Result<void> TensorBoardLog::step(const StepRecord& record, double samples_per_second,
                                  std::int64_t restarts) {
  if (record.step % every_ != 0) return {};
  const std::array<Scalar, 4> scalars = {Scalar{"loss", record.loss},
                                         {"learning_rate", record.learning_rate},
                                         {"samples_per_second", samples_per_second},
                                         {"restarts", static_cast<double>(restarts)}};
  return add(record.step, scalars);
}

Result<void> TensorBoardLog::accuracy(std::int64_t step, double accuracy) {
  if (std::exchange(measured_, step) == step) return {};
  const std::array<Scalar, 1> scalars = {Scalar{"test_accuracy", accuracy}};
  return add(step, scalars);
}

Result<void> TensorBoardLog::checkpoint_held(std::int64_t step, double seconds) {
  const std::array<Scalar, 1> scalars = {Scalar{"checkpoint_seconds", seconds}};
  return add(step, scalars);
}

Result<void> TensorBoardLog::checkpoint_written(std::int64_t step, double seconds) {
  if (!file_) return {};
  return ended(file_->add_late(step, {"checkpoint_write_seconds", seconds}));
}

Result<void> TensorBoardLog::add(std::int64_t step, std::span<const Scalar> scalars) {
  if (!file_) return {};
  return ended(file_->add(step, scalars));
}

Result<void> TensorBoardLog::ended(Result<void> written) {
  if (!written) file_.reset();
  return written;
}

}  // namespace ddp::train
