/* file.h: whole files, read at once and replaced at once. */
#ifndef DML_BASE_FILE_H
#define DML_BASE_FILE_H

#include "base/error.h"
#include "base/memory.h"
#include "base/platform.h"
#include "base/status.h"

#ifndef DML_NO_STDIO

/* Reads the file into `*data`, which the caller releases, and its size into `*bytes`. DML_ERROR_IO, naming
   the file and the cause, when it can't be read, is a folder, or is larger than `most` bytes;
   DML_ERROR_MEMORY. */
DML__LOCAL dml_status dml__file_read(dml__memory *memory, const char *path, size_t most, unsigned char **data,
                                     size_t *bytes, dml__error *error);

/* Replaces the file: the bytes are written to a file beside it, synced, and renamed, so that whoever looks
   finds the old file or the new one, whole. DML_ERROR_IO, with nothing left behind, when that fails. */
DML__LOCAL dml_status dml__file_write(const char *path, const void *data, size_t bytes, dml__error *error);

#endif

#endif
