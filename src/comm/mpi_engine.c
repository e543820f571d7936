#ifndef DML_COMM_MPI_ENGINE_C
#define DML_COMM_MPI_ENGINE_C

#include "comm/engine.h"

#ifdef DML_MPI

/* The engine that leaves everything to MPI, 3.1 or later: each call becomes one of its non-blocking ones, or
   several, all of which are posted at once, since the collectives of a communicator have to be posted in the
   same order everywhere. */

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "comm/job.h"

/* Elements of one MPI call; tests make it less. Above it they go in blocks. */
#ifndef DML__MPI_LARGEST
#define DML__MPI_LARGEST INT_MAX
#define DML__MPI_BLOCK 65536
#else
#define DML__MPI_BLOCK 64
#endif
#define DML__MPI_DTYPES 8 /* an MPI tag is ours times this, plus the dtype */

typedef struct dml__mpi_group {
    MPI_Comm main; /* collectives, and messages of the calls */
    MPI_Comm aux;  /* checks, and the messages of collectives that MPI's own can't carry out */
} dml__mpi_group;

/* What there is to a request beside ours. */
typedef struct dml__mpi_call {
    int pending;                        /* MPI requests */
    bool checking, checked;             /* before it begins */
    uint8_t said[DML__SIGNATURE_BYTES]; /* what rank 0 of the group does */
    MPI_Datatype types[2];              /* to be released when it ends */
    int type_count;
    const char *result;    /* where it will be, if that isn't where it belongs */
    int *counts, *offsets; /* (world) */
} dml__mpi_call;

typedef struct dml__mpi {
    dml__transport transport; /* first */
    dml__comm_job *job;
    dml__memory *memory;
    int world;
    bool owned; /* we have initialised it */
    bool check; /* DML_COMM_CHECK */
    dml__mpi_group group;
    MPI_Comm control;
    MPI_Op op; /* dml__reduce_elements */
    int most_tag;
    double started_at;
    dml__mpi_call *calls; /* (max_requests + 1) */
    int *all_counts;
    MPI_Request *handles; /* (most) */
    dml_request **owners; /* (most) */
    int *indices;         /* (most) */
    MPI_Status *statuses; /* (most) */
    int most, used;
    /* Control messages on their way. */
    uint8_t *outbox;    /* (letters, DML__CONTROL_BYTES) */
    MPI_Request *posts; /* (letters) */
    int letters;
} dml__mpi;

static dml__mpi *dml__mpi_of(const dml__comm_job *job)
{
    return (dml__mpi *)(void *)job->transport;
}

static dml__mpi_group *dml__mpi_group_of(const dml_comm *comm)
{
    return comm->beneath ? (dml__mpi_group *)comm->beneath : &dml__mpi_of(comm->job)->group;
}

static dml__mpi_call *dml__mpi_call_of(const dml_request *request)
{
    const dml__comm_job *job = request->comm->job;
    return &dml__mpi_of(job)->calls[request - job->requests];
}

/* False: MPI has failed, and with it the job. */
static bool dml__mpi_ok(dml__comm_job *job, const char *doing, int code)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (code == MPI_SUCCESS) return true;
    MPI_Error_string(code, text, &length);
    dml__job_fail(job, job->rank, DML_ERROR_NETWORK, "rank %d: MPI failed in %s: %.200s", job->rank, doing,
                  text);
    return false;
}

static bool dml__mpi_call_ok(const dml_request *request, int code)
{
    char text[DML__SIGNATURE_TEXT];
    if (code == MPI_SUCCESS) return true;
    return dml__mpi_ok(request->comm->job, dml__signature_text(&request->call.signature, text), code);
}

/* The place of the next MPI request of a call. */
static MPI_Request *dml__mpi_handle(dml_request *request)
{
    dml__mpi *mpi = dml__mpi_of(request->comm->job);
    DML_ASSERT(mpi->used < mpi->most);
    mpi->owners[mpi->used] = request;
    mpi->handles[mpi->used] = MPI_REQUEST_NULL;
    dml__mpi_call_of(request)->pending++;
    return &mpi->handles[mpi->used++];
}

/* ---- types ---- */

/* To be moved, or to be added as integers that wrap around. */
static MPI_Datatype dml__mpi_element(dml_dtype dtype, bool wraps)
{
    switch (dtype) {
    case DML_F32: return MPI_FLOAT;
    case DML_F64: return MPI_DOUBLE;
    case DML_I32: return wraps ? MPI_UINT32_T : MPI_INT32_T;
    case DML_I64: return wraps ? MPI_UINT64_T : MPI_INT64_T;
    case DML_I8: return wraps ? MPI_UINT8_T : MPI_INT8_T;
    case DML_BF16:
    case DML_F16: return MPI_UINT16_T;
    default: return MPI_UINT8_T;
    }
}

/* `count` elements as one: blocks, and the rest behind them. */
static int dml__mpi_make_large(uint64_t count, MPI_Datatype element, size_t bytes, MPI_Datatype *large)
{
    const int whole = (int)(count / DML__MPI_BLOCK), rest = (int)(count % DML__MPI_BLOCK);
    const int counts[2] = { 1, rest };
    const MPI_Aint offsets[2] = { 0, (MPI_Aint)((size_t)whole * DML__MPI_BLOCK * bytes) };
    MPI_Datatype block, types[2];
    types[1] = element;
    int code = MPI_Type_contiguous(DML__MPI_BLOCK, element, &block);
    if (code) return code;
    code = MPI_Type_contiguous(whole, block, &types[0]);
    MPI_Type_free(&block);
    if (code) return code;
    code = MPI_Type_create_struct(2, counts, offsets, types, large);
    MPI_Type_free(&types[0]);
    return code ? code : MPI_Type_commit(large);
}

