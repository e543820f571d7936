#ifndef DML_COMM_NCCL_ENGINE_C
#define DML_COMM_NCCL_ENGINE_C

#include "comm/nccl_engine.h"

#ifdef DML_NCCL

#include <dlfcn.h>
#include <limits.h>
#include <string.h>

#include "base/clock.h"

/* ---- what the libraries have: NCCL 2.18's and CUDA 11's, as their headers say it ---- */

typedef struct dml__nccl_id {
    char bytes[128];
} dml__nccl_id;

typedef struct dml__nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking, cga_cluster_size, min_ctas, max_ctas;
    const char *net_name;
    int split_share;
} dml__nccl_config;

enum { DML__NCCL_OK = 0, DML__NCCL_IN_PROGRESS = 7, DML__NCCL_MAGIC = (int)0xcafebeef };
enum { DML__NCCL_SUM, DML__NCCL_PROD, DML__NCCL_MAX, DML__NCCL_MIN, DML__NCCL_MEAN };
enum { DML__CUDA_OK = 0, DML__CUDA_NOT_READY = 600, DML__CUDA_ON_DEVICE = 2, DML__CUDA_MANAGED = 3 };
enum { DML__CUDA_NON_BLOCKING = 1, DML__CUDA_NO_TIMING = 2 };

/* X(result, name, parameters); NCCL's, then CUDA's. */
#define DML__NCCL_FUNCTIONS(X)                                                                               \
    X(int, ncclGetUniqueId, (dml__nccl_id *))                                                                \
    X(int, ncclCommInitRankConfig, (void **, int, dml__nccl_id, int, dml__nccl_config *))                    \
    X(int, ncclCommDestroy, (void *))                                                                        \
    X(int, ncclCommAbort, (void *))                                                                          \
    X(int, ncclCommGetAsyncError, (void *, int *))                                                           \
    X(const char *, ncclGetErrorString, (int))                                                               \
    X(int, ncclGroupStart, (void))                                                                           \
    X(int, ncclGroupEnd, (void))                                                                             \
    X(int, ncclAllReduce, (const void *, void *, size_t, int, int, void *, void *))                          \
    X(int, ncclReduce, (const void *, void *, size_t, int, int, int, void *, void *))                        \
    X(int, ncclBroadcast, (const void *, void *, size_t, int, int, void *, void *))                          \
    X(int, ncclAllGather, (const void *, void *, size_t, int, void *, void *))                               \
    X(int, ncclReduceScatter, (const void *, void *, size_t, int, int, void *, void *))                      \
    X(int, ncclSend, (const void *, size_t, int, int, void *, void *))                                       \
    X(int, ncclRecv, (void *, size_t, int, int, void *, void *))

#define DML__CUDART_FUNCTIONS(X)                                                                             \
    X(int, cudaGetDevice, (int *))                                                                           \
    X(int, cudaSetDevice, (int))                                                                             \
    X(const char *, cudaGetErrorString, (int))                                                               \
    X(int, cudaPointerGetAttributes, (void *, const void *))                                                 \
    X(int, cudaStreamCreateWithFlags, (void **, unsigned))                                                   \
    X(int, cudaStreamDestroy, (void *))                                                                      \
    X(int, cudaStreamWaitEvent, (void *, void *, unsigned))                                                  \
    X(int, cudaEventCreateWithFlags, (void **, unsigned))                                                    \
    X(int, cudaEventDestroy, (void *))                                                                       \
    X(int, cudaEventRecord, (void *, void *))                                                                \
    X(int, cudaEventQuery, (void *))

/* A communicator's; where it is closed, of the list of those. */
typedef struct dml__nccl_group {
    void *comm; /* NULL: it was aborted */
    struct dml__nccl_group *next;
} dml__nccl_group;

