#include <algorithm>
#include <array>
#include <exception>
#include <filesystem>
#include <limits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/json_text.h"
#include "worker/checkpoint/checksum.h"
#include "worker/checkpoint/snapshot_writer.h"
#include "worker/ddp/state/checkpoint_collect.h"
#include "worker/ddp/state/checkpointer_impl.h"
#include "worker/ddp/tensors/text_exchange.h"

// Checkpointer::save and wait: the ranks agree on what to do in one exchange; each copies its share
// and hands it on. The outcome is combined when all shares are written.
namespace ddp {
namespace {

using nlohmann::json;

constexpr const char* kSaveTag = "checkpoint save";
// How often ranks that wait for a save tell each other that they are still there.
constexpr std::chrono::milliseconds kTurn{20};

// What a rank tells the others before it changes anything.
struct Vote {
  std::int64_t code = 0;      // Why it cannot save, an Errc; 0: it can.
  std::int64_t contents = 0;  // Hash of what it has registered and shares with the others.
  std::int64_t step = 0;
  std::int64_t flags = 0;
};
constexpr std::int64_t kUnderWay = 1;  // Its share of the save before is still being written.
constexpr std::int64_t kFailed = 2;    // It was not finished.
constexpr std::int64_t kNoMemory = 4;  // There is none for a copy.

std::vector<Vote> exchange_votes(ProcessGroup& group, const Vote& mine) {
  if (group.size() == 1) return {mine};
  constexpr std::size_t kNumbers = 4;
  std::array<std::int64_t, kNumbers> in = {mine.code, mine.contents, mine.step, mine.flags};
  std::vector<std::int64_t> out(kNumbers * static_cast<std::size_t>(group.size()));
  group
      .all_gather({in.data(), in.size(), DType::kI64}, {out.data(), out.size(), DType::kI64},
                  {{}, kSaveTag})
      ->wait();
  std::vector<Vote> votes;
  for (auto at = out.begin(); at != out.end(); at += kNumbers) {
    votes.push_back({at[0], at[1], at[2], at[3]});
  }
  return votes;
}

bool any_has(const std::vector<Vote>& votes, std::int64_t flag) {
  return std::any_of(votes.begin(), votes.end(),
                     [flag](const Vote& vote) { return (vote.flags & flag) != 0; });
}

std::int64_t hash_of(const std::string& a, const std::string& b) {
  const std::string text = fmt::format("{}\n{}", a, b);
  const std::string digits = checkpoint::checksum_of(std::as_bytes(std::span(text))).substr(0, 15);
  return std::stoll(digits, nullptr, 16);
}

// The first line in which two texts differ, of each.
std::pair<std::string, std::string> difference(const std::string& a, const std::string& b) {
  const auto [at, other] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  const auto start = static_cast<std::size_t>(at - a.begin());
  const std::size_t line = start == 0 ? 0 : a.rfind('\n', start - 1) + 1;
  const auto line_of = [line](const std::string& text) {
    return line < text.size() ? text.substr(line, text.find('\n', line) - line) : "nothing more";
  };
  return {line_of(a), line_of(b)};
}

json report_of(const Result<checkpoint::Written>& result) {
  if (!result) {
    const bool ours = result.error().code.category() == make_error_code(Errc::kIo).category();
    return {{"code", ours ? result.error().code.value() : static_cast<int>(Errc::kIo)},
            {"error", result.error().message}};
  }
  return {{"code", 0}, {"path", result->path}, {"warnings", result->warnings}};
}

// The most telling of the ranks' errors about a failed save: not that a rank waited in vain, or
// gave up because another did.
Error cause_of(const std::vector<json>& reports, bool alone) {
  const auto says_much = [](const json& report) {
    const int code = report.at("code");
    return code != 0 && code != static_cast<int>(Errc::kTimeout) &&
           code != static_cast<int>(Errc::kAborted);
  };
  auto found = std::find_if(reports.begin(), reports.end(), says_much);
  if (found == reports.end()) found = reports.begin();
  const auto code = static_cast<Errc>(found->at("code").get<int>());
  const auto text = found->at("error").get<std::string>();
  if (alone) return make_error(code, "{}", text);
  return make_error(code, "rank {}: {}", found - reports.begin(), text);
}

// The end of a save that began earlier.
Result<SaveReport> told(std::int64_t step, Result<SaveReport> end) {
  if (end) return end;
  return make_error(static_cast<Errc>(end.error().code.value()),
                    "the checkpoint of step {} was not finished: {}", step, end.error().message);
}

}  // namespace

// Called once per object; afterwards saves get their names without an exchange.
void Checkpointer::Impl::choose_word() {
  if (word_.empty()) word_ = broadcast_text(*group, unique_word(), 0, kSaveTag);
}

// Another process may write there, with another working directory.
std::string Checkpointer::Impl::folder_path() const {
  const bool is_real = &files == &checkpoint::posix_file_system();
  return is_real ? std::filesystem::absolute(options.directory).string() : options.directory;
}

Result<Checkpointer::Impl::Share> Checkpointer::Impl::make_share(std::int64_t step,
                                                                 std::int64_t epoch) {
  auto collected = collect(
      *this,
      {.rank = group->rank(), .world_size = group->size(), .share = options.ranks_are_equal});
  if (!collected) return collected.error();
  checkpoint::SnapshotPlan& plan = collected->plan;
  plan.directory = folder_path();
  plan.save_id = fmt::format("{}-{}", word_, serial_);
  plan.step = step;
  plan.epoch = epoch;
  plan.round = group->round();
  plan.retention = {options.keep, options.keep_every};
  plan.damaged.assign(directory.bad().begin(), directory.bad().end());
  plan.bytes_per_second = options.bytes_per_second;
  plan.timeout = options.timeout;
  auto layout = checkpoint::lay_out(std::move(plan));
  if (!layout) return layout.error();
  return Share{std::move(*layout),
               std::move(collected->sources),
               std::move(collected->wanted),
               std::move(collected->wanted_sources),
               std::move(collected->registered),
               std::move(collected->shared)};
}

// All ranks must have rank 0's contents, or loading would fail much later.
Result<void> Checkpointer::Impl::compare_registrations(const Share& share) {
  Result<void> same;
  const std::string registered = broadcast_text(*group, share.registered, 0, kSaveTag);
  const std::string shared = broadcast_text(*group, share.shared, 0, kSaveTag);
  if (registered != share.registered) {
    same = make_error(Errc::kMismatch,
                      "this rank has registered different state from rank 0; here:\n{}there:\n{}",
                      share.registered, registered);
  } else if (shared != share.shared) {
    const auto [here, there] = difference(share.shared, shared);
    same = make_error(Errc::kMismatch,
                      "this rank saves different tensors from rank 0: {} here, {} there; if "
                      "replicas are meant to differ, set ranks_are_equal to false",
                      here, there);
  }
  return agree(*group, same, kSaveTag);
}

// Learns what has been written meanwhile. before_step: what began in an earlier round at this step
// or later is made again now.
void Checkpointer::Impl::note_finished(std::int64_t before_step) {
  for (FinishedSave& save : writer->impl().take_finished()) {
    if (!pending_ || save.id != pending_->id) {
      note_earlier(std::move(save), before_step);
      continue;
    }
    pending_->result = std::move(save.result);
    if (*pending_->result) tell_written(save.step, (*pending_->result)->seconds);
  }
}

// A save of an earlier round, whose ranks may have died: a warning, not a failure of the disk.
void Checkpointer::Impl::note_earlier(FinishedSave save, std::int64_t before_step) {
  if (group->rank() != 0) return;
  if (!save.result) {
    warnings.push_back(
        fmt::format("the checkpoint of step {}, begun in an earlier round, was not finished: {}",
                    save.step, save.result.error().message));
    return;
  }
  if (save.step < before_step) tell_written(save.step, save.result->seconds);
  for (std::string& line : save.result->warnings) warnings.push_back(std::move(line));
}

void Checkpointer::Impl::tell_held() {
  const std::chrono::duration<double> seconds = Clock::now() - pending_->begun;
  tell(times.held, pending_->step, seconds.count());
}

void Checkpointer::Impl::tell_written(std::int64_t step, double seconds) {
  tell(times.written, step, seconds);
}

// Whoever cannot record it costs neither the checkpoint nor the ranks' agreement on where they are.
void Checkpointer::Impl::tell(const std::function<void(std::int64_t, double)>& listener,
                              std::int64_t step, double seconds) {
  if (group->rank() != 0 || !listener) return;
  try {
    listener(step, seconds);
  } catch (const std::exception& error) {
    warnings.push_back(fmt::format("how long the checkpoint of step {} took is not recorded: {}",
                                   step, error.what()));
  }
}

void Checkpointer::Impl::tell_newest(std::int64_t step) const {
  if (group->rank() != 0 || !times.written) return;
  const auto entries = directory.list();
  if (!entries) return;
  for (const checkpoint::Entry& entry : *entries) {
    if (entry.step > step) continue;
    const auto manifest = directory.inspect(entry);
    if (!manifest) continue;
    if (manifest->seconds >= 0) times.written(entry.step, manifest->seconds);
    return;
  }
}

// Why there is no memory for a copy; empty if there is. Not to be called while the memory is in
// use.
std::string Checkpointer::Impl::lack_of_memory(std::uint64_t bytes) {
  if (!options.asynchronous || writer->impl().busy()) return {};
  const auto memory = writer->impl().reserve(bytes, options.snapshot_limit);
  return memory ? std::string() : memory.error().message;
}

// Once all ranks have agreed to save.
void Checkpointer::Impl::gather_parts(Share& share) {
  if (share.wanted.empty()) return;
  std::vector<at::Tensor> whole = gather_whole(share.wanted, *group);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    if (whole[i].defined()) share.sources[share.wanted_sources[i]] = std::move(whole[i]);
  }
}

