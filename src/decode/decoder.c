#ifndef DML_DECODE_DECODER_C
#define DML_DECODE_DECODER_C

#include "decode/decoder.h"

#include "base/memory.h"
#include "decode/by_position.h"
#include "graph/node.h"
#include "graph/op.h"
#include "graph/program.h"

#include <stdio.h>
#include <string.h>

#define DML__DECODER_CHUNK 32

/* A net for so many positions at a time, and its program. */
typedef struct dml__pace {
    dml__positions net;
    dml_program *program;
} dml__pace;

struct dml_decoder {
    dml__owned owned; /* first: the context destroys through it */
    dml_context *context;
    dml_buffer *kept;
    dml__pace one, chunk;   /* of a position; of several. Without a program: not there */
    int batch, rows;        /* texts at most; of now */
    int positions, place;   /* at most; that were fed */
    size_t position_bytes;  /* of a text's input */
    char *x;                /* (batch, chunk): what a chunk is given */
    int32_t *past, *places; /* (batch), (batch, chunk) */
};

static void dml__decoder_release(dml_decoder *decoder)
{
    dml_context *context = decoder->context;
    dml_program_destroy(decoder->one.program);
    dml_program_destroy(decoder->chunk.program);
    dml__buffer_destroy(context, decoder->kept);
    dml__release(&context->memory, decoder->x);
    dml__release(&context->memory, decoder->past);
    dml__release(&context->memory, decoder->places);
    dml__release(&context->memory, decoder);
}

static void dml__decoder_destroy_owned(dml__owned *owned)
{
    dml_decoder *decoder = (dml_decoder *)(void *)owned;
    dml__disown(decoder->context, owned);
    dml__decoder_release(decoder);
}

DML_API void dml_decoder_destroy(dml_decoder *decoder)
{
    if (decoder) dml__decoder_destroy_owned(&decoder->owned);
}

/* ---- made ---- */

static dml_status dml__decoder_check(const dml_node *output, const dml_node *input, int batch, int chunk)
{
    dml__error *error = &dml__node_context(output)->error;
    char text[DML_SHAPE_TEXT];
    if (error->status != DML_OK) return error->status;
    if (output->graph != input->graph)
        return dml__fail(error, DML_ERROR_ARGUMENT, "decoder: its nodes are of different graphs");
    if (batch < 1 || chunk < 1)
        return dml__fail(
            error, DML_ERROR_ARGUMENT,
            "decoder: a batch of %d and a chunk of %d asked for; both are 1 or more, or 0 for the default",
            batch, chunk);
    if (input->op == dml__input_op() && input->shape.ndim > 0 && input->shape.dims[0] > 1) return DML_OK;
    return dml__fail(
        error, DML_ERROR_ARGUMENT,
        "decoder: '%s' is %s %s; it takes an input whose first dimension counts two positions or more",
        input->name, dml_dtype_name(input->dtype), dml_shape_format(&input->shape, text));
}

/* The first number that no decoder of the graph has. */
static int dml__decoder_number(const dml_graph *graph)
{
    char name[2 * DML_NAME_BYTES];
    for (int number = 1;; number++) {
        snprintf(name, sizeof name, "%sdecoder.%d.1.input", graph->scope, number);
        if (!dml__graph_find(graph, name)) return number;
    }
}

static bool dml__pace_make(dml__pace *pace, const dml__positions *like, int count, dml_dtype dtype)
{
    dml_program_options options;
    memset(&options, 0, sizeof options);
    options.batch = like->samples;
    options.dtype = dtype;
    pace->net = *like;
    pace->net.count = count;
    if (dml__positions_build(&pace->net) == DML_OK) pace->program = dml_compile(pace->net.last, &options);
    return pace->program != NULL;
}

/* What is kept, the programs, and what they are given. */
static bool dml__decoder_equip(dml_decoder *decoder, dml__positions *net, int chunk, dml_dtype dtype)
{
    dml_context *context = decoder->context;
    const size_t bytes = dml__positions_bytes(net), texts = (size_t)decoder->batch;
    if (!bytes) return false;
    decoder->kept = net->kept = dml__buffer_create_zeroed(context, bytes);
    if (!decoder->kept) return false;
    if (!dml__pace_make(&decoder->one, net, 1, dtype)) return false;
    if (chunk > 1 && !dml__pace_make(&decoder->chunk, net, chunk, dtype)) return false;
    decoder->x =
        (char *)dml__allocate_array(&context->memory, texts * (size_t)chunk, decoder->position_bytes);
    decoder->past = (int32_t *)dml__allocate_array(&context->memory, texts, sizeof(int32_t));
    decoder->places =
        (int32_t *)dml__allocate_array(&context->memory, texts * (size_t)chunk, sizeof(int32_t));
    if (decoder->x && decoder->past && decoder->places) return true;
    dml__fail(&context->error, DML_ERROR_MEMORY, "decoder: no memory left for %zu positions",
              texts * (size_t)chunk);
    return false;
}

