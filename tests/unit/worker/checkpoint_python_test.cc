#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

#include <gtest/gtest.h>

#include "tests/support/checkpoint_samples.h"
#include "tests/support/temp_dir.h"

// Python's plain json and struct, independent of our code, read what we write, and vice versa.
namespace ddp::checkpoint {
namespace {

using test::SampleTensor;
using test::TempDir;

int python(const std::string& arguments) {
  const std::string script =
      std::string(std::getenv("DDP_SOURCE_DIR")) + "/tests/unit/worker/checkpoint_python.py";
  return std::system(("python3 " + script + " " + arguments).c_str());
}

std::vector<SampleTensor> all_types() {
  std::vector<SampleTensor> tensors;
  for (int i = 0; i < kTensorTypeCount; ++i) {
    const auto type = static_cast<TensorType>(i);
    const std::string name = "t/" + std::string(tensor_type_name(type));
    tensors.emplace_back(name, type, std::vector<std::int64_t>{2, 3}, i);
    tensors.emplace_back(name + ".scalar", type, std::vector<std::int64_t>{}, i);
    tensors.emplace_back(name + ".empty", type, std::vector<std::int64_t>{0, 4}, i);
  }
  return tensors;
}

// One line a tensor, by name: name, type, shape, bytes.
std::string lines_of(const std::vector<SampleTensor>& tensors) {
  std::map<std::string, std::string> lines;
  for (const SampleTensor& tensor : tensors) lines[tensor.name] = test::line_of(tensor);
  std::string text;
  for (const auto& [name, line] : lines) text += line;
  return text;
}

TEST(CheckpointPython, ReadsWhatWeWrite) {
  const TempDir scratch;
  const std::vector<SampleTensor> tensors = all_types();
  ASSERT_TRUE(write_safetensors(posix_file_system(), (scratch.path() / "f").string(),
                                test::views_of(tensors)));
  ASSERT_EQ(python("read " + (scratch.path() / "f").string() + " > " +
                   (scratch.path() / "lines").string()),
            0);
  EXPECT_EQ(scratch.read("lines"), lines_of(tensors));
}

TEST(CheckpointPython, WritesWhatWeRead) {
  const TempDir scratch;
  const std::vector<SampleTensor> tensors = all_types();
  scratch.write("lines", lines_of(tensors));
  ASSERT_EQ(python("write " + (scratch.path() / "f").string() + " < " +
                   (scratch.path() / "lines").string()),
            0);
  auto file = posix_file_system().open_file((scratch.path() / "f").string());
  ASSERT_TRUE(file);
  auto header = read_safetensors_header(**file, (scratch.path() / "f").string());
  ASSERT_TRUE(header) << header.error().message;
  EXPECT_EQ(header->metadata.at("format"), "pt");
  const std::string whole = scratch.read("f");
  for (const SampleTensor& tensor : tensors) {
    const TensorEntry* entry = header->find(tensor.name);
    ASSERT_NE(entry, nullptr) << tensor.name;
    EXPECT_EQ(entry->shape, tensor.shape);
    EXPECT_EQ(entry->type, tensor.type);
    EXPECT_EQ(whole.substr(entry->begin, entry->end - entry->begin), tensor.bytes) << tensor.name;
  }
}

}  // namespace
}  // namespace ddp::checkpoint
