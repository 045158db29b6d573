// The functions of worker/ddp/tensors/tensor_collectives.h against torch.distributed itself, over
// gloo: gloo_transcript.py makes the same calls.

#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/torch/python_transcript.h"
#include "tests/torch/rank_threads.h"
#include "worker/ddp/tensors/tensor_collectives.h"

namespace ddp::test {
namespace {

at::Tensor numbers(int rank, std::int64_t rows, int salt = 0) {
  return ((at::arange(rows * 5, at::kLong) * 7 + rank * 3 + salt) % 5)
      .view({rows, 5})
      .to(at::kFloat);
}

at::Tensor parcel(int sender, int receiver) {
  return numbers(sender, (sender + 2 * receiver) % 4, receiver);
}

std::vector<std::int64_t> rows_of(const std::vector<at::Tensor>& tensors) {
  std::vector<std::int64_t> rows;
  for (const at::Tensor& tensor : tensors) rows.push_back(tensor.size(0));
  return rows;
}

using Results = std::map<std::string, std::vector<float>>;  // "RANK FUNCTION" and the elements.

class Recorder {
 public:
  void operator()(int rank, const std::string& function, const at::Tensor& tensor) {
    const float* const data = tensor.data_ptr<float>();
    const std::lock_guard lock(mutex_);
    results_[std::to_string(rank) + " " + function].assign(data, data + tensor.numel());
  }
  const Results& results() const { return results_; }

 private:
  std::mutex mutex_;
  Results results_;
};

void exercise(ProcessGroup& group, Recorder& record) {
  const int rank = group.rank();
  at::Tensor tensor = numbers(rank, 2);
  all_reduce(tensor, group);
  record(rank, "all_reduce", tensor);
  tensor = numbers(rank, 2);
  broadcast(tensor, 1, group);
  record(rank, "broadcast", tensor);
  tensor = numbers(rank, 2);
  reduce(tensor, 1, group);
  if (rank == 1) record(rank, "reduce", tensor);
  std::vector<at::Tensor> tensors;
  for (Rank other = 0; other < group.size(); ++other) tensors.push_back(at::zeros({2, 5}));
  all_gather(tensors, numbers(rank, 2), group);
  record(rank, "all_gather", at::cat(tensors));
  gather(numbers(rank, 2), group, rank == 1 ? tensors : std::vector<at::Tensor>(), 1);
  if (rank == 1) record(rank, "gather", at::cat(tensors));
  tensor = at::zeros({2, 5});
  std::vector<at::Tensor> parts;
  std::vector<at::Tensor> sent;
  std::vector<at::Tensor> received;
  for (Rank other = 0; other < group.size(); ++other) {
    if (rank == 1) parts.push_back(numbers(other, 2, 1));
    sent.push_back(parcel(rank, other));
    received.push_back(parcel(other, rank));
  }
  scatter(tensor, group, parts, 1);
  record(rank, "scatter", tensor);
  at::Tensor output = at::zeros_like(at::cat(received));
  all_to_all_single(output, at::cat(sent), group, rows_of(received), rows_of(sent));
  record(rank, "all_to_all_single", output);
  output = at::zeros({2 * group.size(), 5});
  all_to_all_single(output, numbers(rank, 2 * group.size()), group);
  record(rank, "all_to_all_single_equal", output);
}

TEST(GlooTranscript, TheSameCallsGiveTheSameNumbers) {
  if (!has_torch()) GTEST_SKIP() << "no PyTorch for " << kPython;
  std::map<int, Results> theirs;
  for (const auto& [key, ranks] : transcript_of("gloo_transcript.py")) {
    for (const auto& [rank, values] : ranks) {
      theirs[key.first][std::to_string(rank) + " " + key.second] = values;
    }
  }
  for (const int size : {2, 3}) {
    Recorder record;
    run_ranks({size}, [&](const GroupPtr& group) { exercise(*group, record); });
    ASSERT_EQ(theirs[size].size(), static_cast<std::size_t>(6 * size + 2));
    EXPECT_EQ(record.results(), theirs[size]);
  }
}

}  // namespace
}  // namespace ddp::test
