// Values set over a document from outside of it: `ds train --set`, "set" of ds_engine_create.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "config/key_table.h"
#include "config/problem.h"

namespace ds {

// Sets each value at its path (a JSON pointer, or names with dots between) in `document`, making
// the objects on the way; a key that is there under another of its names keeps that name. Gives the
// canonical paths of what was set; paths that lead nowhere become problems.
std::set<std::string> apply_overrides(Json& document, const KeyTable& root,
                                      const std::vector<std::pair<std::string, Json>>& values,
                                      std::vector<ConfigProblem>& problems);

}  // namespace ds
