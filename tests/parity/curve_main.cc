// Writes the initial weights of the compared run as a Hugging Face folder, or prints its losses:
//   parity_curve export FOLDER | parity_curve fp32 | parity_curve bf16
#include <cstdio>
#include <cstring>

#include "parity/curve.h"

int main(int argc, char** argv) {
  try {
    if (argc == 3 && std::strcmp(argv[1], "export") == 0) {
      ds_model* model = nullptr;
      parity::check(ds_model_create(parity::kModel, parity::kSeed, &model));
      parity::check(ds_model_export(model, argv[2], DS_FLOAT32, 0));
      ds_model_destroy(model);
      return 0;
    }
    if (argc == 2) {
      for (const double loss : parity::run(std::strcmp(argv[1], "bf16") == 0)) {
        std::printf("%.9g\n", loss);
      }
      return 0;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "parity_curve: %s\n", error.what());
    return 1;
  }
  std::fprintf(stderr, "usage: parity_curve export FOLDER | fp32 | bf16\n");
  return 2;
}
