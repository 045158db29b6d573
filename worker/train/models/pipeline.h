#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/ddp/tensors/stage_thread.h"

namespace ddp::train {

// A model on the CPU whose front half runs on one thread and whose back half runs on another. A
// batch is cut into micro-batches: while the back works on one of them, the front works on the
// next; backward goes the other way. With one micro-batch the halves take turns.
//
// Autograd sees two nodes, which backward() visits on its own thread:
//
//   loss -> the back's node -> the front's node
//               |                  `-> gradients of the front's parameters
//               `-> gradients of the back's parameters
//
// The nodes wait for the stage threads, which differentiate one micro-batch after the other with
// torch::autograd::grad. So hooks on parameters fire on backward()'s thread, once for each
// parameter. Those of the back fire while the front still works, so a DistributedDataParallel
// around the model works as usual, and its communication overlaps with the front's backward.
//
// Exact results: with one micro-batch, the bits are those of the undivided model. With more, they
// are those of the undivided model that runs one micro-batch after the other and accumulates the
// gradients. Batch normalisation sees one micro-batch at a time, so in models that have it the
// number of micro-batches changes what is computed; in others it changes the last bits only.
//
// The halves must share no parameters, have dense gradients, and draw no random numbers (all
// threads share one generator). Parameters must not change between forward and the end of backward.
// An exception in a half is rethrown by forward() or backward(). One training thread. Several
// forwards may run before their backwards. Each forward allows one backward, whose gradients have
// no graph; a second one throws std::logic_error.
class Pipeline {
 public:
  struct Stage {
    std::function<at::Tensor(const at::Tensor&)> forward;
    std::vector<at::Tensor> parameters;  // That `forward` uses.
  };

  // micro_batches > 0.
  Pipeline(Stage front, Stage back, std::int64_t micro_batches);
  // Waits for the work of the stage threads.
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // Cuts `input` with cut_batch and concatenates the outputs. `input` gets no gradient.
  at::Tensor forward(const at::Tensor& input);

 private:
  struct Part;   // A stage with its thread.
  class Flight;  // One batch, from forward to the end of backward.
  struct BackNode;
  struct FrontNode;

  std::shared_ptr<Part> front_;
  std::shared_ptr<Part> back_;
  std::int64_t micro_batches_;
};

// Splits the batch into `parts` equal parts along its first dimension; if it does not divide
// evenly, the first parts have one sample more. With fewer samples than `parts`, one part for each
// sample.
std::vector<at::Tensor> cut_batch(const at::Tensor& batch, std::int64_t parts);

}  // namespace ddp::train
