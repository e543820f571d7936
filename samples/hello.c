/* hello: learns on which of two spirals a point lies.     cc -O2 hello.c -lm -lpthread && ./a.out */
#define DML_IMPLEMENTATION
#include "dml.h"
#include <math.h>
#include <stdio.h>

int main(void)
{
    enum { N = 512 };
    static float point[N][2], score[N][2], loss;
    static int spiral[N], right;
    for (int i = 0; i < N; i++) {
        const float radius = 0.1f + 0.9f * i / N, angle = 9 * radius + 3.14159f * (i % 2);
        point[i][0] = radius * cosf(angle), point[i][1] = radius * sinf(angle), spiral[i] = i % 2;
    }
    dml_context *ctx = dml_open(NULL); /* every core, the CPU, malloc */
    dml_graph *g = dml_graph_create(ctx);
    dml_node *x = dml_input(g, "point", DML_F32, 2), *t = dml_input(g, "spiral", DML_I32);
    dml_node *y = dml_dense(dml_relu(dml_dense(dml_relu(dml_dense(x, 64)), 64)), 2);
    dml_trainer_options how = { .batch = N, .optimizer = dml_sgd(0.1f, 0.9f) };
    dml_trainer *trainer = dml_trainer_create(dml_softmax_cross_entropy(y, t), &how);
    dml_program *predict = dml_compile(y, &(dml_program_options){ .batch = N });
    for (int i = 0; i < 500; i++) dml_trainer_step(trainer, N, DML_INPUTS(point, spiral), &loss);
    dml_program_run(predict, N, DML_INPUTS(point), score);
    if (dml_status_of(ctx) != DML_OK) return fprintf(stderr, "%s\n", dml_error(ctx)), 1;
    for (int i = 0; i < N; i++) right += (score[i][1] > score[i][0]) == spiral[i];
    printf("loss %.4f, %d of %d points are put on their spiral\n", loss, right, N);
    dml_close(ctx);
    return 0;
}