DML_API dml_decoder *dml_decoder_create(dml_node *output, dml_node *input, const dml_decoder_options *options)
{
    if (!output || !input) return NULL;
    dml_context *context = dml__node_context(output);
    const int batch = options && options->batch ? options->batch : 1;
    const int wanted = options && options->chunk ? options->chunk : DML__DECODER_CHUNK;
    if (dml__decoder_check(output, input, batch, wanted) != DML_OK) return NULL;
    dml_decoder *decoder = (dml_decoder *)dml__allocate(&context->memory, sizeof *decoder);
    if (!decoder) {
        dml__fail(&context->error, DML_ERROR_MEMORY, "decoder: no memory left for it");
        return NULL;
    }
    dml__positions net;
    memset(&net, 0, sizeof net);
    net.output = output;
    net.input = input;
    net.positions = input->shape.dims[0];
    net.samples = batch;
    net.number = dml__decoder_number(output->graph);
    decoder->context = context;
    decoder->batch = batch;
    decoder->positions = net.positions;
    decoder->position_bytes =
        dml_shape_count(&input->shape) / (size_t)net.positions * dml_dtype_size(input->dtype);
    const int chunk = wanted < net.positions ? wanted : net.positions;
    if (!dml__decoder_equip(decoder, &net, chunk, options ? options->dtype : DML_F32)) {
        dml__decoder_release(decoder);
        return NULL;
    }
    dml__own(context, &decoder->owned,
             dml__decoder_destroy_owned); /* behind its programs, before which it goes */
    return decoder;
}

/* ---- fed ---- */

/* Of each text the positions from `first` on, side by side. */
static void dml__decoder_gather(const dml_decoder *decoder, const dml__pace *pace, int rows, const char *x,
                                int count, int first)
{
    const size_t bytes = (size_t)pace->net.count * decoder->position_bytes;
    for (int row = 0; row < rows; row++)
        memcpy(decoder->x + (size_t)row * bytes,
               x + ((size_t)row * (size_t)count + (size_t)first) * decoder->position_bytes, bytes);
}

/* The next positions of all texts. */
static dml_status dml__decoder_run(dml_decoder *decoder, const dml__pace *pace, int rows, float *last)
{
    const int count = pace->net.count, inputs = dml_program_inputs(pace->program);
    const void *const given[] = { decoder->x, decoder->past, decoder->places };
    const void *input[3];
    for (int row = 0; row < rows; row++) {
        decoder->past[row] = decoder->place;
        for (int i = 0; i < count; i++) decoder->places[row * count + i] = decoder->place + i;
    }
    for (int i = 0; i < inputs; i++)
        for (int k = 0; k < 3; k++)
            if (dml_program_input(pace->program, i) == pace->net.given[k]) input[i] = given[k];
    const dml_status status = dml_program_run(pace->program, rows, input, inputs, last);
    if (status == DML_OK) decoder->place += count;
    return status;
}

static dml_status dml__decoder_check_feed(const dml_decoder *decoder, int rows, const void *x, int count)
{
    dml__error *error = &decoder->context->error;
    if (error->status != DML_OK) return error->status;
    if (!x) return dml__fail_null(error, "dml_decoder_feed", "positions");
    if (rows < 1 || rows > decoder->batch || (decoder->place && rows > decoder->rows))
        return dml__fail(error, DML_ERROR_ARGUMENT, "dml_decoder_feed: %d texts given; it takes 1 to %d%s",
                         rows, decoder->place ? decoder->rows : decoder->batch,
                         decoder->place ? ", as many as it had before (dml_decoder_rewind to 0 begins others)"
                                        : "");
    if (count < 1)
        return dml__fail(error, DML_ERROR_ARGUMENT,
                         "dml_decoder_feed: %d positions given; it takes 1 or more", count);
    if (count > decoder->positions - decoder->place)
        return dml__fail(error, DML_ERROR_STATE,
                         "dml_decoder_feed: %d positions given behind %d, but the net has %d in all: "
                         "dml_decoder_rewind makes room",
                         count, decoder->place, decoder->positions);
    return DML_OK;
}

DML_API dml_status dml_decoder_feed(dml_decoder *decoder, int rows, const void *x, int count, float *last)
{
    if (!decoder) return DML_ERROR_ARGUMENT;
    dml_status status = dml__decoder_check_feed(decoder, rows, x, count);
    const int begin = decoder->place;
    for (int done = 0; done < count && status == DML_OK; done = decoder->place - begin) {
        const int chunk = decoder->chunk.program ? decoder->chunk.net.count : 1;
        const dml__pace *pace = chunk > 1 && count - done >= chunk ? &decoder->chunk : &decoder->one;
        dml__decoder_gather(decoder, pace, rows, (const char *)x, count, done);
        status = dml__decoder_run(decoder, pace, rows, done + pace->net.count == count ? last : NULL);
    }
    if (status == DML_OK)
        decoder->rows = rows;
    else
        decoder->place = begin;
    return status;
}

DML_API int dml_decoder_place(const dml_decoder *decoder)
{
    return decoder ? decoder->place : 0;
}

DML_API dml_status dml_decoder_rewind(dml_decoder *decoder, int place)
{
    if (!decoder) return DML_ERROR_ARGUMENT;
    if (place < 0 || place > decoder->place)
        return dml__fail(
            &decoder->context->error, DML_ERROR_ARGUMENT,
            "dml_decoder_rewind: place %d asked for; it must be in 0 .. %d, as many positions as were fed",
            place, decoder->place);
    decoder->place = place;
    return DML_OK;
}

#endif
