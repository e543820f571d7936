#ifndef DML_TRAIN_CHECKPOINT_C
#define DML_TRAIN_CHECKPOINT_C

#include "train/checkpoint.h"

#ifndef DML_NO_STDIO

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/file.h"
#include "base/memory.h"
#include "train/trainer_internal.h"

#include <stdio.h>
#include <string.h>

/* The file, all little-endian:
     header      magic (8), version (4), vectors (4), steps (8), seed (8), elements (8), parameters (4),
   optimizer (16) parameters  each: name (48), dimensions (4), sizes (5 x 4) vectors     w, then each
   optimizer state: elements x f32 checksum    of everything before (4) */
static const char dml__checkpoint_magic[8] = { 'D', 'M', 'L', 'C', 'K', 'P', 'T', '\n' };
enum {
    DML__CHECKPOINT_VERSION = 1,
    DML__CHECKPOINT_OPTIMIZER = 16,
    DML__CHECKPOINT_HEADER = 60,
    DML__CHECKPOINT_SUM = 4
};
enum { DML__CHECKPOINT_PARAMETER = DML__NAME_LENGTH + 4 + 4 * DML_MAX_DIMS };

typedef struct dml__checkpoint_header {
    uint32_t version, vectors;
    uint64_t steps, seed, elements;
    uint32_t parameters;
    char optimizer[DML__CHECKPOINT_OPTIMIZER];
} dml__checkpoint_header;

static uint32_t dml__count_parameters(const dml_trainer *trainer)
{
    uint32_t count = 0;
    for (const dml_node *p = trainer->program->graph->first_parameter; p; p = p->next_parameter) count++;
    return count;
}

static dml__checkpoint_header dml__checkpoint_header_of(const dml_trainer *trainer)
{
    dml__checkpoint_header header;
    memset(&header, 0, sizeof header);
    header.version = DML__CHECKPOINT_VERSION;
    header.vectors = (uint32_t)trainer->vectors - 1; /* all but the gradients */
    header.steps = trainer->steps;
    header.seed = trainer->context->seed;
    header.elements = dml_trainer_parameter_count(trainer);
    header.parameters = dml__count_parameters(trainer);
    snprintf(header.optimizer, sizeof header.optimizer, "%s", trainer->row->name);
    return header;
}

static size_t dml__checkpoint_bytes(const dml__checkpoint_header *header)
{
    return DML__CHECKPOINT_HEADER + (size_t)header->parameters * DML__CHECKPOINT_PARAMETER +
           (size_t)header->vectors * (size_t)header->elements * sizeof(float) + DML__CHECKPOINT_SUM;
}

static unsigned char *dml__write_header(unsigned char *to, const dml__checkpoint_header *header)
{
    memcpy(to, dml__checkpoint_magic, sizeof dml__checkpoint_magic);
    dml__store32(to + 8, header->version);
    dml__store32(to + 12, header->vectors);
    dml__store64(to + 16, header->steps);
    dml__store64(to + 24, header->seed);
    dml__store64(to + 32, header->elements);
    dml__store32(to + 40, header->parameters);
    memcpy(to + 44, header->optimizer, sizeof header->optimizer);
    return to + DML__CHECKPOINT_HEADER;
}

static dml__checkpoint_header dml__read_header(const unsigned char *from)
{
    dml__checkpoint_header header;
    header.version = dml__load32(from + 8);
    header.vectors = dml__load32(from + 12);
    header.steps = dml__load64(from + 16);
    header.seed = dml__load64(from + 24);
    header.elements = dml__load64(from + 32);
    header.parameters = dml__load32(from + 40);
    memcpy(header.optimizer, from + 44, sizeof header.optimizer);
    header.optimizer[sizeof header.optimizer - 1] = '\0';
    return header;
}

static void dml__write_parameter(unsigned char *to, const dml_node *parameter)
{
    memcpy(to, parameter->name, DML__NAME_LENGTH);
    dml__store32(to + DML__NAME_LENGTH, (uint32_t)parameter->shape.ndim);
    for (int i = 0; i < DML_MAX_DIMS; i++)
        dml__store32(to + DML__NAME_LENGTH + 4 + 4 * i, (uint32_t)parameter->shape.dims[i]);
}

static dml_status dml__write_vectors(dml_trainer *trainer, unsigned char *to)
{
    const size_t count = dml_trainer_parameter_count(trainer);
    for (int v = 0; v < trainer->vectors; v++) {
        if (v == DML_GRADIENTS) continue;
        const float *from = dml_trainer_get(trainer, v, 0, count);
        if (!from) return trainer->context->error.status;
        for (size_t i = 0; i < count; i++, to += sizeof(float)) dml__store_f32(to, from[i]);
    }
    return DML_OK;
}

static dml_status dml__read_vectors(dml_trainer *trainer, const unsigned char *from)
{
    const size_t count = dml_trainer_parameter_count(trainer);
    dml_status status = DML_OK;
    for (int v = 0; v < trainer->vectors && status == DML_OK; v++) {
        if (v == DML_GRADIENTS) continue;
        float *to = dml_trainer_host(trainer, v, 0, count);
        for (size_t i = 0; i < count; i++, from += sizeof(float)) to[i] = dml__load_f32(from);
        status = dml_trainer_put(trainer, v, 0, count);
    }
    return status;
}

