#ifndef DML_DECODE_DECODER_C
#define DML_DECODE_DECODER_C

#include "decode/decoder.h"

#include "base/memory.h"
#include "decode/by_position.h"
#include "decode/weights_q8.h"
#include "graph/node.h"
#include "graph/op.h"
#include "graph/program_internal.h"
#include "ops/op_attention_internal.h"

#include <stdio.h>
#include <string.h>

/* Positions that go through at once, by default: a quarter of all, but no more than these, for which the
   weights are read seldom enough. */
#define DML__DECODER_CHUNK 128
/* Of a chunk so small a part takes as long one by one as all of it at once. */
#define DML__DECODER_PART 16

/* A net for so many positions at a time, and its programs: for the output, and for what is kept alone (NULL:
   nothing is). */
typedef struct dml__pace {
    dml__positions net;
    dml_program *gives, *keeps;
} dml__pace;

struct dml_decoder {
    dml__owned owned; /* first: the context destroys through it */
    dml_context *context;
    dml_graph *graph;
    dml_node *before, *last; /* its nodes are those behind the first, up to the second */
    dml_buffer *kept;
    dml__weights_q8 q8; /* none: the programs read the graph's parameters */
    bool q8_taken;
    dml__pace one, chunk;  /* of a position; of several. Without programs: not there */
    int batch, positions;  /* texts; positions of each at most */
    int32_t *place;        /* (batch): how many positions each text has had */
    size_t position_bytes; /* of a text's input */
    /* What a program is given: (batch, chunk) positions and which they are, (batch) rows that are wanted,
       which positions those are, and the rows. */
    char *x, *x_last;
    int32_t *places, *row, *row_place;
};

/* Its nodes go, if they are the graph's last; else those that keep something forget where. */
static void dml__decoder_drop_nodes(dml_decoder *decoder)
{
    dml__pace *const paces[] = { &decoder->one, &decoder->chunk };
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < paces[i]->net.attentions; k++) dml__attention_forget(paces[i]->net.attention[k]);
    if (decoder->graph->last == decoder->last) dml__graph_drop_after(decoder->graph, decoder->before);
}

