// The emulator's threads that poll, with a rest in their loop.
//
// Two threads of the vendor's library, `ap_main` and `stream#N`, read sockets that do not block, over and over, and so take
// most of the time of a small machine from the threads that compute. The library looks its own `read_enough` up by name,
// and finds this one, which was loaded before it for all to see: the same read, and a rest if there was nothing to be read.
// They cannot wait in the read itself, since each of them looks at more than one place.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <time.h>

// Much less than a launch takes, and much more than a look.
#define REST_NANOSECONDS 50000

typedef int read_enough_function(void *unused, int fd, void **data, size_t bytes, void **rest);

// The library's own.
static read_enough_function *vendors;

int read_enough(void *unused, int fd, void **data, size_t bytes, void **rest) {
  read_enough_function *read = __atomic_load_n(&vendors, __ATOMIC_ACQUIRE);
  if (!read) {
    void *library = dlopen("libcdm_daemon_emulator.so", RTLD_LAZY | RTLD_NOLOAD);
    read = (read_enough_function *)dlsym(library, "read_enough");
    __atomic_store_n(&vendors, read, __ATOMIC_RELEASE);
  }
  int result = read(unused, fd, data, bytes, rest);
  if (result < 0) {
    int error = errno;
    nanosleep(&(struct timespec){.tv_nsec = REST_NANOSECONDS}, NULL);
    errno = error;
  }
  return result;
}
