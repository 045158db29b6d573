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
// For autograd the whole is two nodes, which backward() visits on its own thread:
//
//   loss -> the back's node -> the front's node
//               |                  `-> gradients of the front's parameters
//               `-> gradients of the back's parameters
//
// The nodes wait for the stage threads, which differentiate one micro-batch after the other with
// torch::autograd::grad. So hooks on parameters fire on backward()'s thread, once for each
// parameter, those of the back while the front is still at work: a DistributedDataParallel around
// the model finds nothing unusual, and its communication overlaps with the front's backward.
//
// Bits: with one micro-batch, those of the undivided model. With more, those of the undivided model
// that goes through the micro-batches one after the other and adds up the gradients. A
// normalisation over the batch sees a micro-batch at a time, so for such models the number of
// micro-batches belongs to what is computed; for others it changes the last bits only.
//
// The halves share no parameter, have dense gradients, and draw no random numbers (the generator is
// one for all threads). Parameters must not change between forward and the end of backward. An
// exception in a half leaves by forward() or backward(). One training thread. Several forwards may
// come before their backwards; each allows one backward (a second one throws std::logic_error),
// whose gradients have no graph.
class Pipeline {
 public:
  struct Stage {
    std::function<at::Tensor(const at::Tensor&)> forward;
    std::vector<at::Tensor> parameters;  // That `forward` uses.
  };

  // micro_batches > 0.
  Pipeline(Stage front, Stage back, std::int64_t micro_batches);
  // Waits for what the threads are at.
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // Cuts `input`, which gets no gradient, by cut_batch and puts the outputs together again.
  at::Tensor forward(const at::Tensor& input);

 private:
  struct Part;   // A stage with its thread.
  class Flight;  // One batch on its way there and back.
  struct BackNode;
  struct FrontNode;

  std::shared_ptr<Part> front_;
  std::shared_ptr<Part> back_;
  std::int64_t micro_batches_;
};

// The batch in `parts` equal parts along its first dimension; the first ones are larger by one
// where it does not divide. Fewer, of one sample each, if there are not so many samples.
std::vector<at::Tensor> cut_batch(const at::Tensor& batch, std::int64_t parts);

}  // namespace ddp::train
