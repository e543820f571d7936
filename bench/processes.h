/* processes.h: the ranks of a benchmark as processes of this machine. */
#ifndef DML_BENCH_PROCESSES_H
#define DML_BENCH_PROCESSES_H

#include "bench.h"
#include "loopback.h"

#include "../dml.h"
#include "../dml_comm.h"

#include <sys/wait.h>

enum { PROCESSES_MAX = 64 };

/* A rank's communicator; ends the process where there is none. */
BENCH__UNUSED static dml_comm *processes_comm(const char *program, int number, int ranks, int port,
                                              const char *transport)
{
    dml_comm *comm = dml_comm_open(&(dml_comm_options){ .rank = number,
                                                        .world_size = ranks,
                                                        .master_addr = "127.0.0.1",
                                                        .master_port = port,
                                                        .timeout_s = 600, /* rank 0 waits for the peer */
                                                        .transport = transport });
    if (comm && !dml_comm_status(comm)) return comm;
    fprintf(stderr, "%s: rank %d: %s\n", program, number, dml_comm_error(comm));
    exit(1);
}

/* Forks the ranks, each of which calls `body`, and waits for them: 0 if all went well. */
BENCH__UNUSED static int processes_run(const char *program, int ranks,
                                       void (*body)(int number, int ranks, int port, void *user), void *user)
{
    pid_t pids[PROCESSES_MAX];
    const int port = loopback_free_port();
    int failed = 0;
    fflush(stdout);
    for (int number = 0; number < ranks; number++) {
        pids[number] = fork();
        if (pids[number] < 0) {
            fprintf(stderr, "%s: can't start a process\n", program);
            exit(1);
        }
        if (pids[number]) continue;
        body(number, ranks, port, user);
        exit(0);
    }
    for (int number = 0; number < ranks; number++) {
        int status = 1;
        waitpid(pids[number], &status, 0);
        failed |= status != 0;
    }
    bench_peers_told = true; /* by a child */
    return failed;
}

#endif