bool Checkpointer::Impl::copy_share(const Share& share) {
  const checkpoint::SnapshotLayout& layout = share.layout;
  try {
    const auto memory = writer->impl().reserve(layout.bytes, options.snapshot_limit);
    DDP_CHECK(memory.has_value(), "the memory was there a moment ago");
    checkpoint::unseal_snapshot(*memory);
    copy_into(*memory, layout, share.sources);
    checkpoint::seal_snapshot(*memory, layout);
    return true;
  } catch (const std::exception& error) {
    // The others write their shares; rank 0 finds that this one does not come.
    pending_->result = make_error(Errc::kIo, "copying the state failed: {}", error.what());
    return false;
  }
}

void Checkpointer::Impl::write_in_background(const Share& share) {
  if (!copy_share(share)) return;
  tell_held();  // Without rank 0's share there is no checkpoint, and it has no writer yet.
  try {
    writer->impl().write(pending_->id, pending_->step, files);
  } catch (const std::exception& error) {
    pending_->result = make_error(Errc::kIo, "no thread could start to write it: {}", error.what());
  }
}

// Straight from the tensors, while training waits.
void Checkpointer::Impl::write_now(const Share& share) {
  try {
    std::vector<at::Tensor> keep;
    const checkpoint::Snapshot snapshot = in_place(share.layout, share.sources, keep);
    checkpoint::WriterOptions writing;
    writing.before_visible = [this] { tell_held(); };
    if (&files == &checkpoint::posix_file_system()) {
      writing.on_standing = [](const checkpoint::StandingCall&) {
      };  // So that it says that it lives.
    }
    pending_->result = checkpoint::write_snapshot(files, snapshot, writing);
    if (*pending_->result) tell_written(pending_->step, (*pending_->result)->seconds);
  } catch (const std::exception& error) {
    pending_->result = make_error(Errc::kIo, "writing the state failed: {}", error.what());
  }
}

