// A stand-in of NCCL for machines without a GPU: a shared library with the functions that the
// library opens at run time, over the stand-in of the CUDA runtime. Ranks are threads of one
// process. What an operation moves is moved when every rank's stream has come to it; what NCCL
// would punish is written down.
#pragma once

namespace ds::testing {

// How a test steers it; from stand_in_nccl_control() of the opened library.
struct NcclControl {
  void (*reset)();
  // The next call of that name returns this, on whichever rank.
  void (*fail_next)(const char* call, int result);
  // Communicators of this rank report this from now on; -1: all.
  void (*report)(int rank, int result);
  void (*hold_begin)(bool);    // communicators do not get ready
  void (*hold)(bool);          // operations do not begin
  int (*live)();               // communicators that were not ended
  int (*launches)();           // groups that were queued
  const char* (*violation)();  // the first one, or ""
};
inline constexpr char kNcclControl[] = "stand_in_nccl_control";

}  // namespace ds::testing
