#include "worker/train/dataset.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty.h>

#include "common/base/check.h"
#include "worker/data/random.h"
#include "worker/train/digits.h"
#include "worker/train/idx.h"
#include "worker/train/models/names.h"
#include "worker/train/text.h"

namespace ddp::train {
namespace {

constexpr float kMean = 0.1307F;  // Of MNIST's training pixels, and their deviation.
constexpr float kDeviation = 0.3081F;

// Keeps the tensor if it has the form already.
void ensure_form(at::Tensor& tensor, at::IntArrayRef sizes, const at::TensorOptions& options) {
  if (!tensor.defined() || tensor.sizes() != sizes) tensor = at::empty(sizes, options);
}

}  // namespace

ImageDataset::ImageDataset(ImageSet images) : images_(std::move(images)) {
  for (int value = 0; value < 256; ++value) {
    normalised_.push_back((static_cast<float>(value) / 255.0F - kMean) / kDeviation);
  }
}

void ImageDataset::fill(std::span<const std::int64_t> indices, Batch& batch) const {
  const auto count = static_cast<std::int64_t>(indices.size());
  // With one channel both memory formats have the same bytes. If the input is marked as
  // channels-last, LibTorch keeps that format after the first convolution, where its pooling on a
  // CPU is twice as fast.
  ensure_form(batch.input,
              {count, 1, static_cast<std::int64_t>(images_.rows),
               static_cast<std::int64_t>(images_.columns)},
              at::TensorOptions(at::kFloat).memory_format(at::MemoryFormat::ChannelsLast));
  ensure_form(batch.target, {count}, at::kLong);
  float* pixels = batch.input.data_ptr<float>();
  auto* labels = batch.target.data_ptr<std::int64_t>();
  const std::size_t bytes = images_.image_bytes();
  for (const std::int64_t index : indices) {
    const auto at = static_cast<std::size_t>(index);
    DDP_CHECK(at < images_.count, "index {} of {}", index, images_.count);
    const std::uint8_t* image = images_.pixels.data() + at * bytes;
    for (std::size_t i = 0; i < bytes; ++i) *pixels++ = normalised_[image[i]];
    *labels++ = images_.labels[at];
  }
}

RandomDataset::RandomDataset(const Shape& shape, std::uint64_t seed, std::uint64_t stream)
    : shape_(shape) {
  Random random({seed, 0x726f7773, stream});
  values_.resize(static_cast<std::size_t>(shape.rows * (shape.inputs + shape.targets)));
  for (float& value : values_) value = static_cast<float>(random.between(-1, 1));
}

void RandomDataset::fill(std::span<const std::int64_t> indices, Batch& batch) const {
  const auto count = static_cast<std::int64_t>(indices.size());
  ensure_form(batch.input, {count, shape_.inputs}, at::kFloat);
  ensure_form(batch.target, {count, shape_.targets}, at::kFloat);
  float* input = batch.input.data_ptr<float>();
  float* target = batch.target.data_ptr<float>();
  for (const std::int64_t index : indices) {
    DDP_CHECK(index >= 0 && index < shape_.rows, "index {} of {}", index, shape_.rows);
    const float* row = values_.data() + index * (shape_.inputs + shape_.targets);
    input = std::copy_n(row, shape_.inputs, input);
    target = std::copy_n(row + shape_.inputs, shape_.targets, target);
  }
}

NoiseImages::NoiseImages(const Shape& shape, std::uint64_t seed, std::uint64_t stream)
    : shape_(shape), seed_(seed), stream_(stream) {
  constexpr double kLimit = 1.7320508075688772;  // The root of 3, for variance 1.
  Random random({seed, 0x7368656574});
  sheet_.resize(static_cast<std::size_t>(2 * 3 * shape.side * shape.side));
  for (float& value : sheet_) value = static_cast<float>(random.between(-kLimit, kLimit));
}

void NoiseImages::fill(std::span<const std::int64_t> indices, Batch& batch) const {
  const auto count = static_cast<std::int64_t>(indices.size());
  ensure_form(batch.input, {count, 3, shape_.side, shape_.side}, at::kFloat);
  ensure_form(batch.target, {count}, at::kLong);
  auto* input = batch.input.data_ptr<float>();
  auto* target = batch.target.data_ptr<std::int64_t>();
  const std::size_t elements = sheet_.size() / 2;
  for (const std::int64_t index : indices) {
    DDP_CHECK(index >= 0 && index < shape_.count, "index {} of {}", index, shape_.count);
    Random random({seed_, 0x77696e646f77, stream_, static_cast<std::uint64_t>(index)});
    input = std::copy_n(sheet_.data() + random.below(elements), elements, input);
    *target++ = static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(shape_.classes)));
  }
}

