/* safetensors.h: named arrays in one file that other tools read and write too, or in memory. It knows names,
   dtypes, shapes and bytes, but no graph.

   Format: https://github.com/huggingface/safetensors. 8 bytes, the header's length, little-endian; the
   header, one JSON object: {"NAME":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},...}, with optional
   texts under "__metadata__", padded with spaces to a multiple of 8; then the data, little-endian, row-major,
   without holes. What we write also has a checksum of the whole among its metadata ("dml.crc32c"), so that
   any flipped bit of it is found; other tools see one text more. */
#ifndef DML_BASE_SAFETENSORS_H
#define DML_BASE_SAFETENSORS_H

#include "base/dtype.h"
#include "base/error.h"
#include "base/memory.h"

enum {
    DML__SAFETENSORS_HEADER = 100000000, /* the most bytes of a header, a limit of the format */
    DML__SAFETENSORS_DIMS = 64           /* the most dimensions of a tensor, a limit of ours */
};

/* A text beside the tensors. Keys and values are UTF-8. */
typedef struct dml__metadata {
    const char *key, *value;
} dml__metadata;

/* ---- writing ---- */

/* A tensor to be written. No dimension is a scalar, a dimension of 0 an empty tensor. */
typedef struct dml__tensor {
    const char *name; /* UTF-8; each once, and none "__metadata__" */
    dml_dtype dtype;
    int ndim;
    const int *dims;
    const void *data; /* row-major, in the host's byte order; may be NULL if empty */
} dml__tensor;

/* Writes the tensors as the file `path`, all or nothing (dml__file_write). The data of a file is ordered by
   falling size of the elements, so that each is aligned for whoever maps the file, and otherwise as given.
   Memory is needed for the header only. DML_ERROR_ARGUMENT: a name, text, dtype or shape that can't be
   written (the key "dml.crc32c" among them); DML_ERROR_MEMORY; DML_ERROR_IO. */
#ifndef DML_NO_STDIO
DML__LOCAL dml_status dml__safetensors_save(dml__memory *memory, const char *path, const dml__tensor *tensors,
                                            int count, const dml__metadata *metadata, int pairs,
                                            dml__error *error);
#endif

/* The same into `to`, of `capacity` bytes. *bytes is what it takes (0 after any error but that `capacity` is
   too small, which is DML_ERROR_MEMORY and writes nothing). With `to` NULL it only says that. */
DML__LOCAL dml_status dml__safetensors_store(dml__memory *memory, void *to, size_t capacity, size_t *bytes,
                                             const dml__tensor *tensors, int count,
                                             const dml__metadata *metadata, int pairs, dml__error *error);

/* ---- reading ---- */

/* A tensor of a file. All pointers live as long as the file is open. */
typedef struct dml__safetensors_entry {
    const char *name;
    const char *dtype_text; /* as the file has it, such as "BF16" */
    dml_dtype dtype;        /* DML__DTYPE_COUNT: none that the library has */
    int ndim;
    const uint64_t *dims;
    uint64_t begin, end; /* its bytes, counted from the start of the data */
} dml__safetensors_entry;

typedef struct dml__safetensors dml__safetensors;

/* Reads the header, checks all of it, and the checksum if there is one; the file stays open. Memory is needed
   for the header and a table only. DML_ERROR_FORMAT: it is none, damaged, truncated or contradicts itself;
   the sentence says where; DML_ERROR_IO; DML_ERROR_MEMORY. *out is NULL then. */
#ifndef DML_NO_STDIO
DML__LOCAL dml_status dml__safetensors_open_file(dml__memory *memory, const char *path,
                                                 dml__safetensors **out, dml__error *error);
#endif

/* The same for `size` bytes in memory, which must stay until it is closed; `name` is what sentences call
   them. */
DML__LOCAL dml_status dml__safetensors_open_memory(dml__memory *memory, const char *name, const void *bytes,
                                                   size_t size, dml__safetensors **out, dml__error *error);

/* NULL is fine. */
DML__LOCAL void dml__safetensors_close(dml__safetensors *file);

DML__LOCAL int dml__safetensors_count(const dml__safetensors *file);

/* Tensor i, in the order of the data. */
DML__LOCAL const dml__safetensors_entry *dml__safetensors_at(const dml__safetensors *file, int i);

/* Which tensor has that name; -1: none. */
DML__LOCAL int dml__safetensors_find(const dml__safetensors *file, const char *name);

/* All texts of the metadata, in the file's order. */
DML__LOCAL const dml__metadata *dml__safetensors_pairs(const dml__safetensors *file, int *pairs);

/* The text of a key; NULL: none. */
DML__LOCAL const char *dml__safetensors_text(const dml__safetensors *file, const char *key);

/* Reads tensor i, of end - begin bytes, into `to`, in the host's byte order (if it is of a dtype that isn't
   known at all: as the file has it). DML_ERROR_IO: the file can't be read or became shorter. */
DML__LOCAL dml_status dml__safetensors_read(dml__safetensors *file, int i, void *to, dml__error *error);

/* Whether tensor i is of floats that f32 holds: F32, BF16 or F16; and reads such a one as f32. */
DML__LOCAL bool dml__safetensors_is_float(const dml__safetensors *file, int i);
DML__LOCAL dml_status dml__safetensors_read_floats(dml__safetensors *file, int i, float *to,
                                                   dml__error *error);

/* ---- what both sides share ---- */

#define DML__CHECKSUM_KEY "dml.crc32c"
#define DML__METADATA_NAME "__metadata__"

/* The format's name for a dtype: "F32"; NULL for a number that is no dtype. */
DML__LOCAL const char *dml__safetensors_dtype(dml_dtype dtype);

/* Sorts 0 ... count - 1 into `order`, in no memory but that, in at most O(n log n) steps. */
DML__LOCAL void dml__sort_order(int *order, int count, bool (*less)(const void *context, int a, int b),
                                const void *context);

#endif
