/* small.c: learning on a small machine: no threads, no files (-DDML_NO_THREADS -DDML_NO_STDIO), and all
   memory from one buffer whose size was measured beforehand. The labels are the exclusive or of the first two
   of four inputs. */
#include "dml.h"
#include "expect.h"

#include <pthread.h>
#include <string.h>

enum { BATCH = 4, STEPS = 600, SAMPLES = 16, BUFFER = 16 * 1024, STACK = 256 * 1024, PAINT = 0xa5 };

typedef struct attempt {
    unsigned char *memory;
    size_t bytes, needed; /* needed: what dml says of it */
    dml_status status;
    int right; /* of SAMPLES */
} attempt;

static void *learn(void *argument)
{
    attempt *a = argument;
    dml_context *ctx = dml_open(&(dml_options){ .memory = a->memory, .memory_bytes = a->bytes, .seed = 3 });
    dml_graph *g = dml_graph_create(ctx);
    dml_node *x = dml_input(g, "x", DML_F32, 4), *t = dml_input(g, "t", DML_I32);
    dml_node *y = dml_dense(dml_tanh(dml_dense(x, 8)), 2);
    dml_trainer *trainer =
        dml_trainer_create(dml_softmax_cross_entropy(y, t),
                           &(dml_trainer_options){ .batch = BATCH, .optimizer = dml_sgd(0.1f, 0.9f) });
    dml_program *predict = dml_compile(y, &(dml_program_options){ .batch = 1 });
    float in[BATCH][4], score[2];
    int label[BATCH];
    for (int i = 0; i < STEPS + SAMPLES; i++) {
        for (int k = 0; k < BATCH; k++) {
            const int bits = i < STEPS ? (i * BATCH + k) * 7 % SAMPLES : i - STEPS;
            for (int d = 0; d < 4; d++) in[k][d] = bits >> d & 1 ? 1.0f : -1.0f;
            label[k] = (bits ^ bits >> 1) & 1;
        }
        if (i < STEPS)
            dml_trainer_step(trainer, BATCH, DML_INPUTS(in, label), NULL);
        else if (dml_program_run(predict, 1, DML_INPUTS(in), score) == DML_OK)
            a->right += (score[1] > score[0]) == label[0];
    }
    a->status = dml_status_of(ctx);
    a->needed = dml_memory_needed(ctx);
    dml_close(ctx);
    return NULL;
}

/* Learns on a stack that was painted before, and returns how much of the paint is gone. */
static size_t learn_on_painted_stack(attempt *a)
{
    static unsigned char stack[STACK] __attribute__((aligned(4096)));
    pthread_attr_t attributes;
    pthread_t thread;
    memset(stack, PAINT, sizeof stack);
    EXPECT(pthread_attr_init(&attributes) == 0 &&
           pthread_attr_setstack(&attributes, stack, sizeof stack) == 0);
    EXPECT(pthread_create(&thread, &attributes, learn, a) == 0 && pthread_join(thread, NULL) == 0);
    size_t clean = 0;
    while (clean < sizeof stack && stack[clean] == PAINT) clean++;
    return sizeof stack - clean;
}

int main(void)
{
    static unsigned char buffer[BUFFER];
    attempt first = { buffer, sizeof buffer, 0, DML_OK, 0 };
    const size_t stack = learn_on_painted_stack(&first);
    printf("%zu bytes of memory, %zu of stack; %d of %d right\n", first.needed, stack, first.right, SAMPLES);
    EXPECT(first.status == DML_OK && first.right == SAMPLES);
    EXPECT(first.needed > 0 && first.needed <= sizeof buffer);
    EXPECT(stack <= 64 * 1024);

    for (int odd = 0; odd < 2; odd++) { /* wherever it begins */
        static unsigned char other[BUFFER + 1];
        attempt exact = { other + odd, first.needed, 0, DML_OK, 0 };
        learn(&exact);
        EXPECT(exact.status == DML_OK && exact.right == SAMPLES && exact.needed == first.needed);
        attempt less = { other + odd, first.needed - 64, 0, DML_OK, 0 };
        learn(&less);
        EXPECT(less.status == DML_ERROR_MEMORY);
    }
    return 0;
}
