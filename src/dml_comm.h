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
#include "comm/comm.h"

#endif

/* With dml.h included first: the sync strategies. */
#ifdef DML_H
#include "dml.h"
#include "dist/all_reduce_sync.h"
#endif

#ifdef DML_IMPLEMENTATION

#include "base/status.c"
#include "base/error.c"
#include "base/dtype.c"
#include "base/memory.c"
#include "base/logger.c"
#include "base/clock.c"
#include "base/os_thread.c"
#include "comm/sha256.c"
#include "comm/wire.c"
#include "comm/socket.c"
#include "comm/handshake.c"
#include "comm/control.c"
#include "comm/tcp.c"
#include "comm/reduce_op.c"
#include "comm/exchange.c"
#include "comm/collectives.c"
#include "comm/settings.c"
#include "comm/rendezvous.c"
#include "comm/comm.c"
#ifdef DML_H
#include "dist/all_reduce_sync.c"
#endif

#endif
