/* gpt: a small language model that learns to write, in one process or cut over many.

       gpt                                              learns sums that it makes itself, "27+45=72"
       gpt --data input.txt --save F                    any text, byte by byte; it ends with some of its own
       gpt --data input.txt --load F --steps 0 --prompt "Now"            writes on, by a decoder
       dmlrun -n 2 gpt --tensor-parallel-size 2         each layer cut in two, and the letters
       dmlrun -n 2 gpt --pipeline-parallel-size 2       half of the layers on each rank
       dmlrun -n 8 gpt --tensor-parallel-size 2 --pipeline-parallel-size 2      two such models, side by side

   However many processes there are, they train on the same batches and follow the same losses. */
#define DML_IMPLEMENTATION
#include "dml.h"
#include "dml_comm.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "ranks.h"
#include "report.h"

enum { BYTES = 256 };                                /* the vocabulary */
enum { PLACES = 2000, SUMS = 2001, LETTERS = 2002 }; /* streams of random numbers */
enum { SUM_TEXT = 200000, MOST_TESTS = 128 };

typedef struct options {
    const char *data, *device, *dtype, *weights, *save, *load, *log, *profile, *prompt;
    int layers, heads, channels, context, batch, micro_batch, steps, seed, threads, tensor, pipeline;
    int top_k, writes;
    double lr, timeout, temperature, top_p;
} options;

static options parse_options(int argc, char **argv)
{
    options o = { .device = "cpu",
                  .dtype = "f32",
                  .weights = "f32",
                  .layers = 2,
                  .heads = 4,
                  .channels = 64,
                  .context = 16,
                  .batch = 64,
                  .micro_batch = 16,
                  .steps = 2000,
                  .tensor = 1,
                  .pipeline = 1,
                  .lr = 0.006,
                  .writes = 400,
                  .temperature = 1,
                  .top_p = 1 };
    const arg args[] = {
        { "--data", "FILE", "what to learn from; without it, sums", .text = &o.data },
        { "--tensor-parallel-size", "N", "ranks over which each layer is cut", .integer = &o.tensor, .low = 1,
          .high = 1024 },
        { "--pipeline-parallel-size", "N", "ranks over which the layers are spread", .integer = &o.pipeline,
          .low = 1, .high = 1024 },
        { "--layers", "N", "of attention and a perceptron each", .integer = &o.layers, .low = 1,
          .high = 1e3 },
        { "--heads", "N", "of each attention", .integer = &o.heads, .low = 1, .high = 1e3 },
        { "--channels", "C", "numbers for each letter", .integer = &o.channels, .low = 1, .high = 1e5 },
        { "--context", "T", "letters that it looks at", .integer = &o.context, .low = 2, .high = 1e5 },
        { "--batch", "B", "samples a step, of all ranks", .integer = &o.batch, .low = 1, .high = 1e6 },
        { "--micro-batch-size", "B", "samples that go through the layers at a time",
          .integer = &o.micro_batch, .low = 1, .high = 1e6 },
        { "--steps", "N", "of training; 0: none, of a model from --load", .integer = &o.steps, .low = 0 },
        { "--lr", "X", "learning rate at its peak, after a tenth of the steps", .real = &o.lr, .low = 1e-9,
          .high = 1e3 },
        { "--device", "D",
          "cpu, opencl, opencl:1, cuda:0, ..., cuda:local: one for each rank of a host, or auto: the best",
          .text = &o.device },
        { "--dtype", "f32|tf32|bf16|f16",
          "what activations are kept in, and the factors of products; tf32: those of a card",
          .text = &o.dtype },
        { "--seed", "S", "of every random number", .integer = &o.seed },
        { "--threads", "T", "CPU threads of each rank; otherwise DML_THREADS, or its share of the processors",
          .integer = &o.threads, .low = 1, .high = 4096, .environment = "DML_THREADS" },
        { "--save", "F", "write the model at the end; of several stages each its own, F.0, F.1, ...",
          .text = &o.save },
        { "--load", "F", "begin with such a model, also of another --tensor-parallel-size", .text = &o.load },
        { "--prompt", "TEXT", "what the text of its own goes on from; otherwise a new line",
          .text = &o.prompt },
        { "--max-new-tokens", "N", "letters of it", .integer = &o.writes, .low = 0, .high = 1e6 },
        { "--temperature", "X", "of its letters: below 1 the likely ones are likelier; 0: the likeliest",
          .real = &o.temperature, .low = 0, .high = 1e3 },
        { "--weights", "f32|i8", "what it writes with: in 8 bits a letter waits for a quarter of the bytes",
          .text = &o.weights },
        { "--top-k", "K", "only the K likeliest letters; 0: all", .integer = &o.top_k, .low = 0,
          .high = 256 },
        { "--top-p", "P", "only the likeliest that are together as likely as this", .real = &o.top_p,
          .low = 1e-6, .high = 1 },
        { "--log", "F.jsonl", "write one line of JSON for every step", .text = &o.log },
        { "--profile", "F.json", "write a timeline of what takes how long, and print the longest of it",
          .text = &o.profile },
        { "--timeout", "S", "seconds to wait for another rank; otherwise DML_TIMEOUT, or 30",
          .real = &o.timeout, .low = 0.01, .high = 1e6 },
        { 0 },
    };
    args_parse(argc, argv, "Learns to write, and to add.", args);
    if (o.channels % o.heads)
        args_exit(2, "--channels %d can't be cut into --heads %d of equal width", o.channels, o.heads);
    if (o.heads % o.tensor)
        args_exit(2, "--heads %d can't be shared by --tensor-parallel-size %d", o.heads, o.tensor);
    if (!o.steps && !o.load) args_exit(2, "--steps 0 takes a model from --load, since it trains none");
    if (o.layers < o.pipeline)
        args_exit(2, "--layers %d are too few for --pipeline-parallel-size %d", o.layers, o.pipeline);
    return o;
}

