#include "worker/runtime/machine_name.h"

#include <unistd.h>

#include <array>
#include <climits>
#include <fstream>

#include <fmt/format.h>

#include "common/base/random_hex.h"
#include "worker/runtime/worker_environment.h"

namespace ddp::runtime {
namespace {

constexpr std::size_t kUnknownBytes = 16;

std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  return id.empty() ? random_hex(kUnknownBytes) : id;
}

// "net:[4026531840]" without what all have.
std::string network_namespace() {
  std::array<char, PATH_MAX> text{};
  const ssize_t length = ::readlink("/proc/self/ns/net", text.data(), text.size() - 1);
  std::string digits;
  for (ssize_t i = 0; i < length; ++i) {
    const char letter = text[static_cast<std::size_t>(i)];
    if (letter >= '0' && letter <= '9') digits += letter;
  }
  return digits.empty() ? random_hex(kUnknownBytes) : digits;
}

std::string hexadecimal(const std::string& text) {
  std::string digits;
  for (const char letter : text)
    digits += fmt::format("{:02x}", static_cast<unsigned char>(letter));
  return digits;
}

}  // namespace

std::string MachineName::difference(const MachineName& other) const {
  if (boot != other.boot) return "they run on different machines";
  if (network != other.network) return "they are in different network namespaces of one machine";
  if (user != other.user) {
    return fmt::format("they belong to users {} and {}", user, other.user);
  }
  return apart == other.apart ? "" : "their DDP_VIRTUAL_NODE differs";
}

MachineName machine_name() {
  return {boot_id(), network_namespace(), std::to_string(::geteuid()),
          hexadecimal(process_variable("DDP_VIRTUAL_NODE").value_or(""))};
}

std::string to_word(const MachineName& name) {
  return fmt::format("{}/{}/{}/{}", name.boot, name.network, name.user, name.apart);
}

MachineName machine_name_of(const std::string& word) {
  std::array<std::string, 4> parts;
  std::size_t part = 0;
  for (const char letter : word) {
    if (letter != '/') {
      parts.at(part) += letter;
    } else if (++part == parts.size()) {
      return {};
    }
  }
  return {parts[0], parts[1], parts[2], parts[3]};
}

}  // namespace ddp::runtime
