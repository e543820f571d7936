/* mnist: learns to read digits, in one process or, under dmlrun, in many.

       mnist                               digits that it draws itself
       mnist --data build/data/mnist       the MNIST data set, which `make data` brings
       dmlrun -n 4 mnist --model lenet     four processes, each training its part of every batch
       dmlrun -n 4 mnist --strategy local_sgd       the same, by one of the ways that --help lists

   Any number of processes trains on the same batches, and so, unless --strategy says otherwise, arrives at
   the same model. */
#define DML_IMPLEMENTATION
#include "dml.h"
#include "dml_comm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "digits.h"
#include "ranks.h"
#include "report.h"
#include "strategy.h"

enum { SIDE = 28, PIXELS = SIDE * SIDE, CLASSES = 10, TEST_BATCH = 256 };
enum { DRAWN_SEED = 1 };
enum { SHUFFLE = 1000 }; /* the random stream of the digits' order */

typedef struct options {
    const char *model, *data, *device, *dtype, *save, *load, *log, *profile;
    bool list_devices, nesterov;
    int drawn, epochs, batch, seed, threads, steps;
    double lr, momentum, weight_decay, timeout;
    strategy_options strategy;
} options;

static options parse_options(int argc, char **argv)
{
    options o = { .model = "lenet",
                  .device = "cpu",
                  .dtype = "f32",
                  .drawn = 20000,
                  .epochs = 5,
                  .batch = 64,
                  .lr = 0.02,
                  .momentum = 0.9 };
    const arg args[] = {
        { "--model", "mlp|lenet", "which network", .text = &o.model },
        { "--data", "DIR", "where the MNIST files are; without it, digits are drawn", .text = &o.data },
        { "--drawn", "N", "digits to learn from that are drawn; half as many to test", .integer = &o.drawn,
          .low = 2, .high = 1e7 },
        { "--device", "D",
          "cpu, opencl, opencl:1, cuda:0, ..., cuda:local: one for each rank of a host, or auto: the best",
          .text = &o.device },
        { "--list-devices", NULL, "print the devices that there are", .flag = &o.list_devices },
        { "--epochs", "N", "times through the training set; of sandblaster ten iterations each",
          .integer = &o.epochs, .low = 1, .high = 1e6 },
        { "--steps", "N", "end after this many steps, if that is earlier", .integer = &o.steps, .low = 1 },
        { "--batch", "B", "samples a step, of all ranks", .integer = &o.batch, .low = 1, .high = 1e6 },
        { "--lr", "X", "learning rate at its peak; it rises from 0 and falls to 0", .real = &o.lr,
          .low = 1e-9, .high = 1e3 },
        { "--momentum", "X", "of SGD", .real = &o.momentum, .high = 0.9999 },
        { "--nesterov", NULL, "use Nesterov's momentum", .flag = &o.nesterov },
        { "--weight-decay", "X", "of SGD", .real = &o.weight_decay, .high = 10 },
        { "--dtype", "f32|tf32|bf16|f16",
          "what activations are kept in, and the factors of products; tf32: those of a card",
          .text = &o.dtype },
        { "--seed", "S", "of every random number", .integer = &o.seed },
        { "--threads", "T", "CPU threads of each rank; otherwise DML_THREADS, or its share of the processors",
          .integer = &o.threads, .low = 1, .high = 4096, .environment = "DML_THREADS" },
        { "--save", "F", "write a checkpoint after every epoch and at the end", .text = &o.save },
        { "--load", "F", "go on from a checkpoint, with its optimizer's numbers and seed", .text = &o.load },
        { "--log", "F.jsonl", "write one line of JSON for every step", .text = &o.log },
        { "--profile", "F.json", "write a timeline of what takes how long, and print the longest of it",
          .text = &o.profile },
        { "--timeout", "S", "seconds to wait for another rank; otherwise DML_TIMEOUT, or 30",
          .real = &o.timeout, .low = 0.01, .high = 1e6 },
        STRATEGY_ARGS(o.strategy),
        { 0 },
    };
    args_parse(argc, argv, "Learns to read digits.", args);
    if (o.nesterov && o.momentum == 0) args_exit(2, "--nesterov needs a --momentum above 0");
    return o;
}