/* ---- who does what ---- */

/* Neighbours share layers; then come ranks with the same of another model, then those of the next stage. */
typedef struct place {
    dml_comm *job, *tensor, *data, *stages; /* all; those that share this rank's layers; that have the same;
                                               that have the model's other layers */
    int model, models, stage, last;
    bool speaks; /* for its model */
} place;

static place find_place(const options *o)
{
    place p;
    p.job = dml_comm_open(&(dml_comm_options){ .timeout_s = o->timeout });
    const int rank = dml_comm_rank(p.job), ranks = dml_comm_world_size(p.job);
    if (dml_comm_status(p.job) != DML_OK) args_exit(1, "%s", dml_comm_error(p.job));
    complaint c = { "" };
    if (ranks % (o->tensor * o->pipeline))
        complain(
            &c,
            "%d ranks can't have --tensor-parallel-size %d and --pipeline-parallel-size %d: they must be a "
            "multiple of %d",
            ranks, o->tensor, o->pipeline, o->tensor * o->pipeline);
    settle(&c, p.job);
    p.models = ranks / (o->tensor * o->pipeline);
    p.last = o->pipeline - 1;
    p.stage = rank / (o->tensor * p.models);
    p.model = rank / o->tensor % p.models;
    const int part = rank % o->tensor;
    p.tensor = dml_comm_split(p.job, rank / o->tensor, part);
    p.data = dml_comm_split(p.job, p.stage * o->tensor + part, p.model);
    p.stages = dml_comm_split(p.job, p.model * o->tensor + part, p.stage);
    p.speaks = part == 0 && p.stage == p.last;
    if (dml_comm_status(p.job) != DML_OK) args_exit(1, "%s", dml_comm_error(p.job));
    return p;
}

static void leave(const place *p)
{
    dml_comm_close(p->stages);
    dml_comm_close(p->data);
    dml_comm_close(p->tensor);
    dml_comm_close(p->job);
}

/* ---- the model: letters (T) -> for each place a score of each letter (T, 256) ---- */

typedef struct model {
    dml_graph *graph;
    dml_node *loss, *scores; /* of the last stage; of the others both are what they give to the next */
} model;

/* Source: Radford and others, "Language models are unsupervised multitask learners" (GPT-2), 2019. */
static dml_node *block(dml_node *h, int heads, dml_comm *comm)
{
    const int channels = dml_node_shape(h).dims[1];
    const dml_multi_head_attention_options causal = { .causal = true };
    h = dml_add(h, dml_parallel_attention(dml_layer_norm(h, NULL), heads, &causal, comm));
    dml_node *m = dml_gelu(dml_column_parallel_dense(dml_layer_norm(h, NULL), 4 * channels, comm));
    return dml_add(h, dml_row_parallel_dense(m, channels, comm));
}

/* The letters are cut, too, where the ranks of a layer can share them evenly; of 3, say, each has all. */
static bool cuts_letters(const options *o)
{
    return BYTES % o->tensor == 0;
}

