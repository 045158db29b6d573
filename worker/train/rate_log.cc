#include "worker/train/rate_log.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <cerrno>
#include <utility>

#include <nlohmann/json.hpp>

#include "common/process/write_file.h"

namespace ddp::train {
namespace {

double cpu_seconds() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace

Result<std::unique_ptr<RateLog>> RateLog::open(const std::string& path, bool append,
                                               std::int64_t every) {
  const int begin = append ? O_APPEND : O_TRUNC;
  UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | begin, 0666));
  if (file.get() < 0) return io_error(path, "open", errno);
  return std::unique_ptr<RateLog>(new RateLog(path, std::move(file), every));
}

RateLog::RateLog(std::string path, UniqueFd file, std::int64_t every)
    : path_(std::move(path)), file_(std::move(file)), every_(every), cpu_before_(cpu_seconds()) {}

Result<void> RateLog::step(const StepRecord& record) {
  if (file_.get() < 0) return {};
  ++steps_;
  samples_ += record.samples;
  seconds_ += record.seconds;
  if (steps_ < every_) return {};
  auto written = write_line(record);
  if (!written) file_.reset();
  steps_ = 0;
  samples_ = 0;
  seconds_ = 0;
  return written;
}

Result<void> RateLog::accuracy(std::int64_t epoch, std::int64_t step, double accuracy) {
  if (file_.get() < 0) return {};
  nlohmann::ordered_json line;
  line["epoch"] = epoch + 1;
  line["step"] = step;
  line["test_accuracy"] = accuracy;
  auto written = write_all(file_.get(), line.dump() + "\n", path_);
  if (!written) file_.reset();
  return written;
}

Result<void> RateLog::write_line(const StepRecord& record) {
  const double cpu = cpu_seconds();
  nlohmann::ordered_json line;
  line["epoch"] = record.epoch + 1;
  line["step"] = record.step;
  line["loss"] = record.loss;
  line["learning_rate"] = record.learning_rate;
  line["steps"] = steps_;
  line["samples"] = samples_;
  line["seconds"] = seconds_;
  line["samples_per_second"] = static_cast<double>(samples_) / seconds_;
  line["cpu_seconds"] = cpu - std::exchange(cpu_before_, cpu);
  return write_all(file_.get(), line.dump() + "\n", path_);
}

}  // namespace ddp::train