/* What stands for `count` elements of a call: so many of `type`, which is released when it ends. */
static int dml__mpi_shape(dml_request *request, uint64_t count, MPI_Datatype *type)
{
    dml__mpi_call *call = dml__mpi_call_of(request);
    const dml_dtype dtype = request->call.signature.dtype;
    *type = dml__mpi_element(dtype, false);
    if (count <= DML__MPI_LARGEST) return (int)count;
    if (dml__mpi_call_ok(request, dml__mpi_make_large(count, *type, dml_dtype_size(dtype), type)))
        call->types[call->type_count++] = *type;
    return 1;
}

/* ---- reductions ---- */

/* MPI hands a reduction the type of its elements and no word of the user's: so that type's name says where
   the reduction is described. */
static void dml__mpi_reduce(void *in, void *inout, int *count, MPI_Datatype *type)
{
    char name[MPI_MAX_OBJECT_NAME];
    int length, bytes;
    MPI_Type_get_name(*type, name, &length);
    MPI_Type_size(*type, &bytes);
    const dml__reduction *how = (const dml__reduction *)(uintptr_t)strtoull(name, NULL, 16);
    const size_t elements = (size_t)bytes / dml_dtype_size(how->dtype) * (size_t)*count;
    dml__reduce_elements(how, inout, in, inout, elements);
}

static bool dml__mpi_named_type(dml_request *request, int elements, MPI_Datatype *type)
{
    char name[32];
    dml__mpi_call *call = dml__mpi_call_of(request);
    const int bytes = elements * (int)dml_dtype_size(request->call.signature.dtype);
    if (!dml__mpi_call_ok(request, MPI_Type_contiguous(bytes, MPI_BYTE, type))) return false;
    call->types[call->type_count++] = *type;
    snprintf(name, sizeof name, "%llx", (unsigned long long)(uintptr_t)&request->call.reduction);
    return dml__mpi_call_ok(request, MPI_Type_commit(type)) &&
           dml__mpi_call_ok(request, MPI_Type_set_name(*type, name));
}

/* What MPI can do by itself, or its fabric. Its minimum and maximum of floats say nothing of NaN and -0. */
static bool dml__mpi_knows(const dml__reduction *how, MPI_Op *op)
{
    const bool floats = how->dtype == DML_F32 || how->dtype == DML_F64;
    if (how->function || how->dtype == DML_F16 || how->dtype == DML_BF16) return false;
    switch (how->op) {
    case DML_SUM:
    case DML_MEAN: *op = MPI_SUM; return true;
    case DML_PROD: *op = MPI_PROD; return true;
    case DML_MIN: *op = MPI_MIN; return !floats;
    default: *op = MPI_MAX; return !floats;
    }
}

/* The op, and a type of which each is one element. */
static bool dml__mpi_set_op(dml_request *request, MPI_Op *op, MPI_Datatype *type)
{
    const dml__reduction *how = &request->call.reduction;
    if (dml__mpi_knows(how, op)) {
        *type = dml__mpi_element(how->dtype, how->op != DML_MIN && how->op != DML_MAX);
        return true;
    }
    *op = dml__mpi_of(request->comm->job)->op;
    return dml__mpi_named_type(request, 1, type);
}

/* data[i] at the root, or everywhere (root -1), from `in` (or from there, NULL). */
static bool dml__mpi_post_reduce(dml_request *request, const void *in, void *data, int count,
                                 MPI_Datatype type, MPI_Op op, int root)
{
    const MPI_Comm comm = dml__mpi_group_of(request->comm)->main;
    if (!in) in = MPI_IN_PLACE;
    if (root < 0)
        return dml__mpi_call_ok(request,
                                MPI_Iallreduce(in, data, count, type, op, comm, dml__mpi_handle(request)));
    if (request->comm->rank != root && in == MPI_IN_PLACE) in = data;
    return dml__mpi_call_ok(request,
                            MPI_Ireduce(in, data, count, type, op, root, comm, dml__mpi_handle(request)));
}

/* Any count: the whole blocks as elements of their own, then the rest. */
static bool dml__mpi_post_reduces(dml_request *request, const void *in, void *data, uint64_t count,
                                  MPI_Datatype type, MPI_Op op, MPI_Datatype block, int root)
{
    const uint64_t whole = count > DML__MPI_LARGEST ? count / DML__MPI_BLOCK : 0;
    const size_t done = (size_t)(whole * DML__MPI_BLOCK) * dml_dtype_size(request->call.signature.dtype);
    const char *rest = in ? (const char *)in + done : NULL;
    if (whole && !dml__mpi_post_reduce(request, in, data, (int)whole, block,
                                       dml__mpi_of(request->comm->job)->op, root))
        return false;
    return dml__mpi_post_reduce(request, rest, (char *)data + done, (int)(count - whole * DML__MPI_BLOCK),
                                type, op, root);
}

/* What blocks of a larger call are. */
static bool dml__mpi_set_block(dml_request *request, uint64_t most, MPI_Datatype *block)
{
    *block = MPI_BYTE;
    return most <= DML__MPI_LARGEST || dml__mpi_named_type(request, DML__MPI_BLOCK, block);
}

static void dml__mpi_begin_reduce(dml_request *request)
{
    const dml__signature *signature = &request->call.signature;
    MPI_Op op;
    MPI_Datatype type, block;
    if (dml__mpi_set_op(request, &op, &type) && dml__mpi_set_block(request, signature->count, &block))
        dml__mpi_post_reduces(request, NULL, request->call.out, signature->count, type, op, block,
                              signature->operation == DML__CALL_REDUCE ? signature->root : -1);
}

