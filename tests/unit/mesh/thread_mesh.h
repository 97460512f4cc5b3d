// What the tests of meshes share: ranks as threads of the test, and the errors that calls throw.
#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "comm/factory.h"
#include "mesh/mesh.h"

namespace ds::mesh_test {

inline std::string error_of(Code code, const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.message();
    return error.message();
  }
  ADD_FAILURE() << "no error";
  return {};
}

// The first error of a rank is rethrown.
inline void run_mesh(int world, const MeshSizes& sizes,
                     const std::function<void(const Mesh&)>& body, CommOptions options = {}) {
  options.deadline = std::chrono::seconds(60);
  const auto group = make_local_group(world, options);
  std::vector<std::exception_ptr> errors(group.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < group.size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(Mesh(group[rank], sizes));
      } catch (...) {
        errors[rank] = std::current_exception();
        group[rank]->abort("a rank of the test failed");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace ds::mesh_test
