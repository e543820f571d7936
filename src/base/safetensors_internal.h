/* safetensors_internal.h: an open file of named arrays, for those of our files that read it. */
#ifndef DML_BASE_SAFETENSORS_INTERNAL_H
#define DML_BASE_SAFETENSORS_INTERNAL_H

#include "base/error.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/safetensors.h"

struct dml__safetensors {
    dml__memory *memory;
    char *name;                 /* what sentences call the file: its path */
    const unsigned char *bytes; /* all of it, in memory; NULL: it is a file */
#ifndef DML_NO_STDIO
    dml__file_reader reader;
#endif
    uint64_t size;
    char *header; /* strings are unescaped in their place */
    size_t header_bytes;
    size_t checksum_at; /* where in the header its digits are; 0: there is none */
    int count, pair_count;
    size_t dim_count;
    dml__safetensors_entry *entries; /* count, as in the header */
    uint64_t *dims;                  /* dim_count */
    int *order;                      /* count: the entries in the order of the data */
    int *by_name;                    /* count: indices into order */
    dml__metadata *pairs;            /* pair_count */
};

static inline uint64_t dml__data_bytes(const dml__safetensors *file)
{
    return file->size - 8 - file->header_bytes;
}

/* Goes through the header, which is in memory: once to check and count, then again to fill the tables, which
   are there by then (safetensors_header.c). */
DML__LOCAL dml_status dml__read_header_text(dml__safetensors *file, dml__error *error);

/* The bytes that a host of the other byte order turns round together in an element of a type, by the format's
   name for it; 1: none, or an unknown type. */
DML__LOCAL size_t dml__element_width(const char *name);

#endif
