#include "worker/ddp/tensors/mesh_reduce.h"

#include <cstddef>
#include <cstring>

#include <ATen/ATen.h>

#include "worker/ddp/tensors/tensors.h"
#include "worker/ddp/tensors/text_exchange.h"

namespace ddp::mesh {

std::string encode(const at::Tensor& tensor) {
  element_type(tensor, "mesh_reduce: the tensor");
  const at::Tensor packed = tensor.detach().contiguous();
  nlohmann::json::binary_t bytes;
  bytes.resize(packed.nbytes());
  if (!bytes.empty()) std::memcpy(bytes.data(), packed.data_ptr(), bytes.size());
  std::string text;
  nlohmann::json::to_cbor(nlohmann::json{{"type", static_cast<int>(packed.scalar_type())},
                                         {"sizes", packed.sizes().vec()},
                                         {"bytes", std::move(bytes)}},
                          text);
  return text;
}

at::Tensor decode_tensor(std::string_view text) {
  const nlohmann::json parts = nlohmann::json::from_cbor(text);
  const auto sizes = parts.at("sizes").get<std::vector<std::int64_t>>();
  const auto type = static_cast<at::ScalarType>(parts.at("type").get<int>());
  const at::Tensor tensor = at::empty(sizes, type);
  const nlohmann::json::binary_t& bytes = parts.at("bytes").get_binary();
  if (!bytes.empty()) std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

std::vector<std::string> gather(const std::string& tag, std::string_view bytes,
                                ProcessGroup& group) {
  return gather_texts(group, bytes, tag);
}

}  // namespace ddp::mesh