static int list_devices(void)
{
    dml_device_info info[64];
    const int count = dml_devices(info, 64);
    for (int i = 0; i < count && i < 64; i++) {
        printf("%-10s %s, %d units", info[i].id, info[i].name, info[i].compute_units);
        if (info[i].memory) printf(", %llu MiB", (unsigned long long)(info[i].memory >> 20));
        if (info[i].clock) printf(", %d MHz", info[i].clock);
        if (info[i].features[0]) printf(", %s", info[i].features);
        if (info[i].driver[0]) printf(", driver %s", info[i].driver);
        putchar('\n');
    }
    args_check_output();
    return 0;
}

/* ---- models: image (28, 28, 1) -> a score for each digit (10) ---- */

/* The last layer. Its weights start small, so that no digit is favoured before anything is learned.
   Source: Goyal et al., "Accurate, large minibatch SGD", 2017, section 5.1. */
static dml_node *scores(dml_node *h)
{
    dml_graph *g = dml_node_graph(h);
    dml_node *w =
        dml_parameter(g, "scores.weight", dml_init_normal(0, 0.01f), CLASSES, dml_node_shape(h).dims[0]);
    return dml_dense_with(h, w, dml_parameter(g, "scores.bias", dml_init_constant(0), CLASSES));
}

static dml_node *mlp(dml_node *image)
{
    dml_node *h = dml_relu(dml_dense(dml_flatten(image), 256));
    return scores(dml_relu(dml_dense(h, 128)));
}

/* LeNet-5 with today's ReLU and max pooling.
   Source: LeCun, Bottou, Bengio, Haffner, "Gradient-based learning applied to document recognition", 1998. */
static dml_node *lenet(dml_node *image)
{
    dml_node *h =
        dml_conv2d(image, &(dml_conv2d_options){ .filters = 6, .kernel = { 5, 5 }, .padding = { 2, 2 } });
    h = dml_max_pool2d(dml_relu(h), NULL); /* (14, 14, 6) */
    h = dml_conv2d(h, &(dml_conv2d_options){ .filters = 16, .kernel = { 5, 5 } });
    h = dml_flatten(dml_max_pool2d(dml_relu(h), NULL)); /* (5, 5, 16), then (400) */
    h = dml_relu(dml_dense(h, 120));
    return scores(dml_relu(dml_dense(h, 84)));
}

/* ---- data ---- */

typedef struct dataset {
    int count;
    const unsigned char *images; /* (count, 28, 28), ink is 255 */
    const unsigned char *labels; /* (count) */
    dml_idx image_file, label_file;
    unsigned char *drawn;
} dataset;

static void draw_digits(dataset *set, int count, uint64_t seed)
{
    set->drawn = allocate((size_t)count, PIXELS + 1);
    unsigned char *labels = set->drawn + (size_t)count * PIXELS;
    for (int i = 0; i < count; i++) {
        int label;
        digits_draw(seed, (uint64_t)i, set->drawn + (size_t)i * PIXELS, &label);
        labels[i] = (unsigned char)label;
    }
    set->count = count;
    set->images = set->drawn;
    set->labels = labels;
}

static bool load_idx(dml_context *ctx, const char *folder, const char *name, char path[1024], dml_idx *file,
                     complaint *c)
{
    snprintf(path, 1024, "%s/%s", folder, name);
    if (dml_idx_load(ctx, path, file) == DML_OK) return true;
    return complain(c, "%s; `make data` brings the MNIST files", dml_error(ctx));
}

