/* One rank (RANK, WORLD_SIZE) that trains on a fake card by a strategy: cuda_nccl HOW WHERE, over a stand-in
   for NCCL where DML_COMM_ENGINE says so (tests/gpu/cuda_nccl_test.sh). Rank 0 prints the parameters. WHERE
   is what has to become of gradients: "lent", so that nothing is read from the card in a step, or "staged",
   through the host. Exits with 3, after saying how, when it fails. */
#define DML_IMPLEMENTATION
#include "dml.h"
#include "dml_comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

uint64_t fake_cuda_read(void);
enum { BATCH = 3, STEPS = 6 };
static float image[BATCH][36];
static int32_t label[BATCH];
static const char *how;
static int rank;

static bool is(const char *what)
{
    return strcmp(how, what) == 0;
}

static void fill(int step)
{
    for (int i = 0; i < BATCH * 36; i++)
        image[i / 36][i % 36] = (float)((i * 7 + 5 * step + 3 * rank) % 13) / 13;
    for (int i = 0; i < BATCH; i++) label[i] = (i + step + rank) % 4;
}

static dml_node *loss_of(dml_graph *graph)
{
    dml_node *x = dml_input(graph, "image", DML_F32, 6, 6, 1), *t = dml_input(graph, "label", DML_I32);
    dml_node *h = dml_relu(dml_conv2d(x, &(dml_conv2d_options){ .filters = 2, .same = true }));
    dml_node *y = dml_dense(dml_relu(dml_dense(dml_flatten(dml_max_pool2d(h, NULL)), 9)), 4);
    return dml_softmax_cross_entropy(y, t);
}

static dml_trainer *model(dml_context *context)
{
    const dml_trainer_options options = { .batch = BATCH,
                                          .optimizer = dml_adam(0.01f),
                                          .clip_norm = is("clip") ? 0.1f : 0 };
    return dml_trainer_create(loss_of(dml_graph_create(context)), &options);
}

static dml_sync strategy(dml_comm *comm)
{
    /* buckets of a few parameters, so that there are several */
    const dml_zero_options zero = { .stage = is("zero1") ? 1 : 2, .bucket_bytes = 200 };
    const dml_all_reduce_sync_options all_reduce = {
        .bucket_bytes = is("large") ? 0 : 200,
        .across_steps = is("across"),
        .compression = { .kind = is("compressed") ? DML_COMPRESS_BF16 : DML_COMPRESS_NONE }
    };
    const dml_zero_options unlike = { .bucket_bytes = rank ? 1 << 20 : 0 }; /* as many bytes as is usual */
    if (is("unlike")) return dml_zero_sync(comm, &unlike);
    return is("zero1") || is("zero2") ? dml_zero_sync(comm, &zero) : dml_all_reduce_sync(comm, &all_reduce);
}

static void step(dml_trainer *trainer, int number)
{
    fill(number);
    if (getenv("DIES") && rank == 1 && number == 2) _exit(0);
    if (!is("adds")) {
        dml_trainer_step(trainer, rank == 0 && number == 3 ? BATCH - 1 : BATCH, DML_INPUTS(image, label),
                         NULL);
        return;
    }
    dml_trainer_backward(trainer, BATCH, DML_INPUTS(image, label), DML_MORE, NULL);
    fill(number + STEPS);
    dml_trainer_backward(trainer, BATCH, DML_INPUTS(image, label), DML_ADD, NULL);
    dml_trainer_update(trainer);
}

static void print_parameters(dml_trainer *trainer)
{
    const size_t count = dml_trainer_count(trainer, DML_PARAMETERS);
    const float *w = dml_trainer_get(trainer, DML_PARAMETERS, 0, count);
    for (size_t i = 0; w && rank == 0 && i < count; i++) printf("%a\n", (double)w[i]);
}

static int failed(const dml_context *context, const dml_comm *comm)
{
    fprintf(stderr, "rank %d: %s%s%s\n", rank, dml_error(context), comm ? " | " : "",
            comm ? dml_comm_error(comm) : "");
    return 3;
}

/* In one process on both cards, by NCCL or not. */
static int mirrored(bool nccl, int wrong)
{
    const char *devices[] = { "cuda:0", wrong == 3 ? "cpu" : "cuda:1" };
    dml_context *context = dml_open(&(dml_options){ .threads = 1, .seed = 7 });
    dml_comm *comm = wrong == 1 ? dml_comm_open(NULL) : NULL;
    dml_graph *graph = dml_graph_create(context);
    const dml_mirrored_options options = { .trainer = { .batch = BATCH, .optimizer = dml_adam(0.01f) },
                                           .comm = comm,
                                           .placement = wrong == 2 ? DML_PLACE_CENTRAL : DML_PLACE_MIRRORED,
                                           .cross_device = nccl ? DML_CROSS_NCCL : DML_CROSS_CHEAPEST,
                                           .even = true,
                                           .timeout_s = 20,
                                           .bucket_bytes = 200 };
    dml_mirrored *all = dml_mirrored_create(loss_of(graph), devices, 2, &options);
    const uint64_t read = fake_cuda_read();
    for (int s = 0; s < STEPS && dml_status_of(context) == DML_OK; s++) {
        fill(s);
        dml_mirrored_step(all, BATCH, DML_INPUTS(image, label), NULL);
    }
    const bool lent = fake_cuda_read() == read;
    if (all) print_parameters(dml_mirrored_trainer(all, 0));
    if (dml_status_of(context) != DML_OK) return failed(context, NULL);
    dml_close(context);
    dml_comm_close(comm);
    return lent == nccl ? 0 : 1;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "mirrored") == 0)
        return how = "", mirrored(strcmp(argv[2], "staged") != 0, atoi(argv[2]));
    if (argc != 3 || !getenv("RANK")) return 2;
    how = argv[1], rank = atoi(getenv("RANK"));
    const char *device = is("mixed") && rank == 1 ? "cpu" : rank % 2 ? "cuda:1" : "cuda:0";
    dml_comm *comm = is("early") ? dml_comm_open(NULL) : NULL; /* on the card that is current: 0 */
    dml_context *context = dml_open(&(dml_options){ .device = device, .threads = 1, .seed = 7 });
    if (!comm) comm = dml_comm_open(NULL);
    dml_trainer *trainer = model(context);
    dml_trainer_sync(trainer, strategy(comm));
    const uint64_t read = fake_cuda_read();
    for (int s = 0; s < STEPS && dml_status_of(context) == DML_OK; s++) step(trainer, s);
    const bool lent = fake_cuda_read() == read && strncmp(device, "cuda", 4) == 0;
    dml_trainer_gather(trainer);
    print_parameters(trainer);
    if (dml_status_of(context) != DML_OK) return failed(context, comm);
    dml_close(context);
    dml_comm_close(comm);
    if (lent == (strcmp(argv[2], "lent") == 0)) return 0;
    return fprintf(stderr, "rank %d: gradients were %s\n", rank, lent ? "lent" : "staged"), 1;
}
