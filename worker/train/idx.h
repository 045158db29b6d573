#pragma once

#include <string>

#include "common/base/result.h"
#include "worker/train/image_set.h"

// Files in the IDX format of MNIST: a big-endian magic number (two zero bytes, the element type,
// the number of dimensions), the dimensions as 32-bit numbers, then the elements. A file may be
// plain or gzipped; its content shows which.
//
// Every Error names the file, what was found and what was expected: kNotFound for a missing file,
// kIo for one that cannot be read, kCorrupt for a wrong magic number or size, a damaged gzip
// stream, a label above 9, bytes after the end, or files that do not belong together.
namespace ddp::train {

// Reads a file of images and its file of labels; their counts must agree. The result holds the
// pixels uncompressed.
Result<ImageSet> read_idx_pair(const std::string& images_path, const std::string& labels_path);

enum class MnistPart { kTrain, kTest };

// Reads the pair with the usual names in `folder`: train-images-idx3-ubyte and
// train-labels-idx1-ubyte, or t10k-..., each plain or with .gz; the plain file if both exist. The
// images must be 28 x 28.
Result<ImageSet> read_mnist(const std::string& folder, MnistPart part);

}  // namespace ddp::train
