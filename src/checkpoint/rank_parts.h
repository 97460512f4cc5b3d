// How ranks that write beside the training tell rank 0 what they wrote: by files in the temporary
// folder, which all of them see, because a collective of a second thread would mix with those of
// the training.
#pragma once

#include <filesystem>
#include <functional>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/writer.h"

namespace ds {

// Of a rank above 0. Made where the save begins, so that a disk that is full by then is reported
// there.
class PartHandover {
 public:
  PartHandover(std::filesystem::path folder, int rank);
  // Finishes the part and tells rank 0 what it holds, or that it failed; then throws why.
  void finish(PartWriter& part) const;

 private:
  void publish(std::string_view text, const char* as) const;

  std::filesystem::path folder_;
  int rank_;
};

// On rank 0: the parts of ranks 1 to world - 1, as they come. Throws kIo when one failed, and kComm
// when `given_up` says that one will not come.
std::vector<Manifest> take_parts(const std::filesystem::path& folder, int world,
                                 const std::function<bool()>& given_up);

// Whether a file of a temporary folder is such a message.
bool is_handover_file(std::string_view name);

}  // namespace ds
