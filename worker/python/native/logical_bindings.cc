#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "worker/ddp/logical/logical_reducer.h"
#include "worker/ddp/logical/logical_sum.h"
#include "worker/ddp/tensors/broadcast.h"
#include "worker/python/native/bindings.h"  // First: it includes Python.h.
#include "worker/python/native/interruptible.h"
#include "worker/python/native/python_state.h"
#include "worker/python/native/round_group.h"

// What the logical ranks of a Python training do together.
namespace ddp::python {
namespace {

class RoundLogical {
 public:
  RoundLogical(const ModuleState& state, std::shared_ptr<ProcessGroup> group, int size)
      : group_(std::move(group)), reducer_(state, group_, size) {}

  LogicalReducer& reducer() { return reducer_; }

  // The values are float64, a row for each logical rank of this worker.
  at::Tensor mean(const at::Tensor& values) {
    LogicalSum sum(reducer_.world(), group_, static_cast<std::size_t>(values.size(1)), at::kDouble);
    for (std::int64_t row = 0; row < values.size(0); ++row) {
      sum.next().copy_(values[row]);
      sum.add();
    }
    return sum.average("values of logical ranks").clone();
  }

  // The tensors of the worker that has logical rank 0, on all workers.
  void broadcast(std::vector<at::Tensor> tensors) {
    CoalescedBroadcast(std::move(tensors)).run(*group_, 0, "buffers");
  }

 private:
  std::shared_ptr<ProcessGroup> group_;
  LogicalReducer reducer_;
};

}  // namespace

void bind_logical(py::module_& module) {
  module.def(
      "logical_block",
      [](int size, Rank worker, int workers) {
        const RankRange own = LogicalWorld(size, worker, workers).own();
        return std::pair(own.begin, own.end);
      },
      py::arg("size"), py::arg("worker"), py::arg("workers"));
  py::class_<RoundLogical>(module, "LogicalReducer")
      .def(py::init([](py::object tensors, const RoundGroup& round, int size) {
             const KeptObject kept = keep(std::move(tensors));
             const std::shared_ptr<ProcessGroup> group = round.group();
             return interruptible(
                 [&] { return std::make_unique<RoundLogical>(module_state(kept), group, size); });
           }),
           py::arg("tensors"), py::arg("round"), py::arg("size"))
      .def("add", [](RoundLogical& self) { self.reducer().add(); })
      .def("reduce", [](RoundLogical& self) { interruptible([&] { self.reducer().reduce(); }); })
      .def("restart", [](RoundLogical& self) { self.reducer().restart(); })
      .def(
          "mean",
          [](RoundLogical& self, const at::Tensor& values) {
            return interruptible([&] { return self.mean(values); });
          },
          py::arg("values"))
      .def(
          "broadcast",
          [](RoundLogical& self, std::vector<at::Tensor> tensors) {
            interruptible([&] { self.broadcast(std::move(tensors)); });
          },
          py::arg("tensors"));
}

}  // namespace ddp::python