static bool load_digits(dataset *set, dml_context *ctx, const char *folder, const char *which, complaint *c)
{
    char name[64], path[1024];
    snprintf(name, sizeof name, "%s-images-idx3-ubyte", which);
    if (!load_idx(ctx, folder, name, path, &set->image_file, c)) return false;
    const dml_idx *images = &set->image_file;
    if (images->ndim != 3 || images->dims[1] != SIDE || images->dims[2] != SIDE)
        return complain(c, "%s holds %d dimensions, %d x %d x %d, and not images of %d x %d", path,
                        images->ndim, images->dims[0], images->dims[1], images->dims[2], SIDE, SIDE);
    snprintf(name, sizeof name, "%s-labels-idx1-ubyte", which);
    if (!load_idx(ctx, folder, name, path, &set->label_file, c)) return false;
    const dml_idx *labels = &set->label_file;
    if (labels->ndim != 1 || labels->dims[0] != images->dims[0])
        return complain(c, "%s holds %d labels for %d images", path, labels->dims[0], images->dims[0]);
    for (int i = 0; i < labels->dims[0]; i++)
        if (labels->data[i] >= CLASSES) return complain(c, "%s: label %d is %d", path, i, labels->data[i]);
    set->count = images->dims[0];
    set->images = images->data;
    set->labels = labels->data;
    return true;
}

static void free_dataset(dataset *set, dml_context *ctx)
{
    dml_idx_free(ctx, &set->image_file);
    dml_idx_free(ctx, &set->label_file);
    free(set->drawn);
}

/* What the network is fed. */
typedef struct batch {
    float *images;   /* (rows, 28, 28, 1), of mean 0 and deviation 1 or about so */
    int32_t *labels; /* (rows) */
} batch;

static batch allocate_batch(int rows)
{
    return (batch){ allocate((size_t)rows, PIXELS * sizeof(float)), allocate((size_t)rows, sizeof(int32_t)) };
}

static void free_batch(batch *b)
{
    free(b->images);
    free(b->labels);
}

/* Digits order[begin ... begin + rows - 1] of the set; a NULL order: as they lie. */
static void fill_batch(batch *b, const dataset *set, const int *order, int begin, int rows)
{
    const float mean = 0.13f * 255, deviation = 0.31f * 255; /* of MNIST's pixels */
    for (int row = 0; row < rows; row++) {
        const int i = order ? order[begin + row] : begin + row;
        const unsigned char *from = set->images + (size_t)i * PIXELS;
        float *to = b->images + (size_t)row * PIXELS;
        for (int p = 0; p < PIXELS; p++) to[p] = ((float)from[p] - mean) * (1 / deviation);
        b->labels[row] = set->labels[i];
    }
}

/* ---- training and testing ---- */

/* One cycle: from 0 to the peak and back, along a cosine. The slow start also keeps rounding errors, which
   differ between devices and numbers of ranks, from growing while the network is still finding its way.
   Source: Smith, Topin, "Super-convergence", 2017, section 3. */
static float learning_rate(double peak, uint64_t step, uint64_t steps)
{
    const double turn = 2 * 3.14159265358979 * (double)(step + 1) / (double)(steps + 1);
    return (float)(peak * 0.5 * (1 - cos(turn)));
}

typedef struct feed {
    const dataset *set;
    batch b;
} feed;

static void fill_feed(void *user, int begin, int rows, const void **inputs)
{
    feed *f = user;
    fill_batch(&f->b, f->set, NULL, begin, rows);
    inputs[0] = f->b.images;
    inputs[1] = f->b.labels;
}

/* By a strategy that goes by iterations over the whole set, --steps of them; a checkpoint's steps are none.
 */
static void train_whole(const options *o, strategy *s, const dataset *set, report *r)
{
    const int rows = (o->batch - 1) / s->ranks + 1, iterations = o->steps ? o->steps : 10 * o->epochs;
    feed f = { set, allocate_batch(rows) };
    const strategy_set all = {
        .samples = set->count, .batch = rows, .fill = fill_feed, .count = 2, .user = &f
    };
    const double begin = dml_seconds();
    double loss;
    int passes;
    report_begin(r, s->comm, o->model, 1, 1, o->log);
    strategy_check(s, s->row->whole(s, &all, iterations, &loss, &passes));
    report_step(r, 1, 1, set->count, 0, s->rank == 0 ? loss * set->count : 0);
    const double seconds = dml_seconds() - begin;
    dml_progress_line(&r->bar, "%d passes: loss %.4f, %.0f samples/s, %.1f s", passes, loss,
                      (double)passes * set->count / seconds, seconds);
    strategy_end(s);
    if (o->save) strategy_save(s, o->save);
    free_batch(&f.b);
}