Result<SaveReport> Checkpointer::Impl::save(std::int64_t step, std::int64_t epoch) {
  const TimePoint begun = Clock::now();
  warnings.clear();
  choose_word();
  Result<Share> share = make_share(step, epoch);
  if (const std::string left = writer->impl().left_behind(); share && !left.empty()) {
    share = make_error(Errc::kTimeout, "{}", left);
  }
  std::vector<Vote> votes;
  std::string no_memory;
  for (;;) {
    note_finished(step);
    Vote mine;
    mine.step = step;
    if (share) {
      mine.contents = hash_of(share->registered, share->shared);
      no_memory = lack_of_memory(share->layout.bytes);
    } else {
      mine.code = 1;
    }
    if (writer->impl().busy()) mine.flags |= kUnderWay;
    if (pending_ && pending_->result && !*pending_->result) mine.flags |= kFailed;
    if (!no_memory.empty()) mine.flags |= kNoMemory;
    votes = exchange_votes(*group, mine);
    const auto differs = [&votes](const Vote& vote) {
      return vote.contents != votes[0].contents || vote.step != votes[0].step;
    };
    if (std::any_of(votes.begin(), votes.end(), [](const Vote& vote) { return vote.code != 0; })) {
      return agree(*group, share ? Result<void>() : Result<void>(share.error()), kSaveTag).error();
    }
    if (std::any_of(votes.begin(), votes.end(), differs)) {
      if (auto same = compare_registrations(*share); !same) return same.error();
      return make_error(Errc::kMismatch, "the ranks save different steps: rank 0 says {}",
                        votes[0].step);
    }
    if (!any_has(votes, kUnderWay)) break;
    tell_publisher((votes[0].flags & kUnderWay) != 0);
    writer->impl().wait_for(kTurn);
  }
  Result<SaveReport> before = SaveReport();
  if (pending_) before = conclude_if(any_has(votes, kFailed));

  ++serial_;
  pending_ = Pending{share->layout.plan.save_id, step, begun, std::nullopt};
  gather_parts(*share);
  const bool in_background = options.asynchronous && !any_has(votes, kNoMemory);
  SaveReport report{SaveReport::State::kWriting, step, "", ""};
  if (in_background) {
    write_in_background(*share);
  } else {
    write_now(*share);
    Result<SaveReport> written = conclude();
    if (!written) return written;
    report = std::move(*written);
    if (options.asynchronous) {
      report.note =
          "training waited for the disk, since there is no memory for a copy of the state";
      if (!no_memory.empty()) report.note += ": " + no_memory;
    }
  }
  if (!before) return before;
  return report;
}