TextDataset::TextDataset(std::string text, std::int64_t length)
    : text_(std::move(text)), length_(length) {}

std::int64_t TextDataset::size() const {
  return std::max<std::int64_t>(static_cast<std::int64_t>(text_.size()) - 1, 0) / length_;
}

void TextDataset::fill(std::span<const std::int64_t> indices, Batch& batch) const {
  const auto count = static_cast<std::int64_t>(indices.size());
  ensure_form(batch.input, {count, length_}, at::kLong);
  ensure_form(batch.target, {count, length_}, at::kLong);
  auto* input = batch.input.data_ptr<std::int64_t>();
  auto* target = batch.target.data_ptr<std::int64_t>();
  for (const std::int64_t index : indices) {
    DDP_CHECK(index >= 0 && index < size(), "index {} of {}", index, size());
    const auto* const piece =
        reinterpret_cast<const unsigned char*>(text_.data()) + index * length_;
    input = std::copy_n(piece, length_, input);
    target = std::copy_n(piece + 1, length_, target);
  }
}

namespace {

Result<Datasets> make_text(const Options& options) {
  const std::int64_t length = options.gpt.context;
  const auto set_of = [length](std::string text) {
    return std::make_unique<TextDataset>(std::move(text), length);
  };
  Datasets sets;
  if (options.data == "text") {
    auto text = read_text_data(options.data_dir);
    if (!text) return text.error();
    const std::size_t bytes = text->size();
    const std::size_t train = bytes - bytes / 10;
    sets.test = set_of(text->substr(train));
    text->resize(train);
    sets.train = set_of(std::move(*text));
    if (sets.train->size() > 0) return sets;
    return make_error(
        Errc::kCorrupt,
        "{} has {} bytes, the first nine tenths of which are the training set: expected "
        "room for one sample of --context {} bytes and the byte after it",
        options.data_dir, bytes, length);
  }
  const auto made_up = [&](std::int64_t samples, std::uint64_t stream) {
    return set_of(draw_text(static_cast<std::size_t>(samples * length + 1), options.seed, stream));
  };
  sets.train = made_up(options.train_samples, 0);
  sets.test = made_up(options.test_samples, 1);
  return sets;
}

}  // namespace

Result<Datasets> make_datasets(const Options& options) {
  if (is_for_text(options.model)) return make_text(options);
  Datasets sets;
  if (is_toy(options.model)) {
    sets.train = std::make_unique<RandomDataset>(RandomDataset::Shape{options.train_samples, 10, 5},
                                                 options.seed, 0);
    sets.test = std::make_unique<RandomDataset>(RandomDataset::Shape{options.test_samples, 10, 5},
                                                options.seed, 1);
    return sets;
  }
  if (is_resnet(options.model)) {
    const auto noise = [&](std::int64_t count, std::uint64_t stream) {
      return std::make_unique<NoiseImages>(
          NoiseImages::Shape{count, options.image_size, options.num_classes}, options.seed, stream);
    };
    sets.train = noise(options.train_samples, 0);
    sets.test = noise(options.test_samples, 1);
    return sets;
  }
  if (options.data == "mnist") {
    auto train = read_mnist(options.data_dir, MnistPart::kTrain);
    if (!train) return train.error();
    auto test = read_mnist(options.data_dir, MnistPart::kTest);
    if (!test) return test.error();
    sets.train = std::make_unique<ImageDataset>(*std::move(train));
    sets.test = std::make_unique<ImageDataset>(*std::move(test));
    return sets;
  }
  const auto make = options.data == "fake" ? random_images : draw_digits;
  const auto train_count = static_cast<std::size_t>(options.train_samples);
  const auto test_count = static_cast<std::size_t>(options.test_samples);
  sets.train = std::make_unique<ImageDataset>(make(train_count, options.seed, DigitsPart::kTrain));
  sets.test = std::make_unique<ImageDataset>(make(test_count, options.seed, DigitsPart::kTest));
  return sets;
}

}  // namespace ddp::train