/* Where a run stands is the seed and the number of steps, with those skipped for the loss scale, and nothing
   else, so it goes on from a checkpoint as if it had never stopped. */
static void train(const options *o, strategy *s, const dataset *set, report *r)
{
    const int rank = s->rank, ranks = s->ranks;
    const uint64_t epoch_steps = (uint64_t)((set->count - 1) / o->batch + 1);
    const uint64_t all_steps = epoch_steps * (uint64_t)o->epochs;
    const uint64_t last = o->steps && (uint64_t)o->steps < all_steps ? (uint64_t)o->steps : all_steps;
    int *order = allocate((size_t)set->count, sizeof *order), ordered_epoch = -1;
    batch b = allocate_batch(o->batch / ranks + 1);

    const uint64_t seed = dml_trainer_get_run(s->trainer).seed; /* by --load the checkpoint's */
    const uint64_t first = dml_trainer_steps(s->trainer) + dml_trainer_skipped(s->trainer);
    if (first >= last && rank == 0)
        printf("nothing to train: the checkpoint is of step %llu, and the run ends at %llu\n",
               (unsigned long long)first, (unsigned long long)last);
    report_begin(r, s->comm, o->model, first < last ? last - first : 0, o->epochs, o->log);
    for (uint64_t step = first; step < last; step++) {
        const int epoch = (int)(step / epoch_steps);
        if (epoch != ordered_epoch)
            dml_random_permutation(&(dml_random){ seed, SHUFFLE, (uint32_t)epoch }, order, set->count);
        ordered_epoch = epoch;

        /* The global batch, the same for any number of ranks, and this rank's part of it. */
        const int begin = (int)(step % epoch_steps) * o->batch;
        const int samples = set->count - begin < o->batch ? set->count - begin : o->batch;
        const int mine = share(samples, rank, ranks), rows = share(samples, rank + 1, ranks) - mine;
        fill_batch(&b, set, order, begin + mine, rows);

        const float lr = learning_rate(o->lr, step, all_steps);
        float loss;
        dml_trainer_set_lr(s->trainer, lr);
        strategy_step(s, rows, DML_INPUTS(b.images, b.labels), &loss);
        report_step(r, step + 1, epoch + 1, samples, lr, (double)loss * rows);

        if (step + 1 < last && (step + 1) % epoch_steps) continue;
        if (step + 1 == last) strategy_end(s);
        report_epoch(r, epoch + 1);
        if (o->save) strategy_save(s, o->save);
        args_check_output();
    }
    if (first >= last) strategy_end(s);
    free_batch(&b);
    free(order);
}

/* How many digits of the set the model reads right; each rank tests its share. */
static int64_t count_correct(dml_program *predict, dml_context *ctx, const dataset *set, dml_comm *comm)
{
    static float score[TEST_BATCH][CLASSES];
    const int rank = dml_comm_rank(comm), ranks = dml_comm_world_size(comm);
    const int end = share(set->count, rank + 1, ranks);
    batch b = allocate_batch(TEST_BATCH);
    int64_t correct = 0;
    for (int begin = share(set->count, rank, ranks), rows; begin < end; begin += rows) {
        rows = end - begin < TEST_BATCH ? end - begin : TEST_BATCH;
        fill_batch(&b, set, NULL, begin, rows);
        if (dml_program_run(predict, rows, DML_INPUTS(b.images), score) != DML_OK)
            args_exit(1, "%s", dml_error(ctx));
        for (int row = 0; row < rows; row++) {
            int best = 0;
            for (int c = 1; c < CLASSES; c++)
                if (score[row][c] > score[row][best]) best = c;
            correct += best == b.labels[row];
        }
    }
    free_batch(&b);
    if (dml_comm_all_reduce(comm, &correct, 1, DML_I64, DML_SUM) != DML_OK)
        args_exit(1, "%s", dml_comm_error(comm));
    return correct;
}

