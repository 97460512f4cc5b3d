// An expectation that a statement throws ds::Error with a code and a message that contains texts.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "base/error.h"

namespace ds::testing {

inline void expect_error(Code code, const std::vector<std::string>& parts,
                         const std::function<void()>& statement) {
  try {
    statement();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.message();
    for (const std::string& part : parts) {
      EXPECT_NE(error.message().find(part), std::string::npos)
          << "'" << part << "' is not in: " << error.message();
    }
    return;
  }
  ADD_FAILURE() << "nothing was thrown, expected an error with "
                << (parts.empty() ? std::string("any text") : parts.front());
}

}  // namespace ds::testing
