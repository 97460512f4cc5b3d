// Reads and writes of whoever names a file by its path or by a descriptor, on one Engine, with the
// checks that can be asked for: what ds_io of ds.h is made of.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>

#include "io/engine.h"
#include "io/range_checksums.h"

namespace ds::io {

struct SessionOptions {
  EngineOptions engine = {};
  bool validate = false;  // what was moved is compared with what the file holds, read otherwise
  bool checksum = false;  // what was written is remembered by checksums, which reads are checked by
};

// Where bytes of a file are.
struct Place {
  std::filesystem::path path = {};
  std::optional<int> descriptor = {};  // instead of the path; stays the caller's
  int64_t offset = 0;
  bool whole = false;  // all of the file: offset 0
};

// Safe from several threads.
class Session {
 public:
  using Ticket = Engine::Ticket;
  // Whatever keeps memory where it is until a request has ended.
  using Keep = std::shared_ptr<const void>;

  explicit Session(const SessionOptions& options) : options_(options), engine_(options.engine) {}

  // Starts a request; one that must be `alone` is nothing to wait_all.
  Ticket read(const Place& place, std::span<std::byte> out, Keep keep, bool alone = false);
  // A file that is not there is made; one that is stays as it is outside the range, or, when it is
  // written whole, is emptied first.
  Ticket write(const Place& place, std::span<const std::byte> bytes, Keep keep, bool alone = false);

  Engine& engine() { return engine_; }
  const Engine& engine() const { return engine_; }
  const SessionOptions& options() const { return options_; }

 private:
  const SessionOptions options_;
  RangeChecksums checksums_;
  Engine engine_;  // last: what its threads run uses the rest
};

}  // namespace ds::io
