// Prints the machine's limits as one line of JSON, for scripts that compare rates with them:
//   print_limits [THREADS]
#include <cstdlib>
#include <iostream>

#include "base/json.h"
#include "bench/limits.h"

int main(int argc, char** argv) {
  ds::ThreadPool pool(argc > 1 ? std::atoi(argv[1]) : 0);
  const ds::bench::Limits limits = ds::bench::measure_limits(pool);
  std::cout << ds::Json{{"threads", pool.threads()},
                        {"fp32_gflops", limits.fp32_flops * 1e-9},
                        {"bf16_gflops", limits.bf16_flops * 1e-9},
                        {"read_gbs", limits.read * 1e-9},
                        {"mixed_gbs", limits.mixed * 1e-9},
                        {"copy_gbs", limits.copy * 1e-9},
                        {"stream_copy_gbs", limits.stream_copy * 1e-9}}
            << "\n";
  return 0;
}
