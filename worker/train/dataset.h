#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "common/base/result.h"
#include "worker/train/image_set.h"
#include "worker/train/options.h"

namespace ddp::train {

// Tensors of one batch. The next batch of the same size reuses their memory, so the autograd graph
// of this batch must be gone by then.
struct Batch {
  at::Tensor input;
  at::Tensor target;
};

// Samples in memory, immutable.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t size() const = 0;
  // Makes `batch` the samples of these indices, in this order.
  virtual void fill(std::span<const std::int64_t> indices, Batch& batch) const = 0;
};

// Images as float32 [n, 1, rows, columns], scaled to 0 .. 1 and normalised by MNIST's mean and
// deviation; labels as int64 [n].
class ImageDataset final : public Dataset {
 public:
  explicit ImageDataset(ImageSet images);
  std::int64_t size() const override { return static_cast<std::int64_t>(images_.count); }
  void fill(std::span<const std::int64_t> indices, Batch& batch) const override;

 private:
  ImageSet images_;
  std::vector<float> normalised_;  // By pixel value.
};

// Rows of fixed random numbers in [-1, 1): inputs float32 [n, inputs], targets float32 [n,
// targets].
class RandomDataset final : public Dataset {
 public:
  struct Shape {
    std::int64_t rows, inputs, targets;
  };
  RandomDataset(const Shape& shape, std::uint64_t seed, std::uint64_t stream);
  std::int64_t size() const override { return shape_.rows; }
  void fill(std::span<const std::int64_t> indices, Batch& batch) const override;

 private:
  Shape shape_;
  std::vector<float> values_;  // Row by row: inputs, then targets.
};

// Colour images of random numbers with mean 0 and variance 1, like normalised photographs: float32
// [n, 3, side, side], labels as int64 [n]. They are not zeros, because then all images would be
// equal: batch normalisation would divide by almost nothing, and the ReLUs after it would see only
// its offset.
//
// An image is a window into a sheet of noise of twice its size, so millions of images cost no
// memory and almost no time. An image depends on (seed, stream, index) alone.
class NoiseImages final : public Dataset {
 public:
  struct Shape {
    std::int64_t count, side, classes;
  };
  NoiseImages(const Shape& shape, std::uint64_t seed, std::uint64_t stream);
  std::int64_t size() const override { return shape_.count; }
  void fill(std::span<const std::int64_t> indices, Batch& batch) const override;

 private:
  Shape shape_;
  std::uint64_t seed_;
  std::uint64_t stream_;
  std::vector<float> sheet_;
};

// Consecutive pieces of a text: bytes as int64 [n, length]. The target of each byte is the byte
// after it. A sample is one piece; a shorter rest at the end is dropped.
class TextDataset final : public Dataset {
 public:
  TextDataset(std::string text, std::int64_t length);
  std::int64_t size() const override;
  void fill(std::span<const std::int64_t> indices, Batch& batch) const override;

 private:
  std::string text_;
  std::int64_t length_;
};

struct Datasets {
  std::unique_ptr<Dataset> train;
  std::unique_ptr<Dataset> test;
};

// The data that the options name. Errors are those of idx.h and text.h.
Result<Datasets> make_datasets(const Options& options);

}  // namespace ddp::train
