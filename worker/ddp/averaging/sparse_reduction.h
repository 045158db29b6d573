#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "common/base/shared_text.h"
#include "worker/ddp/tensors/module_state.h"
#include "worker/runtime/process_group.h"

namespace ddp {

// Averages the sparse gradient of one parameter: every rank sends its rows, and the rows of all
// ranks are summed. Rows are those of the parameter's first dimension, as an Embedding's gradient
// has them; a dense gradient is taken for its rows that are not zero. The rows of a parameter on
// another device travel through host memory.
//
// start(), gather() and finish() once each, in this order and on all ranks; each may issue
// operations. Used by one thread at a time; throws CollectiveError.
class SparseReduction {
 public:
  // Rows travel and are summed in that type, whatever type the parameter has at the time.
  SparseReduction(std::shared_ptr<ProcessGroup> group, NamedTensor parameter, at::ScalarType type,
                  SharedText tag);

  // Tells the others how many rows there are. An undefined gradient has none. Throws
  // std::invalid_argument naming the parameter.
  void start(const at::Tensor& gradient);
  // Waits for that and sends the rows.
  void gather();
  // The sum over the ranks times `scale`, coalesced.
  at::Tensor finish(double scale);
  // Waits until no operation uses memory of it.
  void drain();

 private:
  std::shared_ptr<ProcessGroup> group_;
  NamedTensor parameter_;
  at::ScalarType type_;
  SharedText tag_;
  std::int64_t row_elements_ = 1;
  at::Tensor rows_;    // This rank's row numbers.
  at::Tensor values_;  // And what is in them.
  at::Tensor all_rows_;
  at::Tensor all_values_;
  std::vector<std::int64_t> counts_;  // Rows, by rank.
  WorkPtr counting_;
  WorkPtr rows_work_;
  WorkPtr values_work_;
};

}  // namespace ddp
