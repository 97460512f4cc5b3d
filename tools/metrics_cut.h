// What a crash left in the record of a run after the step that it is resumed from.
#pragma once

#include <cstdint>
#include <string>

namespace tool {

// Takes away the lines of steps after `step`, which will be written again, and a last line that was
// not finished. The file is replaced as a whole, so that a crash leaves the old or the new one; one
// with nothing to take away, and what is no regular file, stays as it is. A path without a file, or
// "", is nothing to do.
void cut_metrics(const std::string& path, int64_t step);

}  // namespace tool