static void dml__decoder_release(dml_decoder *decoder)
{
    dml_context *context = decoder->context;
    dml__memory *memory = &context->memory;
    dml__pace *const paces[] = { &decoder->one, &decoder->chunk };
    for (int i = 0; i < 2; i++) {
        dml_program_destroy(paces[i]->gives);
        dml_program_destroy(paces[i]->keeps);
    }
    dml__decoder_drop_nodes(decoder);
    for (int i = 0; i < 2; i++) dml__release(memory, paces[i]->net.attention);
    dml__buffer_destroy(context, decoder->kept);
    dml__weights_q8_release(&decoder->q8, memory);
    dml__release(memory, decoder->place);
    dml__release(memory, decoder->x);
    dml__release(memory, decoder->x_last);
    dml__release(memory, decoder->places);
    dml__release(memory, decoder->row);
    dml__release(memory, decoder->row_place);
    dml__release(memory, decoder);
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

static dml_status dml__decoder_check(const dml_node *output, const dml_node *input,
                                     const dml_decoder_options *o)
{
    dml__error *error = &dml__node_context(output)->error;
    char text[DML_SHAPE_TEXT];
    if (error->status != DML_OK) return error->status;
    if (output->graph != input->graph)
        return dml__fail(error, DML_ERROR_ARGUMENT, "decoder: its nodes are of different graphs");
    if (o->batch < 1 || o->chunk < 0)
        return dml__fail(
            error, DML_ERROR_ARGUMENT,
            "decoder: a batch of %d and a chunk of %d asked for; both are 1 or more, or 0 for the "
            "default",
            o->batch, o->chunk);
    if (o->weights != DML_F32 && o->weights != DML_I8)
        return dml__fail(error, DML_ERROR_ARGUMENT,
                         "decoder: weights in %s (%d) asked for; there are f32 and i8",
                         dml_dtype_name(o->weights), (int)o->weights);
    if (o->weights == DML_I8 && !dml__node_context(output)->device.host_memory)
        return dml__fail(error, DML_ERROR_UNSUPPORTED,
                         "decoder: weights in i8 are for the CPU; on this device they are read in f32");
    if (input->op != dml__input_op())
        return dml__fail(error, DML_ERROR_ARGUMENT, "decoder: '%s' is no input; the output comes first",
                         input->name);
    if (input->shape.ndim > 0 && input->shape.dims[0] > 1) return DML_OK;
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
    if (dml__positions_build(&pace->net) != DML_OK) return false;
    pace->gives = dml_compile(pace->net.row, &options);
    if (!pace->gives || !pace->net.attentions) return pace->gives != NULL;
    options.watch = pace->net.attention;
    options.watch_count = pace->net.attentions;
    pace->keeps = dml_compile(pace->net.attention[0], &options);
    return pace->keeps != NULL;
}

/* How many positions go through at once, of a net that keeps so many bytes. */
static int dml__decoder_chunk(const dml__positions *net, int wanted, size_t bytes)
{
    if (!bytes) return 1; /* a net of rows alone: of several the last is all that counts */
    const int most = net->positions / 4 < DML__DECODER_CHUNK ? net->positions / 4 : DML__DECODER_CHUNK;
    const int chunk = wanted ? wanted : most;
    return chunk > net->positions ? net->positions : chunk > 1 ? chunk : 1;
}

/* Weights in 8 bits. What one pace's output needs the other's does, with other rows. */
static bool dml__decoder_read_q8(dml_decoder *decoder)
{
    dml__pace *const paces[] = { &decoder->one, &decoder->chunk };
    const dml__pace *most = decoder->chunk.gives ? &decoder->chunk : &decoder->one;
    if (dml__weights_q8_create(&decoder->q8, most->gives) != DML_OK) return false;
    for (int i = 0; i < 2; i++) {
        dml__weights_q8_use(paces[i]->gives, &decoder->q8);
        dml__weights_q8_use(paces[i]->keeps, &decoder->q8);
    }
    return true;
}

/* What is kept, the programs, and what they are given. */
static bool dml__decoder_equip(dml_decoder *decoder, dml__positions *net, const dml_decoder_options *o)
{
    dml_context *context = decoder->context;
    size_t bytes;
    if (dml__positions_bytes(net, &bytes) != DML_OK) return false;
    if (bytes && !(decoder->kept = net->kept = dml__buffer_create_zeroed(context, bytes))) return false;
    const int chunk = dml__decoder_chunk(net, o->chunk, bytes);
    if (!dml__pace_make(&decoder->one, net, 1, o->dtype)) return false;
    if (chunk > 1 && !dml__pace_make(&decoder->chunk, net, chunk, o->dtype)) return false;
    if (o->weights == DML_I8 && !dml__decoder_read_q8(decoder)) return false;
    dml__memory *memory = &context->memory;
    const size_t texts = (size_t)decoder->batch, rows = texts * (size_t)chunk;
    decoder->place = (int32_t *)dml__allocate_array(memory, texts, sizeof(int32_t));
    decoder->x = (char *)dml__allocate_array(memory, rows, decoder->position_bytes);
    decoder->x_last = (char *)dml__allocate_array(memory, texts, decoder->position_bytes);
    decoder->places = (int32_t *)dml__allocate_array(memory, rows, sizeof(int32_t));
    decoder->row = (int32_t *)dml__allocate_array(memory, texts, sizeof(int32_t));
    decoder->row_place = (int32_t *)dml__allocate_array(memory, texts, sizeof(int32_t));
    if (decoder->place && decoder->x && decoder->x_last && decoder->places && decoder->row &&
        decoder->row_place)
        return true;
    dml__fail(&context->error, DML_ERROR_MEMORY, "decoder: no memory left for %zu positions", rows);
    return false;
}

DML_API dml_decoder *dml_decoder_create(dml_node *output, dml_node *input, const dml_decoder_options *options)
{
    if (!output || !input) return NULL;
    dml_context *context = dml__node_context(output);
    dml_decoder_options o;
    memset(&o, 0, sizeof o);
    if (options) o = *options;
    if (!o.batch) o.batch = 1;
    if (dml__decoder_check(output, input, &o) != DML_OK) return NULL;
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
    net.samples = o.batch;
    net.number = dml__decoder_number(output->graph);
    decoder->context = context;
    decoder->graph = output->graph;
    decoder->before = decoder->last = output->graph->last;
    decoder->batch = o.batch;
    decoder->positions = net.positions;
    decoder->position_bytes =
        dml_shape_count(&input->shape) / (size_t)net.positions * dml_dtype_size(input->dtype);
    const bool made = dml__decoder_equip(decoder, &net, &o);
    decoder->last = output->graph->last;
    if (!made) {
        dml__decoder_release(decoder);
        return NULL;
    }
    /* Last, so that it goes before its programs, which the context has, too. */
    dml__own(context, &decoder->owned, dml__decoder_destroy_owned);
    return decoder;
}

/* ---- fed ---- */

/* Of each text `now` positions from `first` on, side by side, and zeros; and the last of them. */
static void dml__decoder_gather(const dml_decoder *decoder, const dml__pace *pace, int rows, const char *x,
                                int count, int first, int now)
{
    const size_t each = decoder->position_bytes, bytes = (size_t)now * each;
    const size_t all = (size_t)pace->net.count * each;
    for (int row = 0; row < rows; row++) {
        char *to = decoder->x + (size_t)row * all;
        memcpy(to, x + ((size_t)row * (size_t)count + (size_t)first) * each, bytes);
        memset(to + bytes, 0, all - bytes);
        memcpy(decoder->x_last + (size_t)row * each, to + bytes - each, each);
    }
}

/* The next `now` positions of all texts. Those of a pace that are beyond are of no text: what is kept of them
   nobody sees until it is overwritten. */
static dml_status dml__decoder_run(dml_decoder *decoder, const dml__pace *pace, dml_program *program,
                                   int rows, int now, float *last)
{
    const int count = pace->net.count, inputs = dml_program_inputs(program);
    const void *given[DML__POSITIONS_GIVEN], *input[DML__POSITIONS_GIVEN];
    given[DML__POSITIONS_INPUT] = decoder->x;
    given[DML__POSITIONS_PAST] = decoder->place;
    given[DML__POSITIONS_PLACES] = decoder->places;
    given[DML__POSITIONS_ROW] = decoder->row;
    given[DML__POSITIONS_PLACE] = decoder->row_place;
    given[DML__POSITIONS_LAST] = decoder->x_last;
    for (int r = 0; r < rows; r++) {
        decoder->row[r] = now - 1;
        decoder->row_place[r] = decoder->place[r] + now - 1;
        for (int i = 0; i < count; i++) decoder->places[r * count + i] = decoder->place[r] + i;
    }
    for (int i = 0; i < inputs; i++)
        for (int k = 0; k < DML__POSITIONS_GIVEN; k++)
            if (dml_program_input(program, i) == pace->net.given[k]) input[i] = given[k];
    return dml_program_run(program, rows, input, inputs, last);
}

/* The most positions that one of the texts has had. */
static int dml__decoder_furthest(const dml_decoder *decoder, int rows)
{
    int most = 0;
    for (int row = 0; row < rows; row++)
        if (decoder->place[row] > most) most = decoder->place[row];
    return most;
}

/* As many of the positions from `first` on as go at once; how many those are. */
static dml_status dml__decoder_step(dml_decoder *decoder, int rows, const char *x, int count, int first,
                                    float *last, int *now)
{
    const int left = count - first, chunk = decoder->chunk.gives ? decoder->chunk.net.count : 0;
    const bool several = left > chunk / DML__DECODER_PART && left > 1 && chunk &&
                         chunk <= decoder->positions - dml__decoder_furthest(decoder, rows);
    const dml__pace *pace = several ? &decoder->chunk : &decoder->one;
    *now = several && left > chunk ? chunk : several ? left : 1;
    const bool gives = last && *now == left;
    if (!gives && !pace->keeps) return DML_OK;
    dml__decoder_gather(decoder, pace, rows, x, count, first, *now);
    return dml__decoder_run(decoder, pace, gives ? pace->gives : pace->keeps, rows, *now,
                            gives ? last : NULL);
}

/* What the net indexes with, of all positions before any goes: some programs leave a part of the net out. */
static dml_status dml__decoder_check_indices(const dml_decoder *decoder, int rows, const int32_t *x,
                                             int count)
{
    const dml__positions *net = &decoder->one.net;
    const dml_program *program = decoder->one.gives;
    const int slot_at = program->slot_of_node[net->given[DML__POSITIONS_INPUT]->index];
    const dml__slot *slot = slot_at < 0 ? NULL : &program->slot[slot_at];
    const size_t each = decoder->position_bytes / sizeof *x;
    for (size_t i = 0; slot && slot->limit && i < (size_t)rows * (size_t)count * each; i++)
        if ((x[i] < slot->lowest || x[i] >= slot->limit) && x[i] != slot->ignored)
            return dml__fail(
                &decoder->context->error, DML_ERROR_ARGUMENT,
                "dml_decoder_feed: position %d of text %d is %d; of '%s' they must be in %d .. %d",
                (int)(i / each) % count, (int)(i / each) / count, (int)x[i], net->input->name, slot->lowest,
                slot->limit - 1);
    return DML_OK;
}

static dml_status dml__decoder_check_feed(const dml_decoder *decoder, int rows, const void *x, int count)
{
    dml__error *error = &decoder->context->error;
    if (error->status != DML_OK) return error->status;
    if (!x) return dml__fail_null(error, "dml_decoder_feed", "positions");
    if (rows < 1 || rows > decoder->batch)
        return dml__fail(error, DML_ERROR_ARGUMENT, "dml_decoder_feed: %d texts given; it takes 1 to %d",
                         rows, decoder->batch);
    if (count < 1)
        return dml__fail(error, DML_ERROR_ARGUMENT,
                         "dml_decoder_feed: %d positions given; it takes 1 or more", count);
    const int furthest = dml__decoder_furthest(decoder, rows);
    if (count > decoder->positions - furthest)
        return dml__fail(error, DML_ERROR_STATE,
                         "dml_decoder_feed: %d positions given behind %d, but the net has %d in all: after "
                         "dml_clear_error, dml_decoder_rewind makes room",
                         count, furthest, decoder->positions);
    if (decoder->one.net.input->dtype != DML_I32) return DML_OK;
    return dml__decoder_check_indices(decoder, rows, (const int32_t *)x, count);
}

static dml_status dml__decoder_feed_all(dml_decoder *decoder, int rows, const char *x, int count, float *last)
{
    dml_status status = dml__decoder_check_feed(decoder, rows, x, count);
    int done = 0;
    if (status == DML_OK && decoder->q8.count && !decoder->q8_taken) {
        dml__weights_q8_take(&decoder->q8, decoder->graph);
        decoder->q8_taken = true;
    }
    for (int now; done < count && status == DML_OK; done += status == DML_OK ? now : 0) {
        status = dml__decoder_step(decoder, rows, x, count, done, last, &now);
        for (int row = 0; row < rows && status == DML_OK; row++) decoder->place[row] += now;
    }
    for (int row = 0; row < rows && status != DML_OK; row++) decoder->place[row] -= done;
    return status;
}

DML_API dml_status dml_decoder_feed(dml_decoder *decoder, int rows, const void *x, int count, float *last)
{
    if (!decoder) return DML_ERROR_ARGUMENT;
    const dml__entry entry = dml__enter(decoder->context);
    if (entry == DML__REFUSED) return DML_ERROR_STATE;
    const dml_status status = dml__decoder_feed_all(decoder, rows, (const char *)x, count, last);
    dml__leave(decoder->context, entry);
    return status;
}

DML_API void dml_decoder_take_weights(dml_decoder *decoder)
{
    if (decoder) decoder->q8_taken = false;
}

DML_API int dml_decoder_place(const dml_decoder *decoder, int text)
{
    return decoder && text >= 0 && text < decoder->batch ? decoder->place[text] : 0;
}

static dml_status dml__decoder_check_texts(const dml_decoder *decoder, const char *call, int a, int b)
{
    const int wrong = a < 0 || a >= decoder->batch ? a : b;
    if (wrong >= 0 && wrong < decoder->batch) return DML_OK;
    return dml__fail(&decoder->context->error, DML_ERROR_ARGUMENT, "%s: text %d asked for, of %d", call,
                     wrong, decoder->batch);
}

static dml_status dml__decoder_rewind_to(dml_decoder *decoder, int text, int place)
{
    const bool all = text == DML_ALL_TEXTS;
    const dml_status status =
        all ? DML_OK : dml__decoder_check_texts(decoder, "dml_decoder_rewind", text, text);
    if (status != DML_OK) return status;
    const int most = all ? dml__decoder_furthest(decoder, decoder->batch) : decoder->place[text];
    if (place < 0 || place > most)
        return dml__fail(
            &decoder->context->error, DML_ERROR_ARGUMENT,
            "dml_decoder_rewind: place %d asked for; it must be in 0 .. %d, as many positions as "
            "were fed",
            place, most);
    for (int i = 0; i < decoder->batch; i++)
        if ((all || i == text) && decoder->place[i] > place) decoder->place[i] = place;
    return DML_OK;
}

DML_API dml_status dml_decoder_rewind(dml_decoder *decoder, int text, int place)
{
    if (!decoder) return DML_ERROR_ARGUMENT;
    const dml__entry entry = dml__enter(decoder->context);
    if (entry == DML__REFUSED) return DML_ERROR_STATE;
    const dml_status status = dml__decoder_rewind_to(decoder, text, place);
    dml__leave(decoder->context, entry);
    return status;
}

DML_API dml_status dml_decoder_copy(dml_decoder *decoder, int from, int to)
{
    if (!decoder) return DML_ERROR_ARGUMENT;
    dml__entry entry;
    if (!dml__begin_transfer(decoder->context, &entry)) return DML_ERROR_STATE;
    dml_status status = dml__decoder_check_texts(decoder, "dml_decoder_copy", from, to);
    for (int i = 0; i < decoder->one.net.attentions && from != to && status == DML_OK; i++)
        status = dml__attention_copy(decoder->one.net.attention[i], from, to);
    if (status == DML_OK) decoder->place[to] = decoder->place[from];
    dml__leave(decoder->context, entry);
    return status;
}

#endif
