// What to say of a key that a table does not have.
#pragma once

#include <set>
#include <string>

#include "config/key_table.h"

namespace ds {

struct UnknownKey {
  std::string text;             // what is wrong; what to do
  std::set<std::string> meant;  // canonical paths of the keys that were probably meant
};

// `table` is the one at `path` (canonical), `root` the document's.
UnknownKey explain_unknown_key(const KeyTable& root, const KeyTable& table, const std::string& path,
                               const std::string& name);

// Names that people give to remarks: _comment, #1, //.
bool is_comment_key(std::string_view name);

}  // namespace ds
