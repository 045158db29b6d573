#include "worker/ddp/hooks/orthogonalize.h"

#include <cmath>
#include <cstdint>

#include <ATen/ATen.h>

#include "common/base/check.h"

namespace ddp {
namespace {

constexpr std::int64_t kGramSchmidtColumns = 2;

struct Shape {
  std::int64_t rows;
  std::int64_t columns;
};

template <typename T>
double dot(const T* matrix, Shape shape, std::int64_t a, std::int64_t b) {
  double sum = 0;
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    const T* const values = matrix + row * shape.columns;
    sum += static_cast<double>(values[a]) * static_cast<double>(values[b]);
  }
  return sum;
}

template <typename T>
void gram_schmidt(T* matrix, Shape shape, double epsilon) {
  for (std::int64_t column = 0; column < shape.columns; ++column) {
    const double length = std::sqrt(dot(matrix, shape, column, column)) + epsilon;
    if (length != 0) {
      for (std::int64_t row = 0; row < shape.rows; ++row) {
        T& value = matrix[row * shape.columns + column];
        value = static_cast<T>(static_cast<double>(value) / length);
      }
    }
    for (std::int64_t other = column + 1; other < shape.columns; ++other) {
      const double overlap = dot(matrix, shape, column, other);
      for (std::int64_t row = 0; row < shape.rows; ++row) {
        T* const values = matrix + row * shape.columns;
        values[other] -= static_cast<T>(overlap * static_cast<double>(values[column]));
      }
    }
  }
}

template <typename T>
bool full_columns(const T* matrix, Shape shape) {
  for (std::int64_t column = 0; column < shape.columns; ++column) {
    const double square = dot(matrix, shape, column, column);
    if (!std::isfinite(square) || square == 0) return false;
  }
  return true;
}

// Calls f(pointer to a matrix, its shape) for each.
template <typename Function>
void each_matrix(const at::Tensor& matrices, Function f) {
  DDP_CHECK(matrices.dim() == 3 && matrices.is_contiguous(), "{} dimensions", matrices.dim());
  const Shape shape{matrices.size(1), matrices.size(2)};
  for (std::int64_t index = 0; index < matrices.size(0); ++index) {
    const std::int64_t offset = index * shape.rows * shape.columns;
    if (matrices.scalar_type() == at::kDouble) {
      f(matrices.data_ptr<double>() + offset, shape);
    } else {
      f(matrices.data_ptr<float>() + offset, shape);
    }
  }
}

}  // namespace

void orthogonalize(const at::Tensor& matrices, double epsilon) {
  if (matrices.size(2) > kGramSchmidtColumns) {
    matrices.copy_(std::get<0>(at::linalg_qr(matrices)));
    return;
  }
  each_matrix(matrices,
              [epsilon](auto* matrix, Shape shape) { gram_schmidt(matrix, shape, epsilon); });
}

bool has_full_columns(const at::Tensor& matrices) {
  bool full = true;
  each_matrix(matrices, [&full](const auto* matrix, Shape shape) {
    full = full && full_columns(matrix, shape);
  });
  return full;
}

}  // namespace ddp