int main(int argc, char **argv)
{
    const options o = parse_options(argc, argv);
    if (o.list_devices) return list_devices();
    strategy_check_device(&o.strategy, o.device, o.profile);

    /* A device: first, since a communicator over NCCL is opened on the one that is current. */
    dml_context *ctx = dml_open(&(dml_options){ .device = o.device,
                                                .threads = o.threads,
                                                .seed = (uint64_t)o.seed,
                                                .allow_tf32 = allows_tf32(o.dtype) });

    /* The other ranks, if RANK and WORLD_SIZE say that there are any. */
    strategy s = strategy_open(&o.strategy, &(dml_comm_options){ .timeout_s = o.timeout });

    /* The digits. */
    dataset training = { 0 }, test = { 0 };
    complaint c = { "" };
    if (dml_status_of(ctx) != DML_OK) {
        complain(&c, "%s", dml_error(ctx));
    } else if (s.trains && !o.data) {
        draw_digits(&training, o.drawn, DRAWN_SEED);
        draw_digits(&test, o.drawn / 2, DRAWN_SEED + 1);
    } else if (s.trains && load_digits(&training, ctx, o.data, "train", &c)) {
        load_digits(&test, ctx, o.data, "t10k", &c);
    }
    settle(&c, s.job);

    /* The model: a program that trains it, and one that only predicts, on the same parameters. */
    dml_graph *g = dml_graph_create(ctx);
    dml_node *image = dml_input(g, "image", DML_F32, SIDE, SIDE, 1);
    dml_node *label = dml_input(g, "label", DML_I32);
    dml_node *logits = strcmp(o.model, "mlp") == 0 ? mlp(image) : lenet(image);
    dml_optimizer sgd = dml_sgd((float)o.lr, (float)o.momentum);
    sgd.nesterov = o.nesterov;
    sgd.weight_decay = (float)o.weight_decay;
    dml_trainer *trainer = strategy_trainer(&s, dml_softmax_cross_entropy(logits, label),
                                            &(dml_trainer_options){ .batch = (o.batch - 1) / s.ranks + 1,
                                                                    .optimizer = sgd,
                                                                    .dtype = dtype_of(o.dtype) });
    dml_program *predict = dml_compile(logits, &(dml_program_options){ .batch = TEST_BATCH });
    if (o.load && s.rank == 0) dml_trainer_load(trainer, o.load);
    if (o.save && s.rank == 0) dml_trainer_check_save(trainer, o.save); /* now, not after an epoch's work */
    if (dml_status_of(ctx) != DML_OK) complain(&c, "%s", dml_error(ctx));
    settle(&c, s.job);

    /* This line makes it distributed. */
    strategy_start(&s);

    if (s.rank == 0)
        printf("%s, %zu parameters; %d digits to learn from, %d to test; device %s, ranks %d, threads %d, "
               "%s, %s, %.1f MB of activations\n",
               o.model, dml_trainer_count(trainer, DML_PARAMETERS), training.count, test.count, o.device,
               s.ranks, dml_pool_threads(dml_context_pool(ctx)), s.row->name, dtype_on(ctx, o.dtype),
               1e-6 * (double)dml_program_bytes(dml_trainer_program(trainer)));
    args_check_output();

    if (s.trains) {
        report r;
        profile_begin(ctx, s.comm, o.profile);
        (s.row->whole ? train_whole : train)(&o, &s, &training, &r);
        profile_end(ctx, s.comm, o.profile);
        report_end(&r, count_correct(predict, ctx, &test, s.comm), test.count);
    }

    free_dataset(&training, ctx);
    free_dataset(&test, ctx);
    dml_close(ctx);
    strategy_close(&s);
    return 0;
}