/* ---- parts ---- */

static uint64_t dml__mpi_part_count(const dml_request *request, int rank)
{
    return request->call.counts ? request->call.counts[rank] : request->call.signature.count;
}

static uint64_t dml__mpi_part_offset(const dml_request *request, int rank)
{
    return request->call.offsets ? request->call.offsets[rank]
                                 : request->call.signature.count * (uint64_t)rank;
}

static char *dml__mpi_part(const dml_request *request, const void *array, int rank)
{
    const size_t element = dml_dtype_size(request->call.signature.dtype);
    return (char *)(uintptr_t)array + (size_t)dml__mpi_part_offset(request, rank) * element;
}

/* Counts and places as MPI wants them; false: they don't fit. */
static bool dml__mpi_set_parts(dml_request *request)
{
    dml__mpi_call *call = dml__mpi_call_of(request);
    for (int r = 0; r < request->comm->size; r++) {
        const uint64_t count = dml__mpi_part_count(request, r), offset = dml__mpi_part_offset(request, r);
        if (count > DML__MPI_LARGEST || offset > DML__MPI_LARGEST) return false;
        call->counts[r] = (int)count;
        call->offsets[r] = (int)offset;
    }
    return true;
}

static bool dml__mpi_lie_together(const dml_request *request)
{
    for (int r = 0; r + 1 < request->comm->size; r++)
        if (dml__mpi_part_offset(request, r) + dml__mpi_part_count(request, r) !=
            dml__mpi_part_offset(request, r + 1))
            return false;
    return true;
}

/* Part by part, for what MPI has no call for. */
static void dml__mpi_begin_reduce_scatter_parts(dml_request *request)
{
    MPI_Op op;
    MPI_Datatype type, block;
    uint64_t most = 0;
    for (int r = 0; r < request->comm->size; r++)
        if (dml__mpi_part_count(request, r) > most) most = dml__mpi_part_count(request, r);
    bool ok = dml__mpi_set_op(request, &op, &type) && dml__mpi_set_block(request, most, &block);
    for (int r = 0; ok && r < request->comm->size; r++) {
        const char *in = dml__mpi_part(request, request->call.in, r);
        const bool own = r == request->comm->rank && in != request->call.out;
        ok = dml__mpi_post_reduces(request, own ? in : NULL, own ? request->call.out : (void *)(uintptr_t)in,
                                   dml__mpi_part_count(request, r), type, op, block, r);
    }
}

static void dml__mpi_begin_reduce_scatter(dml_request *request)
{
    dml__mpi_call *call = dml__mpi_call_of(request);
    const MPI_Comm comm = dml__mpi_group_of(request->comm)->main;
    const void *first = dml__mpi_part(request, request->call.in, 0), *in = first;
    void *out = request->call.out;
    MPI_Op op;
    MPI_Datatype type;
    if (!dml__mpi_set_parts(request) || !dml__mpi_lie_together(request)) {
        dml__mpi_begin_reduce_scatter_parts(request);
        return;
    }
    if (!dml__mpi_set_op(request, &op, &type)) return;
    if (out == dml__mpi_part(request, request->call.in, request->comm->rank)) {
        /* MPI doesn't take this, but leaves the result at the beginning. */
        in = MPI_IN_PLACE;
        call->result = (const char *)first;
        out = (void *)(uintptr_t)first;
    }
    MPI_Request *handle = dml__mpi_handle(request);
    dml__mpi_call_ok(request,
                     request->call.counts
                         ? MPI_Ireduce_scatter(in, out, call->counts, type, op, comm, handle)
                         : MPI_Ireduce_scatter_block(in, out, call->counts[0], type, op, comm, handle));
}

/* ---- what only moves ---- */

static bool dml__mpi_post_message(dml_request *request, char *data, uint64_t count, int rank, bool sends)
{
    const MPI_Comm comm = dml__mpi_group_of(request->comm)->aux;
    const dml_dtype dtype = request->call.signature.dtype;
    MPI_Datatype element = dml__mpi_element(dtype, false), type = element;
    const bool large = count > DML__MPI_LARGEST;
    const int many = large ? 1 : (int)count;
    if (!count) return true;
    if (large &&
        !dml__mpi_call_ok(request, dml__mpi_make_large(count, element, dml_dtype_size(dtype), &type)))
        return false;
    MPI_Request *handle = dml__mpi_handle(request);
    const int code = sends ? MPI_Isend(data, many, type, rank, 0, comm, handle)
                           : MPI_Irecv(data, many, type, rank, 0, comm, handle);
    if (large) MPI_Type_free(&type);
    return dml__mpi_call_ok(request, code);
}

