/* file.h: files in and out of memory, whole or in pieces. With DML_NO_STDIO there are none. */
#ifndef DML_BASE_FILE_H
#define DML_BASE_FILE_H

#ifndef DML_NO_STDIO

#include "base/error.h"
#include "base/memory.h"

/* ---- whole files ---- */

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

/* Whether dml__file_write could write `path` now, to know before a long run rather than after it: also
   whether the folder allows it, by creating the temporary file and removing it. Leaves everything as it was.
 */
DML__LOCAL dml_status dml__file_check_writable(const char *path, dml__error *error);

/* ---- in pieces ---- */

typedef struct dml__file_reader {
    const char *path;
    uint64_t bytes; /* the size of the file when it was opened */
    int descriptor;
} dml__file_reader;

/* Opens a plain file; `path` must stay until it is closed. After an error nothing is open. */
DML__LOCAL dml_status dml__file_open(dml__file_reader *file, const char *path, dml__error *error);

/* Exactly `bytes` bytes from `offset` on; DML_ERROR_IO too where the file ends before. */
DML__LOCAL dml_status dml__file_read_at(dml__file_reader *file, uint64_t offset, void *to, size_t bytes,
                                        dml__error *error);

DML__LOCAL void dml__file_close(dml__file_reader *file);

#define DML__PATH_BYTES 4096

typedef struct dml__file_writer {
    const char *path;
    int descriptor;
    char temporary[DML__PATH_BYTES];
} dml__file_writer;

/* Starts writing `path`, which must stay until the end: dml__file_append as often as needed, then either
   dml__file_commit, which makes it the file's content, or dml__file_abandon, which leaves the old file; the
   latter also after a failed append. A failed commit has abandoned it. */
DML__LOCAL dml_status dml__file_create(dml__file_writer *file, const char *path, dml__error *error);
DML__LOCAL dml_status dml__file_append(dml__file_writer *file, const void *data, size_t bytes,
                                       dml__error *error);
DML__LOCAL dml_status dml__file_commit(dml__file_writer *file, dml__error *error);
DML__LOCAL void dml__file_abandon(dml__file_writer *file);

#endif

#endif