static dml_node *look_up(const options *o, dml_node *letters, dml_comm *comm)
{
    static const char name[] = "letters.table";
    dml_graph *graph = dml_node_graph(letters);
    const dml_initializer small = dml_init_normal(0, 0.02f);
    if (!cuts_letters(o))
        return dml_embedding_with(letters, dml_parameter(graph, name, small, BYTES, o->channels));
    return dml_parallel_embedding_with(
        letters, dml_parallel_parameter(graph, name, small, dml_shape_of(BYTES, o->channels), 0, comm), comm);
}

/* All of the scores, on all ranks, of which each has some: for who reads them, and not for training. */
static dml_node *whole_scores(dml_node *scores, dml_comm *comm)
{
    const int ranks = dml_comm_world_size(comm), own = BYTES / ranks, before = own * dml_comm_rank(comm);
    if (ranks == 1) return scores;
    return dml_parallel_sum(dml_pad(scores, 1, before, BYTES - own - before), comm);
}

static void add_loss(model *m, const options *o, dml_node *h, dml_comm *comm)
{
    dml_node *next = dml_input(m->graph, "next", DML_I32, o->context);
    if (cuts_letters(o)) {
        dml_node *scores = dml_column_parallel_dense(h, BYTES, comm);
        m->loss = dml_parallel_softmax_cross_entropy(scores, next, comm);
        m->scores = whole_scores(scores, comm);
    } else {
        m->scores = dml_dense(h, BYTES);
        m->loss = dml_softmax_cross_entropy(m->scores, next);
    }
}

static model build(const options *o, const place *p, dml_context *ctx)
{
    model m = { dml_graph_create(ctx), NULL, NULL };
    dml_node *h;
    if (p->stage == 0) {
        dml_node *letters = dml_input(m.graph, "letters", DML_I32, o->context);
        h = dml_learned_positions(look_up(o, letters, p->tensor));
    } else {
        h = dml_pipeline_input(m.graph, p->stages);
    }
    for (int layer = 0; layer < o->layers; layer++) {
        if (layer * o->pipeline / o->layers != p->stage) continue;
        dml_push_scope(m.graph, "block.%d", layer);
        h = block(h, o->heads, p->tensor);
        dml_pop_scope(m.graph);
    }
    if (p->stage < p->last) {
        m.loss = m.scores = dml_pipeline_output(h, p->stages);
        return m;
    }
    add_loss(&m, o, dml_layer_norm(h, NULL), p->tensor);
    return m;
}

/* ---- text ---- */

typedef struct text {
    unsigned char *letters; /* (count), of which those from `kept` on are for testing */
    int count, kept;
    bool sums;
} text;

static int write_sum(const dml_random *random, uint64_t i, char to[16])
{
    const int a = (int)(dml_random_bits(random, 2 * i) % 100),
              b = (int)(dml_random_bits(random, 2 * i + 1) % 100);
    return snprintf(to, 16, "%d+%d=%d\n", a, b, a + b);
}

static bool make_text(const options *o, text *t, complaint *c)
{
    memset(t, 0, sizeof *t);
    if (!o->data) {
        const dml_random random = { (uint64_t)o->seed, SUMS, 0 };
        char sum[16];
        t->sums = true;
        t->letters = allocate(SUM_TEXT + 16, 1);
        for (uint64_t i = 0; t->count < SUM_TEXT; i++) {
            const int length = write_sum(&random, i, sum);
            memcpy(t->letters + t->count, sum, (size_t)length);
            t->count += length;
        }
        t->kept = t->count - t->count / 10;
    } else {
        FILE *file = fopen(o->data, "rb");
        if (!file) return complain(c, "can't read %s: %s", o->data, strerror(errno));
        size_t bytes = 0, room = 0;
        do {
            if (bytes == room) t->letters = realloc(t->letters, room = 2 * room + (1 << 20));
            if (!t->letters) args_exit(1, "no memory left for %s", o->data);
            bytes += fread(t->letters + bytes, 1, room - bytes, file);
        } while (bytes == room && bytes < (size_t)INT32_MAX / 2);
        const bool failed = ferror(file) != 0;
        fclose(file);
        if (failed || bytes >= (size_t)INT32_MAX / 2)
            return complain(c, "%s can't be read, or has 1 GiB or more", o->data);
        t->count = (int)bytes;
        t->kept = t->count - t->count / 10;
    }
    if (t->count - t->kept > o->context) return true;
    return complain(
        c, "%d letters are too few: a tenth of them is for testing, and must be more than --context %d",
        t->count, o->context);
}

