/* dml_comm.h - collectives over sockets, and on them the ways to distribute training.

   Useful alone: the collectives know no tensors. Included after dml.h it also brings the sync strategies that
   make a dml_trainer distributed. As with dml.h, define DML_IMPLEMENTATION in exactly one source file, the
   same one where you implement dml.h if you use both. */
#ifndef DML_COMM_H
#define DML_COMM_H

#include "base/platform.h"
#include "base/status.h"
#include "base/dtype.h"
#include "base/allocator.h"
#include "base/log.h"
#include "base/clock.h"

#endif

/* With dml.h included first: the sync strategies. */
#ifdef DML_H
#include "dml.h"
#include "dist/all_reduce_sync.h"
#ifdef DML_IMPLEMENTATION
#include "dist/all_reduce_sync.c"
#endif
#endif
