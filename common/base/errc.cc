#include "common/base/errc.h"

namespace ddp {
namespace {

class Category final : public std::error_category {
 public:
  const char* name() const noexcept override { return "ddp"; }
  std::string message(int value) const override {
    switch (static_cast<Errc>(value)) {
      case Errc::kInvalidArgument:
        return "invalid argument";
      case Errc::kTimeout:
        return "timed out";
      case Errc::kPeerLost:
        return "peer lost";
      case Errc::kProtocol:
        return "protocol violation";
      case Errc::kStale:
        return "of an older round";
      case Errc::kAborted:
        return "aborted";
      case Errc::kNotFound:
        return "not found";
      case Errc::kExists:
        return "already exists";
      case Errc::kCorrupt:
        return "corrupt";
      case Errc::kIo:
        return "input/output error";
      case Errc::kMismatch:
        return "ranks disagree";
    }
    return "unknown error";
  }
};

}  // namespace

std::error_code make_error_code(Errc code) {
  static const Category category;
  return {static_cast<int>(code), category};
}

std::error_code errno_code(int error_number) { return {error_number, std::system_category()}; }

}  // namespace ddp