/* Parts whose counts or places are too large for MPI's calls, as messages between those two by two. */
static void dml__mpi_begin_messages(dml_request *request)
{
    const dml__signature *signature = &request->call.signature;
    const int rank = request->comm->rank, root = signature->root;
    const bool scatters = signature->operation == DML__CALL_SCATTER,
               all = signature->operation == DML__CALL_ALL_GATHER;
    const size_t element = dml_dtype_size(signature->dtype);
    const uint64_t own = dml__mpi_part_count(request, rank);
    char *in = (char *)request->call.in, *out = (char *)request->call.out;
    bool ok = true;
    if (scatters && rank != root) ok = dml__mpi_post_message(request, out, own, root, false);
    if (!scatters && !all && rank != root) ok = dml__mpi_post_message(request, in, own, root, true);
    for (int r = 0; ok && (all || rank == root) && r < request->comm->size; r++) {
        if (r == rank) continue;
        const uint64_t count = dml__mpi_part_count(request, r);
        if (scatters) ok = dml__mpi_post_message(request, dml__mpi_part(request, in, r), count, r, true);
        if (!scatters) ok = dml__mpi_post_message(request, dml__mpi_part(request, out, r), count, r, false);
        if (ok && all) ok = dml__mpi_post_message(request, in, own, r, true);
    }
    if (!all && rank != root) return;
    if (scatters) in = dml__mpi_part(request, in, rank);
    if (!scatters) out = dml__mpi_part(request, out, rank);
    if (own && in != out) memmove(out, in, (size_t)own * element);
}

static void dml__mpi_begin_parts(dml_request *request)
{
    dml__mpi_call *call = dml__mpi_call_of(request);
    const dml__signature *signature = &request->call.signature;
    const MPI_Comm comm = dml__mpi_group_of(request->comm)->main;
    const int rank = request->comm->rank, root = signature->root;
    const MPI_Datatype type = dml__mpi_element(signature->dtype, false);
    const void *in = request->call.in;
    void *out = request->call.out;
    if (!dml__mpi_set_parts(request)) {
        dml__mpi_begin_messages(request);
        return;
    }
    MPI_Request *handle = dml__mpi_handle(request);
    const int own = call->counts[rank];
    int code;
    if (signature->operation == DML__CALL_SCATTER) {
        if (rank == root && out == dml__mpi_part(request, in, rank)) out = MPI_IN_PLACE;
        code = MPI_Iscatterv(in, call->counts, call->offsets, type, out, own, type, root, comm, handle);
    } else if (signature->operation == DML__CALL_GATHER) {
        if (rank == root && in == dml__mpi_part(request, out, rank)) in = MPI_IN_PLACE;
        code = MPI_Igatherv(in, own, type, out, call->counts, call->offsets, type, root, comm, handle);
    } else {
        if (in == dml__mpi_part(request, out, rank)) in = MPI_IN_PLACE;
        code = MPI_Iallgatherv(in, own, type, out, call->counts, call->offsets, type, comm, handle);
    }
    dml__mpi_call_ok(request, code);
}

static void dml__mpi_begin_equal_parts(dml_request *request)
{
    const dml__signature *signature = &request->call.signature;
    const MPI_Comm comm = dml__mpi_group_of(request->comm)->main;
    const int rank = request->comm->rank, root = signature->root;
    const void *in = request->call.in;
    void *out = request->call.out;
    MPI_Datatype type;
    const int count = dml__mpi_shape(request, signature->count, &type);
    if (request->comm->job->error.status) return;
    MPI_Request *handle = dml__mpi_handle(request);
    int code;
    switch (signature->operation) {
    case DML__CALL_BROADCAST: code = MPI_Ibcast(out, count, type, root, comm, handle); break;
    case DML__CALL_SCATTER:
        if (rank == root && out == dml__mpi_part(request, in, rank)) out = MPI_IN_PLACE;
        code = MPI_Iscatter(in, count, type, out, count, type, root, comm, handle);
        break;
    case DML__CALL_GATHER:
        if (rank == root && in == dml__mpi_part(request, out, rank)) in = MPI_IN_PLACE;
        code = MPI_Igather(in, count, type, out, count, type, root, comm, handle);
        break;
    case DML__CALL_ALL_GATHER:
        if (in == dml__mpi_part(request, out, rank)) in = MPI_IN_PLACE;
        code = MPI_Iallgather(in, count, type, out, count, type, comm, handle);
        break;
    case DML__CALL_ALL_TO_ALL:
        if (in == out && count) in = MPI_IN_PLACE;
        code = MPI_Ialltoall(in, count, type, out, count, type, comm, handle);
        break;
    default: code = MPI_Ibarrier(comm, handle); break;
    }
    dml__mpi_call_ok(request, code);
}

/* ---- sends and receives ---- */

static void dml__mpi_begin_pair(dml_request *request)
{
    dml__comm_job *job = request->comm->job;
    const dml__signature *signature = &request->call.signature;
    const MPI_Comm comm = dml__mpi_group_of(request->comm)->main;
    const int most = dml__mpi_of(job)->most_tag / DML__MPI_DTYPES - 1;
    if (request->call.tag > most) {
        dml__job_fail(job, job->rank, DML_ERROR_ARGUMENT,
                      "rank %d used tag %d: this MPI has room for tags up to %d", job->rank,
                      request->call.tag, most);
        return;
    }
    const int tag = request->call.tag == DML_ANY_TAG
                        ? MPI_ANY_TAG
                        : request->call.tag * DML__MPI_DTYPES + (int)signature->dtype;
    const int from = signature->root == DML_ANY_SOURCE ? MPI_ANY_SOURCE : signature->root;
    MPI_Datatype type;
    const int count = dml__mpi_shape(request, signature->count, &type);
    if (job->error.status) return;
    MPI_Request *handle = dml__mpi_handle(request);
    dml__mpi_call_ok(request, signature->operation == DML__CALL_SEND
                                  ? MPI_Isend(request->call.out, count, type, from, tag, comm, handle)
                                  : MPI_Irecv(request->call.out, count, type, from, tag, comm, handle));
}

