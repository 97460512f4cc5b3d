// One run at a time writes a folder of checkpoints.
#pragma once

#include <string>

namespace tool {

// Makes the folder, tries that it can be written, and holds FOLDER/.ds-lock until the end: its lock
// ends with the process, however that ends; its text names the process, host and start for whoever
// is refused. Throws Failure. On a file system without locks a warning takes the lock's place.
class RunLock {
 public:
  explicit RunLock(const std::string& folder);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  std::string path_;
  int fd_ = -1;
  bool locked_ = false;
};

}  // namespace tool