typedef struct dml__nccl {
    int device;
    void *stream, *ready; /* the event that a call begins behind */
    void **done;          /* (max_requests + 1) events, made when they are needed */
    int busy;             /* calls under way */
    bool aborted;
    dml__nccl_group *closed;
#define DML__NCCL_FUNCTION(result, name, parameters) result(*name) parameters;
    DML__NCCL_FUNCTIONS(DML__NCCL_FUNCTION)
    DML__CUDART_FUNCTIONS(DML__NCCL_FUNCTION)
#undef DML__NCCL_FUNCTION
} dml__nccl;

/* ---- what went wrong ---- */

static bool dml__nccl_ok(dml__comm_job *job, const char *doing, int code)
{
    if (code == DML__NCCL_OK) return true;
    dml__job_fail(job, job->rank, DML_ERROR_NETWORK, "rank %d: NCCL failed in %s: %.200s", job->rank, doing,
                  job->nccl->ncclGetErrorString(code));
    return false;
}

static bool dml__cuda_ok(dml__comm_job *job, const char *doing, int code)
{
    if (code == DML__CUDA_OK) return true;
    dml__job_fail(job, job->rank, DML_ERROR_DEVICE, "rank %d: CUDA failed in %s: %.200s", job->rank, doing,
                  job->nccl->cudaGetErrorString(code));
    return false;
}

/* NCCL's communicators don't block: what has begun is asked for until it is there, while the other ranks are
   heard. */
static bool dml__nccl_settle(dml__comm_job *job, dml__nccl_group *group, const char *doing, int code)
{
    const double until = dml_seconds() + job->timeout;
    while (code == DML__NCCL_IN_PROGRESS) {
        int state = DML__NCCL_OK;
        code = job->nccl->ncclCommGetAsyncError(group->comm, &state);
        if (code == DML__NCCL_OK) code = state;
        if (code != DML__NCCL_IN_PROGRESS) break;
        dml__keep_watch(job);
        if (job->error.status) return false;
        if (dml_seconds() > until) {
            dml__job_fail(
                job, -1, DML_ERROR_TIMEOUT,
                "NCCL has not finished %s between the ranks within %g s, and does not say whose fault it is",
                doing, job->timeout);
            return false;
        }
        dml__thread_yield();
    }
    return dml__nccl_ok(job, doing, code);
}

/* ---- opening ---- */

static void *dml__nccl_library(dml__comm_job *job, const char *const *names, const char *what)
{
    for (int i = 0; names[i]; i++) {
        void *library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (library) return library;
    }
    dml__job_fail(job, job->rank, DML_ERROR_UNSUPPORTED, "rank %d can't open %s: %.200s", job->rank, what,
                  dlerror());
    return NULL;
}

