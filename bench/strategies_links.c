/* strategies_links: what a step of data-parallel training takes under one way of training together, over
   links of a known rate. One rank of a job (RANK, WORLD_SIZE, as bench/strategies_links.sh sets them); the
   first one that trains prints. The model is of dense layers that compute little for their size: links
   decide. */
#include "../dml.h"
#include "../dml_comm.h"

#include <stdio.h>
#include <stdlib.h>

#include "../samples/args.h"
#include "../samples/strategy.h"

enum { LAYERS = 8, WIDTH = 256, ROWS = 64 };

static dml_node *build_loss(dml_context *context)
{
    dml_graph *graph = dml_graph_create(context);
    dml_node *h = dml_input(graph, "x", DML_F32, WIDTH), *t = dml_input(graph, "t", DML_I32);
    for (int i = 0; i < LAYERS; i++) h = dml_relu(dml_dense(h, WIDTH));
    return dml_softmax_cross_entropy(h, t);
}

static uint64_t bytes_sent(const strategy *s)
{
    dml_comm_stats stats;
    dml_comm_get_stats(s->job, &stats);
    return stats.tcp.bytes_sent;
}

static void say(const strategy *s, const char *label, int mbit, double seconds, double bytes, double loss)
{
    const int hosts = dml_comm_world_size(s->job), servers = hosts - s->ranks;
    /* A server's link carries what all of its workers send. */
    const double busiest = servers ? bytes * s->ranks / servers : bytes;
    const double limit = busiest * 8 / (mbit * 1e6);
    printf("name=strategies_links strategy=%s mbit=%d hosts=%d trained_kib=%zu ours=%.2f limit=%.2f "
           "ratio_limit=%.3f unit=ms_per_step sent_kib=%.0f samples_per_s=%.0f loss=%.3f\n",
           label, mbit, hosts, dml_trainer_count(s->trainer, DML_GRADIENTS) * sizeof(float) / 1024,
           seconds * 1e3, limit * 1e3, limit / seconds, bytes / 1024, s->ranks * ROWS / seconds, loss);
}

int main(int argc, char **argv)
{
    strategy_options chosen = { 0 };
    int mbit = 1000, steps = 8;
    const char *label = "all_reduce";
    const arg args[] = { { "--label", "TEXT", "what the row calls it", .text = &label },
                         { "--mbit", "N", "the rate of a link", .integer = &mbit, .low = 1 },
                         { "--steps", "N", "that are timed together", .integer = &steps, .low = 1 },
                         STRATEGY_ARGS(chosen),
                         { 0 } };
    args_parse(argc, argv, "Times steps of data-parallel training over links of a known rate.", args);
    (void)strategy_save;
    static float x[ROWS * WIDTH];
    static int32_t t[ROWS];
    strategy s = strategy_open(&chosen, NULL);
    dml_context *context = dml_open(&(dml_options){ .threads = 1, .seed = 1 });
    const dml_trainer_options options = { .batch = ROWS, .optimizer = dml_sgd(0.01f, 0) };
    dml_trainer *trainer = strategy_trainer(&s, build_loss(context), &options);
    if (!trainer) args_exit(1, "%s", dml_error(context));
    for (int i = 0; i < ROWS * WIDTH; i++) x[i] = (float)((i + 1) * 2654435761u % 1000) / 500 - 1;
    for (int i = 0; i < ROWS; i++) t[i] = (i + s.rank) * 7 % WIDTH;
    strategy_start(&s); /* in which a server stays */
    float loss = 0;
    if (s.trains) {
        strategy_step(&s, ROWS, DML_INPUTS(x, t), NULL); /* the first one warms up */
        dml_trainer_gather(trainer);
        dml_comm_barrier(s.comm);
        const uint64_t before = bytes_sent(&s);
        const double begin = dml_seconds();
        for (int i = 0; i < steps; i++)
            strategy_step(&s, ROWS, DML_INPUTS(x, t), i + 1 < steps ? NULL : &loss);
        if (chosen.across_steps) dml_trainer_gather(trainer); /* what is still on its way */
        const double seconds = (dml_seconds() - begin) / steps;
        const double bytes = (double)(bytes_sent(&s) - before) / steps;
        strategy_end(&s);
        if (s.rank == 0) say(&s, label, mbit, seconds, bytes, (double)loss);
    }
    dml_close(context);
    strategy_close(&s);
    return 0;
}