typedef struct batch {
    int32_t *letters, *next; /* (rows, T) */
} batch;

static batch allocate_batch(const options *o, int rows)
{
    const size_t count = (size_t)rows * (size_t)o->context;
    return (batch){ allocate(count, sizeof(int32_t)), allocate(count, sizeof(int32_t)) };
}

static void free_batch(const batch *b)
{
    free(b->letters);
    free(b->next);
}

static void fill_row(const options *o, const batch *b, int row, const text *t, int at)
{
    for (int i = 0; i < o->context; i++) {
        b->letters[row * o->context + i] = t->letters[at + i];
        b->next[row * o->context + i] = t->letters[at + i + 1];
    }
}

/* Samples first ... first + rows - 1 of a step's batch, the same for any number of ranks. */
static void fill_batch(const options *o, const batch *b, const text *t, int step, int first, int rows)
{
    const dml_random random = { (uint64_t)o->seed, PLACES, (uint32_t)step };
    const unsigned places = (unsigned)(t->kept - o->context);
    for (int row = 0; row < rows; row++)
        fill_row(o, b, row, t, (int)(dml_random_bits(&random, (uint64_t)(first + row)) % places));
}

/* ---- training ---- */

/* What the program of this stage takes of a batch. */
static int inputs_of(const place *p, const batch *b, const void *inputs[2])
{
    int count = 0;
    if (p->stage == 0) inputs[count++] = b->letters;
    if (p->stage == p->last) inputs[count++] = b->next;
    return count;
}

static void train(const options *o, const place *p, dml_trainer *trainer, const text *t, report *r)
{
    const int rows_most = o->batch / p->models + 1;
    batch b = allocate_batch(o, rows_most);
    dml_pipeline *pipeline = dml_pipeline_create(trainer, p->stages);
    const void *inputs[2];
    const int count = inputs_of(p, &b, inputs);
    for (int step = 0; step < o->steps; step++) {
        const int first = share(o->batch, p->model, p->models);
        const int rows = share(o->batch, p->model + 1, p->models) - first;
        float loss = 0;
        fill_batch(o, &b, t, step, first, rows);
        const float lr = dml_trainer_lr(trainer);
        if (dml_pipeline_step(pipeline, rows, inputs, count, &loss) != DML_OK)
            args_exit(1, "%s", dml_error(dml_trainer_context(trainer)));
        report_step(r, (uint64_t)step + 1, 1, o->batch, (double)lr, p->speaks ? (double)loss * rows : 0);
    }
    report_epoch(r, 1);
    dml_pipeline_destroy(pipeline);
    free_batch(&b);
}

/* ---- what it has learned ---- */

typedef struct reader {
    dml_program *program; /* of up to MOST_TESTS samples */
    float *scores;        /* (MOST_TESTS, T, 256), on the last stage */
} reader;

static void run(const place *p, const reader *r, int rows, const batch *b)
{
    const void *inputs[1] = { b->letters };
    float nothing;
    if (dml_program_run(r->program, rows, inputs, p->stage == 0,
                        p->stage == p->last ? r->scores : &nothing) != DML_OK)
        args_exit(1, "%s", dml_program_error(r->program));
}

static int best_of(const float scores[BYTES])
{
    int best = 0;
    for (int i = 1; i < BYTES; i++)
        if (scores[i] > scores[best]) best = i;
    return best;
}

/* The same letter on all of a model's ranks. */
static int32_t agree(const place *p, int32_t letter)
{
    if (dml_comm_broadcast(p->stages, &letter, 1, DML_I32, p->last) != DML_OK)
        args_exit(1, "%s", dml_comm_error(p->stages));
    return letter;
}

/* How many letters of the text for testing are the ones it would have written next; each model reads its
   share of at most MOST_TESTS samples. */
static int64_t count_right(const options *o, const place *p, const reader *r, const text *t, int64_t *total)
{
    const int all = (t->count - t->kept - 1) / o->context, tests = all < MOST_TESTS ? all : MOST_TESTS;
    const int first = share(tests, p->model, p->models), end = share(tests, p->model + 1, p->models);
    const int gap = (t->count - t->kept - 1 - o->context) / (tests > 1 ? tests - 1 : 1);
    batch b = allocate_batch(o, MOST_TESTS);
    int64_t right = 0;
    for (int i = first; i < end; i++) fill_row(o, &b, i - first, t, t->kept + i * gap);
    if (end > first) run(p, r, end - first, &b);
    for (int i = 0; i < (end - first) * o->context && p->speaks; i++)
        right += best_of(r->scores + (size_t)i * BYTES) == b.next[i];
    *total = (int64_t)tests * o->context;
    free_batch(&b);
    return right;
}

