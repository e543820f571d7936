/* host_memory.h: memory that two processes of one host share, and nobody else has a name for. */
#ifndef DML_NET_HOST_MEMORY_H
#define DML_NET_HOST_MEMORY_H

#include "base/platform.h"
#include "net/transport.h"

/* What is asked of the system, as a table, so that a test can make each of them fail. */
typedef struct dml__host_calls {
    /* A number that two processes have in common if one could open the other's memory: they run on one boot
       of one kernel, in the same network and process namespaces and for the same user. False: not known. */
    bool (*identity)(uint64_t *identity);
    long (*process)(void); /* under which number the others find this one */
    /* Memory of that size, zeroed, which can't shrink any more: a descriptor. -1: there is none. It has no
       name, so it ends with the last process that has it. */
    int (*create)(size_t bytes);
    /* The same memory by another process's descriptor of it. -1: it isn't there, or isn't what it should. */
    int (*open)(long process, int fd, size_t bytes);
    void *(*map)(int fd, size_t bytes); /* NULL: no */
    void (*unmap)(void *memory, size_t bytes);
    void (*close)(int fd);
    bool (*random)(void *out, size_t bytes);
    /* Copies ranges of another process's memory, one after the other in their order: into[i] from address
       from[i] there. False: not all of it could be read. */
    bool (*read)(long process, const dml__span *into, const uint64_t *from, int count);
} dml__host_calls;

#define DML__HOST_RANGES 2 /* of a read, at most */

/* Linux's memfd_create, process_vm_readv and /proc. Elsewhere every one fails. */
DML__LOCAL const dml__host_calls *dml__system_host(void);

#endif
