/* cifar10: learns to tell ten kinds of things apart in small colour images, by a residual network, in one
   process or, under dmlrun, in many.

       cifar10                             digits that it draws itself, in colours
       cifar10 --data DIR                  CIFAR-10's binary files (data_batch_1.bin, ..., test_batch.bin)
       cifar10 --depth 32 --save checkpoint
       dmlrun -n 4 cifar10 --strategy local_sgd      by one of the ways that --help lists

   Source: He, Zhang, Ren, Sun, "Deep residual learning for image recognition", CVPR 2016, section 4.2. */
#define DML_IMPLEMENTATION
#include "dml.h"
#include "dml_comm.h"

#include "args.h"
#include "digits.h"
#include "ranks.h"
#include "report.h"
#include "strategy.h"

enum { SIDE = DML_CIFAR_SIDE, PLANE = DML_CIFAR_PLANE, PIXELS = 3 * PLANE, RECORD = DML_CIFAR_RECORD };
enum { CLASSES = DML_CIFAR_CLASSES, FILES = 5, DRAWN_SEED = 1 };
enum { TEST_BATCH = 128, MARGIN = 4 };
enum { SHUFFLE = 1000, COLOURS }; /* streams of random numbers */

typedef struct options {
    const char *data, *device, *dtype, *save, *load, *log, *profile;
    int depth, drawn, epochs, steps, batch, seed, threads;
    double lr, momentum, weight_decay, timeout;
    bool one_cycle;
    strategy_options strategy;
} options;

