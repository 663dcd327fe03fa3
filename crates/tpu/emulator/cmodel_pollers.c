// The threads of a BM1684X's emulator that poll, with a rest in their loop.
//
// Each of its engines, used or not, is a thread that looks for a command, over and over: it locks two mutexes and unlocks them. On a
// small machine they take the time from the ones that compute. The library's own `pthread_mutex_unlock` is therefore
// replaced, in its table of imported functions, by one that rests where a thread unlocks and unlocks and does nothing else.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

// What takes longer between two looks was work.
#define WORK_NANOSECONDS 3000
// Looks in vain before a thread gives way, and before it sleeps.
#define LOOKS_TO_YIELD 16
#define LOOKS_TO_SLEEP 64
#define SLEEP_NANOSECONDS 20000
#define MAX_SLEEP_NANOSECONDS 500000

static __thread int64_t last;      // when this thread looked
static __thread int64_t looks;     // in vain
static __thread int is_engine;     // 1: yes, -1: no

static int64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000000ll + time.tv_nsec;
}

static int engine(void) {
  if (is_engine == 0) {
    char name[16] = "";
    pthread_getname_np(pthread_self(), name, sizeof name);
    // They take their names when they begin.
    is_engine = strncmp(name, "TPU_", 4) == 0 || strcmp(name, "CORE_MAIN") == 0 ? 1 : -1;
  }
  return is_engine == 1;
}

static int unlock(pthread_mutex_t *mutex) {
  const int result = pthread_mutex_unlock(mutex);
  if (now() - last > WORK_NANOSECONDS) looks = 0;
  looks++;
  if (looks > LOOKS_TO_SLEEP && engine()) {
    const int64_t rest = (looks - LOOKS_TO_SLEEP) * SLEEP_NANOSECONDS;
    nanosleep(&(struct timespec){.tv_nsec = rest < MAX_SLEEP_NANOSECONDS ? rest : MAX_SLEEP_NANOSECONDS}, NULL);
  } else if (looks % LOOKS_TO_YIELD == 0) {
    sched_yield();
  }
  last = now();
  return result;
}

// Lets the threads of the loaded library rest that `handle` is of. 0: done; else its table is not as expected.
int cmodel_let_rest(void *handle) {
  struct link_map *map;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map)) return 1;
  const ElfW(Rela) *relocations = NULL;
  const ElfW(Sym) *symbols = NULL;
  const char *strings = NULL;
  size_t bytes = 0;
  for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++) {
    switch (entry->d_tag) {
      case DT_JMPREL: relocations = (const void *)entry->d_un.d_ptr; break;
      case DT_PLTRELSZ: bytes = entry->d_un.d_val; break;
      case DT_SYMTAB: symbols = (const void *)entry->d_un.d_ptr; break;
      case DT_STRTAB: strings = (const void *)entry->d_un.d_ptr; break;
    }
  }
  if (!relocations || !symbols || !strings) return 1;
  for (size_t i = 0; i < bytes / sizeof *relocations; i++) {
    const ElfW(Sym) *symbol = &symbols[ELF64_R_SYM(relocations[i].r_info)];
    if (strcmp(strings + symbol->st_name, "pthread_mutex_unlock") != 0) continue;
    *(void **)(map->l_addr + relocations[i].r_offset) = (void *)unlock;
    return 0;
  }
  return 1;
}
