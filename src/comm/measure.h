/* measure.h: the model that algorithms are priced with, made of what really lies between the ranks. */
#ifndef DML_COMM_MEASURE_H
#define DML_COMM_MEASURE_H

#include "base/platform.h"
#include "base/status.h"
#include "comm/comm.h"
#include "comm/price.h"

/* Numbers of a link as they are measured: one way, with what the processors at both ends do. */
DML__LOCAL dml__price_link dml__link_of(double latency, double bandwidth);

/* The same where the processors of one machine are the network, and its ranks share them: loopback, or
   bridges between containers. What copying can't explain is the emulated wire's. */
DML__LOCAL dml__price_link dml__copied_link_of(double latency, double bandwidth);

/* Of ranks that share memory, where a processor copies so fast within its cache. */
DML__LOCAL dml__price_link dml__memory_link_of(double copy);

/* The same where each has a processor to itself, and looks for what comes. */
DML__LOCAL void dml__suppose_awake(dml__price_model *model);

/* As it was measured, with what the processors at both ends do for each byte. */
DML__LOCAL double dml__link_bandwidth(const dml__price_link *link);

/* Where nothing is measured: ranks that share memory, and hosts with a network of 10 Gbit/s. */
DML__LOCAL dml__price_model dml__usual_model(void);

/* Where ranks are threads of one process, which share its processors and read each other's memory. */
DML__LOCAL void dml__suppose_threads(dml__price_model *model);

/* Bytes, for each rank, of a round of an all-reduce between the ranks of one machine, which share memory or,
   if `copies`, are joined by sockets; 0: all at once. Rounds stay in the caches: memory is what is slow, and
   where links are slower the processors that copy into and out of sockets have the more to spare. Not where
   a round's latencies are more than a fifth of its time. */
DML__LOCAL size_t dml__round_part(const dml__price_model *model, bool copies);

/* Whether what moves data within a host is its memory, of which sockets of one system are not much slower;
   else links, as between hosts that one machine stands for. */
DML__LOCAL bool dml__memory_moves(const dml__price_model *model);

/* A collective of the world, when it opens: rank 0 times a few short messages to a rank of its own machine
   and to one of another host, as far as there are such that sockets join, and how fast it adds and copies,
   and tells all; the same model and number of hosts at every rank, in comm->model, comm->hosts and
   job->host_of. A host is what shares memory; where rank 0 shares it with nobody, a machine. Takes 20 ms, on
   slow links three times that, and a fiftieth of the timeout. Nothing is measured where the numbers or an
   algorithm were given. */
DML__LOCAL dml_status dml__measure_model(dml_comm *comm);

/* Latency and bandwidth from `count` messages of bytes[i] that took seconds[i] one way (half a ping-pong),
   several of each size if possible: of the lines through two of them the one whose logarithms are nearest to
   those of the times in sum, which a few samples that something else has delayed don't move. The latency
   includes what the processors at both ends do. False: there are not two sizes, or the times are not
   positive. */
DML__LOCAL bool dml__fit_link(const double *bytes, const double *seconds, int count, double *latency,
                              double *bandwidth);

#endif
