#ifndef DML_COMM_MPI_ENGINE_CALLS_C
#define DML_COMM_MPI_ENGINE_CALLS_C

#include "comm/mpi_engine_internal.h"

#ifdef DML_MPI

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Elements of one MPI call; tests make it less. Above it they go in blocks. */
#ifndef DML__MPI_LARGEST
#define DML__MPI_LARGEST INT_MAX
#define DML__MPI_BLOCK 65536
#else
#define DML__MPI_BLOCK 64
#endif

DML__LOCAL bool dml__mpi_ok(dml__comm_job *job, const char *doing, int code)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (code == MPI_SUCCESS) return true;
    MPI_Error_string(code, text, &length);
    dml__job_fail(job, job->rank, DML_ERROR_NETWORK, "rank %d: MPI failed in %s: %.200s", job->rank, doing,
                  text);
    return false;
}

DML__LOCAL bool dml__mpi_call_ok(const dml_request *request, int code)
{
    char text[DML__SIGNATURE_TEXT];
    if (code == MPI_SUCCESS) return true;
    return dml__mpi_ok(request->comm->job, dml__signature_text(&request->call.signature, text), code);
}

DML__LOCAL MPI_Request *dml__mpi_handle(dml_request *request)
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
DML__LOCAL void dml__mpi_reduce(void *in, void *inout, int *count, MPI_Datatype *type)
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

/* What each rank has for each other, as messages: MPI's own call wants counts of 31 bits. */
static void dml__mpi_begin_exchange(dml_request *request)
{
    const dml__comm_call *call = &request->call;
    const int rank = request->comm->rank, size = request->comm->size;
    const size_t element = dml_dtype_size(call->signature.dtype);
    const char *in = (const char *)call->in;
    char *out = (char *)call->out;
    bool ok = true;
    for (int i = 0; ok && i < size; i++) {
        const int from = (rank - i + size) % size, to = (rank + i) % size;
        char *take = out ? out + call->offsets[from] * element : NULL;
        char *give = in ? (char *)(uintptr_t)in + call->in_offsets[to] * element : NULL;
        if (i == 0 && call->counts[rank]) memcpy(take, give, call->counts[rank] * element);
        if (i == 0) continue;
        ok = dml__mpi_post_message(request, take, call->counts[from], from, false) &&
             dml__mpi_post_message(request, give, call->in_counts[to], to, true);
    }
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

DML__LOCAL void dml__mpi_read_status(const MPI_Status *status, dml_message *message)
{
    MPI_Count count = 0;
    message->source = status->MPI_SOURCE;
    message->tag = status->MPI_TAG / DML__MPI_DTYPES;
    message->dtype = (dml_dtype)(status->MPI_TAG % DML__MPI_DTYPES);
    MPI_Get_elements_x(status, dml__mpi_element(message->dtype, false), &count);
    message->count = (size_t)count;
}

/* A receive has got its message, or MPI says that it didn't fit. */
DML__LOCAL bool dml__mpi_take_message(dml_request *request, const MPI_Status *status, int code)
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

/* ---- any call ---- */

DML__LOCAL void dml__mpi_end(dml_request *request)
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

DML__LOCAL void dml__mpi_begin(dml_request *request)
{
    switch (request->call.signature.operation) {
    case DML__CALL_SEND:
    case DML__CALL_RECEIVE: dml__mpi_begin_pair(request); break;
    case DML__CALL_ALL_REDUCE:
    case DML__CALL_REDUCE: dml__mpi_begin_reduce(request); break;
    case DML__CALL_REDUCE_SCATTER: dml__mpi_begin_reduce_scatter(request); break;
    default:
        if (request->call.in_counts)
            dml__mpi_begin_exchange(request);
        else if (request->call.counts)
            dml__mpi_begin_parts(request);
        else
            dml__mpi_begin_equal_parts(request);
        break;
    }
    if (!dml__mpi_call_of(request)->pending && !request->comm->job->error.status) dml__mpi_end(request);
}

#endif

#endif
