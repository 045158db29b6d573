#include "worker/train/dataset.h"

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/temp_dir.h"
#include "worker/train/text.h"

namespace ddp::train {
namespace {

Batch batch_of(const Dataset& data, const std::vector<std::int64_t>& indices) {
  Batch batch;
  data.fill(indices, batch);
  return batch;
}

std::string bytes_of(const at::Tensor& tensor) {
  return {static_cast<const char*>(tensor.data_ptr()), tensor.nbytes()};
}

TEST(NoiseImages, DependOnSeedStreamAndIndexAlone) {
  const NoiseImages::Shape shape{.count = 1'200'000, .side = 48, .classes = 7};
  const Batch batch = batch_of(NoiseImages(shape, 1, 0), {5, 1'199'999});
  EXPECT_EQ(batch.input.sizes(), (std::vector<std::int64_t>{2, 3, 48, 48}));
  EXPECT_EQ(batch.input.scalar_type(), at::kFloat);
  const std::string image = bytes_of(batch.input[1]);
  EXPECT_EQ(bytes_of(batch_of(NoiseImages(shape, 1, 0), {1'199'999}).input), image);
  EXPECT_NE(bytes_of(batch_of(NoiseImages(shape, 1, 0), {1'199'998}).input), image);
  EXPECT_NE(bytes_of(batch_of(NoiseImages(shape, 1, 1), {1'199'999}).input), image);
  EXPECT_NE(bytes_of(batch_of(NoiseImages(shape, 2, 0), {1'199'999}).input), image);
}

TEST(NoiseImages, AreNormalisedAndOfAllClasses) {
  const NoiseImages data({.count = 1000, .side = 32, .classes = 7}, 1, 0);
  std::vector<std::int64_t> indices(1000);
  for (std::size_t i = 0; i < indices.size(); ++i) indices[i] = static_cast<std::int64_t>(i);
  const Batch batch = batch_of(data, indices);
  EXPECT_NEAR(batch.input.mean().item<double>(), 0, 0.05);
  EXPECT_NEAR(batch.input.var().item<double>(), 1, 0.05);
  std::set<std::int64_t> labels;
  std::set<std::string> images;
  for (std::int64_t i = 0; i < 1000; ++i) {
    labels.insert(batch.target[i].item<std::int64_t>());
    images.insert(bytes_of(batch.input[i]));
  }
  EXPECT_EQ(labels, (std::set<std::int64_t>{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_GT(images.size(), 800U);  // Windows at 3072 places: as many different ones as chance has.
}

TEST(TextDataset, TellsTheNextByteOfEachAndLeavesOutTheRest) {
  const TextDataset data("abcdefgh\xff\x01z", 3);
  EXPECT_EQ(data.size(), 3);
  const Batch batch = batch_of(data, {2, 0});
  EXPECT_TRUE(
      at::equal(batch.input, at::tensor({'g', 'h', 0xff, 'a', 'b', 'c'}, at::kLong).view({2, 3})));
  EXPECT_TRUE(
      at::equal(batch.target, at::tensor({'h', 0xff, 1, 'b', 'c', 'd'}, at::kLong).view({2, 3})));
  EXPECT_EQ(TextDataset("abc", 3).size(), 0);
  EXPECT_EQ(TextDataset("", 3).size(), 0);
}

TEST(Text, OfAFolderIsThatOfItsFilesInOrder) {
  const test::TempDir folder;
  folder.write("b.txt", "second");
  std::filesystem::create_directory(folder.path() / "a");
  folder.write("a/first.txt", "first\n");
  EXPECT_EQ(read_text_data(folder.path()).value(), "first\nsecond");
  EXPECT_EQ(read_text_data(folder.path() / "b.txt").value(), "second");
  const auto gone = read_text_data(folder.path() / "c");
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error().code, Errc::kNotFound);
  EXPECT_NE(gone.error().message.find("/c does not exist"), std::string::npos);
  folder.write("b.txt", "x");
  const auto empty = read_text_data(folder.path() / "b.txt");
  ASSERT_FALSE(empty);
  EXPECT_EQ(empty.error().code, Errc::kCorrupt);
}

TEST(Text, ThatIsMadeUpDependsOnSeedAndStreamAlone) {
  const std::string text = draw_text(5000, 1, 0);
  EXPECT_EQ(text.size(), 5000U);
  EXPECT_EQ(draw_text(5000, 1, 0), text);
  EXPECT_EQ(draw_text(100, 1, 0), text.substr(0, 100));
  EXPECT_NE(draw_text(5000, 1, 1), text);
  EXPECT_NE(draw_text(5000, 2, 0), text);
}

TEST(Datasets, OfTextAreDividedIntoTrainingAndTest) {
  const test::TempDir folder;
  Options options;
  options.model = "gpt";
  options.gpt.context = 10;
  options.data = "text";
  options.data_dir = folder.write("text", std::string(2000, 'x'));
  auto sets = make_datasets(options);
  ASSERT_TRUE(sets) << sets.error().message;
  EXPECT_EQ(sets->train->size(), 179);
  EXPECT_EQ(sets->test->size(), 19);
  options.gpt.context = 1800;
  const auto short_of_one = make_datasets(options);
  ASSERT_FALSE(short_of_one);
  EXPECT_NE(short_of_one.error().message.find("2000 bytes, the first nine tenths"),
            std::string::npos);
  options.gpt.context = 10;
  options.data_dir = folder.path() / "none";
  EXPECT_FALSE(make_datasets(options));
  options.data = "synthetic";
  options.train_samples = 7;
  options.test_samples = 0;
  sets = make_datasets(options);
  ASSERT_TRUE(sets);
  EXPECT_EQ(sets->train->size(), 7);
  EXPECT_EQ(sets->test->size(), 0);
}

TEST(Datasets, FollowTheModel) {
  Options options;
  options.train_samples = 3;
  options.test_samples = 0;
  options.data = "fake";
  options.image_size = 32;
  options.num_classes = 2;
  for (const char* model : {"toy", "toy-model-parallel"}) {
    options.model = model;
    EXPECT_EQ(batch_of(*make_datasets(options)->train, {2}).input.sizes(),
              (std::vector<std::int64_t>{1, 10}));
  }
  for (const char* model : {"resnet18", "resnet50", "resnet50-model-parallel"}) {
    options.model = model;
    EXPECT_EQ(batch_of(*make_datasets(options)->train, {2}).input.sizes(),
              (std::vector<std::int64_t>{1, 3, 32, 32}));
    EXPECT_EQ(make_datasets(options)->test->size(), 0);
  }
}

}  // namespace
}  // namespace ddp::train