static void dml__mpi_read_status(const MPI_Status *status, dml_message *message)
{
    MPI_Count count = 0;
    message->source = status->MPI_SOURCE;
    message->tag = status->MPI_TAG / DML__MPI_DTYPES;
    message->dtype = (dml_dtype)(status->MPI_TAG % DML__MPI_DTYPES);
    MPI_Get_elements_x(status, dml__mpi_element(message->dtype, false), &count);
    message->count = (size_t)count;
}

/* A receive has got its message, or MPI says that it didn't fit. */
static bool dml__mpi_take_message(dml_request *request, const MPI_Status *status, int code)
{
    const dml_comm *comm = request->comm;
    char text[DML__SIGNATURE_TEXT];
    int kind = MPI_SUCCESS;
    if (code) MPI_Error_class(code, &kind);
    if (kind != MPI_ERR_TRUNCATE && !dml__mpi_call_ok(request, code)) return false;
    dml__mpi_read_status(status, &request->message);
    const bool other = request->message.dtype != request->call.signature.dtype;
    if (!other && kind == MPI_SUCCESS) return true;
    const int from = comm->world_ranks[status->MPI_SOURCE];
    dml__signature_text(&request->call.signature, text);
    dml__job_fail(comm->job, from, DML_ERROR_MISMATCH, "rank %d sent %s%s while rank %d called %s", from,
                  other ? dml_dtype_name(request->message.dtype) : "more elements", other ? " elements" : "",
                  comm->job->rank, text);
    return false;
}

/* ---- a call from its beginning to its end ---- */

static void dml__mpi_end(dml_request *request)
{
    dml__mpi_call *call = dml__mpi_call_of(request);
    const dml__signature *signature = &request->call.signature;
    const dml__comm_operation operation = signature->operation;
    uint64_t count = signature->count;
    if (operation == DML__CALL_REDUCE_SCATTER) {
        count = dml__mpi_part_count(request, request->comm->rank);
        if (call->result && call->result != request->call.out)
            memmove(request->call.out, call->result, (size_t)count * dml_dtype_size(signature->dtype));
    }
    if (signature->reduce == DML_MEAN &&
        (operation == DML__CALL_ALL_REDUCE || operation == DML__CALL_REDUCE_SCATTER ||
         (operation == DML__CALL_REDUCE && signature->root == request->comm->rank)))
        dml__finish_mean(&request->call.reduction, request->call.out, (size_t)count, request->comm->size);
    for (int i = 0; i < call->type_count; i++) MPI_Type_free(&call->types[i]);
    call->type_count = 0;
    dml__end_request(request->comm->job, request, DML_OK);
}

static void dml__mpi_begin(dml_request *request)
{
    switch (request->call.signature.operation) {
    case DML__CALL_SEND:
    case DML__CALL_RECEIVE: dml__mpi_begin_pair(request); break;
    case DML__CALL_ALL_REDUCE:
    case DML__CALL_REDUCE: dml__mpi_begin_reduce(request); break;
    case DML__CALL_REDUCE_SCATTER: dml__mpi_begin_reduce_scatter(request); break;
    default:
        if (request->call.counts)
            dml__mpi_begin_parts(request);
        else
            dml__mpi_begin_equal_parts(request);
        break;
    }
    if (!dml__mpi_call_of(request)->pending && !request->comm->job->error.status) dml__mpi_end(request);
}

static void dml__mpi_start(dml__comm_job *job, dml_request *request)
{
    dml__mpi *mpi = dml__mpi_of(job);
    dml__mpi_call *call = dml__mpi_call_of(request);
    if (request->call.signature.operation == DML__CALL_ALL_REDUCE_LEAVES) {
        dml__job_fail(job, job->rank, DML_ERROR_UNSUPPORTED,
                      "rank %d called dml_comm_all_reduce_leaves, which MPI has nothing like: set "
                      "DML_COMM_ENGINE=dml",
                      job->rank);
        return;
    }
    call->pending = call->type_count = 0;
    call->result = NULL;
    call->checking = mpi->check && !dml__is_pair(request->call.signature.operation);
    call->checked = false;
    mpi->started_at = dml_seconds();
    if (!call->checking) {
        dml__mpi_begin(request);
        return;
    }
    dml__encode_signature(&request->call.signature, call->said);
    dml__mpi_call_ok(request, MPI_Ibcast(call->said, sizeof call->said, MPI_BYTE, 0,
                                         dml__mpi_group_of(request->comm)->aux, dml__mpi_handle(request)));
}

/* Compares what rank 0 of the group does. */
static void dml__mpi_checked(dml_request *request)
{
    const dml_comm *comm = request->comm;
    dml__mpi_call *call = dml__mpi_call_of(request);
    const dml__signature *mine = &request->call.signature;
    dml__signature theirs;
    uint8_t bytes[DML__SIGNATURE_BYTES];
    char my_text[DML__SIGNATURE_TEXT], their_text[DML__SIGNATURE_TEXT] = "something else";
    call->checked = true;
    dml__encode_signature(mine, bytes);
    if (memcmp(bytes, call->said, sizeof bytes) == 0) return;
    if (dml__decode_signature(call->said, &theirs)) dml__signature_text(&theirs, their_text);
    dml__job_fail(comm->job, comm->job->rank, DML_ERROR_MISMATCH, "rank %d called %s while rank %d called %s",
                  comm->world_ranks[0], their_text, comm->job->rank, dml__signature_text(mine, my_text));
}

/* Whether an earlier collective of the same communicator is still being checked. */
static bool dml__mpi_is_behind(const dml__comm_job *job, const dml_request *request)
{
    for (const dml_request *r = job->active; r && r != request; r = r->next)
        if (r->comm == request->comm && dml__mpi_call_of(r)->checking) return true;
    return false;
}

