#include "launcher/hosts/syntax/host_list.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <fstream>
#include <sstream>

#include "common/base/parse_number.h"

namespace ddp::hosts {
namespace {

constexpr int kSlotsMax = 65'536;
constexpr std::size_t kHostsMax = 65'536;
constexpr std::size_t kNameMax = 255;
constexpr std::string_view kPunctuation = "._-@%:/+";

bool is_name_character(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
         kPunctuation.find(c) != std::string_view::npos;
}

// Names become arguments of programs, and --dry-run prints them for shells, so none may look like a
// flag or a piece of script.
Result<void> check_name(std::string_view name) {
  if (name.empty()) return make_error(Errc::kInvalidArgument, "a host's name is empty");
  if (name.size() > kNameMax) {
    return make_error(Errc::kInvalidArgument, "the name '{}...' has more than {} characters",
                      name.substr(0, 40), kNameMax);
  }
  const bool plain = std::all_of(name.begin(), name.end(), is_name_character);
  if (!plain || name.front() == '-') {
    return make_error(
        Errc::kInvalidArgument,
        "'{}' is not a host name: letters, digits and {} are allowed, and no - in front", name,
        kPunctuation);
  }
  return {};
}

Result<int> parse_slots(std::string_view text) {
  const auto slots = parse_whole_number(text, 1, kSlotsMax);
  if (slots) return *slots;
  return make_error(Errc::kInvalidArgument, "'{}' is not a number of slots (1 to {})", text,
                    kSlotsMax);
}

// HOST[:SLOTS], [V6][:SLOTS].
Result<Host> parse_host(std::string_view text) {
  std::string_view name = text;
  std::string_view slots;
  bool has_slots = false;
  const std::size_t bracket = text.find(']');
  if (text.starts_with('[')) {
    if (bracket == std::string_view::npos) {
      return make_error(Errc::kInvalidArgument, "'{}' lacks its closing bracket", text);
    }
    name = text.substr(1, bracket - 1);
    slots = text.substr(bracket + 1);
    has_slots = !slots.empty();
    if (has_slots && slots.front() != ':') {
      return make_error(Errc::kInvalidArgument, "'{}': only :SLOTS may follow the bracket", text);
    }
    if (has_slots) slots.remove_prefix(1);
  } else if (const std::size_t colon = text.find(':'); colon != std::string_view::npos) {
    if (text.find(':', colon + 1) != std::string_view::npos) {
      return make_error(Errc::kInvalidArgument,
                        "'{}' has several colons; write an IPv6 address in brackets, for example "
                        "[fd00::7]:4",
                        text);
    }
    name = text.substr(0, colon);
    slots = text.substr(colon + 1);
    has_slots = true;
  }
  if (const auto plain = check_name(name); !plain) return plain.error();
  Host host{std::string(name), 0};
  if (!has_slots) return host;
  const auto count = parse_slots(slots);
  if (!count) return make_error(Errc::kInvalidArgument, "{}: {}", text, count.error().message);
  host.slots = *count;
  return host;
}

Result<void> add(std::vector<Host>& hosts, Host host) {
  // Quadratic, but a thousand hosts need only half a million comparisons.
  for (const Host& other : hosts) {
    if (other.name == host.name) {
      return make_error(Errc::kExists, "host {} is named twice; write {}:N for N workers there",
                        host.name, host.name);
    }
  }
  if (hosts.size() == kHostsMax) {
    return make_error(Errc::kInvalidArgument, "there are more than {} hosts", kHostsMax);
  }
  hosts.push_back(std::move(host));
  return {};
}

std::vector<std::string_view> split_line(std::string_view line) {
  constexpr std::string_view kBlank = " \t\r";
  std::vector<std::string_view> found;
  for (std::size_t at = line.find_first_not_of(kBlank); at != std::string_view::npos;) {
    const std::size_t end = std::min(line.find_first_of(kBlank, at), line.size());
    found.push_back(line.substr(at, end - at));
    at = line.find_first_not_of(kBlank, end);
  }
  return found;
}

Result<Host> parse_line(const std::vector<std::string_view>& line) {
  auto host = parse_host(line[0]);
  if (!host) return host.error();
  for (std::size_t i = 1; i < line.size(); ++i) {
    constexpr std::string_view kKey = "slots=";
    if (!line[i].starts_with(kKey)) {
      return make_error(Errc::kInvalidArgument,
                        "'{}' is not understood; a line is HOST, HOST:SLOTS or HOST slots=N",
                        line[i]);
    }
    if (host->slots != 0) {
      return make_error(Errc::kInvalidArgument, "the slots of {} are given twice", host->name);
    }
    const auto count = parse_slots(line[i].substr(kKey.size()));
    if (!count) return count.error();
    host->slots = *count;
  }
  return host;
}

}  // namespace

Result<std::vector<Host>> parse_host_list(std::string_view text) {
  std::vector<Host> hosts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    auto host = parse_host(text.substr(begin, end - begin));
    if (!host) return host.error();
    if (const auto added = add(hosts, std::move(*host)); !added) return added.error();
    begin = end + 1;
  }
  return hosts;
}

Result<std::vector<Host>> parse_hostfile(std::string_view text) {
  std::vector<Host> hosts;
  int number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    line = line.substr(0, line.find('#'));
    const auto parts = split_line(line);
    if (parts.empty()) continue;
    auto host = parse_line(parts);
    if (!host) return make_error(host.error().code, "line {}: {}", number, host.error().message);
    if (const auto added = add(hosts, std::move(*host)); !added) {
      return make_error(added.error().code, "line {}: {}", number, added.error().message);
    }
  }
  if (hosts.empty()) return make_error(Errc::kInvalidArgument, "it names no host");
  return hosts;
}

Result<std::vector<Host>> read_hostfile(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  if (!file || (text.fail() && file.peek() != std::ifstream::traits_type::eof())) {
    return make_error(errno == ENOENT ? Errc::kNotFound : Errc::kIo, "cannot be read: {}",
                      std::generic_category().message(errno != 0 ? errno : EIO));
  }
  return parse_hostfile(text.str());
}

Result<std::vector<Host>> joined(std::vector<Host> first, const std::vector<Host>& more) {
  for (const Host& host : more) {
    if (const auto added = add(first, host); !added) return added.error();
  }
  return first;
}

}  // namespace ddp::hosts
