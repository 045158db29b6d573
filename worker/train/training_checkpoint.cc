#include "worker/train/training_checkpoint.h"

#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <torch/optim/optimizer.h>

#include "common/base/exit_codes.h"
#include "worker/ddp/loop/training_loop.h"
#include "worker/train/training_failure.h"

namespace ddp::train {

using nlohmann::json;

TrainingCheckpoint::TrainingCheckpoint(Parts parts)
    : parts_(std::move(parts)),
      checkpointer_({.directory = parts_.options.checkpoint_dir,
                     .keep = parts_.options.checkpoint_keep,
                     .keep_every = parts_.options.checkpoint_keep_every,
                     .asynchronous = parts_.options.checkpoint_async,
                     .bytes_per_second =
                         static_cast<std::uint64_t>(parts_.options.checkpoint_bandwidth * 1e6),
                     .timeout = std::chrono::duration_cast<std::chrono::milliseconds>(
                         std::chrono::duration<double>(parts_.options.checkpoint_timeout)),
                     .ranks_are_equal = parts_.replica.keeps_ranks_equal()},
                    parts_.group, parts_.writer) {
  TrainState& state = parts_.state;
  loop::add_training(checkpointer_, parts_.model, parts_.optimizer, parts_.replica);
  if (const auto& averager = parts_.replica.averager()) {
    local_ = std::make_unique<LocalReplica>(parts_.model, parts_.optimizer);
    checkpointer_.add_comm_hook("local_replica", *local_);
    checkpointer_.add_value(
        "averager", [averager] { return averager->state(); },
        [averager](const json& saved) { averager->load_state(saved); });
  }
  checkpointer_.add_value(
      "settings", [this] { return settings_of(parts_.options); },
      [this](const json& saved) { compare_settings(saved); });
  checkpointer_.add_value(
      "position",
      [&state] {
        return json{{"epoch", state.epoch}, {"position", state.position}, {"step", state.step}};
      },
      [&state](const json& saved) {
        state.epoch = saved.at("epoch").get<std::int64_t>();
        state.position = saved.at("position").get<std::int64_t>();
        state.step = saved.at("step").get<std::int64_t>();
      });
  if (parts_.replica.logical_ranks() != nullptr) return;  // Their state includes the losses.
  checkpointer_.add_value(
      "loss",
      [&state] {
        return json{{"sum", state.loss_sum}, {"count", state.loss_count}};
      },
      [&state](const json& saved) {
        state.loss_sum = saved.at("sum").get<double>();
        state.loss_count = saved.at("count").get<std::int64_t>();
      },
      true);
}

json TrainingCheckpoint::settings_of(const Options& options) const {
  json settings{{"must_agree",
                 {{"--model", options.model},
                  {"--data", options.data},
                  {"--seed", options.seed},
                  {"--train-samples", parts_.train_samples},
                  {"--image-size", options.image_size},
                  {"--num-classes", options.num_classes},
                  {"--comm-hook", options.comm_hook},
                  {"--logical-world-size", options.logical_world_size},
                  {"--device", to_string(options.device)}}},
                {"may_change",
                 {{"--dropout", options.dropout},
                  {"--micro-batches", options.micro_batches},
                  {"--batch-size", options.batch_size},
                  {"--accumulate-steps", options.accumulate_steps},
                  {"--drop-last", options.drop_last},
                  {"--lr", options.lr},
                  {"--momentum", options.momentum},
                  {"--weight-decay", options.weight_decay},
                  {"--lr-schedule", to_string(options.lr_schedule)},
                  {"--lr-warmup-epochs", options.lr_warmup_epochs},
                  {"--lr-decay-epochs", options.lr_decay_epochs},
                  {"--lr-decay-factor", options.lr_decay_factor},
                  {"--clip-grad-norm", options.clip_grad_norm},
                  {"--grad-sync", to_string(options.grad_sync)},
                  {"--bucket-cap-mb", options.bucket_cap_mb},
                  {"--broadcast-buffers", options.broadcast_buffers}}},
                {"threads", parts_.threads}};
  // Other flags of a model change its tensors' names or shapes; the heads change no tensor.
  if (options.model == "gpt") settings["must_agree"]["--heads"] = options.gpt.heads;
  return settings;
}

void TrainingCheckpoint::compare_settings(const json& saved) {
  const json own = settings_of(parts_.options);
  const json defaults = settings_of({});
  // A flag that the checkpoint does not have is newer than it, and had its default then. Without a
  // default, as --heads is, it may have had any value.
  const auto other_of = [&](const char* part, const std::string& flag, const json& mine) {
    return saved.at(part).value(flag, defaults.at(part).value(flag, mine));
  };
  for (const auto& [flag, value] : own.at("must_agree").items()) {
    const json other = other_of("must_agree", flag, value);
    if (value == other) continue;
    other_training_ = fmt::format(
        "{} {}: --checkpoint-dir {} holds a training with {} {}; resume with that value, or "
        "use another folder",
        flag, value.dump(), parts_.options.checkpoint_dir, flag, other.dump());
    throw std::runtime_error(other_training_);
  }
  for (const auto& [flag, value] : own.at("may_change").items()) {
    const json other = other_of("may_change", flag, value);
    if (value == other) continue;
    parts_.say(fmt::format("note: {} {} from here on, {} in the checkpoint", flag, value.dump(),
                           other.dump()));
  }
  if (saved.at("threads") != own.at("threads")) {
    parts_.say(fmt::format(
        "note: the checkpoint was computed with {} threads per worker, this run has {}; the last "
        "bits of the result may differ",
        saved.at("threads").dump(), own.at("threads").dump()));
  }
}

bool TrainingCheckpoint::resume(bool load) {
  const std::string flag = fmt::format("--checkpoint-dir {}: ", parts_.options.checkpoint_dir);
  if (const auto prepared = checkpointer_.prepare(); !prepared) {
    // After round 0 the folder was usable before and may become usable again (a full disk, another
    // program that uses it), so the exit status allows a restart.
    const bool has_trained = parts_.group->round() > 0;
    throw TrainingFailure(has_trained ? kExitCheckpointFailed : kExitCheckpointUnwritable,
                          flag + prepared.error().message);
  }
  if (!load) return false;
  LoadOptions loading;
  loading.progress = [this](const LoadProgress& progress) {
    parts_.say(fmt::format("loading the checkpoint: {} of {} MB after {:.0f} s",
                           progress.bytes / 1'000'000, progress.total / 1'000'000,
                           progress.seconds));
  };
  const auto report = checkpointer_.load_latest(loading);
  if (!report) {
    if (!other_training_.empty()) throw TrainingFailure(kExitInvalidValue, other_training_);
    // Another model or optimizer, or another state of the communication hook.
    const bool other =
        report.error().code == Errc::kMismatch || report.error().code == Errc::kInvalidArgument;
    throw TrainingFailure(other ? kExitInvalidValue : kExitCheckpointUnwritable,
                          flag + report.error().message + hint(report.error()));
  }
  if (local_) local_->apply();
  for (const std::string& line : report->skipped) parts_.say("warning: " + line);
  for (const std::string& line : report->notes) parts_.say("note: " + line);
  if (report->step < 0) return false;
  parts_.say(fmt::format("resumed from step {} ({})", report->step, report->path));
  return true;
}

// A checkpoint with another --logical-world-size has other names in it, so loading fails before the
// settings are compared. This recognises that error.
std::string TrainingCheckpoint::hint(const Error& error) const {
  const auto names = [&](const char* text) {
    return error.message.find(text) != std::string::npos;
  };
  if (!names("logical_ranks") && (parts_.options.logical_world_size > 0 || !names("generator")))
    return {};
  return fmt::format(
      "; the training in it has another --logical-world-size than {}: resume with its value, or "
      "use another folder",
      parts_.options.logical_world_size);
}

void TrainingCheckpoint::tell_warnings() {
  for (const std::string& line : checkpointer_.warnings()) parts_.say("warning: " + line);
}

void TrainingCheckpoint::fail(const Error& error) {
  // The error of an earlier save names its step.
  const std::string text =
      error.message.starts_with("the checkpoint of step ")
          ? fmt::format("--checkpoint-dir {}: {}", parts_.options.checkpoint_dir, error.message)
          : fmt::format("checkpoint of step {} in {}: {}", parts_.state.step,
                        parts_.options.checkpoint_dir, error.message);
  if (parts_.options.checkpoint_failure == OnCheckpointFailure::kStop) {
    throw TrainingFailure(kExitCheckpointFailed, text);
  }
  parts_.say("warning: training goes on without a checkpoint: " + text);
}

void TrainingCheckpoint::save() {
  const auto saved = checkpointer_.save(parts_.state.step, parts_.state.epoch);
  tell_warnings();
  if (!saved) return fail(saved.error());
  if (!saved->note.empty()) {
    parts_.say(fmt::format("note: checkpoint of step {}: {}", saved->step, saved->note));
  }
}

bool TrainingCheckpoint::wait() {
  const auto last = checkpointer_.wait();
  tell_warnings();
  if (!last) fail(last.error());
  return last.has_value();
}

}  // namespace ddp::train