static void dml__mpi_begin_checked(dml__comm_job *job)
{
    for (dml_request *r = job->active, *next; r && !job->error.status; r = next) {
        dml__mpi_call *call = dml__mpi_call_of(r);
        next = r->next;
        if (!call->checking || !call->checked || dml__mpi_is_behind(job, r)) continue;
        call->checking = false;
        dml__mpi_begin(r);
    }
}

static void dml__mpi_handle_done(dml_request *request, const MPI_Status *status, int code)
{
    dml__mpi_call *call = dml__mpi_call_of(request);
    if (request->call.signature.operation == DML__CALL_RECEIVE) {
        if (!dml__mpi_take_message(request, status, code)) return;
    } else if (!dml__mpi_call_ok(request, code)) {
        return;
    }
    if (--call->pending) return;
    if (call->checking)
        dml__mpi_checked(request);
    else
        dml__mpi_end(request);
}

/* What is over makes room. */
static void dml__mpi_close_ranks(dml__mpi *mpi)
{
    int used = 0;
    for (int i = 0; i < mpi->used; i++) {
        if (mpi->handles[i] == MPI_REQUEST_NULL) continue;
        mpi->handles[used] = mpi->handles[i];
        mpi->owners[used++] = mpi->owners[i];
    }
    mpi->used = used;
}

static void dml__mpi_progress(dml__comm_job *job)
{
    dml__mpi *mpi = dml__mpi_of(job);
    int done = 0;
    if (job->error.status || !mpi->used) return;
    const int code = MPI_Testsome(mpi->used, mpi->handles, &done, mpi->indices, mpi->statuses);
    if (code && code != MPI_ERR_IN_STATUS && !dml__mpi_ok(job, "MPI_Testsome", code)) return;
    if (done == MPI_UNDEFINED || done == 0) return;
    for (int i = 0; i < done && !job->error.status; i++)
        dml__mpi_handle_done(mpi->owners[mpi->indices[i]], &mpi->statuses[i],
                             code ? mpi->statuses[i].MPI_ERROR : MPI_SUCCESS);
    dml__mpi_close_ranks(mpi);
    if (mpi->check) dml__mpi_begin_checked(job);
}

static bool dml__mpi_cancel(dml__comm_job *job, dml_request *request)
{
    dml__mpi *mpi = dml__mpi_of(job);
    MPI_Status status;
    int cancelled = 0;
    for (int i = 0; i < mpi->used; i++) {
        if (mpi->owners[i] != request) continue;
        MPI_Cancel(&mpi->handles[i]);
        const int code = MPI_Wait(&mpi->handles[i], &status);
        MPI_Test_cancelled(&status, &cancelled);
        if (!cancelled) dml__mpi_handle_done(request, &status, code);
        dml__mpi_close_ranks(mpi);
        break;
    }
    dml__mpi_call *call = dml__mpi_call_of(request);
    for (int i = 0; cancelled && i < call->type_count; i++) MPI_Type_free(&call->types[i]);
    return cancelled != 0;
}

static bool dml__mpi_probe(dml__comm_job *job, dml_comm *comm, int from, int tag, dml_message *message)
{
    dml__mpi *mpi = dml__mpi_of(job);
    const MPI_Comm group = comm ? dml__mpi_group_of(comm)->main : mpi->group.main;
    const int source = from == DML_ANY_SOURCE ? MPI_ANY_SOURCE : from;
    MPI_Status status;
    int found = 0;
    if (tag > mpi->most_tag / DML__MPI_DTYPES - 1) return false;
    for (int dtype = 0; dtype < DML__MPI_DTYPES && !found; dtype++) {
        const int code = MPI_Iprobe(source, tag == DML_ANY_TAG ? MPI_ANY_TAG : tag * DML__MPI_DTYPES + dtype,
                                    group, &found, &status);
        if (!dml__mpi_ok(job, "MPI_Iprobe", code)) return false;
        if (tag == DML_ANY_TAG) break;
    }
    if (found) dml__mpi_read_status(&status, message);
    return found != 0;
}

/* ---- groups ---- */

static bool dml__mpi_make_group(dml__comm_job *job, MPI_Comm main, dml__mpi_group *group)
{
    group->main = main;
    return dml__mpi_ok(job, "MPI_Comm_dup", MPI_Comm_dup(main, &group->aux)) &&
           dml__mpi_ok(job, "MPI_Comm_set_errhandler", MPI_Comm_set_errhandler(main, MPI_ERRORS_RETURN)) &&
           dml__mpi_ok(job, "MPI_Comm_set_errhandler",
                       MPI_Comm_set_errhandler(group->aux, MPI_ERRORS_RETURN));
}

static bool dml__mpi_split(dml__comm_job *job, dml_comm *comm, dml_comm *group, int color, int key)
{
    MPI_Comm part;
    const int code =
        MPI_Comm_split(dml__mpi_group_of(comm)->main, color < 0 ? MPI_UNDEFINED : color, key, &part);
    if (!dml__mpi_ok(job, "MPI_Comm_split", code)) return false;
    if (!group) return true;
    group->beneath = dml__allocate(&job->memory, sizeof(dml__mpi_group));
    if (group->beneath) return dml__mpi_make_group(job, part, (dml__mpi_group *)group->beneath);
    dml__job_fail(job, job->rank, DML_ERROR_MEMORY, "rank %d has no memory for a communicator", job->rank);
    return false;
}

static void dml__mpi_leave(dml__comm_job *job, dml_comm *comm)
{
    dml__mpi_group *group = (dml__mpi_group *)comm->beneath;
    if (!dml__is_copy(job) && !job->error.status) {
        MPI_Comm_free(&group->aux);
        MPI_Comm_free(&group->main);
    }
    dml__release(&job->memory, group);
}

