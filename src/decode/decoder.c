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
/* A few, which take about twice as long as one: reading the weights is most of either. */
#define DML__DECODER_FEW 8

/* A net for so many positions at a time, and its programs: for the row that is wanted, for what is kept alone
   (NULL: nothing is), and for all rows (NULL: not asked for yet; of one position that is the first). */
typedef struct dml__pace {
    dml__positions net;
    int least; /* so many that are left take less time at once than by fewer */
    dml_program *gives, *keeps, *gives_all;
} dml__pace;

enum { DML__ONE, DML__FEW, DML__CHUNK, DML__PACES };

struct dml_decoder {
    dml__owned owned; /* first: the context destroys through it */
    dml_context *context;
    dml_graph *graph;
    dml_node *before, *last; /* its nodes are those behind the first, up to the second */
    dml_buffer *kept;
    dml__weights_q8 q8; /* none: the programs read the graph's parameters */
    bool q8_taken;
    dml__pace pace[DML__PACES]; /* without programs: not there */
    dml_dtype dtype;
    int batch, positions, chunk; /* texts; positions of each at most, and at once */
    int32_t *place;              /* (batch): how many positions each text has had */
    size_t position_bytes;       /* of a text's input */
    /* What a program is given: (batch, chunk) positions and which they are, (batch) rows that are wanted,
       which positions those are, and the rows. */
    char *x, *x_last;
    int32_t *places, *row, *row_place;
    float *all; /* (batch, chunk, ...) rows of the output; NULL: not asked for yet */
};

/* Its nodes go, if they are the graph's last; else those that keep something forget where. */
static void dml__decoder_drop_nodes(dml_decoder *decoder)
{
    for (int i = 0; i < DML__PACES; i++)
        for (int k = 0; k < decoder->pace[i].net.attentions; k++)
            dml__attention_forget(decoder->pace[i].net.attention[k]);
    if (decoder->graph->last == decoder->last) dml__graph_drop_after(decoder->graph, decoder->before);
}

