#include "worker/train/dataset.h"

#include <set>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

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

TEST(Datasets, FollowTheModel) {
  Options options;
  options.train_samples = 3;
  options.test_samples = 0;
  options.data = "fake";
  options.image_size = 32;
  options.num_classes = 2;
  for (const char* model : {"toy", "toy-large", "toy-model-parallel"}) {
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
