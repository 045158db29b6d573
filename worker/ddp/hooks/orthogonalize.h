#pragma once

#include <ATen/core/Tensor.h>

namespace ddp {

// Replaces the columns of each matrix by an orthonormal basis of what they span. `matrices`:
// [batch, rows, columns], contiguous, float32 or float64, no more columns than rows. Up to two
// columns by Gram-Schmidt with sums in float64, otherwise by Householder's QR, as PyTorch's
// PowerSGD does. `epsilon` is added to the length by which Gram-Schmidt divides a column.
//
// Of a column of zeros PyTorch makes NaN if epsilon is 0; here it stays zero.
void orthogonalize(const at::Tensor& matrices, double epsilon);

// Whether every column of [batch, rows, columns] is finite and not all zero: whether
// orthogonalising it gives a full basis or can.
bool has_full_columns(const at::Tensor& matrices);

}  // namespace ddp