/* The next letter of a text, of which the model sees the end; drawn by a number of 0 .. 1. */
static int32_t next_letter(const options *o, const place *p, const reader *r, const batch *b,
                           const unsigned char *letters, int count, const dml_sample_options *how,
                           float number)
{
    const int begin = count > o->context ? count - o->context : 0, seen = count - begin;
    for (int i = 0; i < o->context; i++) b->letters[i] = i < seen ? letters[begin + i] : '\n';
    run(p, r, 1, b);
    const float *scores = r->scores + (size_t)(seen - 1) * BYTES;
    return agree(p, p->stage < p->last ? 0 : dml_sample(scores, BYTES, how, number));
}

/* New sums, of which it is given the question. */
static int64_t count_sums(const options *o, const place *p, const reader *r, int64_t *total)
{
    const dml_random random = { (uint64_t)o->seed, SUMS, 1 };
    const dml_sample_options best = { .top_k = 1 };
    const int first = share(MOST_TESTS, p->model, p->models);
    const int end = share(MOST_TESTS, p->model + 1, p->models);
    batch b = allocate_batch(o, 1);
    int64_t right = 0;
    for (int i = first; i < end; i++) {
        char sum[16];
        unsigned char written[32];
        const int length = write_sum(&random, (uint64_t)i, sum);
        int count = (int)(strchr(sum, '=') - sum) + 1;
        written[0] = '\n'; /* the end of the sum before */
        memcpy(written + 1, sum, (size_t)count++);
        while (count <= length && written[count - 1] != '\n') {
            written[count] = (unsigned char)next_letter(o, p, r, &b, written, count, &best, 0);
            count++;
        }
        right += count == length + 1 && memcmp(written + 1, sum, (size_t)length) == 0;
    }
    *total = MOST_TESTS;
    free_batch(&b);
    return p->speaks ? right : 0;
}

/* The same by a decoder, which keeps what it made of the letters before and has seen `*seen` of them; when
   they fill its context, it goes on from the last half. */
static int32_t letter_behind(const options *o, dml_context *ctx, dml_decoder *writer,
                             const unsigned char *letters, int count, int *seen,
                             const dml_sample_options *how, float number)
{
    int32_t next[BYTES];
    float scores[BYTES];
    if (dml_decoder_place(writer, 0) + count - *seen > o->context) {
        dml_decoder_rewind(writer, 0, 0);
        *seen = count - (o->context + 1) / 2;
    }
    while (*seen < count) {
        int some = 0;
        while (some < BYTES && *seen < count) next[some++] = letters[(*seen)++];
        if (dml_decoder_feed(writer, 1, next, some, scores) != DML_OK) args_exit(1, "%s", dml_error(ctx));
    }
    return dml_sample(scores, BYTES, how, number);
}

/* Some text of its own, by the first model; rank 0 prints each letter as it comes. */
static void write_text(const options *o, const place *p, const model *m, const reader *r, dml_context *ctx)
{
    const dml_random random = { (uint64_t)o->seed, LETTERS, 0 };
    const dml_sample_options how = { .temperature = o->temperature > 0 ? (float)o->temperature : DML_ZERO,
                                     .top_k = o->top_k,
                                     .top_p = (float)o->top_p };
    const bool speaks = dml_comm_rank(p->job) == 0;
    const bool asked = o->prompt && *o->prompt;
    const char *prompt = asked ? o->prompt : "\n";
    const int given = (int)strlen(prompt), end = given + o->writes;
    unsigned char *written = allocate((size_t)end, 1);
    batch b = allocate_batch(o, 1);
    dml_decoder *writer = NULL; /* of a model that isn't cut */
    if (o->tensor * o->pipeline == 1)
        writer = dml_decoder_create(
            m->scores, dml_graph_find(m->graph, "letters"),
            &(dml_decoder_options){ .weights = strcmp(o->weights, "i8") ? DML_F32 : DML_I8 });
    if (!writer && o->tensor * o->pipeline == 1) args_exit(1, "%s", dml_error(ctx));
    memcpy(written, prompt, (size_t)given);
    if (asked && speaks) fputs(prompt, stdout);
    const double began = dml_seconds();
    for (int count = given, seen = 0; count < end; count++) {
        const float number = dml_random_uniform(&random, (uint64_t)(count - given));
        written[count] =
            (unsigned char)(writer ? letter_behind(o, ctx, writer, written, count, &seen, &how, number)
                                   : next_letter(o, p, r, &b, written, count, &how, number));
        if (speaks) putchar(written[count]), args_check_output();
    }
    if (speaks) putchar('\n'), args_check_output();
    if (speaks && o->writes > 1)
        fprintf(stderr, "%.0f letters a second\n", o->writes / (dml_seconds() - began));
    dml_decoder_destroy(writer);
    free_batch(&b);
    free(written);
}

