// Stands for what loads a module on a chip: the vendor's library first, then the module, whose kernels register themselves.
// Prints each kernel and the bytes of its arguments.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

static const char *names[256];
static int count;

// In place of the library's.
void tpu_register_kernel_func(const char *name, void (*kernel)(const void *), int type) {
  if (kernel != NULL && type == 0 && count < 256) names[count++] = name;
}

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  if (dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL) == NULL) return fprintf(stderr, "%s\n", dlerror()), 1;
  void *module = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
  if (module == NULL) return fprintf(stderr, "%s\n", dlerror()), 1;
  for (int i = 0; i < count; i++) {
    char constant[256];
    snprintf(constant, sizeof constant, "%s_args_bytes", names[i]);
    const uint32_t *bytes = dlsym(module, constant);
    if (bytes == NULL || dlsym(module, names[i]) == NULL) return fprintf(stderr, "no %s\n", names[i]), 1;
    printf("%s %u\n", names[i], *bytes);
  }
  return 0;
}
