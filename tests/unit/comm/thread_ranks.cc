// Worlds whose ranks are threads of the test program.
#include "unit/comm/support.h"

namespace ds::testing {

std::vector<Outcome> run_ranks(const World& world, const std::function<void(Communicator&)>& body) {
  std::vector<Outcome> outcomes(world.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < world.size(); ++rank) {
    threads.emplace_back([&, rank] { outcomes[rank] = outcome_of([&] { body(*world[rank]); }); });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

std::vector<Maker> makers() {
  return {{"threads",
           [](int size, const CommOptions& options) { return make_local_group(size, options); }},
          maker_of("shm", TransportKind::kShm),
          maker_of("sockets", TransportKind::kSockets),
          {"hierarchical", [](int size, CommOptions options) {
             // Nodes of two ranks, the last one perhaps of one.
             options.ranks_per_node = 2;
             return maker_of("", TransportKind::kHierarchical).make(size, options);
           }}};
}
std::vector<int> world_sizes() {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  return {1, 2, 3};  // instrumented code takes its time
#else
  return {1, 2, 3, 4};
#endif
}

}  // namespace ds::testing
