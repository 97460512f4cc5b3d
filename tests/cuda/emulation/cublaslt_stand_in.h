// A stand-in of cuBLASLt for machines without a GPU: a shared library that multiplies in double
// precision, in the order of the stand-in's streams. It refuses what cuBLASLt refuses and what a
// test tells it to. Programs open it by name, as they would cuBLASLt.
#pragma once

#include <cublasLt.h>

#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace ds::testing {

// Calls may come from several threads; tests look while none come.
struct CublasLtStandIn {
  // Of the CUDA stand-in, which is linked into the program: must be set first.
  std::function<cudaError_t(cudaStream_t, std::function<void()>)> queue;
  std::function<int()> current_gpu;
  std::function<void(int gpu, double seconds)> take_time;

  size_t version = 130100;
  // What the next calls of that name return, each given once.
  std::map<std::string, std::deque<cublasStatus_t>> failures;
  // No algorithm for these epilogues, or for any.
  std::vector<uint32_t> refused;
  bool no_algorithms = false;
  // The first algorithm wants this much workspace; the second wants `least_workspace`.
  size_t workspace = 0;
  size_t least_workspace = 0;
  // How long each algorithm takes, best proposal first. They differ in bits, too: number i is off
  // by i * 2^-22 of the result.
  std::vector<double> seconds = {1e-5};
  int other_proposals_on = -1;  // a GPU for which there is never more than one

  int creates = 0;
  int heuristics = 0;
  std::vector<uint32_t> products;       // epilogues, in the order of the calls
  std::vector<size_t> workspaces;       // that they were given
  std::vector<int> algorithms;          // by their places among proposals
  std::vector<int> gpus;                // that multiplied
  std::vector<int> fast;                // whether sums might keep less than fp32
  std::vector<int> compute;             // cublasComputeType_t
  int descriptions = 0;                 // alive
  int described = 0;                    // made
  std::vector<std::string> violations;  // what cuBLASLt would punish, or forgive by luck
};

inline constexpr char kCublasLtStandInSymbol[] = "ds_cublaslt_stand_in";
using CublasLtStandInEntry = CublasLtStandIn*();

}  // namespace ds::testing
