/* hello: a network learns to tell two spirals apart, and draws what it has learned.

       cc -O2 hello.c -lm -lpthread && ./a.out          (or ./a.out --device D, or --list-devices) */
#define DML_IMPLEMENTATION
#include "dml.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { POINTS = 256, WIDTH = 64, HEIGHT = 32, CELLS = WIDTH * HEIGHT };

int main(int argc, char **argv)
{
    const bool list = argc == 2 && strcmp(argv[1], "--list-devices") == 0;
    const char *device = argc == 3 && strcmp(argv[1], "--device") == 0 ? argv[2] : "cpu";
    if (argc > 1 && !list && device != argv[2])
        return fprintf(stderr, "usage: hello [--device D | --list-devices]\n"), 2;
    dml_device_info info[16];
    for (int i = 0, n = list ? dml_devices(info, 16) : 0; i < n && i < 16; i++)
        printf("%-10s %s\n", info[i].id, info[i].name);
    if (list) return 0;

    static float point[POINTS][2], cell[CELLS][2], score[CELLS][2], loss;
    static int spiral[POINTS];
    for (int i = 0; i < POINTS; i++) {
        const float radius = 0.1f + 0.88f * i / POINTS, angle = 9 * radius + 3.14159f * (i % 2);
        point[i][0] = radius * cosf(angle), point[i][1] = radius * sinf(angle), spiral[i] = i % 2;
    }
    for (int i = 0; i < CELLS; i++)
        cell[i][0] = 2.0f * (i % WIDTH) / WIDTH - 1, cell[i][1] = 2.0f * (i / WIDTH) / HEIGHT - 1;

    dml_context *ctx = dml_open(&(dml_options){ .device = device });
    dml_graph *g = dml_graph_create(ctx);
    dml_node *x = dml_input(g, "point", DML_F32, 2); /* the batch axis is implicit */
    dml_node *t = dml_input(g, "spiral", DML_I32);
    dml_node *h = dml_relu(dml_dense(dml_relu(dml_dense(x, 64)), 64));
    dml_node *y = dml_dense(h, 2);
    dml_node *l = dml_softmax_cross_entropy(y, t);
    dml_trainer_options how = { .batch = POINTS, .optimizer = dml_sgd(0.1f, 0.9f) };
    dml_trainer *trainer = dml_trainer_create(l, &how);
    dml_program *predict = dml_compile(y, &(dml_program_options){ .batch = CELLS });

    for (int step = 1; step <= 500; step++) {
        dml_trainer_step(trainer, POINTS, (const void *[]){ point, spiral }, &loss);
        if (step % 100 == 0) printf("step %d: loss %.4f\n", step, loss);
    }
    dml_program_run(predict, CELLS, (const void *[]){ cell }, score);
    if (dml_status_of(ctx)) return fprintf(stderr, "hello: %s\n", dml_error(ctx)), 1;

    char picture[CELLS]; /* the plane as the network sees it, and the points that it learned from */
    for (int i = 0; i < CELLS; i++) picture[i] = score[i][1] > score[i][0] ? '.' : ' ';
    for (int i = 0; i < POINTS; i++) {
        const int row = (int)((point[i][1] + 1) / 2 * HEIGHT), column = (int)((point[i][0] + 1) / 2 * WIDTH);
        picture[row * WIDTH + column] = spiral[i] ? '#' : 'o';
    }
    for (int row = 0; row < HEIGHT; row++) printf("%.*s\n", WIDTH, picture + row * WIDTH);
    dml_close(ctx);
    return 0;
}
