#include "worker/train/flags.h"

#include <span>
#include <sstream>

#include <boost/program_options.hpp>

namespace ddp::train {
namespace {

namespace po = boost::program_options;

struct Flag {
  const char* name;
  const char* value;  // "" for a flag without one.
  const char* text;
};

constexpr Flag kModel[] = {
    {"model", "NAME",
     "toy (linear layers of 10-10-5), toy-large (10-1000000-5), mnist (two convolutions, two "
     "linear layers), mlp (784-512-512-10, for the same data), gpt (a small language model over "
     "bytes), resnet18, resnet50; "
     "toy-model-parallel, resnet50-model-parallel (in two "
     "stages over two devices: two CUDA devices of a worker, or two threads); mnist"},
    {"no-batch-norm", "", "leave batch normalisation out of the mnist model"},
    {"dropout", "P",
     "probability with which the mnist model leaves out an input of its last layer; 0"},
    {"micro-batches", "N",
     "pieces of a batch that a model-parallel model works on at the same time; batch normalisation "
     "sees a piece at a time; 1"},
    {"layers", "N", "of gpt; 4"},
    {"heads", "N", "of attention in each layer of gpt; 4"},
    {"width", "N", "numbers that pass between the layers of gpt for each byte; 128"},
    {"context", "BYTES", "that gpt tells the next one from, at most, and length of a sample; 128"},
    {"sample-bytes", "N", "that gpt writes when it has been trained; 200"},
};

constexpr Flag kData[] = {
    {"data", "KIND",
     "synthetic (digits or sentences made up by the program), fake (fixed random numbers), mnist "
     "(the IDX files in --data-dir) or text (--data-dir); synthetic for mnist, mlp and gpt, fake "
     "for the others, which have no other"},
    {"data-dir", "PATH",
     "folder of MNIST's four files, each plain or .gz; or a file of text or a folder of such, of "
     "which the last tenth is the test set"},
    {"train-samples", "N", "size of the synthetic or fake training set; 12000"},
    {"test-samples", "N", "size of the synthetic or fake test set, 0 for no evaluation; 2000"},
    {"image-size", "PIXELS", "side of the images of a ResNet; 224"},
    {"num-classes", "N", "of a ResNet; 1000"},
};

constexpr Flag kOptimizer[] = {
    {"batch-size", "N", "samples of a backward and worker, or logical rank; 128"},
    {"accumulate-steps", "N", "backwards of a step, whose gradients are averaged; 1"},
    {"drop-last", "on|off",
     "leave out what remains of an epoch after the last whole step, or (off) make a step of it in "
     "which every sample counts the same, on the workers that have any; on"},
    {"epochs", "N", "18"},
    {"max-steps", "N", "stop after this step of the whole training; 0, no limit"},
    {"optimizer", "NAME", "sgd, adam or adamw; sgd, adamw for gpt"},
    {"lr", "X",
     "learning rate, multiplied by the number of workers, or logical ranks; 0.01, 0.00001 for "
     "toy-large, 0.0005 for gpt"},
    {"momentum", "X", "of sgd; 0.5"},
    {"weight-decay", "X", "of the gradient, or of the weight with adamw; 0"},
    {"lr-schedule", "NAME",
     "constant; step (divided by --lr-decay-factor every --lr-decay-epochs); warmup-exponential "
     "(likewise, after a linear rise from 0 over --lr-warmup-epochs); constant"},
    {"lr-warmup-epochs", "X", "0.9"},
    {"lr-decay-epochs", "N", "20"},
    {"lr-decay-factor", "X", "5"},
    {"clip-grad-norm", "X", "scale averaged gradients whose joint norm is larger down to it; none"},
    {"seed", "N", "of the first weights, the order of the data and the made-up data; 1"},
};

constexpr Flag kParallel[] = {
    {"grad-sync", "MODE",
     "ddp (gradients are averaged during backward), step (by the optimizer's step) or zero1 (as "
     "ddp, "
     "and each worker keeps and updates a part of the optimizer's state only: less memory, the "
     "same "
     "bytes); ddp"},
    {"logical-world-size", "V",
     "train as V workers do, on as many workers as there are, at most V: each runs its share of V "
     "logical ranks, and the result has the same bytes for any number of workers, also if it "
     "changes in between; 0, off"},
    {"comm-hook", "NAME[:KEY=VALUE,...]",
     "what is done with a bucket instead of averaging it: see below; averaging"},
    {"bucket-cap-mb", "MIB", "size of a bucket; 25, and one bucket for all with --grad-sync step"},
    {"gradient-as-bucket-view", "on|off", "leave gradients in the buckets; on"},
    {"broadcast-buffers", "on|off", "rank 0's buffers replace all others before each step; on"},
    {"find-unused-parameters", "", "allow parameters that get no gradient in a step"},
    {"static-graph", "", "what the first step uses and in which order holds for all"},
};

constexpr Flag kCheckpoints[] = {
    {"checkpoint-dir", "DIR",
     "save checkpoints there, and resume from the newest valid one; no checkpoints"},
    {"checkpoint-every", "STEPS",
     "also save after every so many steps; 0, at the end of each epoch only"},
    {"checkpoint-keep", "N", "how many of the newest checkpoints stay, 0 keeps all; 3"},
    {"checkpoint-keep-every", "STEPS",
     "checkpoints of steps divisible by it stay, too, for ever; 0, none"},
    {"checkpoint-async", "on|off",
     "train on while a checkpoint is being written, from a copy in memory; on"},
    {"checkpoint-busy", "wait|skip",
     "what to do when one is due while the one before is still being written; wait"},
    {"checkpoint-bandwidth", "MB/S", "of each worker's writing; as fast as the disk"},
    {"load-strict", "on|off",
     "end if the checkpoint to load lacks something or has something else; off: go on with what "
     "fits, and say what does not; on"},
    {"init-from", "DIR",
     "begin with the weights of the newest valid checkpoint there, which may be another "
     "training's, where there is none to resume; random ones"},
    {"init-names", "PATTERN,...",
     "of those weights, such as 'conv*,bn?.weight': * is any characters, ? one; all"},
    {"checkpoint-failure", "stop|continue", "what to do if one cannot be written; stop"},
};

constexpr Flag kRunning[] = {
    {"elastic", "on|off",
     "go on in this process when other workers are lost or join, with the state that is kept in "
     "memory; off: end with them and be started again; on"},
    {"commit-every", "STEPS",
     "how many steps training goes back at most when a worker is lost; auto, so many that keeping "
     "what it goes back to takes a hundredth of the time at most"},
    {"device", "KIND", "cpu, or cuda: one device a worker, two for a model-parallel one; cpu"},
    {"threads", "N",
     "of one worker, or of one stage of a model-parallel one; OMP_NUM_THREADS, or the usable cores "
     "shared by the workers of a node; always 1 with --logical-world-size, if not given"},
    {"timeout", "SECONDS", "how long a collective operation may take; 600"},
    {"summary", "FILE", "write the result there as one JSON object"},
    {"trace", "FILE",
     "write what the ranks did when there, in Chrome's trace format, for ui.perfetto.dev"},
    {"rates", "FILE",
     "write how fast the last --log-every steps were there, a JSON object a line; none"},
    {"eval-every", "STEPS",
     "also find the test accuracy after every so many steps, for standard output and --rates; 0, "
     "only at the end of each epoch"},
    {"log-every", "STEPS",
     "a line of progress every so many steps, where standard output is no terminal; 20"},
    {"help", "", "print this text"},
    {"version", "", "print the version"},
};

struct Group {
  const char* title;
  std::span<const Flag> flags;
};

constexpr Group kGroups[] = {
    {"Model", kModel},
    {"Data", kData},
    {"Optimizer", kOptimizer},
    {"Workers together", kParallel},
    {"Checkpoints", kCheckpoints},
    {"Running", kRunning},
};

}  // namespace

po::options_description describe_flags() {
  constexpr unsigned kColumns = 100;
  po::options_description all(kColumns);
  for (const Group& group : kGroups) {
    po::options_description part(group.title, kColumns);
    for (const Flag& flag : group.flags) {
      if (*flag.value == '\0') {
        part.add_options()(flag.name, flag.text);
      } else {
        part.add_options()(flag.name, po::value<std::string>()->value_name(flag.value), flag.text);
      }
    }
    all.add(part);
  }
  return all;
}

std::string help_text() {
  std::ostringstream text;
  text << "usage: ddp-train [flags]\n"
          "Trains a model, alone or as one of the workers that ddp-run starts:\n"
          "  ddp-run --standalone --nproc-per-node 2 ddp-train --checkpoint-dir run1 --summary "
          "run1.json\n"
          "The value after the last semicolon is the default.\n"
       << describe_flags();
  return text.str();
}

}  // namespace ddp::train
