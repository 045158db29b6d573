#include "launcher/hosting/meeting_file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <sstream>
#include <thread>
#include <utility>

#include "common/base/clock.h"
#include "common/base/exit_error.h"
#include "common/log/log.h"
#include "common/process/all_signals_blocked.h"
#include "common/process/parked_threads.h"
#include "launcher/hosting/daemon_page.h"

namespace ddp::hosting {
namespace {

constexpr std::string_view kHead = "ddp-run meeting file 1\n";
constexpr std::size_t kMaxBytes = std::size_t{1} << 20;
constexpr int kPauseMs = 50;
// Several attempts, because a rendezvous may be slow to answer.
constexpr int kAttempts = 5;

Error unusable(const plan::JobPlan& plan, int error) {
  return exit_error(kExitInvalidValue,
                    "{}: {}; store_type=file needs a file on a file system that all nodes "
                    "share",
                    plan.endpoint_flag, std::generic_category().message(error));
}

Result<void> lock(const UniqueFd& fd, const plan::JobPlan& plan) {
  const TimePoint deadline = Clock::now() + Duration(plan.spec.rules.join_timeout_ms);
  while (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return unusable(plan, errno);
    if (Clock::now() >= deadline) {
      return exit_error(kExitJoinTimeout, "{}: another process has it locked for {} s",
                        plan.endpoint_flag, plan.spec.rules.join_timeout_ms / 1'000);
    }
    ::poll(nullptr, 0, kPauseMs);
  }
  return {};
}

Error last_error() {
  const std::error_code code(errno, std::generic_category());
  return {code, code.message()};
}

Result<std::string> read_all(const UniqueFd& fd) {
  std::string text;
  std::array<char, 4096> chunk;
  for (;;) {
    const ssize_t size = ::read(fd.get(), chunk.data(), chunk.size());
    if (size < 0) return last_error();
    if (size == 0 || text.size() > kMaxBytes) return text;
    text.append(chunk.data(), static_cast<std::size_t>(size));
  }
}

bool is_there(const MeetingPlace& place) {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const auto job = ask_daemon("/job", place.address, place.port);
    if (job) return *job == place.job_id;
    if (job.error().code != Errc::kTimeout) return false;
  }
  return false;
}

bool wait_for_lock(const UniqueFd& fd) {
  while (::flock(fd.get(), LOCK_EX) != 0) {
    if (errno != EINTR) return false;
  }
  return true;
}

// fsync, because nodes on other machines read the file as soon as the lock is free.
bool write_places(const UniqueFd& fd, const std::vector<MeetingPlace>& places) {
  const std::string text = encode_meeting_file(places);
  return ::pwrite(fd.get(), text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()) &&
         ::ftruncate(fd.get(), static_cast<off_t>(text.size())) == 0 && ::fsync(fd.get()) == 0;
}

auto entry_of(std::vector<MeetingPlace>& places, const std::string& job_id) {
  return std::ranges::find(places, job_id, &MeetingPlace::job_id);
}

}  // namespace

std::string encode_meeting_file(const std::vector<MeetingPlace>& places) {
  std::string text(kHead);
  for (const MeetingPlace& place : places) {
    text += fmt::format("{} {} {} {}\n", place.address, place.port, place.host_name, place.job_id);
  }
  return text;
}

Result<std::vector<MeetingPlace>> decode_meeting_file(std::string_view text) {
  std::vector<MeetingPlace> places;
  if (text.empty()) return places;
  if (!text.starts_with(kHead)) return make_error(Errc::kProtocol, "it belongs to another program");
  std::istringstream lines{std::string(text.substr(kHead.size()))};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    MeetingPlace place;
    words >> place.address >> place.port >> place.host_name;
    words.ignore(1);
    std::getline(words, place.job_id);
    if (words.fail() || place.port < 1 || place.port > 65535)
      return make_error(Errc::kProtocol, "it is damaged");
    places.push_back(std::move(place));
  }
  return places;
}

Result<MeetingFile> MeetingFile::enter(plan::JobPlan& plan) {
  MeetingFile file;
  if (plan.meeting_file.empty()) return file;
  // Whoever can open it can lock it, or send the nodes to a rendezvous of their own.
  constexpr int kMode = 0600;
  file.fd_.reset(::open(plan.meeting_file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, kMode));
  if (!file.fd_) return unusable(plan, errno);
  if (const auto locked = lock(file.fd_, plan); !locked) return locked.error();
  const auto text = read_all(file.fd_);
  if (!text) return unusable(plan, text.error().code.value());
  auto places = decode_meeting_file(*text);
  if (!places) {
    return exit_error(kExitInvalidValue,
                      "{}: {}; name a file that does not exist yet, or remove this one",
                      plan.endpoint_flag, places.error().message);
  }
  file.others_ = std::move(*places);
  const auto own = entry_of(file.others_, plan.spec.job_id);
  if (own == file.others_.end()) return file;
  if (is_there(*own)) {
    plan.host = false;
    plan.spec.coordinator_host = own->address;
    plan.spec.coordinator_port = own->port;
    // With replicas, another node may coordinate the job one day.
    if (plan.spec.tls.any() && plan.replicas == 1) plan.spec.tls_name = own->host_name;
  } else if (own->address == plan.spec.coordinator_host) {
    plan.spec.coordinator_port = own->port;
  }
  file.others_.erase(own);
  return file;
}

Result<void> MeetingFile::announce(const plan::JobPlan& plan) {
  if (!fd_ || !plan.host) return {};
  auto places = others_;
  places.push_back(
      {plan.spec.coordinator_host, plan.spec.coordinator_port, plan.spec.host, plan.spec.job_id});
  if (!write_places(fd_, places)) return unusable(plan, errno);
  return {};
}

void move_meeting(const std::string& path, const MeetingPlace& place) {
  const AllSignalsBlocked blocked;  // The main thread gets them.
  park_thread(std::thread([path, place] {
    const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    const auto failed = [&path](const std::string& why) {
      log::warning("{}: nodes that come now do not find the job there: {}", path, why);
    };
    if (!fd || !wait_for_lock(fd)) return failed(last_error().message);
    const auto text = read_all(fd);
    if (!text) return failed(text.error().message);
    auto places = decode_meeting_file(*text);
    if (!places) return failed(places.error().message);
    if (const auto old = entry_of(*places, place.job_id); old != places->end()) places->erase(old);
    places->push_back(place);
    if (!write_places(fd, *places)) failed(last_error().message);
  }));
}

}  // namespace ddp::hosting
