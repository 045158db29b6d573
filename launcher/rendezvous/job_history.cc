#include "launcher/rendezvous/job_history.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

namespace ddp::rendezvous {
namespace {

// Of a reason or an error. What nodes say may be of any length.
constexpr std::size_t kHistoryTextMax = 1'000;
// 34 years; another coordinator may tell anything.
constexpr std::int64_t kElapsedMax = std::int64_t{1} << 40;
constexpr int kSharesMax = 1 << 30;
constexpr std::int64_t kBytesMax = std::int64_t{1} << 60;

std::string shortened(const std::string& text) { return text.substr(0, kHistoryTextMax); }

Duration time_of(const nlohmann::json& told, const char* field) {
  return Duration(std::clamp<std::int64_t>(told.at(field).get<std::int64_t>(), 0, kElapsedMax));
}

nlohmann::json to_json(const JobHistory::RoundRecord& round) {
  nlohmann::json object{{"round", round.round},
                        {"nodes", round.nodes},
                        {"world_size", round.world_size},
                        {"reason", round.reason},
                        {"began_ms", round.began.count()}};
  if (round.first_step) {
    object["first_step_ms"] = round.first_step->count();
    object["steps"] = {round.from_step, round.until_step};
  }
  if (round.ended) {
    object["ended_ms"] = round.ended->count();
    object["end"] = round.end;
  }
  return object;
}

nlohmann::json to_json(const JobHistory::CheckpointRecord& checkpoint) {
  nlohmann::json object{{"step", checkpoint.step},
                        {"round", checkpoint.round},
                        {"written_ms", checkpoint.written.count()},
                        {"shares", checkpoint.shares},
                        {"bytes", checkpoint.bytes},
                        {"seconds", checkpoint.seconds},
                        {"published", checkpoint.published}};
  if (!checkpoint.error.empty()) object["error"] = checkpoint.error;
  return object;
}

JobHistory::RoundRecord round_record(const nlohmann::json& told) {
  JobHistory::RoundRecord round{.round = told.at("round").get<Round>(),
                                .nodes = told.at("nodes").get<std::size_t>(),
                                .world_size = told.at("world_size").get<int>(),
                                .reason = shortened(told.at("reason").get<std::string>()),
                                .began = time_of(told, "began_ms")};
  if (told.contains("first_step_ms")) {
    round.first_step = time_of(told, "first_step_ms");
    round.from_step = told.at("steps").at(0).get<std::int64_t>();
    round.until_step = told.at("steps").at(1).get<std::int64_t>();
  }
  if (told.contains("ended_ms")) {
    round.ended = time_of(told, "ended_ms");
    round.end = shortened(told.at("end").get<std::string>());
  }
  return round;
}

JobHistory::CheckpointRecord checkpoint_record(const nlohmann::json& told) {
  return {.step = told.at("step").get<std::int64_t>(),
          .round = told.at("round").get<Round>(),
          .written = time_of(told, "written_ms"),
          .shares = std::clamp(told.at("shares").get<int>(), 0, kSharesMax),
          .bytes = std::clamp<std::int64_t>(told.at("bytes").get<std::int64_t>(), 0, kBytesMax),
          .seconds = told.at("seconds").get<double>(),
          .published = told.at("published").get<bool>(),
          .error = shortened(told.value("error", ""))};
}

}  // namespace

JobHistory JobHistory::restored(const nlohmann::json& facts, TimePoint told) {
  const Duration elapsed = time_of(facts, "elapsed_ms");
  JobHistory history(told - elapsed);
  history.told_ = elapsed;
  history.forgotten_ = facts.at("forgotten_rounds").get<std::size_t>();
  for (const nlohmann::json& round : facts.at("rounds")) {
    if (history.rounds_.size() < kMaxRounds) history.rounds_.push_back(round_record(round));
  }
  for (const nlohmann::json& checkpoint : facts.at("checkpoints")) {
    if (history.checkpoints_.size() < kMaxCheckpoints)
      history.checkpoints_.push_back(checkpoint_record(checkpoint));
  }
  const nlohmann::json& curves = facts.at("curves");
  history.loss_ = Curve::restored(curves.at("loss"));
  history.samples_per_second_ = Curve::restored(curves.at("samples_per_second"));
  history.steps_per_second_ = Curve::restored(curves.at("steps_per_second"));
  return history;
}

void JobHistory::begin_round(TimePoint now, Round round, std::size_t nodes, int world_size,
                             const std::string& reason) {
  if (!rounds_.empty() && !rounds_.back().ended) {
    RoundRecord& open = rounds_.back();
    if (open.round == round) return;
    open.ended = told_.value_or(since_began(now));
    open.end = "its coordinator was lost";
  }
  rounds_.push_back({.round = round,
                     .nodes = nodes,
                     .world_size = world_size,
                     .reason = shortened(reason),
                     .began = since_began(now)});
  if (rounds_.size() <= kMaxRounds) return;
  rounds_.pop_front();
  ++forgotten_;
}

void JobHistory::step(TimePoint now, std::int64_t step) {
  if (rounds_.empty() || step < 0) return;
  RoundRecord& round = rounds_.back();
  if (!round.first_step) {
    round.first_step = since_began(now);
    round.from_step = step;
  }
  round.until_step = std::max(round.until_step, step);
}

void JobHistory::end_round(TimePoint now, const std::string& why) {
  if (rounds_.empty() || rounds_.back().ended) return;
  rounds_.back().ended = since_began(now);
  rounds_.back().end = shortened(why);
}

void JobHistory::sample(TimePoint now, double loss, double samples_per_second,
                        double steps_per_second) {
  const Duration at = since_began(now);
  loss_.add(at, loss);
  samples_per_second_.add(at, samples_per_second);
  steps_per_second_.add(at, steps_per_second);
}

void JobHistory::saved(TimePoint now, const wire::SavedShare& share) {
  const auto is_same = [&](const CheckpointRecord& known) {
    return known.step == share.step && known.round == share.round;
  };
  auto found = std::find_if(checkpoints_.rbegin(), checkpoints_.rend(), is_same);
  if (found == checkpoints_.rend()) {
    checkpoints_.push_back({.step = share.step, .round = share.round});
    if (checkpoints_.size() > kMaxCheckpoints) checkpoints_.pop_front();
    found = checkpoints_.rbegin();
  }
  CheckpointRecord& checkpoint = *found;
  checkpoint.written = since_began(now);
  checkpoint.published = checkpoint.published || share.published;
  if (!share.error.empty()) {
    if (checkpoint.error.empty()) checkpoint.error = shortened(share.error);
    return;
  }
  checkpoint.shares = std::min(checkpoint.shares + 1, kSharesMax);
  // An agent may say anything.
  checkpoint.bytes += std::clamp<std::int64_t>(share.bytes, 0, kBytesMax - checkpoint.bytes);
  checkpoint.seconds = std::max(checkpoint.seconds, share.seconds);
}

nlohmann::json JobHistory::facts(TimePoint now) const {
  nlohmann::json rounds = nlohmann::json::array();
  for (const RoundRecord& round : rounds_) rounds.push_back(to_json(round));
  nlohmann::json checkpoints = nlohmann::json::array();
  for (const CheckpointRecord& checkpoint : checkpoints_)
    checkpoints.push_back(to_json(checkpoint));
  return {{"elapsed_ms", since_began(now).count()},
          {"rounds", std::move(rounds)},
          {"forgotten_rounds", forgotten_},
          {"checkpoints", std::move(checkpoints)},
          {"curves",
           {{"loss", to_json(loss_)},
            {"samples_per_second", to_json(samples_per_second_)},
            {"steps_per_second", to_json(steps_per_second_)}}}};
}

}  // namespace ddp::rendezvous
