#include "worker/train/flag_descriptions.h"

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
     "toy (linear layers, 10-10-5), mnist (two convolutions and two "
     "linear layers), mlp (784-512-512-10, for the same data), gpt (a small language model over "
     "bytes), resnet18, resnet50, toy-model-parallel or resnet50-model-parallel (in two stages: on "
     "two CUDA devices of the worker, or in two threads) (default mnist)"},
    {"dropout", "P", "dropout probability before the last layer of the mnist model (default 0)"},
    {"micro-batches", "N",
     "micro-batches into which a model-parallel model splits a batch, so that its stages work at "
     "the same time; batch normalisation sees one micro-batch at a time (default 1)"},
    {"layers", "N", "number of layers (gpt only; default 4)"},
    {"heads", "N", "attention heads in each layer (gpt only; default 4)"},
    {"width", "N", "size of the embedding of each byte (gpt only; default 128)"},
    {"context", "BYTES",
     "longest context from which the next byte is predicted; also the length of a sample (gpt "
     "only; default 128)"},
    {"sample-bytes", "N",
     "length of the text that the trained model prints at the end, 0 for none (gpt only; default "
     "200)"},
};

constexpr Flag kData[] = {
    {"data", "KIND",
     "synthetic (generated digits or sentences), fake (fixed random numbers), mnist (the IDX files "
     "in --data-dir) or text (the text in --data-dir) (default synthetic for mnist, mlp and gpt; "
     "the other models take fake only)"},
    {"data-dir", "PATH",
     "for --data mnist, the folder of MNIST's four files, each plain or .gz; for --data text, a "
     "text file or a folder of text files, of which the last tenth is the test set"},
    {"train-samples", "N", "size of the synthetic or fake training set (default 12000)"},
    {"test-samples", "N",
     "size of the synthetic or fake test set, 0 for no evaluation (default 2000)"},
    {"image-size", "PIXELS", "width and height of the images (ResNets only; default 224)"},
    {"num-classes", "N", "number of classes (ResNets only; default 1000)"},
};

constexpr Flag kOptimizer[] = {
    {"batch-size", "N",
     "samples in one backward of one worker, or of one logical rank (default 128)"},
    {"accumulate-steps", "N", "backwards whose gradients are averaged for one step (default 1)"},
    {"drop-last", "on|off",
     "on: skip the samples that remain of an epoch after its last whole step. off: make one more "
     "step of them, in which every sample counts the same (default on)"},
    {"epochs", "N", "number of passes over the training set (default 18)"},
    {"max-steps", "N", "stop after this step of the whole training, 0 for no limit (default 0)"},
    {"optimizer", "NAME", "sgd, adam or adamw (default sgd; adamw for gpt)"},
    {"lr", "X",
     "learning rate, multiplied by the number of workers, or of logical ranks (default 0.01; "
     "0.0005 for gpt)"},
    {"momentum", "X", "momentum (sgd only; default 0.5)"},
    {"weight-decay", "X",
     "weight decay: added to the gradient, or with adamw applied to the weight (default 0)"},
    {"lr-schedule", "NAME",
     "constant; step (divide by --lr-decay-factor every --lr-decay-epochs); or warmup-exponential "
     "(a linear rise from 0 over --lr-warmup-epochs, then as step) (default constant)"},
    {"lr-warmup-epochs", "X", "length of the warm-up, in epochs (default 0.9)"},
    {"lr-decay-epochs", "N", "epochs between two decays of the learning rate (default 20)"},
    {"lr-decay-factor", "X", "divisor of the learning rate at each decay (default 5)"},
    {"clip-grad-norm", "X",
     "scale the averaged gradients down so that their joint norm is at most this (default: no "
     "clipping)"},
    {"seed", "N",
     "seed of the initial weights, the order of the samples and the generated data (default 1)"},
};

