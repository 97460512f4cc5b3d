/* A program that uses an installed libds. */
#include <ds.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  ds_tensor* tensor = NULL;
  double value = 1;
  if (ds_abi_version() != DS_VERSION_MAJOR * 1000000 + DS_VERSION_MINOR * 1000 + DS_VERSION_PATCH)
    return 1;
  if (ds_tensor_create(DS_FLOAT32, NULL, 0, &tensor) != DS_OK) return 2;
  if (ds_tensor_item(tensor, &value) != DS_OK || value != 0) return 3;
  ds_tensor_destroy(tensor);
  printf("ds %s\n", ds_version());
  return 0;
}
