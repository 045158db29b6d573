#include "worker/ddp/trainer/tensorboard_logger.h"

#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "worker/tensorboard/event_file.h"

namespace ddp {

struct TensorBoardLogger::Impl {
  std::string save_dir;
  std::optional<tensorboard::EventFile> file;
  std::int64_t epoch_at = -1;  // The step that has its "epoch".
};

TensorBoardLogger::TensorBoardLogger(std::string save_dir)
    : impl_(std::make_unique<Impl>(std::move(save_dir))) {}

TensorBoardLogger::~TensorBoardLogger() = default;

void TensorBoardLogger::begin(const TrainingPlace& place) {
  using tensorboard::EventFile;
  auto file = EventFile::open(impl_->save_dir, place.step > 0 ? place.step : EventFile::kKeepNone);
  if (!file) throw std::runtime_error(file.error().message);
  impl_->file = *std::move(file);
  impl_->epoch_at = -1;
}

void TensorBoardLogger::log_metrics(const TrainingPlace& place, const MetricValues& values) {
  std::vector<tensorboard::Scalar> scalars;
  if (std::exchange(impl_->epoch_at, place.step) != place.step)
    scalars.push_back({"epoch", static_cast<double>(place.epoch)});
  for (const auto& [name, value] : values) scalars.push_back({name, value});
  const auto written = impl_->file->add(place.step, scalars);
  if (!written) throw std::runtime_error(written.error().message);
}

void TensorBoardLogger::log_late(std::int64_t step, const std::string& name, double value) {
  const auto written = impl_->file->add_late(step, {name, value});
  if (!written) throw std::runtime_error(written.error().message);
}

}  // namespace ddp
