/* decode: how long does a language model take to write a token, and to read a prompt, beside PyTorch, which
 * keeps keys and values as well, and the machine's limits? */
#include "bench.h"
#include "models.h"

/* Of bench/models.h, for texts of `context` tokens. */
typedef struct net {
    const char *name;
    int context, width, layers, classes;
    bool quick;
} net;
static const net nets[] = { { "gpt", 64, 128, 4, 65, true }, { "gpt2", 1024, 768, 12, 50257, false } };
enum { NETS = sizeof nets / sizeof *nets, TEXTS = 8 };

typedef struct job {
    const net *net;
    dml_context *context;
    dml_graph *graph;
    dml_decoder *decoder;
    int32_t *tokens; /* (texts, context) */
    float *scores;   /* (texts, classes) */
    int texts, place, count;
    dml_dtype weights;
} job;

/* `count` tokens of each text behind `place` others. */
static void feed(void *argument)
{
    job *j = (job *)argument;
    dml_decoder_rewind(j->decoder, DML_ALL_TEXTS, j->place);
    dml_decoder_feed(j->decoder, j->texts, j->tokens, j->count, j->scores);
}

static bool open_job(job *j, const net *of, int texts, dml_dtype weights, int threads)
{
    const model *m = models;
    while (strcmp(m->name, of->name) != 0) m++;
    memset(j, 0, sizeof *j);
    j->net = of, j->texts = texts, j->weights = weights;
    j->context = dml_open(&(dml_options){ .threads = threads });
    j->graph = dml_graph_create(j->context);
    dml_node *x = dml_input(j->graph, "tokens", DML_I32, of->context);
    network n = { x, 0, false };
    m->build(&n);
    j->decoder = dml_decoder_create(n.top, x, &(dml_decoder_options){ .batch = texts, .weights = weights });
    j->tokens = (int32_t *)bench_floats("decode", (size_t)texts * (size_t)of->context);
    j->scores = bench_floats("decode", (size_t)texts * (size_t)of->classes);
    for (int i = 0; i < texts * of->context; i++) j->tokens[i] = i * 7919 % of->classes;
    if (!j->decoder) fprintf(stderr, "decode: %s\n", dml_error(j->context));
    return j->decoder != NULL;
}

static int close_job(job *j)
{
    const dml_status status = dml_status_of(j->context);
    if (status != DML_OK) fprintf(stderr, "decode: %s\n", dml_error(j->context));
    dml_close(j->context);
    free(j->tokens);
    free(j->scores);
    return status != DML_OK;
}

/* What the machine takes at least: every token's multiply-adds, those of scores once; the weights and what is
   kept, read once. */
static double least_seconds(const job *j)
{
    const double scores = (double)j->net->classes * j->net->width;
    const double weights = (double)dml_graph_parameter_count(j->graph);
    const double wide = (double)j->net->width * j->net->layers, seen = j->place + 0.5 * (j->count + 1);
    const double flops = 2 * j->texts * (j->count * (weights - scores + 2 * wide * seen) + scores);
    const double weight_bytes = j->weights == DML_I8 ? 1 + 4.0 / DML_Q8_BLOCK : sizeof(float);
    const size_t read =
        (size_t)(weight_bytes * weights + sizeof(float) * 2 * wide * j->texts * (j->place + j->count));
    return bench_least_seconds(dml_context_pool(j->context), flops, read, 0, read);
}

static void measure(job *j, int place, int count, bench_peers *peers, double seconds)
{
    char line[128];
    j->place = 0, j->count = place;
    if (place) feed(j);
    j->place = place, j->count = count;
    snprintf(line, sizeof line, "decode %s %d %d %d %d", j->net->name, j->net->context, j->texts, place,
             count);
    const double before = least_seconds(j);
    bench_peers none;
    memset(&none, 0, sizeof none);
    if (j->weights == DML_I8) peers = &none; /* of which none has such weights */
    const double one = bench_beside(peers, line, feed, j, seconds);
    const double after = least_seconds(j);
    if (dml_status_of(j->context) != DML_OK) return;
    printf("name=decode what=%s model=%s weights=%s texts=%d behind=%d tokens=%d ms=%.4g",
           count == 1 ? "token"
           : place    ? "few"
                      : "prompt",
           j->net->name, dml_dtype_name(j->weights), j->texts, place, count, 1e3 * one);
    bench_row(peers, dml_pool_threads(dml_context_pool(j->context)), one, before < after ? before : after,
              j->texts * count, "tokens/s");
}

static int measure_net(const net *of, int texts, dml_dtype weights, int threads, bench_peers *peers,
                       double seconds)
{
    job j;
    if (open_job(&j, of, texts, weights, threads)) {
        measure(&j, 0, of->context / 4, peers, seconds);
        measure(&j, of->context / 16, 1, peers, seconds);
        measure(&j, of->context / 16, 8, peers, seconds);
        measure(&j, of->context - 1, 1, peers, seconds);
    }
    return close_job(&j);
}

static const char usage[] =
    "usage: decode [options]\n" BENCH_COMMON_USAGE
    "Prints rows for a prompt, a token and eight at once behind a few others, and the last "
    "token that the net takes, of gpt (4\nlayers of "
    "128, 65 letters, texts of 64) and gpt2 (124M, texts of 1024), for one text and "
    "eight side by side, with weights\n"
    "in f32 and in 8 bits. The limit is arithmetic, or reading the weights and what is "
    "kept once.\n";

int main(int argc, char **argv)
{
    static const char *const names[] = { "torch", NULL };
    bench_common common = { 0, 2, false, NULL };
    const bench_option options[] = { BENCH_COMMON_OPTIONS(common) };
    bench_parse(argc, argv, "decode", usage, options);
    if (common.quick && common.seconds > 0.1) common.seconds = 0.1;
    int failed = 0;
    for (int round = 0, threads; (threads = bench_threads(&common, round)) != 0; round++) {
        bench_peers peers;
        bench_take_processors(threads);
        bench_peers_start(&peers, "decode", common.peers, names, threads);
        for (int i = 0; i < NETS; i++)
            for (int texts = 1; texts <= TEXTS && (nets[i].quick || !common.quick); texts += TEXTS - 1)
                for (int w = 0; w < 2; w++)
                    failed |=
                        measure_net(&nets[i], texts, w ? DML_I8 : DML_F32, threads, &peers, common.seconds);
        bench_peers_end(&peers);
    }
    return failed;
}
