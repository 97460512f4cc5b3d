// Libraries that are not good enough: one is too old, one says it is new and lacks functions.
extern "C" int ncclGetVersion(int* version) {
  *version = STAND_IN_VERSION;
  return 0;
}