/* ---- control ---- */

static ptrdiff_t dml__mpi_send(dml__transport *transport, int rank, dml__channel channel,
                               const dml__span *spans, int count)
{
    dml__mpi *mpi = (dml__mpi *)(void *)transport;
    if (channel != DML__CHANNEL_CONTROL || count != 1 || spans->bytes != DML__CONTROL_BYTES) return DML__GONE;
    for (int i = 0; i < mpi->letters; i++) {
        int free_now = 0;
        uint8_t *letter = mpi->outbox + (size_t)i * DML__CONTROL_BYTES;
        MPI_Test(&mpi->posts[i], &free_now, MPI_STATUS_IGNORE);
        if (!free_now) continue;
        memcpy(letter, spans->data, DML__CONTROL_BYTES);
        return MPI_Isend(letter, DML__CONTROL_BYTES, MPI_BYTE, rank, 0, mpi->control, &mpi->posts[i])
                   ? DML__GONE
                   : DML__CONTROL_BYTES;
    }
    return 0;
}

static ptrdiff_t dml__mpi_receive(dml__transport *transport, int rank, dml__channel channel,
                                  const dml__span *spans, int count)
{
    dml__mpi *mpi = (dml__mpi *)(void *)transport;
    int found = 0;
    if (channel != DML__CHANNEL_CONTROL || count != 1 || spans->bytes != DML__CONTROL_BYTES) return DML__GONE;
    if (MPI_Iprobe(rank, 0, mpi->control, &found, MPI_STATUS_IGNORE)) return DML__GONE;
    if (!found) return 0;
    return MPI_Recv(spans->data, DML__CONTROL_BYTES, MPI_BYTE, rank, 0, mpi->control, MPI_STATUS_IGNORE)
               ? DML__GONE
               : DML__CONTROL_BYTES;
}

/* MPI has nothing to sleep in: first others of this processor get their turn, then it naps for a small part
   of the time that has passed already. */
static void dml__mpi_nap(const dml__mpi *mpi, double seconds)
{
    const double since = mpi->job->moved_at > mpi->started_at ? mpi->job->moved_at : mpi->started_at;
    double nap = (dml_seconds() - since) / 16;
    struct timespec time;
    if (nap < 50e-6) {
        sched_yield();
        return;
    }
    if (nap > 1e-3) nap = 1e-3;
    if (nap > seconds) nap = seconds;
    time.tv_sec = 0;
    time.tv_nsec = (long)(nap * 1e9);
    nanosleep(&time, NULL);
}

static int dml__mpi_wait(dml__transport *transport, const uint8_t *wishes, double seconds)
{
    dml__mpi *mpi = (dml__mpi *)(void *)transport;
    int found = 0;
    (void)wishes;
    if (MPI_Iprobe(MPI_ANY_SOURCE, 0, mpi->control, &found, MPI_STATUS_IGNORE)) return DML__GONE;
    if (found) return DML__READY_CONTROL;
    if (seconds > 0) dml__mpi_nap(mpi, seconds);
    return 0;
}

/* Nobody sleeps for longer than a millisecond. */
static void dml__mpi_wake(dml__transport *transport)
{
    (void)transport;
}

static const char *dml__mpi_medium(const dml__transport *transport, int rank)
{
    (void)transport;
    (void)rank;
    return "mpi";
}

static void dml__mpi_release(dml__transport *transport)
{
    dml__mpi *mpi = (dml__mpi *)(void *)transport;
    dml__memory *memory = mpi->memory;
    dml__release(memory, mpi->posts);
    dml__release(memory, mpi->outbox);
    dml__release(memory, mpi->statuses);
    dml__release(memory, mpi->indices);
    dml__release(memory, mpi->owners);
    dml__release(memory, mpi->handles);
    dml__release(memory, mpi->all_counts);
    dml__release(memory, mpi->calls);
    dml__release(memory, mpi);
}

/* The last words of this rank have gone, or there is no more time. */
static void dml__mpi_post_rest(dml__mpi *mpi)
{
    const double until = dml_seconds() + mpi->job->grace;
    int gone = 0;
    while (!gone && dml_seconds() < until)
        if (MPI_Testall(mpi->letters, mpi->posts, &gone, MPI_STATUSES_IGNORE)) break;
}

/* After an error something may be under way that never ends, for which MPI_Finalize would wait: then MPI is
   left as it is. */
static void dml__mpi_close(dml__transport *transport)
{
    dml__mpi *mpi = (dml__mpi *)(void *)transport;
    if (mpi->posts) dml__mpi_post_rest(mpi);
    if (!mpi->job->error.status) {
        MPI_Op_free(&mpi->op);
        MPI_Comm_free(&mpi->control);
        MPI_Comm_free(&mpi->group.aux);
        MPI_Comm_free(&mpi->group.main);
        if (mpi->owned) MPI_Finalize();
    }
    dml__mpi_release(transport);
}

/* ---- opening ---- */

