// Linked to a program: its products have our own kernels, whatever the machine has.
#include <cstdlib>

[[maybe_unused]] static const int g_off = ::setenv("DS_CUBLASLT_LIBRARY", "off", 1);
