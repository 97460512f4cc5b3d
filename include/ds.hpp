// ds.hpp - C++17 on top of ds.h: handles that end themselves, exceptions instead of statuses,
// std::string and std::vector instead of pointers. Header only; it adds nothing to the library's
// ABI, so a program built with it runs with every library that ds.h's version rules allow.
//
// Every class owns one handle, moves and does not copy; get() gives the handle for calls that are
// not wrapped. Objects may be destroyed in any order. The rules of ds.h about threads hold.
// A function that fails throws libds::Error, which carries the ds_status.
#ifndef DS_HPP
#define DS_HPP

#include "ds.h"
#include "ds/base.hpp"
#include "ds/checkpoint.hpp"
#include "ds/comm.hpp"
#include "ds/config.hpp"
#include "ds/dataset.hpp"
#include "ds/engine.hpp"
#include "ds/experts.hpp"
#include "ds/generator.hpp"
#include "ds/io.hpp"
#include "ds/memory.hpp"
#include "ds/model.hpp"
#include "ds/optimizer.hpp"
#include "ds/tensor.hpp"
#include "ds/tokenizer.hpp"

#endif  // DS_HPP
