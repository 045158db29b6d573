#include "tests/torch/data_parallel_fixture.h"

#include <exception>
#include <utility>

#include <gtest/gtest.h>

#include "worker/collectives/tree_order.h"

namespace ddp::test {

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

std::shared_ptr<Mlp> make_mlp(std::uint64_t seed, const std::vector<std::int64_t>& widths) {
  auto module = std::make_shared<Mlp>(widths);
  fill(*module, seed);
  return module;
}

at::Tensor input_of(int rank, int step) {
  return random_tensor(
      {3, 6}, 1000 + 100 * static_cast<std::uint64_t>(rank) + static_cast<std::uint64_t>(step));
}

at::Tensor loss_of(const at::Tensor& output) { return output.square().mean(); }

namespace {

at::Tensor tree_sum(const std::vector<at::Tensor>& terms, int begin, int end) {
  if (end - begin == 1) return terms[static_cast<std::size_t>(begin)];
  const int middle = tree_middle(begin, end);
  return tree_sum(terms, begin, middle) + tree_sum(terms, middle, end);
}

}  // namespace

at::Tensor average(const std::vector<at::Tensor>& terms) {
  const at::Tensor sum = tree_sum(terms, 0, static_cast<int>(terms.size()));
  return sum * (1.0 / static_cast<double>(terms.size()));
}

std::map<std::string, at::Tensor> local_gradients(int rank, const std::vector<int>& steps) {
  auto module = make_mlp(7);
  for (int step : steps) loss_of(module->forward(input_of(rank, step))).backward();
  std::map<std::string, at::Tensor> result;
  for (auto& [name, gradient] : gradients_of(*module)) result.emplace(name, gradient);
  return result;
}

void expect_average_gradients(const Mlp& module, int world, const std::vector<int>& steps) {
  std::vector<std::map<std::string, at::Tensor>> locals;
  for (int rank = 0; rank < world; ++rank) locals.push_back(local_gradients(rank, steps));
  for (const auto& item : module.named_parameters()) {
    std::vector<at::Tensor> terms;
    for (auto& local : locals) terms.push_back(local.at(item.key()));
    ASSERT_TRUE(item.value().grad().defined()) << item.key();
    EXPECT_TRUE(same_bytes(item.value().grad(), average(terms))) << item.key();
  }
}

std::ostream& operator<<(std::ostream& out, const Mode& mode) { return out << mode.name; }

std::vector<Mode> modes() {
  std::vector<Mode> result(6);
  result[0].name = "Copies";
  result[1].name = "BucketViews";
  result[1].options.gradient_as_bucket_view = true;
  result[2].name = "FindUnused";
  result[2].options.find_unused_parameters = true;
  result[3].name = "FindUnusedBucketViewsTinyBuckets";
  result[3].options.find_unused_parameters = true;
  result[3].options.gradient_as_bucket_view = true;
  result[3].options.bucket_cap_mb = 1e-5;
  result[4].name = "BatchedCopies";
  result[4].options.batched_grad_copy = true;
  result[5].name = "BatchedFindUnusedBucketViewsTinyBuckets";
  result[5].options = result[3].options;
  result[5].options.batched_grad_copy = true;
  return result;
}

}  // namespace ddp::test