// Returns when nothing of any rank is being written.
void Checkpointer::Impl::wait_until_free() {
  for (;;) {
    note_finished(std::numeric_limits<std::int64_t>::max());
    Vote mine;
    if (writer->impl().busy()) mine.flags |= kUnderWay;
    const std::vector<Vote> votes = exchange_votes(*group, mine);
    if (!any_has(votes, kUnderWay)) return;
    tell_publisher((votes[0].flags & kUnderWay) != 0);
    writer->impl().wait_for(kTurn);
  }
}

// A writer that fails tells rank 0's so. One that could not start, or was killed, could not: then
// rank 0's would wait for this share until the save's timeout.
void Checkpointer::Impl::tell_publisher(bool it_waits) {
  constexpr std::chrono::seconds kTimeToHear{1};
  if (!it_waits || group->rank() == 0) return;
  if (!pending_ || !pending_->result || *pending_->result || pending_->is_told) return;
  const TimePoint now = Clock::now();
  if (!pending_->awaited_since) pending_->awaited_since = now;
  if (now - *pending_->awaited_since < kTimeToHear) return;
  pending_->is_told = true;
  checkpoint::SnapshotPlan plan;
  plan.directory = folder_path();
  plan.save_id = pending_->id;
  plan.step = pending_->step;
  plan.world_size = group->size();
  plan.rank = group->rank();
  writer->impl().abandon(std::move(plan), pending_->result->error().message, files);
}

// The outcome of the previous save: ranks exchange it only if one has seen it fail.
Result<SaveReport> Checkpointer::Impl::conclude_if(bool any_failed) {
  const std::int64_t step = pending_->step;
  if (any_failed) return told(step, conclude());
  for (std::string& line : (*pending_->result)->warnings) warnings.push_back(std::move(line));
  pending_.reset();
  return SaveReport();
}

// Puts together what the ranks know of the pending save, which none is writing any more.
Result<SaveReport> Checkpointer::Impl::conclude() {
  const Pending pending = *std::exchange(pending_, std::nullopt);
  const Result<checkpoint::Written> own =
      pending.result.value_or(make_error(Errc::kIo, "no writer has reported how the save ended"));
  const std::string text = dump_json(report_of(own));
  std::vector<json> reports;
  for (const std::string& report : gather_texts(*group, text, kSaveTag)) {
    reports.push_back(parse_json(report));
  }
  if (group->rank() == 0) {
    for (const json& report : reports) {
      for (const auto& line : report.value("warnings", json::array())) warnings.push_back(line);
    }
  }
  // Rank 0's outcome counts: it publishes only when all shares are there.
  if (reports[0].at("code") != 0) return cause_of(reports, group->size() == 1);
  const auto path = reports[0].at("path").get<std::string>();
  last_ = {SaveReport::State::kDurable, pending.step,
           checkpoint::join_path(options.directory, path.substr(path.rfind('/') + 1)), ""};
  return last_;
}

Result<SaveReport> Checkpointer::Impl::wait() {
  warnings.clear();
  wait_until_free();
  if (!pending_) return last_;
  const std::int64_t step = pending_->step;
  return told(step, conclude());
}

}  // namespace ddp
