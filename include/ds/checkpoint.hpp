// ds/checkpoint.hpp - Checkpoints on disk. Part of ds.hpp.
#ifndef DS_CHECKPOINT_HPP
#define DS_CHECKPOINT_HPP

#include <string>

#include "base.hpp"
#include "checkpoint.h"

namespace libds {

// Describes a checkpoint as JSON; "" as a tag means the newest valid one.
inline std::string inspect_checkpoint(const std::string& folder, const std::string& tag = "") {
  char* out = nullptr;
  check(ds_checkpoint_inspect(folder.c_str(), detail::or_null(tag), &out));
  return detail::take(out);
}
// Deletes one checkpoint; `latest` moves to another one first where it names this.
inline void delete_checkpoint(const std::string& folder, const std::string& tag) {
  check(ds_checkpoint_delete(folder.c_str(), tag.c_str()));
}
// Reads every byte and throws when one is wrong.
inline void verify_checkpoint(const std::string& folder, const std::string& tag = "") {
  check(ds_checkpoint_verify(folder.c_str(), detail::or_null(tag)));
}

}  // namespace libds

#endif  // DS_CHECKPOINT_HPP
