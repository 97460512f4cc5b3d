// Forked processes: a child has its parent's memory, but of its threads only the one that forked.
#pragma once

#include <cstdint>

namespace ds {

// How many forks, since the library first asked, lie between the first process and this one: what
// was made under another number belongs to a parent, whose threads and locks are not here.
uint32_t fork_count() noexcept;

}  // namespace ds
