// Which training run a checkpoint belongs to.
#pragma once

#include <string>

namespace ds {

// 128 random bits as 32 hexadecimal digits. A run keeps its id when it is resumed.
std::string make_run_id();

}  // namespace ds