constexpr Flag kParallel[] = {
    {"grad-sync", "MODE",
     "ddp (average gradients during backward), step (average them at the optimizer's step) or "
     "zero1 (as ddp, but each worker keeps and updates only its part of the optimizer state: less "
     "memory, the same bytes) (default ddp)"},
    {"logical-world-size", "V",
     "train as V workers do, on at most V workers: each worker runs its share of V logical ranks. "
     "The result has the same bytes for any number of workers, even if that number changes during "
     "the training; 0 turns this off (default 0)"},
    {"comm-hook", "NAME[:KEY=VALUE,...]",
     "communication hook that reduces each bucket, see below (default: average the gradients)"},
    {"bucket-cap-mb", "MIB",
     "size of a bucket (default 25; with --grad-sync step, one bucket for everything)"},
    {"gradient-as-bucket-view", "on|off", "make gradients views of the buckets (default on)"},
    {"broadcast-buffers", "on|off",
     "broadcast rank 0's buffers to all workers before each step (default on)"},
    {"find-unused-parameters", "", "allow parameters that get no gradient in a step"},
    {"static-graph", "",
     "promise that every step uses the parameters that the first step used, in the same order"},
};

constexpr Flag kCheckpoints[] = {
    {"checkpoint-dir", "DIR",
     "save checkpoints in this folder, and resume from the newest valid one there (default: no "
     "checkpoints)"},
    {"checkpoint-every", "STEPS",
     "also save every so many steps; 0 saves at the end of each epoch only (default 0)"},
    {"checkpoint-keep", "N", "number of newest checkpoints to keep, 0 for all (default 3)"},
    {"checkpoint-keep-every", "STEPS",
     "also keep every checkpoint whose step is divisible by this; 0 for none (default 0)"},
    {"checkpoint-async", "on|off",
     "continue training while a checkpoint is written from a copy in memory (default on)"},
    {"checkpoint-bandwidth", "MB/S",
     "highest rate at which each worker writes (default: as fast as the disk)"},
    {"checkpoint-timeout", "SECONDS",
     "how long a save may wait while the disk does not answer a single call (default 600)"},
    {"init-from", "DIR",
     "if there is nothing to resume, begin with the weights of the newest valid checkpoint in this "
     "folder, which may be another training's (default: random weights)"},
    {"init-names", "PATTERN,...",
     "weights to take from --init-from, such as 'conv*,bn?.weight': * matches any characters, ? "
     "matches one (default: all)"},
    {"checkpoint-failure", "stop|continue",
     "what to do if a checkpoint cannot be written (default stop)"},
};

constexpr Flag kRunning[] = {
    {"elastic", "on|off",
     "on: when workers are lost or join, continue in this process with the state in memory. off: "
     "end with the other workers and be started again (default on)"},
    {"commit-every", "STEPS",
     "most steps that are trained again after a worker is lost; auto keeps the cost of commits "
     "within a hundredth of the time (default auto)"},
    {"device", "KIND",
     "cpu, or cuda: one device for each worker, two for a model-parallel model (default cpu)"},
    {"threads", "N",
     "threads of a worker, or of each stage of a model-parallel model (default OMP_NUM_THREADS, "
     "else the usable cores divided among the workers of the node; 1 with --logical-world-size)"},
    {"timeout", "SECONDS", "longest time that a collective operation may take (default 600)"},
    {"summary", "FILE", "write the result to this file, as one JSON object (default: none)"},
    {"rates", "FILE",
     "write the speed of training to this file, one JSON object a line for every --log-every steps "
     "(default: none)"},
    {"tensorboard", "DIR",
     "write loss, accuracy, learning rate, speed, restarts and the times of checkpoints to this "
     "folder, for TensorBoard: each step once, however often the training is interrupted (default: "
     "none)"},
    {"eval-every", "STEPS",
     "also measure the test accuracy every so many steps, for standard output, --rates and "
     "--tensorboard; 0 measures at the end of each epoch only (default 0)"},
    {"log-every", "STEPS",
     "steps between two lines of progress, where standard output is not a terminal, and between "
     "two "
     "points of --tensorboard (default 20)"},
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
  text << "usage: ddp-train [flags]\n\n"
          "Trains a model, alone or as one of the workers that ddp-run starts:\n"
          "  ddp-run --standalone --nproc-per-node 2 ddp-train --checkpoint-dir run1 --summary "
          "run1.json\n"
       << describe_flags();
  return text.str();
}

}  // namespace ddp::train
