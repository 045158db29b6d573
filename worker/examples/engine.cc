// Trains as a JSON file says, and resumes by itself:
//
//   ddp-run --standalone --nproc-per-node 2 ./engine engine.json checkpoints
#include <cstdio>

#include <ddp/ddp.h>

#include "net.h"

int main(int argc, char** argv) {
  if (argc != 3) return std::printf("usage: engine CONFIG CHECKPOINTS\n"), 2;
  at::manual_seed(1);
  at::set_num_threads(1);
  auto net = std::make_shared<Net>();
  auto engine = ddp::initialize(net, net->parameters(), std::string(argv[1]));
  engine.load_checkpoint(argv[2]);
  const int rank = engine.group().rank();
  const auto samples = static_cast<int>(engine.config().train_micro_batch_size_per_gpu);
  while (engine.global_steps() < 200) {
    // The number of the micro batch is all there is to know about where the training is.
    const at::Tensor input = inputs_of(rank, static_cast<int>(engine.micro_steps()), samples);
    engine.backward(loss_of(engine(input), input));
    engine.step();
    const bool updated = engine.micro_steps() % engine.config().gradient_accumulation_steps == 0;
    if (updated && engine.global_steps() % 50 == 0) engine.save_checkpoint(argv[2]);
  }
  engine.wait_for_checkpoint();
  std::printf("rank %d: weights %s\n", rank, ddp::weights_sha256(*net).c_str());
}
