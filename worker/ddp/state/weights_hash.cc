#include <algorithm>
#include <memory>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <openssl/evp.h>

#include "common/base/check.h"
#include "worker/ddp/state/checkpointer.h"
#include "worker/ddp/state/state_dict.h"

namespace ddp {
namespace {

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new(), &EVP_MD_CTX_free) {
    DDP_CHECK(context_ && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1,
              "SHA-256 is not available");
  }

  void update(const void* data, std::size_t size) {
    DDP_CHECK(EVP_DigestUpdate(context_.get(), data, size) == 1, "SHA-256 over {} bytes", size);
  }

  std::string hex() {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int size = 0;
    DDP_CHECK(EVP_DigestFinal_ex(context_.get(), digest, &size) == 1, "SHA-256 of {} bytes", size);
    return fmt::format("{:02x}", fmt::join(digest, digest + size, ""));
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

}  // namespace

std::string weights_sha256(const torch::nn::Module& module) {
  return weights_sha256(state_of(module));
}

std::string weights_sha256(const ModuleState& module) {
  std::vector<StateTensor> tensors = module_tensors("", module);
  std::sort(tensors.begin(), tensors.end(),
            [](const StateTensor& a, const StateTensor& b) { return a.name < b.name; });
  Sha256 hash;
  const at::NoGradGuard no_grad;
  for (const StateTensor& state : tensors) {
    const at::Tensor plain = state.tensor.detach().cpu().contiguous();
    const auto type = stored_type(plain.scalar_type());
    // The zeros separate; type and shape give the length of what follows, so no two models read the
    // same.
    const std::string head =
        fmt::format("{}{}{}{}[{}]{}", state.name, '\0',
                    type ? checkpoint::tensor_type_name(*type) : at::toString(plain.scalar_type()),
                    '\0', fmt::join(plain.sizes().begin(), plain.sizes().end(), ","), '\0');
    hash.update(head.data(), head.size());
    hash.update(plain.data_ptr(), plain.nbytes());
  }
  return hash.hex();
}

}  // namespace ddp
