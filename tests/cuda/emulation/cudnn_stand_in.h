// A stand-in of cuDNN for machines without a GPU: a shared library that takes graphs of operations
// and computes them one operation after another in double precision, in the order of the stand-in's
// streams. Programs open it by name, as they would cuDNN.
#pragma once

#include <cuda_runtime_api.h>

#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace ds::testing {

struct CudnnStandIn {
  // Of the CUDA stand-in, which is linked into the program: must be set first.
  std::function<cudaError_t(cudaStream_t, std::function<void()>)> queue;
  std::function<int()> current_gpu;

  size_t version = 91900;
  // What the next calls of that name return, each given once.
  std::map<std::string, std::deque<int>> failures;
  // Engines that a graph is offered, in this order. Those that are not deterministic say so, and
  // write other bits every time.
  static constexpr int64_t kAny = int64_t{1} << 40;
  struct Engine {
    bool deterministic = true;
    bool supported = true;  // a plan can be made
    int64_t workspace = 0;
    int64_t most_batch = kAny, most_heads = kAny;  // of larger graphs it needs more than 1 GiB
    int number = 0;
  };
  std::vector<Engine> engines = {{false, true, 0}, {true, false, 0}, {true, true, 512}};
  std::vector<Engine> fallback;  // offered in the heuristic's last mode; numbered from 100
  bool tells_workspace = true;   // of an engine, before there is a plan

  int handles = 0;
  int heuristics = 0;
  std::vector<size_t> runs;             // operations of the graphs that ran
  std::vector<int> engines_run;         // and the numbers of the engines
  int descriptors = 0;                  // alive
  std::vector<std::string> violations;  // what cuDNN would punish, or forgive by luck
};

inline constexpr char kCudnnStandInSymbol[] = "ds_cudnn_stand_in";
using CudnnStandInEntry = CudnnStandIn*();

}  // namespace ds::testing