static options parse_options(int argc, char **argv)
{
    options o = { .device = "cpu",
                  .dtype = "f32",
                  .depth = 20,
                  .drawn = 10000,
                  .epochs = 164,
                  .batch = 128,
                  .lr = 0.1,
                  .momentum = 0.9,
                  .weight_decay = 1e-4 };
    const arg args[] = {
        { "--data", "DIR", "where CIFAR-10's binary files are; without it, digits are drawn",
          .text = &o.data },
        { "--drawn", "N", "digits to learn from that are drawn; a tenth as many to test", .integer = &o.drawn,
          .low = 10, .high = 1e6 },
        { "--depth", "D", "layers: 6 n + 2, such as 20, 32, 44 or 56", .integer = &o.depth, .low = 8,
          .high = 1202 },
        { "--device", "D",
          "cpu, opencl, opencl:1, cuda:0, ..., cuda:local: one for each rank of a host, or auto: the best",
          .text = &o.device },
        { "--epochs", "N", "times through the training set; of sandblaster, iterations", .integer = &o.epochs,
          .low = 1, .high = 1e6 },
        { "--steps", "N", "end after this many steps, if that is earlier", .integer = &o.steps, .low = 1 },
        { "--batch", "B", "samples a step, of all ranks", .integer = &o.batch, .low = 1, .high = 1e6 },
        { "--lr", "X",
          "learning rate; a tenth of it from half of the epochs on, a hundredth in the last quarter",
          .real = &o.lr, .low = 1e-9, .high = 1e3 },
        { "--one-cycle", NULL, "the rate climbs to --lr in a quarter of the steps, then falls to 0",
          .flag = &o.one_cycle },
        { "--momentum", "X", "of SGD", .real = &o.momentum, .high = 0.9999 },
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
    args_parse(argc, argv, "Learns what is in small images.", args);
    if ((o.depth - 2) % 6) args_exit(2, "--depth %d: it takes 6 n + 2, such as 20 or 32", o.depth);
    return o;
}

/* ---- the model: image (32, 32, 3) -> a score for each class (10) ---- */

static dml_node *convolution(dml_node *x, int filters, int stride)
{
    const dml_conv2d_options o = {
        .filters = filters, .stride = { stride, stride }, .padding = { 1, 1 }, .no_bias = true
    };
    return dml_batch_norm(dml_conv2d(x, &o), NULL);
}

static dml_node *block(dml_node *x, int filters, int stride)
{
    dml_node *h = convolution(dml_relu(convolution(x, filters, stride)), filters, 1);
    return dml_relu(dml_add(h, dml_padded_shortcut2d(x, stride, filters)));
}

static dml_node *resnet(dml_node *image, int depth)
{
    dml_node *h = dml_relu(convolution(image, 16, 1));
    for (int stage = 0; stage < 3; stage++)
        for (int i = 0; i < (depth - 2) / 6; i++) h = block(h, 16 << stage, stage && i == 0 ? 2 : 1);
    return dml_dense(dml_global_avg_pool2d(h), CLASSES);
}

/* ---- data: records as in CIFAR-10's files ---- */

typedef struct dataset {
    int count;
    unsigned char *records; /* (count, RECORD) */
} dataset;

static dataset draw_digits(int count, uint64_t seed)
{
    const dataset set = { count, allocate((size_t)count, RECORD) };
    for (int i = 0; i < count; i++) {
        unsigned char ink[DIGITS_PIXELS], *record = set.records + (size_t)i * RECORD;
        const dml_random random = { seed, COLOURS, (uint32_t)i };
        float paper[3], colour[3];
        int label;
        for (int plane = 0; plane < 3; plane++) {
            paper[plane] = 60 * dml_random_uniform(&random, (uint64_t)plane);
            colour[plane] = 155 + 100 * dml_random_uniform(&random, (uint64_t)(3 + plane));
        }
        digits_draw(seed, (uint64_t)i, ink, &label);
        record[0] = (unsigned char)label;
        for (int p = 0; p < PIXELS; p++) {
            const int plane = p / PLANE, h = p % PLANE / SIDE - 2, w = p % SIDE - 2;
            const bool inside = h >= 0 && h < DIGITS_SIDE && w >= 0 && w < DIGITS_SIDE;
            const float cover = inside ? (float)ink[h * DIGITS_SIDE + w] / 255 : 0;
            record[1 + p] = (unsigned char)(paper[plane] + (colour[plane] - paper[plane]) * cover);
        }
    }
    return set;
}

/* Files of the folder one behind the other. */
static void load_images(dataset *set, dml_context *ctx, const char *folder, bool training, complaint *c)
{
    for (int i = 0; i < (training ? FILES : 1) && !c->text[0]; i++) {
        char path[1024];
        dml_cifar file;
        if (training)
            snprintf(path, sizeof path, "%s/data_batch_%d.bin", folder, i + 1);
        else
            snprintf(path, sizeof path, "%s/test_batch.bin", folder);
        if (dml_cifar10_load(ctx, path, &file) != DML_OK) {
            complain(c, "%s", dml_error(ctx));
            return;
        }
        unsigned char *records = realloc(set->records, ((size_t)set->count + (size_t)file.count) * RECORD);
        if (!records) args_exit(1, "no memory left for %d images", set->count + file.count);
        memcpy(records + (size_t)set->count * RECORD, file.records, (size_t)file.count * RECORD);
        set->records = records;
        set->count += file.count;
        dml_cifar_free(ctx, &file);
    }
}

/* Of mean 0 and deviation 1 or about so. */
static void fill_image(float *image, int32_t *label, const unsigned char *record, dml_cifar_change change)
{
    *label = record[0];
    dml_cifar_image(record, change, 121, 63, image);
}

/* ---- training and testing ---- */

/* One cycle, for few epochs: up along a line, down along a cosine.
   Source: Smith, Topin, "Super-convergence", 2017, section 3. */
static double one_cycle(double at)
{
    return at < 0.25 ? 4 * at : 0.5 * (1 + cos(3.14159265358979 * (at - 0.25) / 0.75));
}

static float learning_rate(const options *o, uint64_t step, uint64_t steps)
{
    if (o->one_cycle) return (float)(o->lr * one_cycle((double)(step + 1) / (double)(steps + 1)));
    return (float)(o->lr * (4 * step >= 3 * steps ? 0.01 : 2 * step >= steps ? 0.1 : 1));
}

typedef struct feed {
    const dataset *set;
    float *images;
    int32_t *labels;
} feed;

static void fill_feed(void *user, int begin, int rows, const void **inputs)
{
    feed *f = user;
    for (int i = 0; i < rows; i++)
        fill_image(f->images + (size_t)i * PIXELS, &f->labels[i],
                   f->set->records + (size_t)(begin + i) * RECORD, (dml_cifar_change){ 0, 0, false });
    inputs[0] = f->images;
    inputs[1] = f->labels;
}

/* By a strategy that goes by iterations over the whole set, --steps of them; a checkpoint's steps are none.
 */
static void train_whole(const options *o, strategy *s, const dataset *set, report *r)
{
    const int rows = (o->batch - 1) / s->ranks + 1, iterations = o->steps ? o->steps : o->epochs;
    feed f = { set, allocate((size_t)rows, PIXELS * sizeof(float)), allocate((size_t)rows, sizeof(int32_t)) };
    const strategy_set all = {
        .samples = set->count, .batch = rows, .fill = fill_feed, .count = 2, .user = &f
    };
    double loss;
    int passes;
    report_begin(r, s->comm, "cifar10", 1, 1, o->log);
    strategy_check(s, s->row->whole(s, &all, iterations, &loss, &passes));
    report_step(r, 1, 1, set->count, 0, s->rank == 0 ? loss * set->count : 0);
    dml_progress_line(&r->bar, "%d passes: loss %.4f", passes, loss);
    strategy_end(s);
    if (o->save) strategy_save(s, o->save);
    free(f.images), free(f.labels);
}

/* Where a run stands is the seed and the number of steps taken and nothing else, so it goes on from a
   checkpoint as if it had never stopped. */
static void train(const options *o, strategy *s, const dataset *set, report *r)
{
    const uint64_t epoch_steps = (uint64_t)((set->count - 1) / o->batch + 1);
    const uint64_t all_steps = epoch_steps * (uint64_t)o->epochs;
    const uint64_t seed = dml_trainer_get_run(s->trainer).seed; /* by --load the checkpoint's */
    const uint64_t first = dml_trainer_steps(s->trainer) + dml_trainer_skipped(s->trainer);
    const uint64_t last = o->steps && (uint64_t)o->steps < all_steps ? (uint64_t)o->steps : all_steps;
    int *order = allocate((size_t)set->count, sizeof *order), ordered_epoch = -1;
    float *images = allocate((size_t)(o->batch / s->ranks + 1), PIXELS * sizeof *images);
    int32_t *labels = allocate((size_t)(o->batch / s->ranks + 1), sizeof *labels);
    report_begin(r, s->comm, "cifar10", first < last ? last - first : 0, o->epochs, o->log);
    for (uint64_t step = first; step < last; step++) {
        const int epoch = (int)(step / epoch_steps), begin = (int)(step % epoch_steps) * o->batch;
        const int samples = set->count - begin < o->batch ? set->count - begin : o->batch;
        if (epoch != ordered_epoch)
            dml_random_permutation(&(dml_random){ seed, SHUFFLE, (uint32_t)epoch }, order, set->count);
        ordered_epoch = epoch;
        /* This rank's part of the batch. */
        const int mine = share(samples, s->rank, s->ranks),
                  rows = share(samples, s->rank + 1, s->ranks) - mine;
        for (int i = 0; i < rows; i++) {
            const int sample = order[begin + mine + i];
            dml_cifar_change change =
                dml_cifar_random_change(seed, (uint32_t)epoch, (uint64_t)sample, MARGIN);
            change.mirrored = change.mirrored && o->data; /* a digit is another one then, or none */
            fill_image(images + (size_t)i * PIXELS, &labels[i], set->records + (size_t)sample * RECORD,
                       change);
        }
        const float lr = learning_rate(o, step, all_steps);
        float loss;
        dml_trainer_set_lr(s->trainer, lr);
        strategy_step(s, rows, DML_INPUTS(images, labels), &loss);
        report_step(r, step + 1, epoch + 1, samples, lr, (double)loss * rows);
        if (step + 1 < last && (step + 1) % epoch_steps) continue;
        if (step + 1 == last) strategy_end(s);
        report_epoch(r, epoch + 1);
        if (o->save) strategy_save(s, o->save);
        args_check_output();
    }
    if (first >= last) strategy_end(s);
    free(order), free(images), free(labels);
}

/* How many images the model tells right, and the sum of their losses, in this rank's share. */
static void test(dml_program *predict, strategy *s, const dataset *set, double sums[2])
{
    static float images[TEST_BATCH * PIXELS], score[TEST_BATCH][CLASSES];
    static int32_t labels[TEST_BATCH];
    const int end = share(set->count, s->rank + 1, s->ranks);
    for (int begin = share(set->count, s->rank, s->ranks), rows; begin < end; begin += rows) {
        rows = end - begin < TEST_BATCH ? end - begin : TEST_BATCH;
        for (int i = 0; i < rows; i++)
            fill_image(images + (size_t)i * PIXELS, &labels[i], set->records + (size_t)(begin + i) * RECORD,
                       (dml_cifar_change){ 0, 0, false });
        if (dml_program_run(predict, rows, DML_INPUTS(images), score) != DML_OK)
            args_exit(1, "%s", dml_error(s->context));
        for (int i = 0; i < rows; i++) {
            double sum = 0;
            int best = 0;
            for (int c = 1; c < CLASSES; c++)
                if (score[i][c] > score[i][best]) best = c;
            for (int c = 0; c < CLASSES; c++) sum += exp((double)score[i][c] - (double)score[i][best]);
            sums[0] += best == labels[i];
            sums[1] += log(sum) + (double)score[i][best] - (double)score[i][labels[i]];
        }
    }
    if (dml_comm_all_reduce(s->comm, sums, 2, DML_F64, DML_SUM) != DML_OK)
        args_exit(1, "%s", dml_comm_error(s->comm));
}

int main(int argc, char **argv)
{
    const options o = parse_options(argc, argv);
    strategy_check_device(&o.strategy, o.device, o.profile);
    dml_context *ctx = /* first, since a communicator over NCCL is opened on the device that is current */
        dml_open(&(dml_options){ .device = o.device,
                                 .threads = o.threads,
                                 .seed = (uint64_t)o.seed,
                                 .allow_tf32 = allows_tf32(o.dtype) });
    strategy s = strategy_open(&o.strategy, &(dml_comm_options){ .timeout_s = o.timeout });
    dataset training = { 0 }, tests = { 0 };
    complaint c = { "" };
    if (dml_status_of(ctx) != DML_OK) {
        complain(&c, "%s", dml_error(ctx));
    } else if (s.trains && !o.data) {
        training = draw_digits(o.drawn, DRAWN_SEED);
        tests = draw_digits(o.drawn / 10, DRAWN_SEED + 1);
    } else if (s.trains) {
        load_images(&training, ctx, o.data, true, &c);
        load_images(&tests, ctx, o.data, false, &c);
    }
    settle(&c, s.job);

    /* The model: a program that trains it, and one that only predicts, on the same parameters. */
    dml_graph *g = dml_graph_create(ctx);
    dml_node *image = dml_input(g, "image", DML_F32, SIDE, SIDE, 3);
    dml_node *label = dml_input(g, "label", DML_I32), *scores = resnet(image, o.depth);
    dml_optimizer sgd = dml_sgd((float)o.lr, (float)o.momentum);
    sgd.weight_decay = (float)o.weight_decay;
    dml_trainer *trainer = strategy_trainer(&s, dml_softmax_cross_entropy(scores, label),
                                            &(dml_trainer_options){ .batch = (o.batch - 1) / s.ranks + 1,
                                                                    .optimizer = sgd,
                                                                    .dtype = dtype_of(o.dtype) });
    dml_program *predict = dml_compile(scores, &(dml_program_options){ .batch = TEST_BATCH });
    if (o.load && s.rank == 0) dml_trainer_load(trainer, o.load);
    if (o.save && s.rank == 0) dml_trainer_check_save(trainer, o.save); /* now, not after an epoch's work */
    if (dml_status_of(ctx) != DML_OK) complain(&c, "%s", dml_error(ctx));
    settle(&c, s.job);
    strategy_start(&s);
    if (s.rank == 0)
        printf("resnet-%d, %zu parameters; %d images to learn from, %d to test; device %s, ranks %d, threads "
               "%d, %s, %s, %.1f MB of activations\n",
               o.depth, dml_graph_trained_count(g), training.count, tests.count, o.device, s.ranks,
               dml_pool_threads(dml_context_pool(ctx)), s.row->name, dtype_on(ctx, o.dtype),
               1e-6 * (double)dml_program_bytes(dml_trainer_program(trainer)));
    args_check_output();

    if (s.trains) {
        report r;
        double sums[2] = { 0, 0 };
        profile_begin(ctx, s.comm, o.profile);
        if (s.row->whole)
            train_whole(&o, &s, &training, &r);
        else
            train(&o, &s, &training, &r);
        profile_end(ctx, s.comm, o.profile);
        test(predict, &s, &tests, sums);
        report_end(&r, (int64_t)sums[0], tests.count);
        if (s.rank == 0) printf("test loss %.9g\n", sums[1] / tests.count);
    }
    args_check_output();
    free(training.records), free(tests.records);
    dml_close(ctx);
    strategy_close(&s);
    return 0;
}
