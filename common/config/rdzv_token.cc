#include "common/config/rdzv_token.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include <string.h>

#include "common/base/random_hex.h"
#include "common/base/unique_fd.h"

namespace ddp::config {
namespace {

constexpr std::size_t kRandomBytes = 32;

Error unreadable(const std::string& path, int error) {
  return make_error(Errc::kInvalidArgument, "{}: cannot be read: {}", path,
                    std::generic_category().message(error));
}

Result<void> check_owner_and_mode(const std::string& path, int fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return unreadable(path, errno);
  if (!S_ISREG(info.st_mode)) {
    return make_error(Errc::kInvalidArgument, "{}: is not a regular file", path);
  }
  if ((info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return make_error(
        Errc::kInvalidArgument,
        "{}: other users than its owner may read or write it (mode {:04o}); run chmod 600 {}", path,
        info.st_mode & 07777u, path);
  }
  if (info.st_uid != ::geteuid() && info.st_uid != 0) {
    return make_error(
        Errc::kInvalidArgument,
        "{}: belongs to user {}, who could change it; it must belong to this user ({})", path,
        info.st_uid, ::geteuid());
  }
  return {};
}

}  // namespace

Secret make_token() { return Secret(random_hex(kRandomBytes)); }

Result<Secret> parse_token(std::string_view text) {
  if (text.ends_with('\n')) text.remove_suffix(1);
  if (text.ends_with('\r')) text.remove_suffix(1);
  if (text.size() < kMinTokenBytes || text.size() > kMaxTokenBytes) {
    return make_error(Errc::kInvalidArgument,
                      "a token has {} to {} characters, this one is too {}; `openssl rand -hex 32` "
                      "makes one",
                      kMinTokenBytes, kMaxTokenBytes,
                      text.size() < kMinTokenBytes ? "short" : "long");
  }
  const bool is_clean = std::all_of(text.begin(), text.end(), [](char letter) {
    return static_cast<unsigned char>(letter) >= 0x20 && letter != 0x7F;
  });
  if (!is_clean) {
    return make_error(Errc::kInvalidArgument,
                      "a token is one line, and this one holds a control character; `openssl rand "
                      "-hex 32` makes one");
  }
  return Secret(std::string(text));
}

Result<Secret> read_token_file(const std::string& path) {
  // O_NONBLOCK: a pipe without a writer must not block ddp-run.
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return unreadable(path, errno);
  if (Result<void> safe = check_owner_and_mode(path, file.get()); !safe) return safe.error();
  // One byte more than the longest token with its line break.
  std::string text(kMaxTokenBytes + 3, '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t count = ::read(file.get(), text.data() + size, text.size() - size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return unreadable(path, errno);
    if (count == 0) break;
    size += static_cast<std::size_t>(count);
  }
  Result<Secret> token = parse_token(std::string_view(text).substr(0, size));
  ::explicit_bzero(text.data(), text.size());
  if (!token) return make_error(Errc::kInvalidArgument, "{}: {}", path, token.error().message);
  return token;
}

Result<Secret> find_token(const std::optional<std::string>& file) {
  if (file) {
    Result<Secret> token = read_token_file(*file);
    if (token) return token;
    return make_error(Errc::kInvalidArgument, "--rdzv-token-file {}", token.error().message);
  }
  const char* const variable = std::getenv(kTokenVariable);
  if (variable == nullptr || *variable == '\0') return Secret();
  Result<Secret> token = parse_token(variable);
  if (token) return token;
  return make_error(Errc::kInvalidArgument, "{}: {}", kTokenVariable, token.error().message);
}

void forget_token_variable() {
  char* const value = std::getenv(kTokenVariable);
  if (value == nullptr) return;
  ::explicit_bzero(value, ::strlen(value));
  ::unsetenv(kTokenVariable);
}

}  // namespace ddp::config