static void dml__decoder_release(dml_decoder *decoder)
{
    dml_context *context = decoder->context;
    dml__memory *memory = &context->memory;
    for (int i = 0; i < DML__PACES; i++) {
        dml_program_destroy(decoder->pace[i].gives);
        dml_program_destroy(decoder->pace[i].keeps);
        dml_program_destroy(decoder->pace[i].gives_all);
    }
    dml__decoder_drop_nodes(decoder);
    for (int i = 0; i < DML__PACES; i++) dml__release(memory, decoder->pace[i].net.attention);
    dml__buffer_destroy(context, decoder->kept);
    dml__weights_q8_release(&decoder->q8, memory);
    dml__release(memory, decoder->place);
    dml__release(memory, decoder->x);
    dml__release(memory, decoder->x_last);
    dml__release(memory, decoder->places);
    dml__release(memory, decoder->row);
    dml__release(memory, decoder->row_place);
    dml__release(memory, decoder->all);
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

static bool dml__pace_make(dml_decoder *decoder, int number, const dml__positions *like, int count, int least)
{
    dml__pace *pace = &decoder->pace[number];
    dml_program_options options;
    memset(&options, 0, sizeof options);
    options.batch = like->samples;
    options.dtype = decoder->dtype;
    pace->net = *like;
    pace->net.count = count;
    pace->least = least;
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

/* Weights in 8 bits. What one pace's output needs the others' do, with more rows. */
static bool dml__decoder_read_q8(dml_decoder *decoder)
{
    if (dml__weights_q8_create(&decoder->q8, decoder->pace[DML__ONE].gives, decoder->chunk) != DML_OK)
        return false;
    for (int i = 0; i < DML__PACES; i++) {
        dml__weights_q8_use(decoder->pace[i].gives, &decoder->q8);
        dml__weights_q8_use(decoder->pace[i].keeps, &decoder->q8);
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
    const int chunk = decoder->chunk = dml__decoder_chunk(net, o->chunk, bytes);
    const bool few = chunk > DML__DECODER_FEW;
    /* All of a chunk takes as long as a few at a time from a quarter of it (GPT-2) to two fifths (3 layers of
       128); with weights in 8 bits from three fifths. */
    const int part = o->weights == DML_I8 ? chunk * 3 / 5 : chunk / 4;
    const int least = !few ? 2 : part > DML__DECODER_FEW ? part : DML__DECODER_FEW + 1;
    if (!dml__pace_make(decoder, DML__ONE, net, 1, 1)) return false;
    if (few && !dml__pace_make(decoder, DML__FEW, net, DML__DECODER_FEW, 3)) return false;
    if (chunk > 1 && !dml__pace_make(decoder, DML__CHUNK, net, chunk, least)) return false;
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
    decoder->dtype = o.dtype;
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

/* A call's arguments. */
typedef struct dml__feed {
    const char *call;
    int rows, count;
    const char *x; /* (rows, count, ...) */
    float *y;      /* NULL; (rows, ...): of the last positions; */
    bool all;      /* or (rows, count, ...): of all of them */
} dml__feed;

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

/* The one that is the quickest for so many positions that are left, and has room. */
static const dml__pace *dml__decoder_pace(const dml_decoder *decoder, int rows, int left)
{
    const int room = decoder->positions - dml__decoder_furthest(decoder, rows);
    int number = DML__CHUNK;
    for (; number > DML__ONE; number--) {
        const dml__pace *pace = &decoder->pace[number];
        if (pace->gives && left >= pace->least && pace->net.count <= room) break;
    }
    return &decoder->pace[number];
}

/* Of each text the rows of `now` positions that went by the pace, to their places among `count`. */
static void dml__decoder_scatter(const dml_decoder *decoder, const dml__pace *pace, int rows, int count,
                                 int first, int now, float *all)
{
    const size_t each = dml_shape_count(&pace->net.row->shape);
    for (size_t row = 0; row < (size_t)rows; row++)
        memcpy(all + (row * (size_t)count + (size_t)first) * each,
               decoder->all + row * (size_t)pace->net.count * each, (size_t)now * each * sizeof *all);
}

/* As many of the positions from `first` on as go at once; how many those are. */
static dml_status dml__decoder_step(dml_decoder *decoder, const dml__feed *feed, int first, int *now)
{
    const int left = feed->count - first;
    const dml__pace *pace = dml__decoder_pace(decoder, feed->rows, left);
    const int most = pace->net.count;
    *now = left < most ? left : most;
    const bool gives = feed->all || (feed->y && *now == left);
    dml_program *program = !gives ? pace->keeps : feed->all && most > 1 ? pace->gives_all : pace->gives;
    if (!program) return DML_OK;
    dml__decoder_gather(decoder, pace, feed->rows, feed->x, feed->count, first, *now);
    const dml_status status = dml__decoder_run(decoder, pace, program, feed->rows, *now,
                                               feed->all ? decoder->all
                                               : gives   ? feed->y
                                                         : NULL);
    if (status == DML_OK && feed->all)
        dml__decoder_scatter(decoder, pace, feed->rows, feed->count, first, *now, feed->y);
    return status;
}

/* What the net indexes with, of all positions before any goes: some programs leave a part of the net out. */
static dml_status dml__decoder_check_indices(const dml_decoder *decoder, const dml__feed *feed)
{
    const int32_t *x = (const int32_t *)(const void *)feed->x;
    const int rows = feed->rows, count = feed->count;
    const dml__positions *net = &decoder->pace[DML__ONE].net;
    const dml_program *program = decoder->pace[DML__ONE].gives;
    const int slot_at = program->slot_of_node[net->given[DML__POSITIONS_INPUT]->index];
    const dml__slot *slot = slot_at < 0 ? NULL : &program->slot[slot_at];
    const size_t each = decoder->position_bytes / sizeof *x;
    for (size_t i = 0; slot && slot->limit && i < (size_t)rows * (size_t)count * each; i++)
        if ((x[i] < slot->lowest || x[i] >= slot->limit) && x[i] != slot->ignored)
            return dml__fail(&decoder->context->error, DML_ERROR_ARGUMENT,
                             "%s: position %d of text %d is %d; of '%s' they must be in %d .. %d", feed->call,
                             (int)(i / each) % count, (int)(i / each) / count, (int)x[i], net->input->name,
                             slot->lowest, slot->limit - 1);
    return DML_OK;
}

static dml_status dml__decoder_check_feed(const dml_decoder *decoder, const dml__feed *feed)
{
    dml__error *error = &decoder->context->error;
    const int furthest =
        dml__decoder_furthest(decoder, feed->rows < decoder->batch ? feed->rows : decoder->batch);
    if (error->status != DML_OK) return error->status;
    if (!feed->x) return dml__fail_null(error, feed->call, "positions");
    if (feed->all && !feed->y) return dml__fail_null(error, feed->call, "rows to write");
    if (feed->rows < 1 || feed->rows > decoder->batch)
        return dml__fail(error, DML_ERROR_ARGUMENT, "%s: %d texts given; it takes 1 to %d", feed->call,
                         feed->rows, decoder->batch);
    if (feed->count < 1)
        return dml__fail(error, DML_ERROR_ARGUMENT, "%s: %d positions given; it takes 1 or more", feed->call,
                         feed->count);
    if (feed->count > decoder->positions - furthest)
        return dml__fail(error, DML_ERROR_STATE,
                         "%s: %d positions given behind %d, but the net has %d in all: after "
                         "dml_clear_error, dml_decoder_rewind makes room",
                         feed->call, feed->count, furthest, decoder->positions);
    if (decoder->pace[DML__ONE].net.input->dtype != DML_I32) return DML_OK;
    return dml__decoder_check_indices(decoder, feed);
}

/* What gives all rows is there from the first time on that they are asked for. It is newer than the decoder,
   which the context is to destroy before it. */
static dml_status dml__decoder_equip_all(dml_decoder *decoder)
{
    dml_context *context = decoder->context;
    dml_program_options options;
    memset(&options, 0, sizeof options);
    options.batch = decoder->batch;
    options.dtype = decoder->dtype;
    for (int i = DML__FEW; i < DML__PACES; i++) {
        dml__pace *pace = &decoder->pace[i];
        if (!pace->gives || pace->gives_all) continue;
        if (!(pace->gives_all = dml_compile(pace->net.rows, &options))) return context->error.status;
        dml__weights_q8_use(pace->gives_all, &decoder->q8);
        dml__disown(context, &decoder->owned);
        dml__own(context, &decoder->owned, dml__decoder_destroy_owned);
    }
    const size_t each = dml_shape_count(&decoder->pace[DML__ONE].net.row->shape) * sizeof *decoder->all;
    const size_t rows = (size_t)decoder->batch * (size_t)decoder->chunk;
    if (!decoder->all) decoder->all = (float *)dml__allocate_array(&context->memory, rows, each);
    if (decoder->all) return DML_OK;
    return dml__fail(&context->error, DML_ERROR_MEMORY, "decoder: no memory left for %zu rows of %zu bytes",
                     rows, each);
}

static dml_status dml__decoder_go(dml_decoder *decoder, const dml__feed *feed)
{
    const int rows = feed->rows, count = feed->count;
    dml_status status = dml__decoder_check_feed(decoder, feed);
    int done = 0;
    if (status == DML_OK && feed->all) status = dml__decoder_equip_all(decoder);
    if (status == DML_OK && decoder->q8.count && !decoder->q8_taken) {
        dml__weights_q8_take(&decoder->q8, decoder->graph);
        decoder->q8_taken = true;
    }
    for (int now; done < count && status == DML_OK; done += status == DML_OK ? now : 0) {
        status = dml__decoder_step(decoder, feed, done, &now);
        for (int row = 0; row < rows && status == DML_OK; row++) decoder->place[row] += now;
    }
    for (int row = 0; row < rows && status != DML_OK && done; row++) decoder->place[row] -= done;
    return status;
}

static dml_status dml__decoder_enter(dml_decoder *decoder, const dml__feed *feed)
{
    const dml__entry entry = dml__enter(decoder->context);
    if (entry == DML__REFUSED) return DML_ERROR_STATE;
    const dml_status status = dml__decoder_go(decoder, feed);
    dml__leave(decoder->context, entry);
    return status;
}

DML_API dml_status dml_decoder_feed(dml_decoder *decoder, int rows, const void *x, int count, float *last)
{
    const dml__feed feed = { "dml_decoder_feed", rows, count, (const char *)x, last, false };
    return decoder ? dml__decoder_enter(decoder, &feed) : DML_ERROR_ARGUMENT;
}

DML_API dml_status dml_decoder_feed_rows(dml_decoder *decoder, int rows, const void *x, int count, float *all)
{
    const dml__feed feed = { "dml_decoder_feed_rows", rows, count, (const char *)x, all, true };
    return decoder ? dml__decoder_enter(decoder, &feed) : DML_ERROR_ARGUMENT;
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
    const dml__positions *net = &decoder->pace[DML__ONE].net;
    for (int i = 0; i < net->attentions && from != to && status == DML_OK; i++)
        status = dml__attention_copy(net->attention[i], from, to, decoder->place[from]);
    if (status == DML_OK) decoder->place[to] = decoder->place[from];
    dml__leave(decoder->context, entry);
    return status;
}

#endif
