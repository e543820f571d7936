/* settings.h: the options of a communicator and the environment, checked. */
#ifndef DML_COMM_SETTINGS_H
#define DML_COMM_SETTINGS_H

#include "base/error.h"
#include "base/platform.h"
#include "comm/comm.h"
#include "net/net.h"

/* What is kept of what a rank did (comm/trace.h). */
typedef struct dml__trace_settings {
    const char *path; /* to which ".RANK" is added; NULL: nothing is */
    int events;
    bool steps;
} dml__trace_settings;

#define DML__LONGEST_TUNE 3600.0 /* seconds */

typedef struct dml__comm_settings {
    dml__net_settings net; /* segment_bytes: a multiple of 8 */
    const char *algorithm; /* NULL: the cheapest */
    bool only_tcp, deterministic;
    bool usual_segments;       /* their size was left to the library */
    bool no_reads;             /* ranks of one host don't read each other's memory */
    bool reads_if_fast;        /* or do if it takes less than two copies */
    double latency, bandwidth; /* of a link: seconds, bytes/s; 0: to be measured */
    double tune;               /* seconds of trials; 0: none */
    dml__trace_settings trace;
    bool launched;                    /* rank and world are what a launcher said */
    const struct dml__engine *engine; /* NULL: ours */
    bool nccl;                        /* beside it */
} dml__comm_settings;

DML__LOCAL bool dml__read_comm_settings(const dml_comm_options *options, dml__comm_settings *settings,
                                        dml__error *error);

#endif
