// Collectives that go on while a program computes: run it with `ds launch -n 2 -- overlap [STEPS]`.
// Each process works on a block of numbers; while it computes the next block, the sums of the last
// one travel, and borders are exchanged with both neighbours.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ds.hpp>

int main(int argc, char** argv) try {
  constexpr int64_t kBlock = 1 << 16;
  const int steps = argc > 1 ? std::atoi(argv[1]) : 4;
  libds::Comm comm;  // what the launcher put into the environment, or this process alone
  const int32_t rank = comm.rank(), size = comm.size();

  // Two buffers in turn, in memory that the processes of a host share: nothing is copied twice.
  libds::Tensor blocks[] = {comm.shared_tensor(DS_FLOAT32, {kBlock}),
                            comm.shared_tensor(DS_FLOAT32, {kBlock})};
  libds::Work sums[2];
  double total = 0;
  for (int step = 0; step <= steps; ++step) {
    const int now = step % 2, before = 1 - now;
    if (step < steps) {
      auto* const x = static_cast<float*>(blocks[now].data());
      for (int64_t i = 0; i < kBlock; ++i) {
        x[i] = std::sin(static_cast<float>(step * kBlock + i)) / static_cast<float>(rank + 1);
      }
    }
    if (step > 0) {
      sums[before].wait();
      total += static_cast<double>(static_cast<const float*>(blocks[before].data())[step]);
    }
    if (step < steps) sums[now] = comm.start_all_reduce(blocks[now]);
  }

  // Everybody sends right and receives from the left: both are posted before anybody waits.
  float left = static_cast<float>(rank);
  if (size > 1) {
    const libds::Tensor own = libds::Tensor::from(std::vector<float>{static_cast<float>(rank)});
    libds::Tensor theirs = libds::Tensor::from(std::vector<float>{-1});
    const libds::Work send = comm.send(own, (rank + 1) % size);
    const libds::Work receive = comm.recv(theirs, (rank + size - 1) % size);
    send.wait();
    receive.wait();
    left = theirs.to_vector<float>().front();
  }
  std::printf("rank %d of %d: total %.6f, left neighbour %.0f\n", rank, size, total, left);
  comm.finalize();
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
