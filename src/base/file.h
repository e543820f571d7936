/* file.h: whole files in and out of memory. With DML_NO_STDIO there are none. */
#ifndef DML_BASE_FILE_H
#define DML_BASE_FILE_H

#ifndef DML_NO_STDIO

#include "base/error.h"
#include "base/memory.h"

/* Reads the whole plain file into memory that the caller releases with dml__release. An empty file gives a
   valid pointer. DML_ERROR_IO: it isn't there, can't be read or is no plain file; DML_ERROR_FORMAT: it holds
   more than `limit` bytes; DML_ERROR_MEMORY. Nothing is kept then, and *data is NULL. */
DML__LOCAL dml_status dml__file_read(dml__memory *memory, const char *path, size_t limit, void **data,
                                     size_t *bytes, dml__error *error);

typedef struct dml__file_part {
    const void *data;
    size_t bytes;
} dml__file_part;

/* Writes the parts one after the other as the file's content, all or nothing: to a temporary file beside it,
   onto the disk, and then renamed over `path`, so that after a crash or a full disk the old file is still
   there. DML_ERROR_IO also where `path` is there but no plain file. */
DML__LOCAL dml_status dml__file_write(const char *path, const dml__file_part *parts, int count,
                                      dml__error *error);

#endif

#endif
