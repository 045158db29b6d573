#include "launcher/slurm/scontrol.h"

#include <algorithm>
#include <ctime>
#include <utility>
#include <vector>

#include "launcher/slurm/command.h"

namespace ddp::slurm {
namespace {

// scontrol's output. If its status is not 0, the output is the error's message.
Result<std::string> scontrol(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "scontrol");
  auto finished = run_command(arguments, "");
  if (!finished) return finished.error();
  std::string& text = finished->output;
  while (text.ends_with('\n')) text.pop_back();
  std::replace(text.begin(), text.end(), '\n', ' ');
  if (finished->status == 0) return std::move(text);
  return make_error(Errc::kIo, "scontrol: {}", text.empty() ? "no answer" : text);
}

}  // namespace

Result<void> requeue(const Step& step) {
  const auto answer = scontrol({"requeue", step.scontrol_id()});
  if (!answer) return answer.error();
  return {};
}

std::optional<std::int64_t> ask_end_time(const Step& step) {
  const auto line = scontrol({"show", "job", "-o", step.job_id});
  return line ? parse_time(std::string(field_of(*line, "EndTime"))) : std::nullopt;
}

std::string ask_node_address(const std::string& node) {
  const auto line = scontrol({"show", "node", "-o", node});
  return line ? std::string(field_of(*line, "NodeAddr")) : "";
}

std::string ask_munge_socket() {
  const auto config = scontrol({"show", "config"});
  return config ? munge_socket_in(*config) : "";
}

std::string munge_socket_in(std::string_view config) {
  constexpr std::string_view kName = " AuthInfo ";
  constexpr std::string_view kNext = " AuthType ";
  constexpr std::string_view kSocket = "socket=";
  const std::size_t begin = config.find(kName);
  if (begin == std::string_view::npos) return "";
  const std::string_view setting = config.substr(begin, config.find(kNext, begin) - begin);
  const std::size_t at = setting.find(kSocket);
  if (at == std::string_view::npos) return "";
  const std::string_view path = setting.substr(at + kSocket.size());
  return std::string(path.substr(0, path.find_first_of(" ,")));
}

std::string_view field_of(std::string_view line, std::string_view name) {
  while (!line.empty()) {
    const std::string_view word = line.substr(0, line.find(' '));
    if (word.size() > name.size() && word.starts_with(name) && word[name.size()] == '=')
      return word.substr(name.size() + 1);
    line.remove_prefix(std::min(line.size(), word.size() + 1));
  }
  return {};
}

std::optional<std::int64_t> parse_time(const std::string& text) {
  std::tm parts{};
  const char* rest = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &parts);
  if (rest == nullptr || *rest != '\0') return std::nullopt;
  parts.tm_isdst = -1;
  const std::time_t time = ::mktime(&parts);
  if (time == -1) return std::nullopt;
  return static_cast<std::int64_t>(time);
}

}  // namespace ddp::slurm
