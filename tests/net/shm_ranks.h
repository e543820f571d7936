/* shm_ranks.h: ranks over shared memory, each with a thread, on a host whose calls can be made to fail. */
#ifndef DML_TESTS_NET_SHM_RANKS_H
#define DML_TESTS_NET_SHM_RANKS_H

#include "base/clock.h" /* first: it asks the system headers for POSIX */
#include "net/shm.h"
#include "net/shm_internal.h"

#include <pthread.h>

#include "sockets.h"
#include "traffic.h"

/* ---- a host whose calls can be made to fail ---- */

static struct {
    int identity, create, open, map, random; /* 1: fails from now on */
    int read;                                /* the same, and counts what didn't */
    bool other_token, other_seal;
} fails;
static size_t bytes_read;         /* by process_vm_readv, in all but seals */
static __thread uint64_t my_host; /* added to the identity */
static int held_descriptors;      /* atomic, as the next: had from the host and not given back */
static ptrdiff_t held_bytes;      /* of memory that is mapped */

TEST__UNUSED static bool host_identity(uint64_t *identity)
{
    const bool known = dml__system_host()->identity(identity);
    *identity += my_host;
    return known && !fails.identity;
}

static int hold_descriptor(int fd)
{
    if (fd >= 0) __atomic_fetch_add(&held_descriptors, 1, __ATOMIC_RELAXED);
    return fd;
}

TEST__UNUSED static int host_create(size_t bytes)
{
    return fails.create ? -1 : hold_descriptor(dml__system_host()->create(bytes));
}

TEST__UNUSED static int host_open(long process, int fd, size_t bytes)
{
    CHECK(process >= 0 && fd >= 0);
    return fails.open ? -1 : hold_descriptor(dml__system_host()->open(process, fd, bytes));
}

TEST__UNUSED static void host_close(int fd)
{
    __atomic_fetch_sub(&held_descriptors, 1, __ATOMIC_RELAXED);
    dml__system_host()->close(fd);
}

TEST__UNUSED static void *host_map(int fd, size_t bytes)
{
    if (fails.map) return NULL;
    uint8_t *memory = (uint8_t *)dml__system_host()->map(fd, bytes);
    if (memory && fails.other_token) memory[3] ^= 1;
    if (memory) __atomic_fetch_add(&held_bytes, (ptrdiff_t)bytes, __ATOMIC_RELAXED);
    return memory;
}

TEST__UNUSED static void host_unmap(void *memory, size_t bytes)
{
    CHECK_INT((uintptr_t)memory % 4096, 0); /* or the system unmaps nothing */
    __atomic_fetch_sub(&held_bytes, (ptrdiff_t)bytes, __ATOMIC_RELAXED);
    dml__system_host()->unmap(memory, bytes);
}

/* When all transports are closed. */
TEST__UNUSED static void check_nothing_is_held(void)
{
    CHECK_INT(__atomic_load_n(&held_descriptors, __ATOMIC_RELAXED), 0);
    CHECK_INT(__atomic_load_n(&held_bytes, __ATOMIC_RELAXED), 0);
}

TEST__UNUSED static bool host_random(void *out, size_t bytes)
{
    return !fails.random && dml__system_host()->random(out, bytes);
}

TEST__UNUSED static bool host_read(long process, const dml__span *into, const uint64_t *from, int count)
{
    if (fails.read || !dml__system_host()->read(process, into, from, count)) return false;
    if (count > 1) __atomic_fetch_add(&bytes_read, into[0].bytes, __ATOMIC_RELAXED);
    if (fails.other_seal) ((uint8_t *)into[count - 1].data)[0] ^= 1;
    return true;
}

static dml__host_calls calls; /* filled in before a thread runs */

TEST__UNUSED static const dml__host_calls *host_calls(void)
{
    return &calls;
}

TEST__UNUSED static void prepare_calls(void)
{
    calls = *dml__system_host();
    calls.identity = host_identity;
    calls.create = host_create;
    calls.open = host_open;
    calls.map = host_map;
    calls.unmap = host_unmap;
    calls.close = host_close;
    calls.random = host_random;
    calls.read = host_read;
}

TEST__UNUSED static bool can_share(void)
{
    uint64_t identity;
    const int fd = dml__system_host()->identity(&identity) ? dml__system_host()->create(4096) : -1;
    if (fd >= 0) close(fd);
    return fd >= 0;
}

/* ---- ranks ---- */

typedef struct rank {
    dml__transport *below, *transport;
    dml__shm_settings settings;
    dml__memory memory;
    uint64_t host;
    int culprit;
    const traffic *traffic;
    const char *wrong;
    char media[TRAFFIC_RANKS][16];
} rank;

TEST__UNUSED static void rank_prepare(rank *ranks, int world, size_t ring, int spin)
{
    dml__transport *below[SOCKETS_RANKS];
    sockets_open(below, world, sockets_pair);
    memset(ranks, 0, (size_t)world * sizeof *ranks);
    for (int i = 0; i < world; i++) {
        ranks[i].below = below[i];
        ranks[i].settings.rank = i;
        ranks[i].settings.world = world;
        ranks[i].settings.ring_bytes = ring;
        ranks[i].settings.spin = spin;
        ranks[i].settings.seconds = 60;
        dml__memory_init(&ranks[i].memory, NULL, NULL, 0);
    }
}

TEST__UNUSED static void *rank_open(void *argument)
{
    rank *me = (rank *)argument;
    my_host = me->host;
    me->transport = dml__shm_open(me->below, &me->settings, host_calls(), &me->memory, &me->culprit);
    return NULL;
}

TEST__UNUSED static void *rank_main(void *argument)
{
    rank *me = (rank *)argument;
    rank_open(me);
    if (!me->transport) {
        me->wrong = "not opened";
        me->below->calls->close(me->below);
        return NULL;
    }
    for (int r = 0; r < me->settings.world; r++)
        snprintf(me->media[r], sizeof me->media[r], "%s", me->transport->calls->medium(me->transport, r));
    me->wrong = traffic_run(me->transport, me->settings.rank, me->settings.world, me->traffic);
    me->transport->calls->close(me->transport);
    return NULL;
}

TEST__UNUSED static void run_threads(rank *ranks, int world, const traffic *t, void *(*run)(void *))
{
    pthread_t threads[TRAFFIC_RANKS];
    for (int i = 0; i < world; i++) ranks[i].traffic = t;
    for (int i = 0; i < world; i++) pthread_create(&threads[i], NULL, run, &ranks[i]);
    for (int i = 0; i < world; i++) pthread_join(threads[i], NULL);
}

TEST__UNUSED static void check_ranks(const rank *ranks, int world, const char *what)
{
    for (int i = 0; i < world; i++)
        CHECK_MESSAGE(!ranks[i].wrong, "%s: rank %d of %d, spans of %zu, ring %zu: %s", what, i, world,
                      ranks[i].traffic->most, ranks[i].settings.ring_bytes, ranks[i].wrong);
}

/* Whether this system lets a process read another's memory, or at least its own. */
TEST__UNUSED static bool can_read(void)
{
    uint64_t here = 7, there = 0;
    const uint64_t from = (uint64_t)(uintptr_t)&here;
    dml__span into = { &there, sizeof there };
    return can_share() && dml__system_host()->read((long)getpid(), &into, &from, 1) && there == 7;
}

#endif
