#include "checkpoint/background_save.h"

#include <system_error>
#include <utility>

#include "base/log.h"

namespace ds {

BackgroundSave::~BackgroundSave() {
  join();
  if (error_) log_warning("checkpoint", error_->message());
}

void BackgroundSave::start(std::unique_ptr<CheckpointWriter> writer, std::string tag) {
  start([shared = std::shared_ptr(std::move(writer))] { shared->commit(); }, std::move(tag));
}

void BackgroundSave::start(std::function<void()> job, std::string tag) {
  DS_CHECK(!thread_.joinable(), Code::kInternal, "two background saves at once");
  job_ = std::move(job);
  tag_ = std::move(tag);
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error&) {
    run();
  }
}

void BackgroundSave::run() noexcept {
  const auto failed = [&](Code code, std::string_view reason) {
    error_.emplace(code, str_cat("the checkpoint '", printable(tag_),
                                 "' that was being saved in the background is lost: ", reason));
  };
  try {
    job_();
  } catch (const Error& error) {
    failed(error.code(), error.message());
  } catch (const std::bad_alloc&) {
    failed(Code::kOutOfMemory, "out of memory");
  } catch (const std::exception& error) {
    failed(Code::kInternal, error.what());
  }
  job_ = nullptr;  // its buffers serve the next save
}

void BackgroundSave::join() noexcept {
  if (thread_.joinable()) thread_.join();
}

void BackgroundSave::wait() {
  join();
  if (error_) throw Error(*std::exchange(error_, std::nullopt));
}

}  // namespace ds