DML_API dml_status dml_trainer_save(dml_trainer *trainer, const char *path)
{
    if (!trainer) return DML_ERROR_ARGUMENT;
    dml_context *context = trainer->context;
    const dml__checkpoint_header header = dml__checkpoint_header_of(trainer);
    const size_t bytes = dml__checkpoint_bytes(&header);
    unsigned char *image = (unsigned char *)dml__allocate(&context->memory, bytes);
    if (!image)
        return dml__fail(&context->error, DML_ERROR_MEMORY, "no memory left for a checkpoint of %zu bytes",
                         bytes);
    unsigned char *to = dml__write_header(image, &header);
    for (const dml_node *p = trainer->program->graph->first_parameter; p; p = p->next_parameter) {
        dml__write_parameter(to, p);
        to += DML__CHECKPOINT_PARAMETER;
    }
    dml_status status = dml__write_vectors(trainer, to);
    dml__store32(image + bytes - DML__CHECKPOINT_SUM, dml__crc32c(0, image, bytes - DML__CHECKPOINT_SUM));
    const dml__file_part file = { image, bytes };
    if (status == DML_OK) status = dml__file_write(path, &file, 1, &context->error);
    dml__release(&context->memory, image);
    return status;
}

/* Whether the bytes are a whole checkpoint: of any model. */
static dml_status dml__check_image(dml__error *error, const char *path, const unsigned char *image,
                                   size_t bytes)
{
    if (bytes < sizeof dml__checkpoint_magic ||
        memcmp(image, dml__checkpoint_magic, sizeof dml__checkpoint_magic) != 0)
        return dml__fail(error, DML_ERROR_FORMAT, "%s is not a dml checkpoint", path);
    if (bytes < DML__CHECKPOINT_HEADER + DML__CHECKPOINT_SUM)
        return dml__fail(error, DML_ERROR_FORMAT,
                         "%s is truncated: it ends after %zu bytes, inside its header", path, bytes);
    const uint32_t version = dml__load32(image + 8);
    if (version != DML__CHECKPOINT_VERSION)
        return dml__fail(error, DML_ERROR_FORMAT,
                         "%s is a checkpoint of version %u, this library reads version %d", path,
                         (unsigned)version, DML__CHECKPOINT_VERSION);
    return DML_OK;
}

/* Whether the checkpoint's tables are those of this trainer; each sentence says what differs. */
static dml_status dml__check_model(dml_trainer *trainer, const char *path, const unsigned char *image,
                                   size_t bytes)
{
    dml__error *error = &trainer->context->error;
    const dml__checkpoint_header got = dml__read_header(image), want = dml__checkpoint_header_of(trainer);
    if (got.parameters != want.parameters || got.elements != want.elements)
        return dml__fail(
            error, DML_ERROR_FORMAT,
            "%s holds another model: %u parameters with %llu elements, this model has %u with %llu", path,
            (unsigned)got.parameters, (unsigned long long)got.elements, (unsigned)want.parameters,
            (unsigned long long)want.elements);
    if (strcmp(got.optimizer, want.optimizer) != 0 || got.vectors != want.vectors)
        return dml__fail(error, DML_ERROR_FORMAT,
                         "%s was saved with optimizer %s and %u state vectors, this trainer has %s and %u "
                         "(is the momentum "
                         "the same?)",
                         path, got.optimizer, (unsigned)got.vectors - 1, want.optimizer,
                         (unsigned)want.vectors - 1);
    if (bytes != dml__checkpoint_bytes(&want))
        return dml__fail(error, DML_ERROR_FORMAT, "%s is %s: it has %zu bytes, its header promises %zu", path,
                         bytes < dml__checkpoint_bytes(&want) ? "truncated" : "too long", bytes,
                         dml__checkpoint_bytes(&want));
    if (dml__load32(image + bytes - DML__CHECKPOINT_SUM) !=
        dml__crc32c(0, image, bytes - DML__CHECKPOINT_SUM))
        return dml__fail(error, DML_ERROR_FORMAT, "%s is damaged: its checksum doesn't match", path);
    const unsigned char *row = image + DML__CHECKPOINT_HEADER;
    for (const dml_node *p = trainer->program->graph->first_parameter; p; p = p->next_parameter) {
        unsigned char expected[DML__CHECKPOINT_PARAMETER];
        dml__write_parameter(expected, p);
        char text[DML_SHAPE_TEXT];
        if (memcmp(row, expected, sizeof expected) != 0)
            return dml__fail(error, DML_ERROR_FORMAT,
                             "%s holds another model: where this model has '%s' of %s, it has '%.*s'", path,
                             p->name, dml_shape_format(&p->shape, text), DML__NAME_LENGTH - 1,
                             (const char *)row);
        row += DML__CHECKPOINT_PARAMETER;
    }
    return DML_OK;
}

DML_API dml_status dml_trainer_load(dml_trainer *trainer, const char *path)
{
    if (!trainer) return DML_ERROR_ARGUMENT;
    dml_context *context = trainer->context;
    void *file;
    size_t bytes;
    dml_status status = dml__file_read(&context->memory, path, SIZE_MAX, &file, &bytes, &context->error);
    if (status != DML_OK) return status;
    const unsigned char *image = (const unsigned char *)file;
    status = dml__check_image(&context->error, path, image, bytes);
    if (status == DML_OK) status = dml__check_model(trainer, path, image, bytes);
    if (status == DML_OK) {
        const dml__checkpoint_header header = dml__read_header(image);
        trainer->steps = header.steps;
        context->seed = header.seed;
        status = dml__read_vectors(trainer, image + DML__CHECKPOINT_HEADER +
                                                (size_t)header.parameters * DML__CHECKPOINT_PARAMETER);
    }
    dml__release(&context->memory, file);
    return status;
}

#endif

#endif
