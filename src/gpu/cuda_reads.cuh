/* cuda_reads.cuh: reads that the host doesn't wait for. */
#ifndef DML_GPU_CUDA_READS_CUH
#define DML_GPU_CUDA_READS_CUH

#include <cuda_runtime.h>

/* They go in a stream of their own, so that they don't hold up what the card computes, and into memory of the
   caller's that is pinned: a card copies to any other while the host waits. */
enum { DML__CUDA_PINS = 16 };
typedef struct dml__cuda_reads {
    cudaStream_t stream; /* NULL: there is none yet */
    cudaEvent_t ready;   /* in the device's stream: what is to be read is there */
    struct {
        char *begin;
        size_t bytes; /* 0: free */
    } pin[DML__CUDA_PINS];
} dml__cuda_reads;

static bool dml__cuda_pin_memory(dml__cuda_reads *reads, void *memory, size_t bytes)
{
    int i = 0;
    while (i < DML__CUDA_PINS && reads->pin[i].bytes) i++;
    if (i == DML__CUDA_PINS || bytes == 0) return false;
    if (cudaHostRegister(memory, bytes, cudaHostRegisterDefault) != cudaSuccess) {
        (void)cudaGetLastError(); /* the system lets a process pin so much, or another pin shares its pages */
        return false;
    }
    reads->pin[i].begin = (char *)memory;
    reads->pin[i].bytes = bytes;
    return true;
}

static void dml__cuda_unpin_memory(dml__cuda_reads *reads, void *memory)
{
    for (int i = 0; i < DML__CUDA_PINS; i++) {
        if (!reads->pin[i].bytes || reads->pin[i].begin != memory) continue;
        if (reads->stream) (void)cudaStreamSynchronize(reads->stream);
        (void)cudaHostUnregister(memory);
        (void)cudaGetLastError();
        reads->pin[i].bytes = 0;
    }
}

static bool dml__cuda_is_pinned(const dml__cuda_reads *reads, const void *memory, size_t bytes)
{
    const char *begin = (const char *)memory;
    for (int i = 0; i < DML__CUDA_PINS; i++)
        if (begin >= reads->pin[i].begin && begin + bytes <= reads->pin[i].begin + reads->pin[i].bytes)
            return true;
    return false;
}

static void dml__cuda_destroy_reads(dml__cuda_reads *reads)
{
    if (!reads->stream) return;
    (void)cudaStreamSynchronize(reads->stream);
    (void)cudaEventDestroy(reads->ready);
    (void)cudaStreamDestroy(reads->stream);
    reads->stream = NULL;
}

/* The first read makes the stream. */
static cudaError_t dml__cuda_have_reads(dml__cuda_reads *reads)
{
    if (reads->stream) return cudaSuccess;
    cudaError_t error = cudaEventCreateWithFlags(&reads->ready, cudaEventDisableTiming);
    if (error != cudaSuccess) return error;
    error = cudaStreamCreateWithFlags(&reads->stream, cudaStreamNonBlocking);
    if (error == cudaSuccess) return error;
    (void)cudaEventDestroy(reads->ready);
    reads->stream = NULL;
    return error;
}

/* Whatever comes next in the reads' stream sees what the device's stream has done so far. */
static cudaError_t dml__cuda_read_behind(dml__cuda_reads *reads, cudaStream_t stream)
{
    const cudaError_t error = cudaEventRecord(reads->ready, stream);
    return error == cudaSuccess ? cudaStreamWaitEvent(reads->stream, reads->ready, 0) : error;
}

/* An event behind what the reads' stream has been given. On failure it has ended. */
static cudaError_t dml__cuda_mark_read(dml__cuda_reads *reads, cudaEvent_t *event)
{
    cudaError_t error = cudaEventCreateWithFlags(event, cudaEventDisableTiming);
    if (error == cudaSuccess) {
        error = cudaEventRecord(*event, reads->stream);
        if (error == cudaSuccess) return error;
        (void)cudaEventDestroy(*event);
    }
    (void)cudaStreamSynchronize(reads->stream);
    return error;
}

#endif