static bool dml__mpi_allocate(dml__mpi *mpi, int max_requests)
{
    const size_t calls = (size_t)max_requests + 1, world = (size_t)mpi->world;
    dml__memory *memory = mpi->memory;
    if (calls * (2 * world + 1) > INT_MAX) return false;
    mpi->most = (int)(calls * (2 * world + 1));
    mpi->letters = 2 * mpi->world + 6;
    const size_t most = (size_t)mpi->most, letters = (size_t)mpi->letters;
    mpi->calls = (dml__mpi_call *)dml__allocate_array(memory, calls, sizeof *mpi->calls);
    mpi->all_counts = (int *)dml__allocate_unset(memory, calls * 2 * world * sizeof *mpi->all_counts);
    mpi->handles = (MPI_Request *)dml__allocate_unset(memory, most * sizeof *mpi->handles);
    mpi->owners = (dml_request **)dml__allocate_unset(memory, most * sizeof *mpi->owners);
    mpi->indices = (int *)dml__allocate_unset(memory, most * sizeof *mpi->indices);
    mpi->statuses = (MPI_Status *)dml__allocate_unset(memory, most * sizeof *mpi->statuses);
    mpi->outbox = (uint8_t *)dml__allocate_unset(memory, letters * DML__CONTROL_BYTES);
    mpi->posts = (MPI_Request *)dml__allocate_unset(memory, letters * sizeof *mpi->posts);
    if (!mpi->calls || !mpi->all_counts || !mpi->handles || !mpi->owners || !mpi->indices || !mpi->statuses ||
        !mpi->outbox || !mpi->posts)
        return false;
    for (size_t i = 0; i < calls; i++) {
        mpi->calls[i].counts = mpi->all_counts + 2 * i * world;
        mpi->calls[i].offsets = mpi->calls[i].counts + world;
    }
    for (size_t i = 0; i < letters; i++) mpi->posts[i] = MPI_REQUEST_NULL;
    return true;
}

/* MPI itself, unless the program has it already. */
static bool dml__mpi_initialise(dml__comm_job *job, bool *owned)
{
    int initialised = 0, finalised = 0, level = 0;
    MPI_Initialized(&initialised);
    MPI_Finalized(&finalised);
    if (finalised) {
        dml__job_fail(
            job, job->rank, DML_ERROR_STATE,
            "dml_comm_open: MPI was finalised already, and can't be initialised twice: call MPI_Init "
            "before the first communicator is opened and MPI_Finalize after the last one is closed");
        return false;
    }
    *owned = !initialised;
    if (!initialised &&
        !dml__mpi_ok(job, "MPI_Init_thread", MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level)))
        return false;
    MPI_Query_thread(&level);
    job->alone = level < MPI_THREAD_SERIALIZED;
    return true;
}

static bool dml__mpi_meet(dml__comm_job *job, dml__mpi *mpi)
{
    MPI_Comm main;
    void *most_tag;
    int has_tag = 0;
    if (!dml__mpi_ok(job, "MPI_Comm_dup", MPI_Comm_dup(MPI_COMM_WORLD, &main)) ||
        !dml__mpi_make_group(job, main, &mpi->group) ||
        !dml__mpi_ok(job, "MPI_Comm_dup", MPI_Comm_dup(MPI_COMM_WORLD, &mpi->control)) ||
        !dml__mpi_ok(job, "MPI_Comm_set_errhandler",
                     MPI_Comm_set_errhandler(mpi->control, MPI_ERRORS_RETURN)) ||
        !dml__mpi_ok(job, "MPI_Op_create", MPI_Op_create(dml__mpi_reduce, 1, &mpi->op)))
        return false;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &most_tag, &has_tag);
    mpi->most_tag = has_tag ? *(int *)most_tag : 32767;
    return true;
}

static dml__transport *dml__mpi_open(dml__comm_job *job, dml__comm_settings *settings)
{
    static const dml__transport_calls calls = {
        "mpi",           dml__mpi_send,  dml__mpi_receive, NULL, NULL, NULL, dml__mpi_wait, dml__mpi_wake,
        dml__mpi_medium, dml__mpi_close, dml__mpi_release,
    };
    const int given_rank = settings->net.rank, given_world = settings->net.world;
    const char *check = getenv("DML_COMM_CHECK");
    bool owned;
    if (!dml__mpi_initialise(job, &owned)) return NULL;
    MPI_Comm_rank(MPI_COMM_WORLD, &settings->net.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &settings->net.world);
    if (given_world > 1 && (given_world != settings->net.world || given_rank != settings->net.rank)) {
        dml__job_fail(job, job->rank, DML_ERROR_ARGUMENT,
                      "dml_comm_open: rank %d of %d was asked for, but MPI says rank %d of %d", given_rank,
                      given_world, settings->net.rank, settings->net.world);
        return NULL;
    }
    dml__mpi *mpi = (dml__mpi *)dml__allocate(&job->memory, sizeof *mpi);
    if (mpi) {
        mpi->transport.calls = &calls;
        mpi->job = job;
        mpi->memory = &job->memory;
        mpi->world = settings->net.world;
        mpi->owned = owned;
        mpi->check = check && strcmp(check, "1") == 0;
        if (dml__mpi_allocate(mpi, settings->max_requests)) {
            if (dml__mpi_meet(job, mpi)) return &mpi->transport;
        } else {
            dml__job_fail(job, settings->net.rank, DML_ERROR_MEMORY,
                          "rank %d has no memory for its communicator", settings->net.rank);
        }
        dml__mpi_release(&mpi->transport);
    } else {
        dml__job_fail(job, settings->net.rank, DML_ERROR_MEMORY, "rank %d has no memory for its communicator",
                      settings->net.rank);
    }
    return NULL;
}

DML__LOCAL const dml__engine *dml__mpi_engine(void)
{
    static const dml__engine engine = { "mpi",           dml__mpi_open,  dml__mpi_start, dml__mpi_progress,
                                        dml__mpi_cancel, dml__mpi_probe, dml__mpi_split, dml__mpi_leave };
    return &engine;
}

#endif

#endif
