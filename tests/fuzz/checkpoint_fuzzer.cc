// Feeds arbitrary bytes to the parsers of checkpoints, under libFuzzer with the address and
// undefined behaviour sanitizers. The first byte of an input says what the rest is: a safetensors
// file (even) or the text of a manifest without its checksum (odd). The fuzzer adds the checksum,
// to reach the parser behind it. Accepted input must be the same after it is written and read
// again.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "worker/checkpoint/checksum.h"
#include "worker/checkpoint/json_values.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/safetensors.h"

namespace {

using namespace ddp::checkpoint;  // NOLINT(google-build-using-namespace): what is fuzzed.

void must(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "not as it must be: %s\n", what);
  std::abort();
}

// In a block of its own size, so that reading behind it is found.
class Block final : public MappedFile {
 public:
  Block(std::unique_ptr<std::byte[]> bytes, std::size_t size)
      : MappedFile({bytes.get(), size}), bytes_(std::move(bytes)) {}
  ddp::Result<void> fetch(std::size_t offset, std::size_t count) const override {
    must(offset <= bytes().size() && count <= bytes().size() - offset, "the part that is fetched");
    return {};
  }

 private:
  std::unique_ptr<std::byte[]> bytes_;
};

void read_file(std::string_view input) {
  auto copy = std::make_unique<std::byte[]>(input.size());
  if (!input.empty()) std::memcpy(copy.get(), input.data(), input.size());
  const Block file(std::move(copy), input.size());
  const auto header = read_safetensors_header(file, "input");
  if (!header) {
    must(header.error().code == ddp::Errc::kCorrupt, "the kind of a refusal");
    must(header.error().message.starts_with("input"), "a refusal names the file");
    return;
  }
  std::uint64_t at = header->tensors.empty() ? input.size() : header->tensors.front().begin;
  for (const TensorEntry& tensor : header->tensors) {
    must(tensor.begin == at && tensor.end >= tensor.begin, "tensors without holes");
    must(tensor_bytes(tensor.type, tensor.shape) == tensor.end - tensor.begin, "a tensor's size");
    must(header->find(tensor.name)->name == tensor.name, "finding a tensor");
    at = tensor.end;
  }
  must(at == input.size(), "the end of the last tensor");
}

void read_manifest(std::string text) {
  must(!parse_manifest(text), "a manifest without a checksum");
  text += "\"checksum\":\"" + checksum_of(text) + "\"\n}\n";
  const auto manifest = parse_manifest(text);
  if (!manifest) return;
  const auto written = manifest_to_text(*manifest);
  // Numbers that JSON's text has beyond a double's range, and the like, may be refused.
  if (!written) return;
  const auto again = parse_manifest(*written);
  must(again.has_value(), "reading what was written");
  const auto twice = manifest_to_text(*again);
  must(twice && *twice == *written, "writing what was read");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  if (input.empty()) return 0;
  if (input[0] % 2 == 0) {
    read_file(input.substr(1));
  } else {
    read_manifest(std::string(input.substr(1)));
  }
  return 0;
}
