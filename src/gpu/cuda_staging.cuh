/* cuda_staging.cuh: writes that the host doesn't wait for. */
#ifndef DML_GPU_CUDA_STAGING_CUH
#define DML_GPU_CUDA_STAGING_CUH

#include <cuda_runtime.h>
#include <string.h>

/* Memory that the card reads while the host goes on: what is written goes through a piece of it, and each
   piece is filled again when the copy that was made of it has ended. */
enum { DML__CUDA_PIECES = 8, DML__CUDA_PIECE = 1 << 20 /* bytes */ };
typedef struct dml__cuda_staging {
    char *memory; /* (DML__CUDA_PIECES, DML__CUDA_PIECE), pinned; NULL: there is none, and writes wait */
    bool refused;
    int made, next;                       /* events that there are; the piece to fill next */
    cudaEvent_t copied[DML__CUDA_PIECES]; /* after the last copy of each */
} dml__cuda_staging;

static void dml__cuda_destroy_staging(dml__cuda_staging *staging)
{
    for (int i = 0; i < staging->made; i++) (void)cudaEventDestroy(staging->copied[i]);
    if (staging->memory) (void)cudaFreeHost(staging->memory);
    staging->memory = NULL, staging->made = 0;
}

/* Whether there is pinned memory, which the first write asks for. */
static bool dml__cuda_has_staging(dml__cuda_staging *staging)
{
    if (staging->memory || staging->refused) return staging->memory != NULL;
    void *memory = NULL;
    bool ok = cudaHostAlloc(&memory, (size_t)DML__CUDA_PIECES * DML__CUDA_PIECE, cudaHostAllocDefault) ==
              cudaSuccess;
    staging->memory = ok ? (char *)memory : NULL;
    while (ok && staging->made < DML__CUDA_PIECES) {
        ok = cudaEventCreateWithFlags(&staging->copied[staging->made], cudaEventDisableTiming) == cudaSuccess;
        if (ok) staging->made++;
    }
    staging->refused = !ok;
    if (ok) return true;
    dml__cuda_destroy_staging(staging);
    (void)cudaGetLastError();
    return false;
}

/* Of at most a piece: waits only for the copy that was made of its place before. */
static cudaError_t dml__cuda_write_piece(dml__cuda_staging *staging, cudaStream_t stream, char *to,
                                         const char *from, size_t bytes)
{
    const cudaEvent_t copied = staging->copied[staging->next];
    char *piece = staging->memory + (size_t)staging->next * DML__CUDA_PIECE;
    cudaError_t error = cudaEventSynchronize(copied);
    if (error != cudaSuccess) return error;
    memcpy(piece, from, bytes);
    error = cudaMemcpyAsync(to, piece, bytes, cudaMemcpyHostToDevice, stream);
    if (error == cudaSuccess) error = cudaEventRecord(copied, stream);
    staging->next = (staging->next + 1) % DML__CUDA_PIECES;
    return error;
}

static cudaError_t dml__cuda_write_pieces(dml__cuda_staging *staging, cudaStream_t stream, char *to,
                                          const char *from, size_t bytes)
{
    cudaError_t error = cudaSuccess;
    for (size_t done = 0; done < bytes && error == cudaSuccess; done += DML__CUDA_PIECE) {
        const size_t left = bytes - done;
        error = dml__cuda_write_piece(staging, stream, to + done, from + done,
                                      left < DML__CUDA_PIECE ? left : (size_t)DML__CUDA_PIECE);
    }
    return error;
}

#endif
