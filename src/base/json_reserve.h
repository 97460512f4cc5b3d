// Memory that lets JSON documents end when the system has none left.
//
// nlohmann's destructor flattens a document into a std::vector, so it allocates; a destructor whose
// allocation fails ends the process, which a library inside somebody else's process must not do.
// Vectors of JSON values therefore fall back to a reserve. std::allocator may be specialised for
// types of a program; this must be seen before the first vector of them, so json.h includes it.
#pragma once

#include <cstddef>
#include <limits>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <type_traits>

namespace ds {

// From the system or, when that fails, from a reserve of the process, which is free again once all
// of it was given back. Throws std::bad_alloc when neither has room.
void* allocate_for_json(std::size_t bytes);
void deallocate_for_json(void* pointer) noexcept;

}  // namespace ds

template <>
class std::allocator<nlohmann::ordered_json> {
 public:
  using value_type = nlohmann::ordered_json;
  using size_type = std::size_t;
  using difference_type = std::ptrdiff_t;
  using propagate_on_container_move_assignment = std::true_type;
  using is_always_equal = std::true_type;

  constexpr allocator() noexcept = default;
  template <class U>
  constexpr allocator(const allocator<U>&) noexcept {}

  value_type* allocate(std::size_t n) {
    if (n > std::numeric_limits<std::size_t>::max() / sizeof(value_type)) {
      throw std::bad_array_new_length();
    }
    return static_cast<value_type*>(ds::allocate_for_json(n * sizeof(value_type)));
  }
  void deallocate(value_type* pointer, std::size_t) noexcept { ds::deallocate_for_json(pointer); }

  friend constexpr bool operator==(const allocator&, const allocator&) noexcept { return true; }
};