/* The libraries stay open: they have threads of their own. */
static bool dml__nccl_load(dml__comm_job *job, dml__nccl *nccl)
{
    static const char *const nccl_names[] = { "libnccl.so.2", "libnccl.so", NULL };
    static const char *const cuda_names[] = { "libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0",
                                              "libcudart.so", NULL };
    void *const library = dml__nccl_library(job, nccl_names, "NCCL");
    void *const runtime = library ? dml__nccl_library(job, cuda_names, "the CUDA runtime") : NULL;
    const char *missing = NULL;
    void *address;
    if (!runtime) return false;
#define DML__NCCL_LOOK(from, function)                                                                       \
    address = dlsym(from, #function);                                                                        \
    memcpy(&nccl->function, &address, sizeof address);                                                       \
    if (!address) missing = #function;
#define DML__NCCL_FUNCTION(result, name, parameters) DML__NCCL_LOOK(library, name)
#define DML__CUDART_FUNCTION(result, name, parameters) DML__NCCL_LOOK(runtime, name)
    DML__NCCL_FUNCTIONS(DML__NCCL_FUNCTION)
    DML__CUDART_FUNCTIONS(DML__CUDART_FUNCTION)
#undef DML__CUDART_FUNCTION
#undef DML__NCCL_FUNCTION
#undef DML__NCCL_LOOK
    if (!missing) return true;
    dml__job_fail(job, job->rank, DML_ERROR_UNSUPPORTED,
                  "rank %d: NCCL or the CUDA runtime is too old: there is no %s", job->rank, missing);
    return false;
}

static bool dml__nccl_no_memory(dml__comm_job *job)
{
    dml__job_fail(job, job->rank, DML_ERROR_MEMORY, "rank %d has no memory for its communicator", job->rank);
    return false;
}

static bool dml__nccl_equip(dml__comm_job *job)
{
    dml__nccl *nccl = (dml__nccl *)dml__allocate(&job->memory, sizeof *nccl);
    if (!nccl) return dml__nccl_no_memory(job);
    nccl->done =
        (void **)dml__allocate_array(&job->memory, (size_t)job->max_requests + 1, sizeof *nccl->done);
    const bool loaded = nccl->done && dml__nccl_load(job, nccl);
    if (!loaded) {
        if (!nccl->done) dml__nccl_no_memory(job);
        dml__release(&job->memory, nccl->done);
        dml__release(&job->memory, nccl);
        return false;
    }
    job->nccl = nccl;
    return dml__cuda_ok(job, "cudaGetDevice", nccl->cudaGetDevice(&nccl->device)) &&
           dml__cuda_ok(job, "cudaStreamCreate",
                        nccl->cudaStreamCreateWithFlags(&nccl->stream, DML__CUDA_NON_BLOCKING)) &&
           dml__cuda_ok(job, "cudaEventCreate",
                        nccl->cudaEventCreateWithFlags(&nccl->ready, DML__CUDA_NO_TIMING));
}

/* The job's device is current until dml__nccl_go_back. */
static int dml__nccl_go(dml__comm_job *job)
{
    int device = job->nccl->device;
    job->nccl->cudaGetDevice(&device);
    if (device != job->nccl->device) job->nccl->cudaSetDevice(job->nccl->device);
    return device;
}

static void dml__nccl_go_back(dml__comm_job *job, int device)
{
    if (device != job->nccl->device) job->nccl->cudaSetDevice(device);
}

static void dml__nccl_make_group(dml_comm *comm, const dml__nccl_id *id)
{
    dml__comm_job *job = comm->job;
    dml__nccl_group *group = (dml__nccl_group *)dml__allocate(&job->memory, sizeof *group);
    dml__nccl_config config;
    if (!group) {
        dml__nccl_no_memory(job);
        return;
    }
    comm->nccl = group;
    memset(&config, 0, sizeof config);
    config.size = sizeof config;
    config.magic = (unsigned)DML__NCCL_MAGIC;
    config.version = 21800;
    config.cga_cluster_size = config.min_ctas = config.max_ctas = config.split_share = INT_MIN; /* any */
    const int device = dml__nccl_go(job);
    dml__nccl_settle(job, group, "ncclCommInitRank",
                     job->nccl->ncclCommInitRankConfig(&group->comm, comm->size, *id, comm->rank, &config));
    dml__nccl_go_back(job, device);
}

DML__LOCAL void dml__nccl_join(dml_comm *group)
{
    dml__comm_job *job = group->job;
    dml__nccl_id id;
    if (!job->nccl || job->error.status) return;
    memset(&id, 0, sizeof id);
    dml__enter_job(job);
    if (group->rank == 0) dml__nccl_ok(job, "ncclGetUniqueId", job->nccl->ncclGetUniqueId(&id));
    dml__leave_job(job);
    if (dml_comm_broadcast(group, id.bytes, sizeof id.bytes, DML_U8, 0)) return;
    dml__enter_job(job);
    dml__nccl_make_group(group, &id);
    dml__leave_job(job);
}

DML__LOCAL void dml__nccl_open(dml_comm *world)
{
    dml__enter_job(world->job);
    const bool equipped = dml__nccl_equip(world->job);
    dml__leave_job(world->job);
    if (equipped) dml__nccl_join(world);
}

/* ---- which calls ---- */

/* The device that an array is on; the job's for one that CUDA moves; -1: the host. */
static int dml__nccl_device_of(const dml__nccl *nccl, const void *data)
{
    /* (What CUDA writes there, which has grown, begins with these.) */
    union {
        struct {
            int kind, device;
        } of;
        double room[32];
    } attributes;
    memset(&attributes, 0, sizeof attributes);
    if (nccl->cudaPointerGetAttributes(&attributes, data) != DML__CUDA_OK) return -1;
    if (attributes.of.kind == DML__CUDA_MANAGED) return nccl->device;
    return attributes.of.kind == DML__CUDA_ON_DEVICE ? attributes.of.device : -1;
}

/* Of leaves the first that is this rank's. */
static const void *dml__nccl_in(const dml__comm_call *call)
{
    for (int i = 0; call->leaves && i < call->signature.root; i++)
        if (call->leaves[i]) return call->leaves[i];
    return call->in;
}

DML__LOCAL bool dml__nccl_takes(dml__comm_job *job, const dml__comm_call *call, const dml_comm *comm)
{
    const dml__comm_operation operation = call->signature.operation;
    const bool root = comm->rank == call->signature.root;
    const void *in = operation == DML__CALL_SCATTER && !root ? NULL : dml__nccl_in(call);
    const void *out = operation == DML__CALL_GATHER && !root ? NULL : call->out;
    char text[DML__SIGNATURE_TEXT];
    if (!job->nccl || job->error.status || (!call->counts && !call->signature.count) || (!in && !out))
        return false;
    const int first = dml__nccl_device_of(job->nccl, in ? in : out);
    const int second = in && out && in != out ? dml__nccl_device_of(job->nccl, out) : first;
    if ((first < 0) != (second < 0))
        dml__job_fail(job, job->rank, DML_ERROR_ARGUMENT,
                      "rank %d called %s with one array in a GPU's memory and one in the host's", job->rank,
                      dml__signature_text(&call->signature, text));
    else if (first >= 0 && (first != job->nccl->device || second != job->nccl->device))
        dml__job_fail(job, job->rank, DML_ERROR_ARGUMENT,
                      "rank %d called %s with an array of GPU %d's, but GPU %d was current when its "
                      "communicator was opened: open it behind the context that is on the GPU, or call "
                      "cudaSetDevice first",
                      job->rank, dml__signature_text(&call->signature, text),
                      first != job->nccl->device ? first : second, job->nccl->device);
    return first >= 0;
}

DML__LOCAL bool dml__nccl_reaches(const dml_comm *comm, const void *data)
{
    const dml__nccl *nccl = comm->job->nccl;
    return nccl && !comm->job->error.status && dml__nccl_device_of(nccl, data) >= 0;
}

/* NULL: NCCL does it as we do. */
static const char *dml__nccl_refuses(const dml__comm_job *job, const dml__comm_call *call)
{
    const dml__signature *signature = &call->signature;
    const dml_dtype dtype = signature->dtype;
    const bool floats = dtype == DML_F32 || dtype == DML_F64 || dtype == DML_F16 || dtype == DML_BF16;
    if (dml__is_pair(signature->operation)) return "NCCL's messages have no tags";
    if (signature->operation == DML__CALL_ALL_REDUCE_LEAVES) return "NCCL has nothing like it";
    if (signature->operation == DML__CALL_ALL_TO_ALL && call->in == call->out)
        return "NCCL has it for two arrays only";
    if (!dml__adds(signature->operation)) return NULL;
    if (call->reduction.function) return "a function of the program's runs on the host";
    if (job->deterministic) return "NCCL adds in an order of its own, and the job is deterministic";
    if (call->reduction.op == DML_MEAN && !floats) return "NCCL's means of integers are not ours";
    return NULL;
}

/* ---- what they become ---- */

static int dml__nccl_type(dml_dtype dtype)
{
    switch (dtype) {
    case DML_I8: return 0;
    case DML_U8: return 1;
    case DML_I32: return 2;
    case DML_I64: return 4;
    case DML_F16: return 6;
    case DML_F32: return 7;
    case DML_F64: return 8;
    default: return 9; /* bf16 */
    }
}

static int dml__nccl_op(dml_reduce_op op)
{
    switch (op) {
    case DML_SUM: return DML__NCCL_SUM;
    case DML_MEAN: return DML__NCCL_MEAN;
    case DML_MIN: return DML__NCCL_MIN;
    case DML_MAX: return DML__NCCL_MAX;
    default: return DML__NCCL_PROD;
    }
}

/* A call, as its parts are sent and received. */
typedef struct dml__nccl_call {
    const dml__nccl *nccl;
    const dml_request *request;
    void *comm;
    int type, op, code; /* code: the first that wasn't good */
} dml__nccl_call;

static void dml__nccl_note(dml__nccl_call *c, int code)
{
    if (c->code == DML__NCCL_OK && code != DML__NCCL_IN_PROGRESS) c->code = code;
}

static size_t dml__nccl_count(const dml__nccl_call *c, int rank)
{
    const dml__comm_call *call = &c->request->call;
    return call->counts ? call->counts[rank] : (size_t)call->signature.count;
}

static char *dml__nccl_part(const dml__nccl_call *c, void *array, int rank)
{
    const dml__comm_call *call = &c->request->call;
    const size_t at = call->offsets ? call->offsets[rank] : (size_t)call->signature.count * (size_t)rank;
    return (char *)array + at * dml_dtype_size(call->signature.dtype);
}

static void dml__nccl_send(dml__nccl_call *c, const void *data, size_t count, int to)
{
    if (count) dml__nccl_note(c, c->nccl->ncclSend(data, count, c->type, to, c->comm, c->nccl->stream));
}

static void dml__nccl_receive(dml__nccl_call *c, void *data, size_t count, int from)
{
    if (count) dml__nccl_note(c, c->nccl->ncclRecv(data, count, c->type, from, c->comm, c->nccl->stream));
}

/* What NCCL has no call of its own for. A part of one's own that is in its place stays there. */
static void dml__nccl_parts(dml__nccl_call *c)
{
    const dml__comm_call *call = &c->request->call;
    const dml__comm_operation operation = call->signature.operation;
    const int rank = c->request->comm->rank, size = c->request->comm->size, root = call->signature.root;
    for (int r = 0; r < size; r++) {
        const bool in_parts = operation == DML__CALL_SCATTER || operation == DML__CALL_ALL_TO_ALL;
        const bool out_parts = operation != DML__CALL_SCATTER;
        const bool sends = operation == DML__CALL_SCATTER  ? rank == root
                           : operation == DML__CALL_GATHER ? r == root
                                                           : true;
        const bool receives = operation == DML__CALL_SCATTER  ? r == root
                              : operation == DML__CALL_GATHER ? rank == root
                                                              : true;
        const char *in = sends ? in_parts ? dml__nccl_part(c, call->in, r) : (char *)call->in : NULL;
        char *out = receives ? out_parts ? dml__nccl_part(c, call->out, r) : (char *)call->out : NULL;
        if (r == rank && in == out) continue;
        if (sends) dml__nccl_send(c, in, dml__nccl_count(c, in_parts ? r : rank), r);
        if (receives) dml__nccl_receive(c, out, dml__nccl_count(c, out_parts ? r : rank), r);
    }
}

/* Parts of different sizes, of which each rank knows its own. */
static void dml__nccl_exchange(dml__nccl_call *c)
{
    const dml__comm_call *call = &c->request->call;
    const size_t element = dml_dtype_size(call->signature.dtype);
    for (int r = 0; r < c->request->comm->size; r++) {
        dml__nccl_send(c, (const char *)call->in + call->in_offsets[r] * element, call->in_counts[r], r);
        dml__nccl_receive(c, dml__nccl_part(c, call->out, r), call->counts[r], r);
    }
}

/* Parts of different sizes are summed each to its rank. */
static void dml__nccl_reduce_parts(dml__nccl_call *c)
{
    const dml__comm_call *call = &c->request->call;
    for (int r = 0; r < c->request->comm->size; r++) {
        char *part = dml__nccl_part(c, call->in, r);
        if (dml__nccl_count(c, r))
            dml__nccl_note(c, c->nccl->ncclReduce(part, r == c->request->comm->rank ? call->out : part,
                                                  dml__nccl_count(c, r), c->type, c->op, r, c->comm,
                                                  c->nccl->stream));
    }
}

static void dml__nccl_enqueue(dml__nccl_call *c)
{
    const dml__comm_call *call = &c->request->call;
    const dml__nccl *n = c->nccl;
    const size_t count = (size_t)call->signature.count;
    const int root = call->signature.root;
    void *out = call->out;
    switch (call->signature.operation) {
    case DML__CALL_ALL_REDUCE:
        dml__nccl_note(c, n->ncclAllReduce(out, out, count, c->type, c->op, c->comm, n->stream));
        break;
    case DML__CALL_REDUCE:
        dml__nccl_note(c, n->ncclReduce(out, out, count, c->type, c->op, root, c->comm, n->stream));
        break;
    case DML__CALL_BROADCAST:
        dml__nccl_note(c, n->ncclBroadcast(out, out, count, c->type, root, c->comm, n->stream));
        break;
    case DML__CALL_ALL_GATHER:
        if (call->counts)
            dml__nccl_parts(c);
        else
            dml__nccl_note(c, n->ncclAllGather(call->in, out, count, c->type, c->comm, n->stream));
        break;
    case DML__CALL_REDUCE_SCATTER:
        if (call->counts)
            dml__nccl_reduce_parts(c);
        else
            dml__nccl_note(c, n->ncclReduceScatter(call->in, out, count, c->type, c->op, c->comm, n->stream));
        break;
    default:
        if (call->in_counts)
            dml__nccl_exchange(c);
        else
            dml__nccl_parts(c);
    }
}

static bool dml__nccl_post(dml_request *request, const char *doing)
{
    dml__comm_job *job = request->comm->job;
    dml__nccl_group *group = request->comm->nccl;
    dml__nccl_call call;
    memset(&call, 0, sizeof call);
    call.nccl = job->nccl;
    call.request = request;
    call.comm = group->comm;
    call.type = dml__nccl_type(request->call.signature.dtype);
    call.op = dml__nccl_op(request->call.reduction.op);
    if (!dml__nccl_ok(job, "ncclGroupStart", job->nccl->ncclGroupStart())) return false;
    dml__nccl_enqueue(&call);
    const int end = job->nccl->ncclGroupEnd(); /* after an error too, or the thread would stay in the group */
    return dml__nccl_settle(job, group, doing, call.code == DML__NCCL_OK ? end : call.code);
}

/* The event that passes when this request is done. */
static void **dml__nccl_done(dml__comm_job *job, const dml_request *request)
{
    void **event = &job->nccl->done[request - job->requests];
    if (!*event && !dml__cuda_ok(job, "cudaEventCreate",
                                 job->nccl->cudaEventCreateWithFlags(event, DML__CUDA_NO_TIMING)))
        *event = NULL;
    return *event ? event : NULL;
}

DML__LOCAL void dml__nccl_start(dml__comm_job *job, dml_request *request)
{
    dml__nccl *nccl = job->nccl;
    char text[DML__SIGNATURE_TEXT];
    const char *doing = dml__signature_text(&request->call.signature, text);
    const char *reason = dml__nccl_refuses(job, &request->call);
    if (job->error.status) return;
    if (reason) {
        dml__job_fail(job, job->rank, DML_ERROR_UNSUPPORTED,
                      "rank %d called %s with an array in a GPU's memory: %s", job->rank, doing, reason);
        return;
    }
    const int device = dml__nccl_go(job);
    void **done = dml__nccl_done(job, request);
    nccl->busy++;
    if (done &&
        dml__cuda_ok(job, "cudaEventRecord", nccl->cudaEventRecord(nccl->ready, request->comm->stream)) &&
        dml__cuda_ok(job, "cudaStreamWaitEvent", nccl->cudaStreamWaitEvent(nccl->stream, nccl->ready, 0)) &&
        dml__nccl_post(request, doing))
        dml__cuda_ok(job, "cudaEventRecord", nccl->cudaEventRecord(*done, nccl->stream));
    dml__nccl_go_back(job, device);
}

/* A rank of the group that is gone would be waited for for ever. */
static bool dml__nccl_all_there(dml__comm_job *job, const dml_comm *comm)
{
    for (int r = 0; r < comm->size; r++) {
        const int rank = comm->world_ranks[r];
        if (rank == job->rank || !job->peers[rank].gone || job->peers[rank].goodbye) continue;
        dml__job_fail(job, rank, DML_ERROR_PEER, "rank %d of %d died: its connection ended without a goodbye",
                      rank, job->world);
        return false;
    }
    return true;
}

DML__LOCAL void dml__nccl_progress(dml__comm_job *job)
{
    dml__nccl *nccl = job->nccl;
    if (!nccl || !nccl->busy) return;
    for (dml_request *r = job->active, *next; r && !job->error.status; r = next) {
        next = r->next;
        if (!r->on_device) continue;
        const int code = nccl->cudaEventQuery(nccl->done[r - job->requests]);
        if (code == DML__CUDA_NOT_READY) {
            int state = DML__NCCL_OK;
            char text[DML__SIGNATURE_TEXT];
            const int asked = nccl->ncclCommGetAsyncError(r->comm->nccl->comm, &state);
            if (asked || (state != DML__NCCL_OK && state != DML__NCCL_IN_PROGRESS))
                dml__nccl_ok(job, dml__signature_text(&r->call.signature, text), asked ? asked : state);
            else
                dml__nccl_all_there(job, r->comm);
        } else if (dml__cuda_ok(job, "cudaEventQuery", code)) {
            r->on_device = false;
            nccl->busy--;
            dml__end_request(job, r, DML_OK);
        }
    }
}

DML__LOCAL bool dml__nccl_is_busy(const dml__comm_job *job)
{
    return job->nccl && job->nccl->busy && !job->error.status;
}

/* ---- the end ---- */

DML__LOCAL void dml__nccl_abort(dml__comm_job *job)
{
    if (!job->nccl || job->nccl->aborted) return;
    job->nccl->aborted = true;
    for (dml_comm *comm = job->comms; comm; comm = comm->next) {
        if (!comm->nccl || !comm->nccl->comm) continue;
        job->nccl->ncclCommAbort(comm->nccl->comm);
        comm->nccl->comm = NULL;
    }
}

DML__LOCAL void dml__nccl_leave(dml__comm_job *job, dml_comm *comm)
{
    dml__nccl_group *group = comm->nccl;
    comm->nccl = NULL;
    if (!group) return;
    group->next = job->nccl->closed;
    job->nccl->closed = group;
}

DML__LOCAL void dml__nccl_close(dml__comm_job *job)
{
    dml__nccl *nccl = job->nccl;
    if (!nccl) return;
    const bool ours = !dml__is_copy(job); /* CUDA is the parent's alone */
    for (dml__nccl_group *group = nccl->closed, *next; group; group = next) {
        next = group->next;
        if (ours && group->comm)
            (job->error.status ? nccl->ncclCommAbort : nccl->ncclCommDestroy)(group->comm);
        dml__release(&job->memory, group);
    }
    for (int i = 0; ours && i <= job->max_requests; i++)
        if (nccl->done[i]) nccl->cudaEventDestroy(nccl->done[i]);
    if (ours && nccl->ready) nccl->cudaEventDestroy(nccl->ready);
    if (ours && nccl->stream) nccl->cudaStreamDestroy(nccl->stream);
    dml__release(&job->memory, nccl->done);
    dml__release(&job->memory, nccl);
    job->nccl = NULL;
}

#endif

#endif
