/* resnet: learns to tell ten kinds of things apart in small colour images, by a residual network.

       resnet                              digits that it draws itself, in colours
       resnet --data DIR                   CIFAR-10's binary files (data_batch_1.bin, ..., test_batch.bin)
       resnet --depth 32 --save checkpoint

   Source: He, Zhang, Ren, Sun, "Deep residual learning for image recognition", CVPR 2016, section 4.2. */
#define DML_IMPLEMENTATION
#include "dml.h"
#include "dml_comm.h"

#include "args.h"
#include "digits.h"
#include "report.h"

enum { SIDE = 32, PLANE = SIDE * SIDE, PIXELS = 3 * PLANE, RECORD = 1 + PIXELS, CLASSES = 10 };
enum { FILE_RECORDS = 10000, FILES = 5, DRAWN_TRAIN = 10000, DRAWN_TEST = 1000, DRAWN_SEED = 1 };
enum { TEST_BATCH = 128, MARGIN = 4 };
enum { SHUFFLE = 1000, CHANGE }; /* streams of random numbers */

typedef struct options {
    const char *data, *device, *dtype, *save, *load, *log;
    int depth, epochs, steps, batch, seed, threads;
    double lr, momentum, weight_decay;
} options;

static options parse_options(int argc, char **argv)
{
    options o = { .device = "cpu",
                  .dtype = "f32",
                  .depth = 20,
                  .epochs = 164,
                  .batch = 128,
                  .lr = 0.1,
                  .momentum = 0.9,
                  .weight_decay = 1e-4 };
    const arg args[] = {
        { "--data", "DIR", "where CIFAR-10's binary files are; without it, digits are drawn",
          .text = &o.data },
        { "--depth", "D", "layers: 6 n + 2, such as 20, 32, 44 or 56", .integer = &o.depth, .low = 8,
          .high = 1202 },
        { "--device", "D", "cpu, opencl, opencl:1, cuda:0, ..., or auto: the best", .text = &o.device },
        { "--epochs", "N", "times through the training set", .integer = &o.epochs, .low = 1, .high = 1e6 },
        { "--steps", "N", "end after this many steps, if that is earlier", .integer = &o.steps, .low = 1 },
        { "--batch", "B", "samples a step", .integer = &o.batch, .low = 1, .high = 1e6 },
        { "--lr", "X",
          "learning rate; a tenth of it from half of the epochs on, a hundredth in the last quarter",
          .real = &o.lr, .low = 1e-9, .high = 1e3 },
        { "--momentum", "X", "of SGD", .real = &o.momentum, .high = 0.9999 },
        { "--weight-decay", "X", "of SGD", .real = &o.weight_decay, .high = 10 },
        { "--dtype", "f32|bf16|f16", "what activations are kept in, and the factors of products",
          .text = &o.dtype },
        { "--seed", "S", "of every random number", .integer = &o.seed },
        { "--threads", "T", "CPU threads; otherwise DML_THREADS, or one for each processor",
          .integer = &o.threads, .low = 1, .high = 4096, .environment = "DML_THREADS" },
        { "--save", "F", "write a checkpoint after every epoch and at the end", .text = &o.save },
        { "--load", "F", "go on from a checkpoint, with its optimizer's numbers and seed", .text = &o.load },
        { "--log", "F.jsonl", "write one line of JSON for every step", .text = &o.log },
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

/* ---- data: records of a label and three planes, red, green and blue ---- */

typedef struct dataset {
    int count;
    unsigned char *records; /* (count, 1 + 3 x 32 x 32) */
} dataset;

static void *allocate(size_t count, size_t size)
{
    void *memory = calloc(count, size);
    if (!memory) args_exit(1, "no memory left for %zu x %zu bytes", count, size);
    return memory;
}

static dataset draw_digits(int count, uint64_t seed)
{
    const dataset set = { count, allocate((size_t)count, RECORD) };
    for (int i = 0; i < count; i++) {
        unsigned char ink[DIGITS_PIXELS], *record = set.records + (size_t)i * RECORD;
        const dml_random random = { seed, CHANGE, (uint32_t)i };
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

static void load_file(const char *folder, const char *name, unsigned char *records)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    if (!file) args_exit(1, "can't read %s: %s", path, strerror(errno));
    const size_t read = fread(records, RECORD, FILE_RECORDS, file);
    const bool more = fgetc(file) != EOF;
    fclose(file);
    if (read != FILE_RECORDS || more)
        args_exit(1, "%s holds %s than CIFAR-10's %d records of %d bytes", path, more ? "more" : "less",
                  FILE_RECORDS, RECORD);
    for (size_t i = 0; i < read; i++)
        if (records[i * RECORD] >= CLASSES) args_exit(1, "%s: label %zu is %d", path, i, records[i * RECORD]);
}

static dataset load_images(const char *folder, int files)
{
    const dataset set = { files * FILE_RECORDS, allocate((size_t)files * FILE_RECORDS, RECORD) };
    for (int i = 0; i < files; i++) {
        char name[32] = "test_batch.bin";
        if (files > 1) snprintf(name, sizeof name, "data_batch_%d.bin", i + 1);
        load_file(folder, name, set.records + (size_t)i * FILE_RECORDS * RECORD);
    }
    return set;
}

/* How an image is changed before it is learned from: moved by up to 4 pixels, mirrored. */
typedef struct change {
    int down, right;
    bool mirrored;
} change;

static change random_change(uint64_t seed, uint32_t epoch, int image, bool mirrors)
{
    const dml_random random = { seed, CHANGE, epoch };
    const uint64_t at = 3 * (uint64_t)image;
    return (change){ (int)(dml_random_uniform(&random, at) * (2 * MARGIN + 1)) - MARGIN,
                     (int)(dml_random_uniform(&random, at + 1) * (2 * MARGIN + 1)) - MARGIN,
                     mirrors && dml_random_uniform(&random, at + 2) < 0.5f };
}

/* One record as what the network is fed: (32, 32, 3), of mean 0 and deviation 1 or about so. */
static void fill_image(float *to, int32_t *label, const unsigned char *record, change c)
{
    *label = record[0];
    for (int h = 0; h < SIDE; h++)
        for (int w = 0; w < SIDE; w++, to += 3) {
            const int from_h = h - c.down, from_w = (c.mirrored ? SIDE - 1 - w : w) - c.right;
            const bool inside = from_h >= 0 && from_h < SIDE && from_w >= 0 && from_w < SIDE;
            for (int plane = 0; plane < 3; plane++)
                to[plane] =
                    inside ? ((float)record[1 + plane * PLANE + from_h * SIDE + from_w] - 121) / 63 : 0;
        }
}

/* ---- training and testing ---- */

static float learning_rate(const options *o, uint64_t step, uint64_t steps)
{
    return (float)(o->lr * (4 * step >= 3 * steps ? 0.01 : 2 * step >= steps ? 0.1 : 1));
}

/* Where a run stands is the number of steps taken and nothing else, so it goes on from a checkpoint as if it
   had never stopped. */
static void train(const options *o, dml_trainer *trainer, const dataset *set, report *r, dml_comm *comm)
{
    const uint64_t epoch_steps = (uint64_t)((set->count - 1) / o->batch + 1);
    const uint64_t all_steps = epoch_steps * (uint64_t)o->epochs, first = dml_trainer_steps(trainer);
    const uint64_t last = o->steps && (uint64_t)o->steps < all_steps ? (uint64_t)o->steps : all_steps;
    int *order = allocate((size_t)set->count, sizeof *order), ordered_epoch = -1;
    float *images = allocate((size_t)o->batch, PIXELS * sizeof *images);
    int32_t *labels = allocate((size_t)o->batch, sizeof *labels);
    report_begin(r, comm, "resnet", first < last ? last - first : 0, o->epochs, o->log);
    for (uint64_t step = first; step < last; step++) {
        const int epoch = (int)(step / epoch_steps), begin = (int)(step % epoch_steps) * o->batch;
        const int rows = set->count - begin < o->batch ? set->count - begin : o->batch;
        if (epoch != ordered_epoch)
            dml_random_permutation(&(dml_random){ (uint64_t)o->seed, SHUFFLE, (uint32_t)epoch }, order,
                                   set->count);
        ordered_epoch = epoch;
        for (int i = 0; i < rows; i++)
            fill_image(images + (size_t)i * PIXELS, &labels[i],
                       set->records + (size_t)order[begin + i] * RECORD,
                       random_change((uint64_t)o->seed, (uint32_t)epoch, begin + i, o->data != NULL));
        const float lr = learning_rate(o, step, all_steps);
        float loss;
        dml_trainer_set_lr(trainer, lr);
        if (dml_trainer_step(trainer, rows, DML_INPUTS(images, labels), &loss) != DML_OK)
            args_exit(1, "%s", dml_error(dml_trainer_context(trainer)));
        report_step(r, step + 1, epoch + 1, rows, lr, (double)loss * rows);
        if (step + 1 < last && (step + 1) % epoch_steps) continue;
        report_epoch(r, epoch + 1);
        if (o->save && dml_trainer_save(trainer, o->save) != DML_OK)
            args_exit(1, "%s", dml_error(dml_trainer_context(trainer)));
        args_check_output();
    }
    free(order), free(images), free(labels);
}

/* How many images the model tells right, and their mean loss. */
static int64_t test(dml_program *predict, dml_context *ctx, const dataset *set, double *mean_loss)
{
    static float images[TEST_BATCH * PIXELS], score[TEST_BATCH][CLASSES];
    static int32_t labels[TEST_BATCH];
    int64_t correct = 0;
    double loss = 0;
    for (int begin = 0, rows; begin < set->count; begin += rows) {
        rows = set->count - begin < TEST_BATCH ? set->count - begin : TEST_BATCH;
        for (int i = 0; i < rows; i++)
            fill_image(images + (size_t)i * PIXELS, &labels[i], set->records + (size_t)(begin + i) * RECORD,
                       (change){ 0, 0, false });
        if (dml_program_run(predict, rows, DML_INPUTS(images), score) != DML_OK)
            args_exit(1, "%s", dml_error(ctx));
        for (int i = 0; i < rows; i++) {
            double sum = 0;
            int best = 0;
            for (int c = 1; c < CLASSES; c++)
                if (score[i][c] > score[i][best]) best = c;
            for (int c = 0; c < CLASSES; c++) sum += exp((double)score[i][c] - (double)score[i][best]);
            loss += log(sum) + (double)score[i][best] - (double)score[i][labels[i]];
            correct += best == labels[i];
        }
    }
    *mean_loss = loss / set->count;
    return correct;
}

int main(int argc, char **argv)
{
    const options o = parse_options(argc, argv);
    dml_comm *comm = dml_comm_open(&(dml_comm_options){ .world_size = 1 }); /* the report wants one */
    dml_context *ctx =
        dml_open(&(dml_options){ .device = o.device, .threads = o.threads, .seed = (uint64_t)o.seed });
    if (!comm || dml_status_of(ctx) != DML_OK) args_exit(1, "%s", comm ? dml_error(ctx) : "no memory left");
    dataset training = o.data ? load_images(o.data, FILES) : draw_digits(DRAWN_TRAIN, DRAWN_SEED);
    dataset tests = o.data ? load_images(o.data, 1) : draw_digits(DRAWN_TEST, DRAWN_SEED + 1);

    /* The model: a program that trains it, and one that only predicts, on the same parameters. */
    dml_graph *g = dml_graph_create(ctx);
    dml_node *image = dml_input(g, "image", DML_F32, SIDE, SIDE, 3);
    dml_node *label = dml_input(g, "label", DML_I32), *scores = resnet(image, o.depth);
    dml_optimizer sgd = dml_sgd((float)o.lr, (float)o.momentum);
    sgd.weight_decay = (float)o.weight_decay;
    dml_trainer *trainer = dml_trainer_create(
        dml_softmax_cross_entropy(scores, label),
        &(dml_trainer_options){ .batch = o.batch, .optimizer = sgd, .dtype = dtype_of(o.dtype) });
    dml_program *predict = dml_compile(scores, &(dml_program_options){ .batch = TEST_BATCH });
    if (o.load) dml_trainer_load(trainer, o.load);
    if (o.save) dml_trainer_check_save(trainer, o.save); /* now, not after an epoch's work */
    if (dml_status_of(ctx) != DML_OK) args_exit(1, "%s", dml_error(ctx));
    printf("resnet-%d, %zu parameters; %d images to learn from, %d to test; device %s, threads %d, %s, %.1f "
           "MB of activations\n",
           o.depth, dml_graph_trained_count(g), training.count, tests.count, o.device,
           dml_pool_threads(dml_context_pool(ctx)), o.dtype,
           1e-6 * (double)dml_program_bytes(dml_trainer_program(trainer)));
    args_check_output();

    report r;
    double loss;
    train(&o, trainer, &training, &r, comm);
    const int64_t correct = test(predict, ctx, &tests, &loss);
    report_end(&r, correct, tests.count);
    printf("test loss %.9g\n", loss);
    args_check_output();
    free(training.records), free(tests.records);
    dml_close(ctx);
    dml_comm_close(comm);
    return 0;
}
