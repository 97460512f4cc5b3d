// The instruction of AVX512-VNNI. Included inside the region that selects an instruction set.

// sum + the products of four codes of w, unsigned, and four of x. gcc 12 moves sums to memory and
// back around its own intrinsic, which takes more than twice as long.
inline __attribute__((always_inline)) void add_products(__m512i& sum, __m512i w, __m512i x) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x));
}
