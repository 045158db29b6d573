#pragma once

#include <memory>
#include <string>

#include "common/base/result.h"

namespace ddp {

namespace cuda {
struct Api;
}
namespace nccl::api {
struct Api;
}

// Which files to load; an empty name means the usual ones.
struct NcclLibraryNames {
  std::string nccl;    // libnccl.so.2
  std::string cudart;  // libcudart.so.13, .12, .11.0 or without a number

  // From DDP_NCCL_LIBRARY and DDP_CUDART_LIBRARY.
  static NcclLibraryNames from_environment();
};

// NCCL and the CUDA runtime, loaded while the program runs. Immutable; any thread. Never unloaded.
class NcclLibrary {
 public:
  ~NcclLibrary();
  NcclLibrary(const NcclLibrary&) = delete;
  NcclLibrary& operator=(const NcclLibrary&) = delete;

  // kNotFound if a library cannot be loaded, with what the linker said; kInvalidArgument if one of
  // its functions is missing, as before NCCL 2.14. The message says what to
  // install or to set.
  static Result<std::shared_ptr<const NcclLibrary>> load(
      const NcclLibraryNames& names = NcclLibraryNames::from_environment());

  // The number of devices that this process can use. The error quotes CUDA: no driver, no device.
  Result<int> device_count() const;

  // The libraries' functions (nccl_api.h, cuda_api.h), for this folder.
  const nccl::api::Api& nccl() const { return *nccl_; }
  const cuda::Api& cuda() const { return *cuda_; }

  int version() const { return version_; }  // 22809 is 2.28.9.
  std::string version_text() const;

 private:
  NcclLibrary();

  const std::unique_ptr<nccl::api::Api> nccl_;
  const std::unique_ptr<cuda::Api> cuda_;
  int version_ = 0;
};

}  // namespace ddp
