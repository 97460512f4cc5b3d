#include "comm/store.h"

#include <cstring>

namespace ds::comm {
namespace {

using std::chrono::milliseconds;

milliseconds left_until(Clock::time_point end) {
  const auto left = std::chrono::duration_cast<milliseconds>(end - Clock::now());
  return left.count() > 0 ? left : milliseconds(0);
}

// Texts one after another, each behind its length; a first byte says whether it is a failure.
std::string pack(const std::vector<std::string>& texts) {
  std::string packed = "+";
  for (const std::string& text : texts) {
    const uint64_t n = text.size();
    packed.append(reinterpret_cast<const char*>(&n), sizeof(n));
    packed += text;
  }
  return packed;
}

std::vector<std::string> unpack(std::string_view packed, int size) {
  std::vector<std::string> texts;
  packed.remove_prefix(1);
  for (int i = 0; i < size; ++i) {
    uint64_t n = 0;
    DS_CHECK(packed.size() >= sizeof(n), Code::kComm, "the store's answer is cut short");
    std::memcpy(&n, packed.data(), sizeof(n));
    packed.remove_prefix(sizeof(n));
    DS_CHECK(n <= packed.size(), Code::kComm, "the store's answer is cut short");
    texts.emplace_back(packed.substr(0, n));
    packed.remove_prefix(n);
  }
  return texts;
}

class StoreGather {
 public:
  StoreGather(StorePtr store, std::string prefix, int rank, int size, milliseconds timeout)
      : store_(std::move(store)),
        prefix_(std::move(prefix)),
        rank_(rank),
        size_(size),
        timeout_(timeout),
        end_(Clock::now() + timeout) {}

  std::vector<std::string> operator()(const std::string& text) {
    const std::string round = str_cat(prefix_, "/", ++rounds_);
    if (rank_ != 0) {
      store_->put(str_cat(round, "/", rank_), text);
      // Rank 0 says who is missing when its own time is over: a little later than ours, perhaps.
      constexpr milliseconds kGrace{2000};
      const auto all = store_->get(round + "/0", left_until(end_) + kGrace);
      if (!all) fail_without(round, 0);
      DS_CHECK(!all->empty(), Code::kComm, "the store's answer is empty");
      if (all->front() != '+') fail(Code::kComm, peer_text(all->substr(1)));
      return unpack(*all, size_);
    }
    std::vector<std::string> texts{text};
    try {
      for (int peer = 1; peer < size_; ++peer) {
        auto theirs = store_->get(str_cat(round, "/", peer), left_until(end_));
        if (!theirs) fail_without(round, peer);
        texts.push_back(std::move(*theirs));
      }
    } catch (const Error& error) {
      store_->put(round + "/0", "-" + error.message());
      throw;
    }
    store_->put(round + "/0", pack(texts));
    return texts;
  }

 private:
  [[noreturn]] void fail_without(const std::string& round, int first) {
    std::vector<int> missing{first};
    for (int peer = first + 1; peer < size_; ++peer) {
      if (peer != rank_ && !store_->get(str_cat(round, "/", peer), milliseconds(1))) {
        missing.push_back(peer);
      }
    }
    // Without rank 0 nobody collects; the others may all be there.
    fail(Code::kComm, rank_list(missing), " of ", size_, " did not come to the rendezvous within ",
         format_number(static_cast<double>(timeout_.count()) / 1000), " s");
  }

  const StorePtr store_;
  const std::string prefix_;
  const int rank_, size_;
  const milliseconds timeout_;
  const Clock::time_point end_;
  int rounds_ = 0;
};

}  // namespace

GatherTexts gather_over_store(StorePtr store, std::string prefix, int rank, int size,
                              milliseconds timeout) {
  auto gather =
      std::make_shared<StoreGather>(std::move(store), std::move(prefix), rank, size, timeout);
  return [gather](const std::string& text) { return (*gather)(text); };
}

}  // namespace ds::comm
