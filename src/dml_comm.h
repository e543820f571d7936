/* dml_comm.h - collectives over sockets, and on them the ways to distribute training.

   Useful alone: the collectives know no tensors. Included after dml.h it also brings the sync strategies that
   make a dml_trainer distributed. As with dml.h, define DML_IMPLEMENTATION in exactly one source file, the
   same one where you implement dml.h if you use both. */
#ifndef DML_COMM_H
#define DML_COMM_H

#ifdef _WIN32
#error                                                                                                       \
    "dml_comm.h needs POSIX sockets, which Windows doesn't have: use dml.h alone there, or build for WSL or Cygwin"
#endif

#include "base/platform.h"
#include "base/status.h"
#include "base/dtype.h"
#include "base/allocator.h"
#include "base/log.h"
#include "base/clock.h"
#include "base/cpu.h"
#include "comm/comm.h"
#include "dist/cluster.h"
#include "dist/parameter_server.h"

#endif

/* With dml.h included first: the sync strategies. */
#ifdef DML_H
#include "dml.h"
#include "dist/compress.h"
#include "dist/all_reduce_sync.h"
#include "dist/zero_sync.h"
#include "dist/local_sgd.h"
#include "dist/mirrored.h"
#include "dist/parameter_server_sync.h"
#include "dist/downpour_sync.h"
#include "dist/sandblaster.h"
#include "dist/tensor_parallel.h"
#include "dist/vocabulary_parallel.h"
#include "dist/pipeline.h"
#endif

#ifdef DML_IMPLEMENTATION

/* Headers whose functions each call goes through, before one of the drivers includes them: gcc inlines no
   function into one that is compiled otherwise. */
#include "base/memory.h"
#include "comm/schedule.h"
#include "comm/algorithms.h"
#include "comm/settings.h"
#include "comm/nccl_engine.h"

DML__BODIES_BEGIN
DML__DRIVERS_BEGIN
#include "base/clock.c"
#include "base/status.c"
#include "base/error.c"
#include "base/memory.c"
#include "base/logger.c"
#include "base/cpu.c"
DML__DRIVERS_END
#include "base/dtype.c"
#include "base/float16.c"
#include "base/os_thread.c"
#include "net/sha256.c"
#include "net/wire.c"
#include "net/socket.c"
#include "net/net.c"
#include "net/local.c"
#include "net/host_memory.c"
#include "net/shm_meet.c"
#include "net/shm_shared.c"
#include "net/shm.c"
#include "net/handshake.c"
#include "net/tcp.c"
DML__DRIVERS_BEGIN
#include "net/unlike.c"
#include "net/place.c"
#include "net/missing.c"
#include "net/rendezvous.c"
DML__DRIVERS_END
#include "comm/call.c"
#include "comm/frame.c"
DML__DRIVERS_BEGIN
#include "comm/steps.c"
#include "comm/ring.c"
#include "comm/chain.c"
#include "comm/tree.c"
#include "comm/butterfly.c"
#include "comm/bruck.c"
#include "comm/direct.c"
#include "comm/shared.c"
#include "comm/price_group.c"
#include "comm/price.c"
#include "comm/measure.c"
DML__DRIVERS_END
#include "comm/algorithms.c"
#include "comm/choice_table.c"
#include "comm/shared_memory.c"
#include "comm/choice.c"
#include "comm/reduce_op.c"
#include "comm/leaves.c"
DML__DRIVERS_BEGIN
#include "comm/settings.c"
#include "comm/trace.c"
DML__DRIVERS_END
#include "comm/failure.c"
#include "comm/judge.c"
#include "comm/waiting.c"
#include "comm/mismatch.c"
#include "comm/store.c"
#include "comm/pair.c"
#include "comm/link_out.c"
#include "comm/link_in.c"
#include "comm/short.c"
#include "comm/operation.c"
#include "comm/tune.c"
#include "comm/turn.c"
#include "comm/nccl_engine.c"
#include "comm/mpi_engine_calls.c"
#include "comm/mpi_engine.c"
#include "comm/arguments.c"
#include "comm/request.c"
#include "comm/comm.c"
DML__DRIVERS_BEGIN
#include "comm/job.c"
#include "comm/open.c"
#include "comm/close.c"
#include "comm/describe.c"
#include "base/json.c"
#include "dist/cluster.c"
#include "dist/same_strategy.c"
#include "dist/parameter_server_meet.c"
#include "dist/parameter_server_queue.c"
#include "dist/parameter_server_push.c"
#include "dist/parameter_server.c"
#include "dist/parameter_server_weights.c"
#include "dist/parameter_server_apply.c"
#include "dist/parameter_server_pieces.c"
#include "dist/parameter_server_serve.c"
DML__DRIVERS_END
#ifdef DML_H
#include "dist/lent.c"
#include "dist/buckets.c"
#include "dist/all_reduce_sync.c"
#include "dist/zero_share.c"
#include "dist/zero_ahead.c"
#include "dist/zero_sync.c"
#include "dist/option_list.c"
#include "dist/replicas.c"
#include "dist/local_sgd_outer.c"
#include "dist/local_sgd.c"
#include "dist/mirrored_sync.c"
#include "dist/mirrored_clock.c"
#include "dist/mirrored_share.c"
#include "dist/mirrored_threads.c"
#include "dist/mirrored.c"
#include "dist/mirrored_devices.c"
#include "dist/mirrored_open.c"
#include "dist/compress_quantise.c"
#include "dist/compress_sparse.c"
#include "dist/compress_low_rank.c"
#include "dist/compress_sum.c"
#include "dist/parameter_server_optimizer.c"
#include "dist/parameter_server_sync.c"
#include "dist/downpour_sync.c"
#include "dist/sandblaster_coordinator.c"
#include "dist/sandblaster.c"
#include "dist/model_ranks.c"
#include "dist/tensor_parallel.c"
#include "dist/vocabulary_parallel.c"
#include "dist/parallel_file.c"
#include "dist/pipeline_ops.c"
#include "dist/pipeline.c"
#endif
DML__BODIES_END

#endif