static void stage_path(const place *p, const char *path, char to[1024])
{
    snprintf(to, 1024, p->last ? "%s.%d" : "%s", path, p->stage);
}

int main(int argc, char **argv)
{
    const options o = parse_options(argc, argv);

    /* A device: first, since a communicator over NCCL is opened on the one that is current. */
    dml_context *ctx = dml_open(&(dml_options){ .device = o.device,
                                                .threads = o.threads,
                                                .seed = (uint64_t)o.seed,
                                                .allow_tf32 = allows_tf32(o.dtype) });

    /* The other ranks, and the text. */
    const place p = find_place(&o);
    text t;
    complaint c = { "" };
    char path[1024];
    if (dml_status_of(ctx) != DML_OK)
        complain(&c, "%s", dml_error(ctx));
    else
        make_text(&o, &t, &c);
    settle(&c, p.job);

    /* This rank's part of the model: a trainer of micro-batches, and a program that only predicts. */
    const model m = build(&o, &p, ctx);
    dml_optimizer adamw = dml_adamw((float)o.lr, 0.01f);
    const uint64_t steps = (uint64_t)(o.steps ? o.steps : 1);
    const dml_trainer_options how = { .batch = o.micro_batch,
                                      .optimizer = adamw,
                                      .dtype = dtype_of(o.dtype),
                                      .clip_norm = 1,
                                      .schedule = dml_schedule_warm_up(
                                          dml_schedule_cosine((float)o.lr, steps, 0), steps / 10 + 1, 0) };
    dml_trainer *trainer = dml_trainer_create(m.loss, &how);
    reader r = { dml_compile(m.scores, &(dml_program_options){ .batch = MOST_TESTS }), NULL };
    if (p.stage == p.last)
        r.scores = allocate((size_t)MOST_TESTS * (size_t)o.context, BYTES * sizeof *r.scores);
    if (o.load) stage_path(&p, o.load, path), dml_parallel_load(m.graph, path);
    if (dml_status_of(ctx) != DML_OK) complain(&c, "%s", dml_error(ctx));
    settle(&c, p.job);

    /* This line trains several such models as one. */
    if (p.models > 1) dml_trainer_sync(trainer, dml_all_reduce_sync(p.data, NULL));

    if (dml_comm_rank(p.job) == 0)
        printf(
            "%d layers of %d channels, %zu parameters here; %s; device %s, ranks %d: %d models of %d stages "
            "in %d parts, %s\n",
            o.layers, o.channels, dml_trainer_count(trainer, DML_PARAMETERS), o.data ? o.data : "sums",
            o.device, dml_comm_world_size(p.job), p.models, o.pipeline, o.tensor, dtype_on(ctx, o.dtype));
    args_check_output();

    report log;
    report_begin(&log, p.job, "gpt", steps, 1, o.log);
    profile_begin(ctx, p.job, o.profile);
    if (o.steps) train(&o, &p, trainer, &t, &log);
    profile_end(ctx, p.job, o.profile);

    int64_t total = 0, right = t.sums ? count_sums(&o, &p, &r, &total) : count_right(&o, &p, &r, &t, &total);
    if (dml_comm_all_reduce(p.job, &right, 1, DML_I64, DML_SUM) != DML_OK)
        args_exit(1, "%s", dml_comm_error(p.job));
    report_end(&log, right, total);
    if ((!t.sums || o.prompt) && p.model == 0) write_text(&o, &p, &m, &r, ctx);
    if (o.save && p.model == 0) {
        stage_path(&p, o.save, path);
        if (dml_parallel_save(m.graph, path) != DML_OK) args_exit(1, "%s", dml_error(ctx));
    }

    free(r.scores);
    free(t.letters);
    dml_close(ctx);
    leave(&p);
    return 0;
}
